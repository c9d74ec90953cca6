"""How compression trades against epochs: the loss on validation rows by epoch and by bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.tables.choose import by_row
from benchmarks.tables.problems import Problem
from benchmarks.tables.training import encoded, run_config
from efvfl.runs.build import make_federation

PROBLEM = "credit"
SEEDS = range(1)
EPOCHS = 20
TOP_K: Mapping[str, Any] = {"name": "topk", "ratio": 0.1}
QSGD: Mapping[str, Any] = {"name": "qsgd", "bits": 4}

METHODS: Mapping[str, Mapping[str, Any]] = {
    "SVFL": {"name": "svfl"},
    "EF-VFL, default": {},
    "EF-VFL, ternary up, 7 levels down": {"compressor": by_row(1), "down": by_row(7)},
    "EF-VFL, qsgd 4 bit both ways": {"compressor": QSGD, "down": QSGD},
    "EF-VFL, top-k 10 % up": {"compressor": TOP_K, "down": {}},
    "EF-VFL, top-k 10 % both ways": {"compressor": TOP_K, "down": TOP_K},
}


def follow(problem: Problem, method: Mapping[str, Any], seed: int) -> dict[str, list[float]]:
    """Return the validation loss after every epoch, and the bytes up and down that an epoch takes."""
    run = run_config(problem, seed, {"method": method, "patience": 0, "evaluation": "exact"})
    federation = make_federation(run, encoded(problem, problem.choice(seed), run)[0])
    records = list(federation.train(EPOCHS, 1, gradient=False))
    last = records[-1]
    return {
        "loss": [round(record.validation["loss"], 5) for record in records],
        "bytes": [round(last.bytes_up / EPOCHS), round(last.bytes_down / EPOCHS)],
    }
