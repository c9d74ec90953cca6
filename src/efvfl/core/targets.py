"""What the loss compares an output with: the labels of rows, and how much each row counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from efvfl.core.batches import Rows, take
from efvfl.errors import ConfigError

ROUNDING = 1e-12  # how far the mean of scaled weights may be from 1


@dataclass(frozen=True)
class Targets:
    """Labels of rows, and their weights."""

    labels: Tensor
    weights: Tensor | None = None  # as `scaled` returns them; None: all rows count alike

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)

    def take(self, rows: Rows) -> Targets:
        """Return those of a batch."""
        return Targets(take(self.labels, rows), None if self.weights is None else take(self.weights, rows))

    def select(self, mask: Tensor | None) -> Targets:
        """Return those of the rows that take part; None: all do."""
        if mask is None:
            return self
        return Targets(self.labels[mask], None if self.weights is None else self.weights[mask])


def scaled(weights: Tensor, rows: int, what: str = "weights") -> Tensor | None:
    """Return weights of rows with a mean of 1, so that steps keep their size; None if all are equal.

    >>> scaled(torch.tensor([1.0, 3.0]), 2)
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """
    if weights.shape != (rows,):
        raise ConfigError(f"the {what}: expected one number for each of {rows:,} rows, got {tuple(weights.shape)}.")
    exact = weights.double()
    if not bool(torch.isfinite(exact).all()) or float(exact.min()) < 0:
        raise ConfigError(f"the {what}: expected finite numbers of 0 or more, got others: correct them.")
    if not float(exact.max()):
        raise ConfigError(f"the {what} are all zero: give at least one row a weight.")
    if float(exact.min()) == float(exact.max()):
        return None
    if abs(float(exact.mean()) - 1) < ROUNDING:  # scaled already: then not one bit may change
        return exact
    exact = exact / exact.max()  # the sum of very large numbers would be infinite
    return exact / exact.mean()
