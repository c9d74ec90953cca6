"""The choice of the defaults: what else was tried, on validation rows. `python -m benchmarks.tables choose`

Every candidate differs from the defaults in one respect. Training rows and validation rows are both cut from the
training rows of a seed from 0 to 4; test rows are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.tables.training import Settings
from efvfl.config.table_defaults import OPTIMIZER
from efvfl.data.tables.bins import MOST_BINS

SEEDS = range(3)
PROBLEMS = ("credit", "breast", "digits")


def by_row(levels: int) -> dict[str, Any]:
    """Return rounding to so many levels on either side of zero, scaled by row."""
    return {"name": "uniform", "levels": levels, "scale": "row"}


TOP_K: Mapping[str, Any] = {"name": "topk", "ratio": 0.1}
QSGD: Mapping[str, Any] = {"name": "qsgd", "bits": 4}


@dataclass(frozen=True)
class Candidate:
    """Settings of a run file that differ from the defaults in one respect."""

    topic: str
    name: str
    settings: Settings = field(default_factory=dict)
    bins: int = MOST_BINS


def _method(name: str, up: Mapping[str, Any], down: Mapping[str, Any]) -> Candidate:
    return Candidate("compressors", name, {"method": {"name": "efvfl", "compressor": dict(up), "down": dict(down)}})


def _adamw(rate: float) -> dict[str, Any]:
    return {"optimizer": {**OPTIMIZER, "lr": rate}}


CANDIDATES: tuple[Candidate, ...] = (
    Candidate("", "the defaults"),
    Candidate("numbers", "no bins", bins=0),
    Candidate("numbers", "16 bins", bins=16),
    Candidate("network", "linear head on the mean", {"fusion": {"combine": "mean", "hidden": []}}),
    Candidate("network", "sigmoid after the representation", {"model": {"last": "sigmoid"}}),
    Candidate("optimiser", "SGD, rate 1.0, as for arrays", {"optimizer": {"name": "SGD", "lr": 1.0}}),
    Candidate("optimiser", "Adam, rate 0.01", {"optimizer": {"name": "Adam", "lr": 0.01}}),
    Candidate("optimiser", "rate 0.004, batches of 256", {**_adamw(0.004), "batch_size": 256}),
    Candidate("compressors", "nothing compressed (SVFL)", {"method": {"name": "svfl"}}),
    _method("ternary by row up, 7 levels down", by_row(1), by_row(7)),
    _method("top-k 10 % up", TOP_K, {}),
    _method("top-k 10 % both ways", TOP_K, TOP_K),
    _method("qsgd 4 bit both ways", QSGD, QSGD),
)
