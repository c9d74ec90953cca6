"""Vertically split tables: the cost of compression, the benefit of joining, and other models on the joined columns.

`EFVFL_DATA=folder python -m benchmarks.tables` prints a Markdown table for each problem. Splits, initial parameters and
batches follow from a seed; a number is the mean over seeds and their standard deviation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from efvfl.core.fusion import Fusion
from efvfl.core.losses import LOSSES
from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.data.tables.table import read
from efvfl.models.mlp import mlp, seeded_model
from efvfl.models.tables import table_model
from efvfl.runs import metrics
from efvfl.runs.estimator_base import OPTIMIZER, default_batch_size, default_epochs
from efvfl.runs.estimators import VerticalClassifier
from efvfl.util.rng import derive

SEEDS = range(5, 10)  # the estimators' defaults were chosen on the splits of seeds 0 to 4 of these same tables
WIDTH = 16
VIEWS = ("fac", "fou", "kar", "mor", "pix", "zer")


@dataclass(frozen=True)
class Problem:
    """One table, and the parties that have its columns."""

    name: str
    frame: polars.DataFrame
    columns: dict[str, list[str]]
    classes: NDArray[np.int64]
    label_holder: str  # the party with the labels, which could train alone; empty: none

    @property
    def metric(self) -> str:
        """The metric that is compared."""
        return "auc" if self.classes.max() == 1 else "accuracy"

    def score(self, rows: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
        """Return the metric of these rows."""
        truth = self.classes[rows]
        if self.metric == "auc":
            return metrics.binary(truth, probabilities[:, 1])["auc"]
        return metrics.multiclass(truth, probabilities)["accuracy"]

    def split(self, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the training and the test rows."""
        rows = np.arange(len(self.classes))
        train, test = train_test_split(rows, test_size=0.3, random_state=seed, stratify=self.classes)
        return train, test


@dataclass(frozen=True)
class Result:
    """The result of one training."""

    score: float
    bytes_up: int = 0
    bytes_down: int = 0


Model = Callable[[Problem, int], Result]


def credit(folder: Path) -> Problem:
    """Credit default: a bank with the labels and 13 columns, another with 10."""
    guest, host = (read(folder / "credit" / f"default_credit_hetero_{side}.csv.gz") for side in ("guest", "host"))
    joined = guest.rename(lambda name: f"guest {name}").join(
        host.rename(lambda name: f"host {name}"), left_on="guest id", right_on="host id"
    )
    classes = joined.get_column("guest y").to_numpy().astype(np.int64)
    frame = joined.drop("guest id", "guest y")
    columns = {side: [name for name in frame.columns if name.startswith(side)] for side in ("guest", "host")}
    return Problem("credit default, 2 parties", frame, columns, classes, "guest")


def mfeat(folder: Path) -> Problem:
    """Handwritten digits seen in six ways, a party for each."""
    parts, columns = [], {}
    for view in VIEWS:
        path = folder / "mfeat" / f"mfeat-{view}.csv.gz"
        raw = polars.read_csv(path, has_header=False, skip_rows=1)  # the header has a duplicate name
        columns[view] = [f"{view} {i}" for i in range(raw.width - 1)]
        parts.append(raw[:, :-1].rename(dict(zip(raw.columns[:-1], columns[view], strict=True))))
    classes = raw[:, -1].to_numpy().astype(np.int64)
    return Problem("multiple features, 6 parties", polars.concat(parts, how="horizontal"), columns, classes, "")


def breast_cancer() -> Problem:
    """The table that comes with scikit-learn: one party has the means, another the errors and extremes."""
    data = load_breast_cancer()
    names = [str(name) for name in data.feature_names]
    frame = polars.DataFrame(data.data, schema=names)
    columns = {"guest": names[:10], "host": names[10:]}
    return Problem("breast cancer, 2 parties", frame, columns, data.target.astype(np.int64), "guest")


def digits() -> Problem:
    """The small digits that come with scikit-learn: one party has the upper half of the image, another the lower."""
    data = load_digits()
    names = [f"pixel {i}" for i in range(64)]
    frame = polars.DataFrame(data.data, schema=names)
    return Problem("digits, 2 parties", frame, {"upper": names[:32], "lower": names[32:]}, data.target, "")


