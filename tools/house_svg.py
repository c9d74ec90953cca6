"""The picture of the packages: boxes in rows, arrows to what is imported, drawn without a library."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

Graph = Mapping[str, set[str]]
Point = tuple[float, float]

WIDTH, COLUMN, MARGIN, GUTTER = 960, 430, 20, 60  # the page; a column; around both; between them, for arrows
INSET = 26  # of the right column's boxes in their frame, where arrows pass as well
GAP, LINE, PAD = 30, 17, 9  # between rows; a line of text; above and below the text of a box
LANE = 7  # between arrows that run side by side
HIGHLIGHT = "core"
STYLE = """
  text { font-family: 'DejaVu Sans', Verdana, sans-serif; fill: #1d2733 }
  .name { font-size: 14px; font-weight: bold }
  .what { font-size: 12px }
  .note { font-size: 12px; fill: #56616e }
  .box { fill: #eef3f9; stroke: #7d93ad; stroke-width: 1.2 }
  .paper { fill: #fdf0d5; stroke: #c08a2b; stroke-width: 1.6 }
  .frame { fill: #f8faf5; stroke: #9aa88a; stroke-dasharray: 5 4 }
  .arrow { fill: none; stroke: #56616e; stroke-width: 1.3; marker-end: url(#head) }
"""


@dataclass
class Box:
    """A package on the page."""

    name: str
    level: int
    lines: list[str]
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0
    edges: set[str] = field(default_factory=set)  # the sides at which nothing stands between it and the gutter

    @property
    def bottom(self) -> float:
        """The y of its lower edge."""
        return self.y + self.height

    @property
    def right(self) -> float:
        """The x of its right edge."""
        return self.x + self.width

    @property
    def middle(self) -> float:
        """The x of its middle."""
        return self.x + self.width / 2


def reduced(graph: Graph) -> Graph:
    """Return the graph without the arrows that a way over other packages implies."""

    def reach(name: str) -> set[str]:
        return graph[name].union(*(reach(below) for below in graph[name]))

    return {name: {b for b in below if not any(b in reach(c) for c in below)} for name, below in graph.items()}


def levels(graph: Graph) -> dict[str, int]:
    """Return each package's row, counted from the ground: one above the highest that it imports."""
    found: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in found:
            found[name] = 1 + max(map(level, graph[name]), default=-1)
        return found[name]

    for name in graph:
        level(name)
    return found


def place(graph: Graph, what: Mapping[str, str]) -> tuple[dict[str, Box], float]:
    """Return the boxes of all packages, and where the lowest of them ends."""
    level = levels(graph)
    top = max(level.values())
    rows: dict[int, list[list[Box]]] = {height: [[], []] for height in range(top, -1, -1)}
    for name in reversed(list(graph)):  # of two in a row, the higher layer stands on the left
        rows[level[name]]["." in name].append(Box(name, level[name], []))
    y = float(MARGIN + 2 * LINE)
    for height, columns in rows.items():
        for right, boxes in enumerate(columns):
            left = MARGIN + (COLUMN + GUTTER + INSET if right else 0)
            whole = COLUMN - 2 * INSET if right else COLUMN
            if height in (0, top) and not columns[1]:
                whole = WIDTH - 2 * MARGIN
            width = (whole - 12 * (len(boxes) - 1)) / max(1, len(boxes))
            for index, box in enumerate(boxes):
                box.x, box.y, box.width = left + index * (width + 12), y, width
                box.lines = textwrap.wrap(what[box.name], int((width - 2 * PAD) / 6.9))
                box.edges = {side for side, end in (("left", 0), ("right", len(boxes) - 1)) if index == end}
        here = [box for boxes in columns for box in boxes]
        tall = max(2 * PAD + LINE * (1 + len(box.lines)) for box in here)
        for box in here:
            box.height = tall
        y += tall + GAP
    return {box.name: box for columns in rows.values() for boxes in columns for box in boxes}, y - GAP


def straight(source: Box, target: Box, boxes: Mapping[str, Box]) -> list[Point] | None:
    """Return a vertical arrow, if the boxes overlap and nothing stands between them."""
    low, high = max(source.x, target.x), min(source.right, target.right)
    x = (low + high) / 2
    between = [b for b in boxes.values() if target.level < b.level < source.level and b.x <= x <= b.right]
    return [(x, source.bottom), (x, target.y)] if low < high and not between else None


def around(source: Box, target: Box, lane: int) -> list[Point]:
    """Return an arrow through the gutter: beside the right column, or between the two."""
    across = "." not in target.name
    gutter = WIDTH - MARGIN - 8 - lane * LANE if not across else MARGIN + COLUMN + GUTTER - 10 - lane * LANE
    shift, beside = lane * LANE - 10, 24 + lane * LANE  # off the middle, where straight arrows are
    ways: list[Point] = []
    if ("left" if across else "right") in source.edges:
        y = source.y + source.height / 2 + shift
        ways += [(source.x if across else source.right, y), (gutter, y)]
    else:
        y = source.bottom + 8 + lane * LANE
        ways += [(source.middle + beside, source.bottom), (source.middle + beside, y), (gutter, y)]
    if "right" in target.edges:
        y = target.y + target.height / 2 + shift
        return [*ways, (gutter, y), (target.right, y)]
    y = target.y - GAP + 8 + lane * LANE
    return [*ways, (gutter, y), (target.middle + beside, y), (target.middle + beside, target.y)]


def arrows(graph: Graph, boxes: Mapping[str, Box]) -> list[list[Point]]:
    """Return the ways of all arrows."""
    ways = []
    lanes = {True: 0, False: 0}
    for name, below in graph.items():
        for other in sorted(below, key=list(graph).index):
            way = straight(boxes[name], boxes[other], boxes)
            if way is None:
                across = "." not in other
                way = around(boxes[name], boxes[other], lanes[across])
                lanes[across] += 1
            ways.append(way)
    return ways


def draw(graph: Graph, what: Mapping[str, str]) -> str:
    """Return the picture as SVG, given for each package what it imports and a line that says what it is."""
    graph = reduced(graph)
    boxes, end = place(graph, what)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {end + MARGIN:.0f}" width="{WIDTH}">']
    out += ["<title>The packages of efvfl and what they import</title>", f"<style>{STYLE}</style>"]
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    out += [f'<defs>{head}<path d="M0 0 L8 4 L0 8 z" fill="#56616e"/></marker></defs>']
    out += ['<rect width="100%" height="100%" fill="white"/>']
    note = "An arrow: imports. Arrows that others imply are left out."
    out += [f'<text class="note" x="{MARGIN}" y="{MARGIN + 8}">{note}</text>']
    inner = [box for name, box in boxes.items() if "." in name]
    if inner:
        x, y = MARGIN + COLUMN + GUTTER, min(box.y for box in inner) - GAP + 5
        tall = max(box.bottom for box in inner) + GAP / 3 - y
        out += [f'<rect class="frame" x="{x}" y="{y:.0f}" width="{COLUMN}" height="{tall:.0f}" rx="6"/>']
        out += [f'<text class="name" x="{x + 8}" y="{y + LINE:.0f}">network</text>']
    for way in arrows(graph, boxes):
        points = " ".join(f"{x:.0f},{y:.0f}" for x, y in way)
        out += [f'<polyline class="arrow" points="{points}"/>']
    for name, box in boxes.items():
        kind = "box paper" if name == HIGHLIGHT else "box"
        size = f'width="{box.width:.0f}" height="{box.height:.0f}" rx="6"'
        out += [f'<rect class="{kind}" x="{box.x:.0f}" y="{box.y:.0f}" {size}/>']
        for index, text in enumerate([name.rpartition(".")[2], *box.lines]):
            style, y = "what" if index else "name", box.y + PAD + 12 + index * LINE
            out += [f'<text class="{style}" x="{box.x + PAD:.0f}" y="{y:.0f}">{escape(text)}</text>']
    return "\n".join([*out, "</svg>", ""])
