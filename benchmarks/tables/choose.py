"""The choice of the defaults: what else was tried, on validation rows. `python -m benchmarks.tables choose`

Every candidate differs from the defaults in one respect. Training rows and validation rows are both cut from the
training rows of a seed from 0 to 2; test rows are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.tables.training import Settings
from efvfl.data.tables.bins import MOST_BINS

SEEDS = range(3)
PROBLEMS = ("credit", "mfeat", "breast", "digits", "flights", "letter")


def by_row(levels: int) -> dict[str, Any]:
    """Return rounding to so many levels on either side of zero, scaled by row."""
    return {"name": "uniform", "levels": levels, "scale": "row"}


@dataclass(frozen=True)
class Candidate:
    """Settings of a run file that differ from the defaults in one respect."""

    topic: str
    name: str
    settings: Settings = field(default_factory=dict)
    bins: int = MOST_BINS


def _method(name: str, up: Mapping[str, Any], down: Mapping[str, Any]) -> Candidate:
    return Candidate("compressors", name, {"method": {"name": "efvfl", "compressor": dict(up), "down": dict(down)}})


SLOW_LINES: Settings = {  # what is recommended for slow lines
    "method": {"name": "efvfl", "compressor": by_row(1), "down": by_row(31)},
    "agreement": {"pipeline": 2, "cached": {"steps": 9}},
}

CANDIDATES: tuple[Candidate, ...] = (
    Candidate("", "the defaults"),
    _method("ternary by row up, 31 levels down", by_row(1), by_row(31)),
    Candidate("compressors", "the same, window of 2, 9 cached steps", SLOW_LINES),
    Candidate("network", "no linear path", {"model": {"skip": False}, "fusion": {"skip": False}}),
    Candidate("numbers", "8 bins", bins=8),
)
