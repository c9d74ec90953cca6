"""What labels that are randomised once cost: credit and MNIST at several epsilons, with and without correction.

`python -m benchmarks.randomised_labels` trains what is not yet in benchmarks/results/randomised_labels.json, in about
half an hour; docs/privacy.md is made from it by `python -m tools.randomised_labels`. It needs EFVFL_DATA, the folder
with credit/ and mnist/. Decisions are by validation rows with randomised labels, scores by test rows with true ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.tables.problems import Problem, credit
from benchmarks.tables.training import encoded, probabilities, run_config
from efvfl.config.run_file import RunConfig, read
from efvfl.data import Dataset, catalogue
from efvfl.runs.build import make_federation, watching
from efvfl.training import measure
from efvfl.util.files import write_atomically

RESULTS = Path(__file__).parent / "results" / "randomised_labels.json"
SEEDS = range(5)
EPSILONS = {"credit": (4.0, 2.0, 1.0), "mnist": (4.0, 2.0)}  # beside no protection
SHARED = {"credit": (0.0, 4.0), "mnist": ()}  # epsilons at which labels are shared; 0: as they are
NONE = "no protection"
# Larger batches and fewer epochs than the defaults of tables, which all else is.
CREDIT = {"batch_size": 1024, "epochs": 20, "optimizer": {"name": "AdamW", "lr": 0.004, "weight_decay": 0.1}}
MNIST = {
    "epochs": 10,
    "batch_size": 1024,
    "data": {"name": "mnist"},
    "model": {"name": "mlp", "width": 16, "last": "sigmoid"},
    "method": {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.1}},
    "optimizer": {"name": "SGD", "lr": 4.0},
    "observe_every": 10,
}

Found = dict[str, dict[str, dict[str, dict[str, float]]]]  # by problem, by name of the setting, by seed


def name_of(epsilon: float, way: str) -> str:
    """Return what a setting is called in the file."""
    return f"epsilon {epsilon:g}, {way}" if epsilon else f"{NONE}, {way}"


def settings(problem: str) -> dict[str, dict[str, Any]]:
    """Return what is changed in each setting of a problem, by its name."""
    found: dict[str, dict[str, Any]] = {name_of(0, "private"): {}}
    for way in ("corrected", "plain"):
        for epsilon in EPSILONS[problem]:
            found[name_of(epsilon, way)] = {"protect": {"label_epsilon": epsilon, "label_correction": way != "plain"}}
    for epsilon in SHARED[problem]:
        protect = {"protect": {"label_epsilon": epsilon}} if epsilon else {}
        found[name_of(epsilon, "shared")] = {"agreement": {"labels": "shared"}, **protect}
    return found


@cache
def _credit() -> Problem:
    return credit(most=None)


@cache
def _mnist(seed: int) -> Dataset:
    return catalogue.load("mnist", seed)


def train_credit(seed: int, changed: Mapping[str, Any]) -> dict[str, float]:
    """Train on 30,000 rows of two banks, and score the test rows."""
    problem = _credit()
    run, rows = run_config(problem, seed, {**CREDIT, **changed}), problem.split(seed)
    data, features = encoded(problem, rows, run)
    federation = make_federation(run, data)
    records = federation.fit(run.epochs, watching(run).every, gradient=False)
    found = probabilities(measure.predict(federation.models, federation.fusion, features))
    accuracy = float((found.argmax(axis=1) == problem.classes[rows[1]]).mean())
    return {**problem.scores(rows[1], found), "accuracy": accuracy, "epochs": records[-1].epoch}


def train_mnist(seed: int, changed: Mapping[str, Any]) -> dict[str, float]:
    """Train on quarters of 60,000 images, and score the test images."""
    run = read(RunConfig, {"seed": seed, **MNIST, **changed}, "mnist")
    federation = make_federation(run, _mnist(seed))
    last = federation.fit(run.epochs, watching(run).every, gradient=False)[-1]
    return {"accuracy": last.test["accuracy"], "log_loss": last.test["loss"], "epochs": last.epoch}


TRAIN = {"credit": train_credit, "mnist": train_mnist}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=tuple(TRAIN), help="this one alone")
    chosen = parser.parse_args(arguments).problem
    found: Found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    torch.set_num_threads(1)
    for problem in (chosen,) if chosen else TRAIN:
        for name, changed in settings(problem).items():
            of = found.setdefault(problem, {}).setdefault(name, {})
            for seed in SEEDS:
                if str(seed) not in of:
                    of[str(seed)] = {key: round(value, 6) for key, value in TRAIN[problem](seed, changed).items()}
                    write_atomically(RESULTS, (json.dumps(found, indent=1) + "\n").encode(), public=True)
                    print(problem, name, seed, of[str(seed)], flush=True)


if __name__ == "__main__":
    main()
