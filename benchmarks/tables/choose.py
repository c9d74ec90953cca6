"""The choice of the defaults: what else was tried, on validation rows. `python -m benchmarks.tables choose`

Every candidate differs from the defaults in one respect. Training rows and validation rows are both cut from the
training rows of a seed from 0 to 2; test rows are not looked at. What is about the network is trained in one place,
because that takes a quarter of the time; what is about compressors is trained as a federation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.tables.training import Settings
from efvfl.config.table_defaults import OPTIMIZER
from efvfl.data.tables.bins import MOST_BINS

SEEDS = range(3)
PROBLEMS = ("credit", "mfeat", "breast", "digits", "flights", "letter")
COMPRESSORS = "compressors, as a federation"  # the topic of candidates that are trained as one


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

    @property
    def is_default(self) -> bool:
        """Whether it is what others of its kind are compared with."""
        return not self.settings and self.bins == MOST_BINS


def _method(name: str, up: Mapping[str, Any], down: Mapping[str, Any]) -> Candidate:
    return Candidate(COMPRESSORS, name, {"method": {"name": "efvfl", "compressor": dict(up), "down": dict(down)}})


def _optimizer(topic: str, name: str, **options: Any) -> Candidate:
    return Candidate(topic, name, {"optimizer": {**OPTIMIZER, **options}})


SLOW_LINES: Settings = {  # what is recommended for slow lines
    "method": {"name": "efvfl", "compressor": by_row(1), "down": by_row(31)},
    "agreement": {"pipeline": 2, "cached": {"steps": 9}},
}

CANDIDATES: tuple[Candidate, ...] = (
    Candidate("network, in one place", "the defaults"),
    Candidate("optimiser", "SGD, rate 0.1, momentum 0.9", {"optimizer": {"name": "SGD", "lr": 0.1, "momentum": 0.9}}),
    _optimizer("optimiser", "AdamW without weight decay", weight_decay=0.0),
    _optimizer("optimiser", "weight decay 0.5", weight_decay=0.5),
    _optimizer("rate", "rate 0.0005", lr=0.0005),
    _optimizer("rate", "rate 0.002", lr=0.002),
    _optimizer("rate", "rate 0.005", lr=0.005),
    _optimizer("schedule", "5 % lower every epoch", scheduler={"name": "ExponentialLR", "gamma": 0.95}),
    _optimizer(
        "schedule", "ReduceLROnPlateau to 0.3", scheduler={"name": "ReduceLROnPlateau", "factor": 0.3, "patience": 1}
    ),
    Candidate("batch", "32 rows", {"batch_size": 32}),
    Candidate("batch", "128 rows", {"batch_size": 128}),
    Candidate("stopping", "patience 20", {"patience": 20}),
    Candidate("stopping", "40 epochs at most", {"epochs": 40, "observe_every": 2, "patience": 10}),
    Candidate("stopping", "a fifth of the rows decides", {"data": {"name": "table", "validation": 0.2}}),
    Candidate("width", "8", {"model": {"width": 8}}),
    Candidate("width", "32", {"model": {"width": 32}}),
    Candidate("hidden layers", "32 units each", {"model": {"hidden": [32]}, "fusion": {"hidden": [32]}}),
    Candidate("hidden layers", "128 units each", {"model": {"hidden": [128]}, "fusion": {"hidden": [128]}}),
    Candidate("hidden layers", "two layers at parties", {"model": {"hidden": [64, 64]}}),
    Candidate("hidden layers", "no linear path", {"model": {"skip": False}, "fusion": {"skip": False}}),
    Candidate("numbers", "standardised alone, no bins", bins=0),
    Candidate("numbers", "8 bins", bins=8),
    Candidate("numbers", "32 bins", bins=32),
    Candidate(COMPRESSORS, "7 levels up, 31 down (the default)"),
    Candidate(COMPRESSORS, "nothing compressed (SVFL)", {"method": {"name": "svfl"}}),
    _method("7 levels both ways", by_row(7), by_row(7)),
    _method("ternary up, 31 levels down", by_row(1), by_row(31)),
    Candidate(COMPRESSORS, "the same, window of 2, 9 cached steps", SLOW_LINES),
)
