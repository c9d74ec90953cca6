"""What cotangents reveal to a party about labels it does not have, with and without compression and protection.

`python -m benchmarks.leakage [--seeds N]` prints the tables of docs/security.md, in a few minutes. Two parties learn a
binary task. One holds the labels and sits next to the server; the other, the guest, does as it is told, keeps every
cotangent it is sent, and guesses the labels of the training rows from them.
"""

from __future__ import annotations

import argparse
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
    Batches,
    Federation,
    Message,
    Method,
    Optimizer,
    Protection,
    Setup,
    TopK,
    Training,
    efvfl,
    federate,
    svfl,
)
from efvfl.core.open_reports import OpenReport
from efvfl.core.party import Party
from efvfl.data.base import Dataset, cut
from efvfl.experiments.tables import as_markdown
from efvfl.training.measure import Split, represent

HOLDER, GUEST = "holder", "guest"
WIDTH, BATCH = 8, 64
KNOWN = 10  # labels of each class that the guest knows, for the attack with its own model
MEMORIES = (0.0, 0.97)  # of the attack that tracks a moving direction: this batch only, or about thirty steps


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    name: str
    method: Method
    protect: Protection = Protection()  # noqa: RUF009, frozen
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
        setup=Setup(combine="sum", protect=setting.protect, label_holder=HOLDER),
    )


class Listener:
    """Records every cotangent that a party receives, as the gradient of the row's loss, shape (epochs, rows, width)."""

    def __init__(self, party: Party, epochs: int) -> None:
        self.batches = party.batches
        self.heard = torch.zeros(epochs, party.batches.samples, *party.up.width)
        mode = party.label_mode
        honest = mode.receive

        def receive(answer: Message, report: OpenReport) -> None:
            honest(answer, report)
            epoch, cotangent = answer.step // self.batches.per_epoch, mode.cotangent(report.h, answer.step, 0)
            assert cotangent is not None
            self.heard[epoch, report.rows] = cotangent * len(report.h)

        mode.receive = receive  # type: ignore[method-assign]


def auc(labels: Tensor, scores: Tensor) -> float:
    """Return the AUC of scores, 0.5 to 1: which end is positive is one bit, which is assumed to be known."""
    value = float(roc_auc_score(labels, scores))
    return max(value, 1 - value)


def norm_attack(labels: Tensor, heard: Tensor) -> float:
    """Guess by the norm of a row: the model makes larger errors on the rarer class. The better of two."""
    return max(auc(labels, heard.mean(0).norm(dim=1)), auc(labels, heard.norm(dim=2).mean(0)))


def direction_attack(labels: Tensor, heard: Tensor, batches: Batches) -> float:
    """Guess by the direction of a row: the gradients of the two classes point in opposite directions.

    The best of some ways to find the direction: of the mean over epochs, of all epochs side by side, and followed from
    step to step. Which of them is best depends on how fast it turns and how much noise there is.
    """
    beside = heard.permute(1, 0, 2).flatten(1)
    scores = [rows @ torch.linalg.svd(rows, full_matrices=False).Vh[0] for rows in (heard.mean(0), beside)]
    scores += [_followed(heard, batches, memory) for memory in MEMORIES]
    return max(auc(labels, score) for score in scores)


def _followed(heard: Tensor, batches: Batches, memory: float) -> Tensor:
    """Return every row's component along the direction of the last steps, summed over epochs."""
    epochs, samples, width = heard.shape
    scores, squares, last = torch.zeros(samples), torch.zeros(width, width), torch.zeros(width)
    for step in range(epochs * batches.per_epoch):
        rows = batches.rows(step)
        now = heard[step // batches.per_epoch, rows]
        squares = memory * squares + now.T @ now
        direction = torch.linalg.eigh(squares).eigenvectors[:, -1]
        last = -direction if direction @ last < 0 else direction
        scores[rows] += now @ last
    return scores


def completion_attack(labels: Tensor, values: Tensor, seed: int) -> float:
    """Guess by a logistic regression on the guest's own values, fitted to the few labels it knows."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    known = torch.cat([order[labels[order] == label][:KNOWN] for label in (0, 1)])
    others = torch.ones(len(labels), dtype=torch.bool)
    others[known] = False
    fitted = LogisticRegression(max_iter=1000).fit(values[known], labels[known])
    return auc(labels[others], torch.from_numpy(fitted.decision_function(values[others])))


def train(data: Dataset, setting: Setting, seed: int, epochs: int) -> tuple[Federation, Listener]:
    run = federation(data, setting, seed)
    listener = Listener(run.parties[GUEST], epochs)
    while run.epoch < epochs:
        run.step()
    return run, listener


def attacks(labels: Tensor, listener: Listener) -> list[float]:
    """Return the norm attack after one epoch and after all, and the direction attack likewise."""
    first, heard, batches = listener.heard[:1], listener.heard, listener.batches
    return [
        norm_attack(labels, first),
        norm_attack(labels, heard),
        direction_attack(labels, first, batches),
        direction_attack(labels, heard, batches),
    ]


def held_out(run: Federation, data: Dataset) -> list[float]:
    """Return AUC and accuracy on the test rows."""
    assert data.test is not None, "three in ten rows are held out"
    output, labels = run.predict(data.test.features).flatten(), data.test.labels
    return [float(roc_auc_score(labels, output)), 100 * float(((output > 0) == (labels > 0.5)).double().mean())]


def table(tasks: list[Dataset], epochs: int) -> str:
    measured: dict[str, list[list[float]]] = {}
    for seed, data in enumerate(tasks):
        labels = data.train.labels
        shuffled = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
        for setting in SETTINGS:
            run, listener = train(data, setting, seed, epochs)
            h = represent(run.parties[GUEST].block.module, data.train.features[1])
            scores = [*attacks(labels, listener), completion_attack(labels, h, seed), *held_out(run, data)]
            measured.setdefault(setting.name, []).append(scores)
        # Baselines without cotangents: shuffled labels, the guest's columns alone, the label holder alone.
        blank = without_guest(data)
        chance = [*attacks(shuffled, listener), completion_attack(labels, data.train.features[1], seed)]
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
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, make, epochs in TASKS:
        tasks = [make(seed) for seed in range(options.seeds)]
        rows, share = len(tasks[0].train.labels), mean(float(task.train.labels.mean()) for task in tasks)
        print(f"{name}: {rows:,} training rows, {share:.0%} positive, {epochs} epochs, {options.seeds} seeds\n")
        print(f"{table(tasks, epochs)}\n", flush=True)


if __name__ == "__main__":
    main()
