"""Piecewise-linear encoding of numbers, and a linear layer for each column (Gorishniy, Rubachev and Babenko, 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

CLOSEST = 1e-6  # two edges of a bin, in standard deviations


class PiecewiseLinear(nn.Module):
    """Columns of numbers, each as the shares of its bins: 1 below the value, 0 above, the fraction inside its own.

    >>> PiecewiseLinear([(0.0, 1.0, 3.0), (0.0, 1.0)]).shares(torch.tensor([[2.0, 0.25], [-1.0, 9.0]])).tolist()
    [[[1.0, 0.5], [0.25, 0.0]], [[0.0, 0.0], [1.0, 0.0]]]
    """

    low: Tensor
    per_unit: Tensor

    def __init__(self, edges: Sequence[Sequence[float]], width: int = 8) -> None:
        """Take the edges of each column's bins; `width` numbers stand for a column, learnt for each on its own."""
        super().__init__()
        cuts = [_apart(column) for column in edges]
        most = max(1, *(len(cut) - 1 for cut in cuts))
        low, per_unit = torch.zeros(len(cuts), most), torch.zeros(len(cuts), most)
        for i, cut in enumerate(map(torch.from_numpy, cuts)):
            low[i, : len(cut) - 1] = cut[:-1]
            per_unit[i, : len(cut) - 1] = 1 / cut.diff()
        # Not in checkpoints: they follow from the encoder, which is kept beside them.
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("per_unit", per_unit, persistent=False)
        bound = 1 / sqrt(most)
        self.weight = nn.Parameter(torch.empty(len(cuts), most, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(len(cuts), width).uniform_(-bound, bound))

    def shares(self, x: Tensor) -> Tensor:
        """Return the share of every bin that lies below the value, shape (rows, columns, bins)."""
        return ((x.unsqueeze(2) - self.low) * self.per_unit).clamp(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return numbers for each column, shape (rows, columns * width), of values, shape (rows, columns)."""
        out: Tensor = torch.einsum("rcb,cbw->rcw", self.shares(x), self.weight) + self.bias
        return out.flatten(1)


def _apart(edges: Sequence[float]) -> NDArray[np.float32]:
    """Return edges without those that float32 can hardly tell from the one before."""
    cut = np.unique(np.asarray(edges, dtype=np.float32))
    return cut[np.diff(cut, prepend=-np.inf) > CLOSEST]
