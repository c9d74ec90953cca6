"""What benchmarks/fewer_rounds.py trains on: the paper's MNIST network, and a table of two organisations."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split

from benchmarks.tables.problems import credit
from efvfl.config import run_file
from efvfl.config.run_file import RunConfig
from efvfl.data.base import cut_rows
from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.runs import metrics
from efvfl.training import measure
from efvfl.training.federation import Federation
from efvfl.training.measure import Split

SCRATCH = Path(__file__).parent.parent / ".bench"
HELD_OUT = 0.2  # of the credit rows, for validation and for testing


@dataclass(frozen=True)
class Problem:
    """Rows, a network and a target."""

    name: str
    metric: str
    target: float
    rates: tuple[float, ...]  # of the optimiser, that each setting is tried with
    rounds: int  # of a whole run
    every: int  # rounds between two looks at the validation rows
    table: Callable[[int, float], dict[str, Any]]  # of the run file, by seed and rate

    def config(self, method: Mapping[str, Any], agreement: Mapping[str, Any], rate: float, seed: int) -> RunConfig:
        """Return the run file of a setting."""
        table = self.table(seed, rate) | {
            "seed": seed,
            "epochs": 10**4,
            "observe_every": 10**6,
            "method": dict(method),
            "agreement": {"labels": "private", **agreement},
        }
        return run_file.read(RunConfig, table, self.name)

    def score(self, federation: Federation, rows: Split | None) -> float:
        """Return the metric of these rows."""
        assert rows is not None, "both problems have them"
        output = measure.predict(federation.models, federation.fusion, rows.features)
        if self.metric == "accuracy":
            return float((output.argmax(dim=1) == rows.labels).double().mean())
        shares = torch.sigmoid(output.double()).squeeze(1).numpy()
        return float(metrics.binary(rows.labels.numpy(), shares)["auc"])


def _mnist(seed: int, rate: float) -> dict[str, Any]:
    """Four parties with a quadrant each, width 16, batch 1,024."""
    return {"batch_size": 1024, "data": {"name": "mnist"}, "optimizer": {"name": "SGD", "lr": rate}}


def _credit(seed: int, rate: float) -> dict[str, Any]:
    """A bank with the labels and 13 columns, and another one with 10; batch 256, width 32."""
    return {
        "batch_size": 256,
        "loss": "binary_cross_entropy",
        "label_holder": "guest",
        "data": {"name": "npz", "path": str(_credit_file(seed)), "validation": HELD_OUT, "test": HELD_OUT},
        "model": {"hidden": [64], "width": 32, "last": "tanh"},
        "fusion": {"combine": "concat", "hidden": [32]},
        "optimizer": {"name": "Adam", "lr": rate},
    }


def _credit_file(seed: int) -> Path:
    """Return a file of the encoded table whose splits, cut by this seed, have the same share of defaults each."""
    path = SCRATCH / f"credit-{seed}.npz"
    if path.exists():
        return path
    problem = credit(most=None)
    rows = np.arange(len(problem.classes))
    train, rest = train_test_split(rows, test_size=2 * HELD_OUT, random_state=seed, stratify=problem.classes)
    halves = train_test_split(rest, test_size=0.5, random_state=seed, stratify=problem.classes[rest])
    order = np.empty_like(rows)
    places = cut_rows(len(rows), (HELD_OUT, HELD_OUT), seed)
    for name, chosen in zip(("train", "validation", "test"), (train, *halves), strict=True):
        order[places[name].numpy()] = chosen
    columns = {}
    for party, names in problem.columns.items():
        table = problem.frame.select(names)
        columns[party] = Encoder.fit(table[train], TableSettings()).transform(table)[order]
    path.parent.mkdir(exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.npz")  # two processes may be at it
    np.savez(scratch, y=problem.classes[order], **columns)
    scratch.replace(path)
    return path


PROBLEMS = (
    Problem("MNIST", "accuracy", 0.9, (2.0, 4.0), 200, 5, _mnist),
    Problem("credit", "auc", 0.775, (0.001, 0.003, 0.01), 400, 10, _credit),
)