def federated(method: str) -> Model:
    """Return a function that trains over parties with private labels and default settings."""

    def run(problem: Problem, seed: int) -> Result:
        train, test = problem.split(seed)
        model = VerticalClassifier(
            problem.columns, method=method, label_holder=problem.label_holder, width=WIDTH, random_state=seed
        )
        model.fit(problem.frame[train], problem.classes[train])
        found = model.predict_proba(problem.frame[test])
        return Result(problem.score(test, found), model.bytes_up_, model.bytes_down_)

    return run


def central(problem: Problem, seed: int, parties: Sequence[str] = ()) -> Result:
    """Train the same network, or its part for some parties, centrally in plain torch."""
    train, test = problem.split(seed)
    outputs = 1 if problem.metric == "auc" else int(problem.classes.max()) + 1
    models, features = [], []
    for name in parties or problem.columns:
        table = problem.frame.select(problem.columns[name])
        encoder = Encoder.fit(table[train], TableSettings())
        make = partial(table_model, encoder.layout, WIDTH)
        models.append(seeded_model(derive(seed, "party", name, "init"), make))
        features.append(torch.from_numpy(encoder.transform(table)))
    head = seeded_model(derive(seed, "server", "init"), partial(mlp, WIDTH, outputs))
    network = torch.nn.ModuleList([Fusion(head), *models])

    def output(rows: NDArray[np.int64]) -> torch.Tensor:
        logits: torch.Tensor = network[0]([m(x[rows]) for m, x in zip(models, features, strict=True)])
        return logits

    optimizer = torch.optim.Adam(network.parameters(), lr=OPTIMIZER["lr"])
    loss = LOSSES["binary_cross_entropy" if outputs == 1 else "cross_entropy"]
    labels = torch.from_numpy(problem.classes)
    size = default_batch_size(len(train))
    order = np.random.default_rng(seed)
    for _ in range(default_epochs(len(train), size)):
        shuffled = order.permutation(train)
        for start in range(0, len(shuffled), size):
            rows = shuffled[start : start + size]
            optimizer.zero_grad()
            loss(output(rows), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        logits = output(test).double()
    shares = torch.cat([-logits, logits], dim=1).sigmoid() if outputs == 1 else logits.softmax(dim=1)
    return Result(problem.score(test, shares.numpy()))


def alone(problem: Problem, seed: int) -> Result:
    """Train the network that the label holder could train alone."""
    return central(problem, seed, [problem.label_holder])


def joined(make: Callable[[int], object]) -> Model:
    """Return a function that trains a scikit-learn model on all columns."""

    def run(problem: Problem, seed: int) -> Result:
        train, test = problem.split(seed)
        x = problem.frame.to_numpy()
        model = make(seed)
        model.fit(x[train], problem.classes[train])  # type: ignore[attr-defined]
        return Result(problem.score(test, model.predict_proba(x[test])))  # type: ignore[attr-defined]

    return run


def _logistic(seed: int) -> object:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


def _trees(seed: int) -> object:
    return HistGradientBoostingClassifier(random_state=seed)


MODELS: dict[str, Model] = {
    "label holder alone": alone,
    "one place": central,
    "SVFL": federated("svfl"),
    "CVFL, top-k 10 %": federated("cvfl"),
    "EF-VFL, top-k 10 %": federated("efvfl"),
    "logistic regression, joined": joined(_logistic),
    "gradient-boosted trees, joined": joined(_trees),
}


def table(problem: Problem, seeds: Sequence[int] = SEEDS) -> str:
    """Return the results of every model as Markdown."""
    lines = [f"| {problem.name} | {problem.metric} | bytes up | bytes down |", "| --- | ---: | ---: | ---: |"]
    for name, model in MODELS.items():
        if model is alone and not problem.label_holder:
            continue
        results = [model(problem, seed) for seed in seeds]
        scores = np.array([result.score for result in results])
        up, down = (
            f"{getattr(results[0], side):,}" if results[0].bytes_up else "" for side in ("bytes_up", "bytes_down")
        )
        lines.append(f"| {name} | {scores.mean():.4f} ± {scores.std(ddof=1):.4f} | {up} | {down} |")
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    folder = os.environ.get("EFVFL_DATA")
    shared = [credit(Path(folder)), mfeat(Path(folder))] if folder else []
    for problem in (*shared, breast_cancer(), digits()):
        print(table(problem), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
