"""Subsets of parties that predict: for every row one subset of each size, drawn alike by all who share the seed.

This is not part of the paper. It follows LASER-VFL (Valdeira, Wang and Chi, arXiv 2410.22564): to predict a row from
any subset of the n parties that have it is a task, of which there are 2^n - 1. One subset of each size s stands for all
C(n, s) of that size, so that their weighted loss is an unbiased estimate of the mean over a row's tasks. The loss of
all that are present counts as much again as that mean: with many parties it would else be next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb

import torch
from torch import Tensor

from efvfl.core.targets import Targets
from efvfl.util.rng import uniforms

WHOLE = 0.5  # the share of a row's loss that is that of all who are present, beside their task


@dataclass(frozen=True)
class Tasks:
    """Subsets to predict from, all of a batch one after another."""

    rows: Tensor  # of the batch, shape (tasks,)
    masks: Tensor  # who is in the subset, 0 or 1, shape (tasks, parties)
    weights: Tensor  # such that a mean over tasks is one over rows, float64, shape (tasks,)

    def targets(self, of_batch: Targets) -> Targets:
        """Return the targets of the tasks, from those of the batch's rows."""
        labels, weights = of_batch.labels.index_select(0, self.rows), self.weights
        if of_batch.weights is not None:
            weights = weights * of_batch.weights.index_select(0, self.rows)
        return Targets(labels, weights)


def draw(present: Tensor, key: int) -> Tasks:
    """Return one subset of each size for every row: those present, 0 or 1, are given in shape (rows, parties).

    A row's parties are put in a random order, and its subset of size s is the first s of them.

    >>> tasks = draw(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), key=3)
    >>> tasks.rows.tolist(), tasks.masks.sum(dim=1).tolist(), (tasks.weights / 3).tolist()
    ([0, 0, 1], [1.0, 2.0, 1.0], [0.16666666666666666, 0.3333333333333333, 0.5])
    """
    rows, parties = present.shape
    counts = present.sum(dim=1).long()
    order = torch.from_numpy(uniforms(key, rows * parties)).reshape(rows, parties) + 2 * (present == 0)
    rank = order.argsort(dim=1, stable=True).argsort(dim=1)  # the absent come last
    sizes = torch.arange(1, parties + 1)
    chosen = (sizes <= counts[:, None]).nonzero()
    row, size = chosen[:, 0], chosen[:, 1] + 1
    masks = (rank.index_select(0, row) < size[:, None]).to(present.dtype)
    weights = _shares(parties)[counts.index_select(0, row), size] * (len(row) / max(rows, 1))
    return Tasks(row, masks, weights)


@lru_cache(maxsize=8)
def _shares(parties: int) -> Tensor:
    """Return at [n, s] the weight of the subset of size s at a row of n parties."""
    shares = torch.zeros(parties + 1, parties + 1, dtype=torch.float64)
    for n in range(1, parties + 1):
        tasks = torch.tensor([comb(n, s) / (2**n - 1) for s in range(1, n + 1)], dtype=torch.float64)
        shares[n, 1 : n + 1] = tasks * (1 - WHOLE)
        shares[n, n] += WHOLE
    return shares
