"""The results of benchmarks: lines with their targets, by topic, as JSON and as Markdown tables."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.timing import Timing

NOISY = 0.4  # from this spread on, a number is too noisy to compare with its target
HEADINGS = ["work", "measured", "target", "", "spread", "notes"]


@dataclass(frozen=True)
class Line:
    """One measured number, or the reason why there is none."""

    name: str  # its key in notes.toml
    what: str
    value: float | None = None
    unit: str = "x"  # x: a ratio
    target: float | None = None
    floor: bool = False  # whether the target is a minimum instead of a maximum
    spread: float | None = None  # interquartile range over the median
    note: str = ""
    error: str = ""

    @property
    def missed_by(self) -> float | None:
        """The share by which the target is missed, 0 if it is met; None without a target or a number."""
        if self.target is None or self.value is None:
            return None
        return max(0.0, 1 - self.value / self.target if self.floor else self.value / self.target - 1)

    @property
    def noisy(self) -> bool:
        """Whether the rounds differ too much for a comparison with the target."""
        return self.spread is not None and self.spread > NOISY

    @property
    def missed(self) -> bool:
        """Whether the target is missed beyond doubt."""
        return bool(self.missed_by) and not self.noisy

    @property
    def verdict(self) -> str:
        """The verdict about the target."""
        if self.error:
            return "failed"
        if self.missed_by is None:
            return ""
        if self.noisy:
            return "too noisy to tell"
        return f"missed by {percent(max(0.01, self.missed_by))}" if self.missed_by else "met"

    def cells(self) -> list[str]:
        """Return the line as a row of the table."""
        unit = "" if self.unit == "x" else f" {self.unit}"
        value = "" if self.value is None else f"{_digits(self.value)}{unit}"
        sign = "≥" if self.floor else "≤"
        target = "" if self.target is None else f"{sign} {self.target:g}{unit}"
        spread = "" if self.spread is None else percent(self.spread)
        return [self.what, value, target, self.verdict, spread, self.error or self.note]


def _digits(value: float) -> str:
    """Return a number with three significant digits, or all digits before the decimal point if there are more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.0f} %"


def slug(text: str) -> str:
    """Return a text in a form that fits into a line's name."""
    return "-".join(re.findall(r"[a-z0-9.]+", text.lower()))


def ratio(name: str, what: str, over: Timing, under: Timing, target: float | None = None, note: str = "") -> Line:
    """Return the ratio of the times of two alternating measurements."""
    found = over.over(under)
    times = f"{_digits(over.middle)} / {_digits(under.middle)} ms"
    return Line(
        name, what, found.middle, target=target, spread=found.spread, note=", ".join(filter(None, [times, note]))
    )


@dataclass(frozen=True)
class Section:
    """The lines of one topic, and the circumstances of the measurement."""

    topic: str
    title: str
    full: bool  # measured in the long run
    seconds: float  # duration
    load: float  # load average of the minute before
    lines: list[Line]


@dataclass(frozen=True)
class Report:
    """A run of the suite."""

    machine: dict[str, str]
    sections: list[Section] = field(default_factory=list)

    @property
    def lines(self) -> list[Line]:
        """All lines."""
        return [line for section in self.sections for line in section.lines]

    def replaced(self, new: Section, order: Sequence[str]) -> Report:
        """Return the report with one section replaced, in the given order of topics; other topics are dropped."""
        sections = {section.topic: section for section in [*self.sections, new]}
        return Report(self.machine, [sections[topic] for topic in order if topic in sections])

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Return the report that `to_json` wrote."""
        table = json.loads(text)
        sections = [Section(**{**s, "lines": [Line(**line) for line in s["lines"]]}) for s in table["sections"]]
        return cls(table["machine"], sections)

    def to_markdown(self) -> str:
        """Return a table per topic, after a line about the machine."""
        parts = [facts(self.machine)]
        for section in self.sections:
            parts += [f"### {section.title}", table(section.lines), circumstances(section)]
        return "\n\n".join(parts) + "\n"


def table(lines: list[Line]) -> str:
    """Return lines as a Markdown table."""
    from efvfl.experiments.tables import as_markdown

    return as_markdown(HEADINGS, [line.cells() for line in lines])


def facts(machine: dict[str, str]) -> str:
    """Return the facts about the machine as one line."""
    return "; ".join(f"{name}: {value}" for name, value in machine.items())


def circumstances(section: Section) -> str:
    """Return the circumstances of a topic as one line."""
    length = "long run" if section.full else "short run"
    return (
        f"(`python -m benchmarks {section.topic}`, {length}, {section.seconds:.0f} s, load {section.load:.1f} before)"
    )


def machine_facts() -> dict[str, str]:
    """Return the facts that timings depend on."""
    import numba
    import numpy
    import torch

    import efvfl

    return {
        "processor": _processor(),
        "cores": str(os.cpu_count() or 1),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "numba": numba.__version__,
        "efvfl": efvfl.__version__,
    }


def _processor() -> str:
    """Return the processor's name from /proc/cpuinfo, or its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
