"""Subsets of parties that predict: for every row one subset of each size, drawn alike by all who share the seed.

This is not part of the paper. It follows LASER-VFL (Valdeira, Wang and Chi, arXiv 2410.22564): to predict a row from
any subset of the n parties that have it is a task, of which there are 2^n - 1. One subset of each size s stands for all
C(n, s) of that size, so that their weighted loss is an unbiased estimate of the sum over a row's tasks. The loss of all
that are present counts a third: with many parties it would else be next to nothing. A smaller subset weighs the same
whoever else has the row. So a row that fewer parties have counts less in all.

A smaller subset learns in part from what all that are present predict (Hinton, Vinyals and Dean, arXiv 1503.02531):
that is known at the server anyway, and says more of a row than its label does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb

import torch
from torch import Tensor

from efvfl.core.losses import Loss
from efvfl.core.targets import Targets
from efvfl.util.rng import uniforms

WHOLE = 1 / 3  # the share of a complete row's loss that is that of all parties
TAUGHT = 0.7  # the share of a smaller subset's loss that is by the prediction of all who are present, not by the label


@dataclass(frozen=True)
class Tasks:
    """Subsets to predict from, all of a batch one after another."""

    rows: Tensor  # of the batch, shape (tasks,)
    masks: Tensor  # who is in the subset, 0 or 1, shape (tasks, parties)
    weights: Tensor  # of their losses; a mean over tasks is then one over the batch's rows; float64, shape (tasks,)
    teachers: Tensor  # the task of all who are present at the row, shape (tasks,)

    def loss(self, output: Tensor, of_batch: Targets, loss: Loss) -> Tensor:
        """Return the mean over the batch's rows of the tasks' weighted losses, given the output for every task."""
        labels, weights = of_batch.labels.index_select(0, self.rows), self.weights
        if of_batch.weights is not None:
            weights = weights * of_batch.weights.index_select(0, self.rows)
        pupils = (self.teachers != torch.arange(len(self.rows))).nonzero().flatten()
        if loss.like is None or not len(pupils):
            return loss(output, labels, weights)
        of_pupils = weights.index_select(0, pupils)
        told = output.detach().index_select(0, self.teachers.index_select(0, pupils))
        each = loss.like(output.index_select(0, pupils), told).reshape(len(pupils), -1).mean(dim=1)
        by_prediction = (each * of_pupils.to(output.dtype)).sum() / len(self.rows)
        by_label = loss(output, labels, weights.index_copy(0, pupils, (1 - TAUGHT) * of_pupils))
        return by_label + TAUGHT * by_prediction


def draw(present: Tensor, key: int) -> Tasks:
    """Return one subset of each size for every row: those present, 0 or 1, are given in shape (rows, parties).

    A row's parties are put in a random order, and its subset of size s is the first s of them.

    >>> tasks = draw(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), key=3)
    >>> tasks.rows.tolist(), tasks.masks.sum(dim=1).tolist(), tasks.teachers.tolist()
    ([0, 0, 1], [1.0, 2.0, 1.0], [1, 1, 2])
    >>> (tasks.weights / 3 * 2).tolist()  # of two rows and three tasks
    [0.6666666666666666, 0.3333333333333333, 0.3333333333333333]
    """
    rows, parties = present.shape
    counts = present.sum(dim=1).long()
    order = torch.from_numpy(uniforms(key, rows * parties)).reshape(rows, parties) + 2 * (present == 0)
    rank = order.argsort(dim=1, stable=True).argsort(dim=1)  # the absent come last
    sizes = torch.arange(1, parties + 1)
    chosen = (sizes <= counts[:, None]).nonzero()
    row, size = chosen[:, 0], chosen[:, 1] + 1
    masks = (rank.index_select(0, row) < size[:, None]).to(present.dtype)
    of_row = counts.index_select(0, row)
    weights = _weights(parties)[of_row, size] * (len(row) / max(rows, 1))
    return Tasks(row, masks, weights, torch.arange(len(row)) + of_row - size)


@lru_cache(maxsize=8)
def _weights(parties: int) -> Tensor:
    """Return at [n, s] the weight of a subset of size s at a row of n parties; those of a complete row sum to 1."""
    weights = torch.zeros(parties + 1, parties + 1, dtype=torch.float64)
    for n in range(1, parties + 1):
        smaller = [comb(n, s) * (1 - WHOLE) / (2**parties - 2) for s in range(1, n)]
        weights[n, 1 : n + 1] = torch.tensor([*smaller, WHOLE], dtype=torch.float64)
    return weights / weights[parties].sum()
