"""What cotangents reveal to a party about labels it does not have, with and without compression and protection.

`python -m benchmarks.leakage [--seeds N]` prints the tables of docs/security.md, in a few minutes. Two parties learn a
binary task. One holds the labels and sits next to the server; the other, the guest, does as it is told, keeps every
cotangent it is sent, and guesses the labels of the training rows from them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from efvfl import (
    QSGD,
    Federation,
    Method,
    Optimizer,
    Protection,
    RowProtection,
    Setup,
    TopK,
    Training,
    VisitNoise,
    efvfl,
    federate,
    svfl,
)
from efvfl.data.base import Dataset, cut
from efvfl.experiments.tables import as_markdown
from efvfl.runs.attacks import gradients
from efvfl.runs.attacks.scoring import either_end
from efvfl.runs.attacks.views import PartyView, watch_party
from efvfl.training.measure import Split, represent

HOLDER, GUEST = "holder", "guest"
WIDTH, BATCH = 8, 64
EPSILONS = (16.0, 4.0, 1.0)  # at delta = 1e-5
KNOWN = 10  # labels of each class that the guest knows, for the attack with its own model


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    name: str
    method: Method
    protect: Protection = Protection()  # noqa: RUF009, frozen
    rows: RowProtection = RowProtection()  # noqa: RUF009, of the guest's rows
    hidden: bool = False  # a hidden layer in the head, so that cotangents are not multiples of one vector


SVFL = Setting("SVFL", svfl())
SETTINGS = (
    SVFL,
    Setting("SVFL, head with a hidden layer", svfl(), hidden=True),
    Setting("EF-VFL, top-k 10 % up", efvfl(TopK(0.1))),
    Setting("EF-VFL, top-k 10 % up and down", efvfl(TopK(0.1), TopK(0.1))),
    Setting("EF-VFL, qsgd 4 bit up and down", efvfl(QSGD(4), QSGD(4))),
    Setting("EF-VFL, qsgd 1 bit up and down", efvfl(QSGD(1), QSGD(1))),
    *(Setting(f"SVFL, clip {clip}", svfl(), Protection(clip)) for clip in (0.5, 0.05)),
    *(Setting(f"SVFL, clip 0.5, noise {noise}", svfl(), Protection(0.5, noise)) for noise in (1, 2, 4, 8)),
    Setting("EF-VFL, top-k 10 % up, clip 0.5, noise 4", efvfl(TopK(0.1)), Protection(0.5, 4)),
)
HEADINGS = ["", "norm, epoch 1", "norm, all", "direction, epoch 1", "direction, all", "own model", "test AUC", "test %"]


def breast_cancer(seed: int) -> Dataset:
    """569 tumours, 37 % malignant: the holder has the first 15 measurements, the guest the others."""
    columns, target = load_breast_cancer(return_X_y=True)
    return _cut(columns, 1 - target, seed)


def synthetic(rows: int, seed: int) -> Dataset:
    """About 10 % positive; each party has 10 columns that partly determine the label."""
    columns, target = make_classification(
        rows, 20, n_informative=12, n_redundant=0, weights=[0.92], flip_y=0.04, random_state=seed
    )
    order = np.random.default_rng(seed).permutation(20)  # make_classification puts the informative ones first
    return _cut(columns[:, order], target, seed)


TASKS = (
    ("synthetic, few rows seen often", lambda seed: synthetic(3_000, seed), 20),
    ("synthetic, ten times the rows, a tenth of the epochs", lambda seed: synthetic(30_000, seed), 2),
    ("breast cancer", breast_cancer, 20),
)


def _cut(columns: NDArray[np.float64], target: NDArray[np.int64], seed: int) -> Dataset:
    x = torch.tensor((columns - columns.mean(0)) / columns.std(0), dtype=torch.float32)
    names = [HOLDER, GUEST]
    splits = cut(names, list(x.chunk(2, dim=1)), torch.tensor(target, dtype=torch.float32), (0.0, 0.3), seed)
    return Dataset(names, *splits, classes=2)


def without_guest(data: Dataset) -> Dataset:
    """Return the task with zeros in the guest's columns: what the label holder could learn alone."""

    def blank(split: Split | None) -> Split | None:
        return split and Split([split.features[0], torch.zeros_like(split.features[1])], split.labels)

    train = blank(data.train)
    assert train is not None, "there are training rows"
    return replace(data, train=train, test=blank(data.test))


