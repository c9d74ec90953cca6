"""The data of the attack benchmark: a label holder with half of the columns, and a guest with the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from benchmarks.tables import problems as tables
from efvfl.data.base import Dataset, cut
from efvfl.data.mnist import mnist
from efvfl.errors import DataError
from efvfl.training.measure import Split

HOLDER, GUEST = "holder", "guest"
TEST = 0.3


@dataclass(frozen=True)
class Task:
    """One data set, and how it is trained."""

    load: Callable[[int], Dataset]  # by seed
    epochs: int
    batch_size: int
    hidden: int  # units of a local model's hidden layer
    width: int  # of a representation
    seeds: int = 2
    shape: tuple[int, int] | None = None  # of the guest's columns, where they are an image

    def loss(self, data: Dataset) -> str:
        """Return the loss of these labels."""
        return "binary_cross_entropy" if data.classes == 2 else "cross_entropy"


def credit(seed: int) -> Dataset:
    """3,000 customers of a bank; the other party has 10 columns of them."""
    if "EFVFL_DATA" not in os.environ:
        raise DataError("expected EFVFL_DATA, the folder that has credit/ in it.")
    return _of_table(tables.credit(3_000), seed)


def digits(seed: int) -> Dataset:
    """The 1,797 small digits: the upper halves, and the lower ones."""
    return _of_table(tables.digits(), seed, scale=16.0)


def mnist_halves(seed: int) -> Dataset:
    """3,000 images of MNIST, left halves and right halves, and 1,500 test images."""
    data = mnist(seed, 3_000)
    assert data.test is not None, "MNIST has test rows"
    train, test = (_halves(split) for split in (data.train, data.test.part(slice(1_500))))
    return Dataset([HOLDER, GUEST], train, None, test, classes=10)


def _halves(split: Split) -> Split:
    top_left, top_right, bottom_left, bottom_right = split.features
    return Split([torch.cat([top_left, bottom_left], 1), torch.cat([top_right, bottom_right], 1)], split.labels)


def _of_table(problem: tables.Problem, seed: int, scale: float = 0.0) -> Dataset:
    """Return the columns as numbers, with mean 0 and spread 1 unless they have a scale of their own."""
    columns = [
        torch.tensor(problem.frame.select(names).to_numpy().astype(np.float32)) for names in problem.columns.values()
    ]
    columns = [x / scale if scale else _standard(x) for x in columns]
    classes = torch.tensor(problem.classes)
    labels = classes.float() if problem.outputs == 2 else classes
    names = [HOLDER, GUEST]
    return Dataset(names, *cut(names, columns, labels, (0.0, TEST), seed), classes=problem.outputs)


def _standard(x: Tensor) -> Tensor:
    return (x - x.mean(dim=0)) / x.std(dim=0).clamp(min=1e-6)


TASKS: dict[str, Task] = {
    "credit": Task(cache(credit), epochs=15, batch_size=64, hidden=32, width=8),
    "digits": Task(cache(digits), epochs=20, batch_size=32, hidden=32, width=16, shape=(4, 8)),
    "MNIST halves": Task(cache(mnist_halves), epochs=10, batch_size=32, hidden=64, width=16, seeds=1, shape=(28, 14)),
}
