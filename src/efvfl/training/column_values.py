"""Which column matters: how much worse predictions get when a column's values stand at other rows (permutation).

The party that holds a column puts its values in another order, among the rows that it has, and represents these rows
anew; whoever holds the labels scores that. Like the values of parties it takes rows that were held out, and intervals
are percentiles over rows drawn again with replacement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efvfl.core.presence import spread
from efvfl.core.source_columns import OwnColumns
from efvfl.training.values import RESAMPLES, Metric, ScoredRows, ValueEstimate, estimates, resampled
from efvfl.util.rng import derive, permutation

ColumnPlaces = Mapping[str, Sequence[int]]  # which numbers of an encoded row every column became


def every_number(x: OwnColumns) -> dict[str, list[int]]:
    """Return every number of a row as a column of its own, named by its place."""
    return {str(i): [i] for i in range(prod(x.shape[1:]))}


@dataclass(frozen=True)
class HeldColumns:
    """A party's rows of one split, and which numbers of a row every column became.

    >>> held = HeldColumns(torch.tensor([[0.0, 9.0], [1.0, 8.0], [2.0, 7.0]]), {"a": [0], "b": [1]}, seed=3)
    >>> held.permuted("b", "test", torch.tensor([0, 1, 2]))
    tensor([[0., 7.],
            [1., 9.],
            [2., 8.]])
    """

    x: OwnColumns  # shape (rows, ...)
    places: ColumnPlaces
    seed: int  # the party's own: it decides the orders

    def permuted(self, column: str, split: str, rows: Tensor) -> Tensor:
        """Return these rows with a column's values in another order among them."""
        chosen = self.x[rows]
        flat, at = chosen.flatten(1).clone(), list(self.places[column])
        order = permutation(derive(self.seed, "column", split, column), len(rows), 0, len(rows))
        flat[:, at] = flat[torch.from_numpy(order)][:, at]
        return flat.reshape(chosen.shape)


@dataclass(frozen=True)
class ColumnScorer:
    """Scores rows with one party's part replaced, beside the same rows as they are."""

    rows: ScoredRows
    metric: Metric
    resamples: int = RESAMPLES
    seed: int = 0

    def held(self, place: int) -> Tensor:
        """Return which of the rows a party has."""
        return self.rows.present[:, place].nonzero().reshape(-1)

    @cached_property
    def _draws(self) -> list[Tensor]:
        """The rows that are scored: all, then those of every resample."""
        count = len(self.rows.labels)
        again = [resampled(count, derive(self.seed, "resample", number)) for number in range(self.resamples)]
        return [torch.arange(count), *again]

    @cached_property
    def _before(self) -> NDArray[np.float64]:
        return self._metrics(self.rows)

    def _metrics(self, rows: ScoredRows) -> NDArray[np.float64]:
        output, labels = rows.everybody, rows.labels
        return np.array([self.metric(output[drawn], labels[drawn]) for drawn in self._draws])

    def score(self, place: int, h: Tensor) -> ValueEstimate:
        """Return by how much the metric falls with these representations of the rows that the party at `place` has."""
        part = spread(h, self.held(place), len(self.rows.labels))
        parts = [part if k == place else known for k, known in enumerate(self.rows.parts)]
        return estimates((self._before - self._metrics(replace(self.rows, parts=parts)))[:, None])[0]
