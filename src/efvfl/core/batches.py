"""Which rows a step works on: a pure function of the shared seed and the step."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from efvfl.errors import ConfigError
from efvfl.util.rng import derive, permutation

# Row numbers of a batch, or a slice where the batch is all rows: a slice is a view, so nothing is copied.
Rows = Tensor | slice
ALL: slice = slice(None)


def take(values: Tensor, rows: Rows) -> Tensor:
    """Return these rows: a view for a slice, a copy otherwise."""
    return values[rows] if isinstance(rows, slice) else values.index_select(0, rows)


# shuffle: every row once an epoch. independent: every batch drawn anew, as the theory of batch reports assumes.
BatchOrder = Literal["shuffle", "independent"]


class Source(Protocol):
    """Columns that are made or read when they are asked for: a pure function of rows and step.

    Such as augmented images, or the rows of a file or a database. A step below 0 asks for rows as they are looked at.

    >>> class Halves:
    ...     def __len__(self):
    ...         return 4
    ...
    ...     def batch(self, rows, step):
    ...         return (torch.arange(4)[rows] / 2).unsqueeze(1)
    >>> Halves().batch(torch.tensor([1, 3]), step=0).tolist()
    [[0.5], [1.5]]
    """

    def __len__(self) -> int:
        """Return the number of rows."""

    def batch(self, rows: Rows, step: int) -> Tensor:
        """Return these rows as they are at this step."""


def columns_of(features: Tensor | Source, rows: Rows, step: int) -> Tensor:
    """Return the columns a local model works on at a step."""
    return take(features, rows) if isinstance(features, Tensor) else features.batch(rows, step)


KEPT = 4  # steps whose rows are kept: parties learn from one step while they report on the next


class BatchRows(Protocol):
    """A batch schedule as one participant sees it: `Batches`, or the part of it that a party has rows of."""

    @property
    def samples(self) -> int:
        """How many rows there are."""

    def rows(self, step: int) -> Rows:
        """Return the rows of a step; read them only."""

    def touched(self, steps: range) -> Rows:
        """Return the rows of all these steps."""

    def count(self, step: int) -> int:
        """Return how many rows a step has."""


@dataclass(frozen=True)
class Batches:
    """The batch schedule, which every participant computes by itself.

    >>> batches = Batches(samples=5, size=2, seed=1)
    >>> batches.per_epoch, [batches.count(step) for step in range(3)]
    (3, [2, 2, 1])
    >>> sorted(row for step in range(3) for row in batches.rows(step).tolist())
    [0, 1, 2, 3, 4]
    """

    samples: int
    size: int = 0  # rows in a batch; 0: all of them (full batch)
    seed: int = 0  # shared by all participants
    order: BatchOrder = "shuffle"
    _last: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)  # rows of the last steps

    def __post_init__(self) -> None:
        """Refuse schedules without rows."""
        if self.samples < 1 or self.size < 0:
            raise ConfigError(
                f"expected at least one sample in batches of 0 or more, got {self.samples} in {self.size}."
            )
        if self.order not in ("shuffle", "independent"):
            raise ConfigError(f"batch_order: expected 'shuffle' or 'independent', got {self.order!r}.")

    @cached_property
    def full(self) -> bool:
        """Whether every batch is all rows."""
        return self.size == 0 or self.size >= self.samples

    @cached_property
    def per_epoch(self) -> int:
        """Steps in an epoch; the last batch may be smaller."""
        return 1 if self.full else -(-self.samples // self.size)

    def rows(self, step: int) -> Rows:
        """Return the rows of a step, at a cost that does not depend on the number of samples; read them only."""
        if self.full:
            return ALL
        rows = self._last.get(step)
        if rows is None:  # else somebody in this process has asked for this step already
            rows = self._rows(step)
            for old in list(self._last)[: 1 - KEPT]:
                self._last.pop(old, None)  # a second thread may have dropped it
            self._last[step] = rows
        return rows

    def _rows(self, step: int) -> Tensor:
        if self.order == "independent":
            return torch.from_numpy(permutation(derive(self.seed, "batch", step), self.samples, 0, self.size))
        epoch, place = divmod(step, self.per_epoch)
        start = place * self.size
        stop = min(start + self.size, self.samples)
        return torch.from_numpy(permutation(derive(self.seed, "epoch", epoch), self.samples, start, stop))

    def touched(self, steps: range) -> Rows:
        """Return the rows of all these steps, or all rows where the steps cover about as many."""
        if len(steps) * (self.size or self.samples) >= self.samples:
            return ALL
        parts = [self._rows(step).numpy() for step in steps]
        return torch.from_numpy(np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64))

    def count(self, step: int) -> int:
        """Return how many rows a step has."""
        if self.full:
            return self.samples
        if self.order == "independent":
            return self.size
        return min(self.size, self.samples - step % self.per_epoch * self.size)


@dataclass(frozen=True)
class ReportRows:
    """Which rows a report covers: those of the batch (C2 o C1), or all of them (Algorithm 1 as stated)."""

    batches: BatchRows
    all_rows: bool

    def rows(self, step: int) -> Rows:
        """Return the rows of the report on a step."""
        return ALL if self.all_rows else self.batches.rows(step)

    def count(self, step: int) -> int:
        """Return how many rows the report on a step has."""
        return self.batches.samples if self.all_rows else self.batches.count(step)

    def batch(self, values: Tensor, step: int) -> Tensor:
        """Return the batch's part of values that were given for the rows of a report."""
        return take(values, self.batches.rows(step)) if self.all_rows else values

    def open(self, step: int, window: int) -> Rows:
        """Return the rows that up to `window` reports cover, of which the first is on this step."""
        return self.rows(step) if window == 1 else self.touched(range(step, step + window))

    def touched(self, steps: range) -> Rows:
        """Return the rows that the reports on these steps cover."""
        return ALL if self.all_rows else self.batches.touched(steps)
