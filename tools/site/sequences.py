"""Sequence diagrams as SVG, drawn when the site is built: browsers need no script for them, and load nothing.

The source is what code hosts draw by themselves: `participant A as name`, `A->>B: text`, `Note over A,B: text`,
`loop text` and `end`.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any
from xml.sax.saxutils import escape

LANE, ROW, LINE, PAD = 250, 30, 15, 8  # between participants; of an arrow; of a line of text; around text
LETTER = 6.3  # the width of one, about


class Drawing:
    """A diagram, from its top to its end."""

    def __init__(self, source: str) -> None:
        """Draw it."""
        self.y = 44.0
        self.parts: list[str] = []
        self.back: list[str] = []
        self.loops: list[tuple[float, str]] = []
        lines = [line.strip() for line in source.splitlines() if line.strip()]
        if lines[0] != "sequenceDiagram":
            raise ValueError(f"expected a sequenceDiagram, got {lines[0]!r}.")
        named = [match for line in lines if (match := re.fullmatch(r"participant (\w+) as (.+)", line))]
        self.x = {match[1]: LANE / 2 + LANE * n for n, match in enumerate(named)}
        self.names = [match[2] for match in named]
        for line in lines[1:]:
            self._take(line)

    def _take(self, line: str) -> None:
        if match := re.fullmatch(r"(\w+)->>(\w+): (.+)", line):
            self._arrow(self.x[match[1]], self.x[match[2]], match[3])
        elif match := re.fullmatch(r"Note over ([\w,]+): (.+)", line):
            self._note([self.x[name] for name in match[1].split(",")], match[2])
        elif line.startswith("loop "):
            self.loops.append((self.y, line.removeprefix("loop ")))
            self.y += ROW
        elif line == "end":
            self._loop(*self.loops.pop())
        elif not line.startswith("participant "):
            raise ValueError(f"no such line is known in a sequence diagram: {line!r}.")

    def _text(self, x: float, y: float, text: str, anchor: str = "middle") -> None:
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def _arrow(self, start: float, end: float, text: str) -> None:
        self._text((start + end) / 2, self.y + LINE, text)
        self.y += ROW - 6
        way = 1 if end > start else -1
        self.parts.append(f'<path class="arrow" d="M{start:g} {self.y:g}H{end - way:g}"/>')
        tip = f"M{end:g} {self.y:g}l{-8 * way} -4v8z"
        self.parts.append(f'<path class="tip" d="{tip}"/>')
        self.y += 6

    def _note(self, over: list[float], text: str) -> None:
        wide = max(over) - min(over) + LANE - 2 * PAD
        lines = textwrap.wrap(text, int((wide - 2 * PAD) / LETTER))
        middle, high = (min(over) + max(over)) / 2, LINE * len(lines) + PAD
        self.y += PAD
        self.parts.append(
            f'<rect class="note" x="{middle - wide / 2:g}" y="{self.y:g}" width="{wide:g}" height="{high:g}" rx="3"/>'
        )
        for n, line in enumerate(lines):
            self._text(middle, self.y + LINE * (n + 1) - 1, line)
        self.y += high + PAD / 2

    def _loop(self, top: float, text: str) -> None:
        self.y += PAD
        size = f'width="{self.width - 4:g}" height="{self.y - top - 4:g}"'
        self.back.append(f'<rect class="loop" x="2" y="{top + 4:g}" {size} rx="4"/>')
        self._text(PAD + 4, top + LINE + 6, f"loop {text}", "start")
        self.y += PAD

    @property
    def width(self) -> float:
        """How wide it is."""
        return LANE * len(self.x)

    def svg(self) -> str:
        """Return the picture."""
        height = self.y + 12
        for x, name in zip(self.x.values(), self.names, strict=True):
            self.back.append(f'<path class="life" d="M{x:g} 36V{height - 4:g}"/>')
            self.back.append(f'<rect class="who" x="{x - 60:g}" y="8" width="120" height="28" rx="4"/>')
            self._text(x, 27, name)
        size = f'viewBox="0 0 {self.width:g} {height:g}" width="{self.width:g}" height="{height:g}"'
        return f'<svg class="sequence" role="img" {size}>{"".join(self.back + self.parts)}</svg>'


def fence(source: str, language: str, class_name: str, options: Any, md: Any, **kwargs: Any) -> str:
    """Return what stands on the page in place of a fenced block; pymdownx.superfences calls it."""
    return f'<div class="wide">{Drawing(source).svg()}</div>'