def federation(data: Dataset, setting: Setting, seed: int) -> Federation:
    torch.manual_seed(seed)
    columns = data.train.features
    models = [nn.Sequential(nn.Linear(x.shape[1], 16), nn.ReLU(), nn.Linear(16, WIDTH)) for x in columns]
    head: nn.Module = nn.Linear(WIDTH, 1)
    if setting.hidden:
        head = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))
    return federate(
        dict(zip(data.names, columns, strict=True)),
        data.train.labels,
        models,
        head,
        method=setting.method,
        training=Training(
            loss="binary_cross_entropy", optimizer=Optimizer("Adam", {"lr": 0.01}), batch_size=BATCH, seed=seed
        ),
        setup=Setup("sum", HOLDER, setting.protect, protect_rows={GUEST: setting.rows}),
    )


def completion_attack(labels: Tensor, values: Tensor, seed: int) -> float:
    """Guess by a logistic regression on the guest's own values, fitted to the few labels it knows."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    known = torch.cat([order[labels[order] == label][:KNOWN] for label in (0, 1)])
    others = torch.ones(len(labels), dtype=torch.bool)
    others[known] = False
    fitted = LogisticRegression(max_iter=1000).fit(values[known], labels[known])
    return either_end(labels[others] == 1, torch.from_numpy(fitted.decision_function(values[others])))


def train(data: Dataset, setting: Setting, seed: int, epochs: int) -> tuple[Federation, PartyView]:
    run = federation(data, setting, seed)
    view = watch_party(run, run.parties[GUEST], epochs)
    while run.epoch < epochs:
        run.step()
    return run, view


def attacks(labels: Tensor, view: PartyView) -> list[float]:
    """Return the norm attack after one epoch and after all, and the direction attack likewise.

    No label is known but which end is positive. The best of an attack's ways is taken.
    """
    parts = (view.heard[:1], view.heard)
    norms = [gradients.lengths(heard) for heard in parts]
    directions = [gradients.along(heard, view.batches, view.per_epoch) for heard in parts]
    return [max(either_end(labels == 1, score) for score in scores) for scores in (*norms, *directions)]


def held_out(run: Federation, data: Dataset) -> list[float]:
    """Return AUC and accuracy on the test rows."""
    assert data.test is not None, "three in ten rows are held out"
    output, labels = run.predict(data.test.features).flatten(), data.test.labels
    return [float(roc_auc_score(labels, output)), 100 * float(((output > 0) == (labels > 0.5)).double().mean())]


def with_guarantees(epochs: int) -> list[Setting]:
    """Return the settings of docs/privacy.md: an epsilon for each label, or for each of the guest's rows."""
    found = [SVFL]
    for epsilon in EPSILONS:
        visits = VisitNoise(epsilon=epsilon, epochs=epochs)
        found.append(Setting(f"labels, ε = {epsilon:g}", svfl(), Protection(visits=visits)))
    for epsilon in EPSILONS:
        noise = RowProtection(1.0).accountant(GUEST).with_noise_for(epsilon, epochs + 1).noise  # one for predictions
        found.append(Setting(f"guest's rows, ε = {epsilon:g}", svfl(), rows=RowProtection(1.0, noise)))
    return found


def table(tasks: list[Dataset], epochs: int, settings: Sequence[Setting] = SETTINGS) -> str:
    measured: dict[str, list[list[float]]] = {}
    for seed, data in enumerate(tasks):
        labels = data.train.labels
        shuffled = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
        for setting in settings:
            run, view = train(data, setting, seed, epochs)
            h = represent(run.parties[GUEST].block.module, data.train.features[1])
            scores = [*attacks(labels, view), completion_attack(labels, h, seed), *held_out(run, data)]
            measured.setdefault(setting.name, []).append(scores)
        # Baselines without cotangents: shuffled labels, the guest's columns alone, the label holder alone.
        blank = without_guest(data)
        chance = [*attacks(shuffled, view), completion_attack(labels, data.train.features[1], seed)]
        alone = held_out(train(blank, SVFL, seed, epochs)[0], blank)
        measured.setdefault("baseline", []).append(chance + alone)
    body = []
    for name, runs in measured.items():
        *scores, accuracy = (mean(column) for column in zip(*runs, strict=True))
        body.append([name, *(f"{score:.2f}" for score in scores), f"{accuracy:.1f}"])
    return as_markdown(HEADINGS, body)


def main() -> None:
    parser = argparse.ArgumentParser(description="AUC with which a party tells labels from cotangents.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--guarantees", action="store_true", help="noise with an epsilon: the tables of docs/privacy.md"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, make, epochs in TASKS:
        tasks = [make(seed) for seed in range(options.seeds)]
        rows, share = len(tasks[0].train.labels), mean(float(task.train.labels.mean()) for task in tasks)
        print(f"{name}: {rows:,} training rows, {share:.0%} positive, {epochs} epochs, {options.seeds} seeds\n")
        settings = with_guarantees(epochs) if options.guarantees else SETTINGS
        print(f"{table(tasks, epochs, settings)}\n", flush=True)


if __name__ == "__main__":
    main()
