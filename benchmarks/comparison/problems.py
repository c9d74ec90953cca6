"""What the methods are compared on: four tables of several organisations, and two sets of images in quarters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.tables import problems as tables
from benchmarks.tables.training import encoded
from efvfl.compress import Compressor, decode
from efvfl.config.run_file import RunConfig, read
from efvfl.config.table_defaults import TABLES
from efvfl.core.local_model import evaluating
from efvfl.data import Dataset, catalogue
from efvfl.runs import metrics
from efvfl.training import measure
from efvfl.training.federation import Federation
from efvfl.training.measure import Split

Table = Mapping[str, Any]
KEY = 1  # of what is drawn while held-out rows are compressed


@dataclass(frozen=True)
class Contest:
    """Rows, a network, a grid of rates and a number of rounds, which all methods have in common."""

    name: str
    about: str  # for the page
    metric: str  # accuracy or auc
    chance: float  # the metric of a guess
    width: int  # of a representation
    rates: tuple[float, ...]  # of the optimiser, that every method is tried with
    rounds: int  # of a run; a multiple of `every`
    every: int  # rounds between two evaluations
    settings: Callable[[float], dict[str, Any]]  # of the run file, by rate
    load: Callable[[int, RunConfig], Dataset]  # by seed

    def config(self, change: Table, rate: float, seed: int) -> RunConfig:
        """Return the run file of a method, which is a change of the settings of all; `model` is one of its keys."""
        settings = self.settings(rate)
        fixed = {"seed": seed, "epochs": 10**4, "observe_every": 10**6, "evaluation": "exact"}
        model = {"width": self.width} | settings.get("model", {}) | change.get("model", {})
        return read(RunConfig, settings | fixed | dict(change) | {"model": model}, self.name)

    def score(self, federation: Federation, rows: Split | None, compressor: Compressor | None = None) -> float:
        """Return the metric of these rows, with exact representations, or compressed ones, a batch at a time."""
        assert rows is not None, "all problems have validation and test rows"
        if compressor is None:
            output = measure.predict(federation.models, federation.fusion, rows.features)
        else:
            size = federation.server.batches.size
            output = torch.cat([_from_compressed(federation, x, compressor) for x in _batches(rows, size)])
        if self.metric == "accuracy":
            return float((output.argmax(dim=1) == rows.labels).double().mean())
        shares = torch.sigmoid(output.double()).squeeze(1).numpy()
        return float(metrics.binary(rows.labels.numpy(), shares)["auc"])


def _batches(rows: Split, size: int) -> Iterator[list[Tensor]]:
    """Yield the columns of all parties, so many rows at a time."""
    for start in range(0, len(rows.labels), size):
        yield [x[start : start + size] for x in rows.features]


def _from_compressed(federation: Federation, columns: Sequence[Tensor], compressor: Compressor) -> Tensor:
    """Return the output from representations that are compressed on their own, as in C-VFL's training."""
    exact = [measure.represent(model, x) for model, x in zip(federation.models, columns, strict=True)]
    received = [torch.from_numpy(decode(compressor.encode(h.numpy(), KEY)).copy()) for h in exact]
    with torch.no_grad(), evaluating([federation.fusion]):
        output: Tensor = federation.fusion(received, None)
    return output


CLASSES = {"mfeat": 10, "letter": 26}
HELD_OUT = 0.2  # of the rows of a table that are not test rows, for validation


def of_table(name: str, about: str, metric: str, batch: int, rounds: int, every: int) -> Contest:
    """Return a table of benchmarks.tables, with the network and the optimiser that are the default of tables."""
    rates = (0.001, 0.003, 0.01, 0.03)

    def settings(rate: float) -> dict[str, Any]:
        problem = _table(name)
        loss = "binary_cross_entropy" if problem.outputs == 2 else "cross_entropy"
        return {
            "batch_size": batch,
            "loss": loss,
            "label_holder": problem.label_holder,
            "data": {"name": TABLES, "validation": HELD_OUT},
            "optimizer": {"name": "AdamW", "lr": rate, "weight_decay": 0.1},
        }

    def load(seed: int, config: RunConfig) -> Dataset:
        problem = _table(name)
        train, test = problem.split(seed)
        data, features = encoded(problem, (train, test), config)
        return replace(data, test=Split(features, torch.from_numpy(problem.classes[test])))

    chance = 1 / CLASSES[name] if metric == "accuracy" else 0.5
    return Contest(name, about, metric, chance, 16, rates, rounds, every, settings, load)


@cache
def _table(name: str) -> tables.Problem:
    return tables.PROBLEMS[name]()


def of_images(name: str, about: str, rates: tuple[float, ...], rounds: int, every: int, settings: Table) -> Contest:
    """Return images of the catalogue, a quarter of each at four parties; SGD, as in the paper."""

    def table(rate: float) -> dict[str, Any]:
        return {**settings, "optimizer": {"name": "SGD", "lr": rate}}

    def load(seed: int, config: RunConfig) -> Dataset:
        data = catalogue.load(config.data.name, seed, False, config.data.subset)
        return data.with_held_out(config.data.held_out, seed)

    return Contest(name, about, "accuracy", 0.1, 16, rates, rounds, every, table, load)


MNIST: Table = {"batch_size": 256, "data": {"name": "mnist", "subset": 6000, "held_out": 2000}}
CIFAR: Table = {
    "batch_size": 100,
    "data": {"name": "cifar10", "subset": 1000, "held_out": 1000},
    "model": {"name": "mvcnn", "options": {"channels": 8, "norm": "batch"}},
}

CONTESTS = {
    one.name: one
    for one in (
        of_table("credit", "a bank with the labels and 13 columns, another with 10; 8,000 rows", "auc", 128, 300, 10),
        of_table("flights", "an airline with the labels, a registry, weather; 8,000 rows", "auc", 128, 300, 10),
        of_table("mfeat", "digits described in six ways, a party for each; 2,000 rows", "accuracy", 64, 160, 8),
        of_table("letter", "26 letters, three parties; 8,000 rows", "accuracy", 128, 600, 20),
        of_images("MNIST", "a quarter of each image, 6,000 training images", (0.5, 1.5, 4.5, 13.5), 480, 20, MNIST),
        of_images(
            "CIFAR-10", "a quarter of each image, 1,000 training images", (0.05, 0.15, 0.45, 1.35), 240, 10, CIFAR
        ),
    )
}
