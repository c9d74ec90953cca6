"""What each party is worth: how well every subset of parties predicts, and Shapley values of that.

It takes nothing but the representations of rows that were held out and the fusion model, so whoever holds these can
compute it. A row that none of a subset has gets the mean output of all parties: a prediction that knows no column.
Intervals are percentiles over rows drawn again with replacement; they say nothing of another training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efvfl.core.fusion import Fusion
from efvfl.core.local_model import CHUNK, evaluating
from efvfl.core.presence import RowPresence
from efvfl.util.rng import derive, permutation, uniforms

EXACT = 10  # parties: with more of them Shapley values are estimated
ORDERS = 200  # of parties, drawn for the estimate
RESAMPLES = 200  # of the rows, for intervals
COVERED = 0.95  # of these in an interval

Metric = Callable[[Tensor, Tensor], float]  # (output, target) of rows -> a number, larger is better
Subset = tuple[int, ...]  # places of parties, in their order


@dataclass(frozen=True)
class ValueEstimate:
    """A number and the interval around it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PartyValues:
    """The metric of subsets of parties by their names, and how much of it each party brings."""

    metric: str
    subsets: Mapping[tuple[str, ...], ValueEstimate]  # () is nobody
    values: Mapping[str, ValueEstimate]  # Shapley values: they sum to the difference between everybody and nobody


@dataclass(frozen=True)
class Game:
    """Which subsets are looked at, and how Shapley values follow from their metrics."""

    subsets: list[Subset]
    matrix: NDArray[np.float64]  # (parties, subsets)

    @classmethod
    def of(cls, parties: int, seed: int) -> Game:
        """Return all subsets, or with many parties those that are met when they come one by one, in random orders."""
        steps = list(_exact(parties) if parties <= EXACT else _sampled(parties, seed))
        places: dict[Subset, int] = {}
        for _, smaller, larger, _ in steps:
            places.setdefault(smaller, len(places))
            places.setdefault(larger, len(places))
        matrix = np.zeros((parties, len(places)))
        for party, smaller, larger, weight in steps:
            matrix[party, places[larger]] += weight
            matrix[party, places[smaller]] -= weight
        return cls(list(places), matrix)


Step = tuple[int, Subset, Subset, float]  # a party, a subset without it, the same with it, and the weight of the change


def _exact(parties: int) -> Iterator[Step]:
    for bits in range(1 << parties):
        without = tuple(k for k in range(parties) if bits >> k & 1)
        for party in set(range(parties)) - set(without):
            weight = 1 / (parties * comb(parties - 1, len(without)))
            yield party, without, tuple(sorted((*without, party))), weight


def _sampled(parties: int, seed: int) -> Iterator[Step]:
    for number in range(ORDERS):
        order = permutation(derive(seed, "order", number), parties, 0, parties).tolist()
        for size, party in enumerate(order):
            yield party, tuple(sorted(order[:size])), tuple(sorted(order[: size + 1])), 1 / ORDERS


@dataclass(frozen=True)
class ScoredRows:
    """Rows to predict from subsets: the representations of all parties, who has which, and the targets."""

    fusion: Fusion
    parts: Sequence[Tensor]  # exact, shape (rows, width) each
    present: Tensor  # bool, shape (rows, parties)
    labels: Tensor

    def output(self, subset: Subset) -> Tensor:
        """Return what the parties of a subset predict."""
        chosen = torch.zeros(len(self.parts), dtype=torch.bool)
        chosen[list(subset)] = True
        mask = self.present & chosen
        output = self._predict(mask)
        nobody = ~mask.any(dim=1)
        return torch.where(nobody.reshape(-1, *[1] * (output.dim() - 1)), self._mean, output)

    @property
    def everybody(self) -> Tensor:
        """What all predict together that have the row."""
        return self._predict(self.present)

    @property
    def outputs(self) -> int:
        """How many numbers the network has for a row."""
        return self._mean.numel()

    def every(self, step: int) -> ScoredRows:
        """Return each so many-th row."""
        return ScoredRows(self.fusion, [part[::step] for part in self.parts], self.present[::step], self.labels[::step])

    @cached_property
    def _mean(self) -> Tensor:
        return self.everybody.mean(dim=0, keepdim=True)

    def _predict(self, mask: Tensor) -> Tensor:
        chunks = [slice(start, start + CHUNK) for start in range(0, len(mask), CHUNK)]
        with torch.no_grad(), evaluating([self.fusion]):
            return torch.cat([self.fusion([h[c] for h in self.parts], mask[c].to(self.parts[0].dtype)) for c in chunks])


def scored_rows(
    fusion: Fusion, parts: Mapping[str, Tensor], presence: RowPresence | None, labels: Tensor
) -> ScoredRows:
    """Return rows of all parties, with zeros where one lacks a row; no presence: all have all."""
    present = presence.table if presence else torch.ones(len(labels), len(parts), dtype=torch.bool)
    return ScoredRows(fusion, list(parts.values()), present, labels)


def party_values(
    rows: ScoredRows, names: Sequence[str], metric: Metric, metric_name: str, resamples: int = RESAMPLES, seed: int = 0
) -> PartyValues:
    """Return the metric of subsets and the Shapley values of parties, with intervals from so many resamples."""
    game = Game.of(len(names), seed)
    draws = [resampled(len(rows.labels), derive(seed, "resample", number)) for number in range(resamples)]
    found = np.empty((1 + resamples, len(game.subsets)))
    for place, subset in enumerate(game.subsets):
        output = rows.output(subset)
        found[0, place] = metric(output, rows.labels)
        found[1:, place] = [metric(output[drawn], rows.labels[drawn]) for drawn in draws]
    subsets = [tuple(names[k] for k in subset) for subset in game.subsets]
    return PartyValues(
        metric_name,
        dict(zip(subsets, estimates(found), strict=True)),
        dict(zip(names, estimates(found @ game.matrix.T), strict=True)),
    )


def resampled(rows: int, key: int) -> Tensor:
    """Return as many rows, drawn with replacement."""
    return torch.from_numpy((uniforms(key, rows) * rows).astype(np.int64))


def estimates(found: NDArray[np.float64]) -> list[ValueEstimate]:
    """Return an estimate for every column: its first entry is the value, and the others are those of resamples."""
    value, others = found[0], found[1:] if len(found) > 1 else found
    low, high = np.quantile(others, [(1 - COVERED) / 2, (1 + COVERED) / 2], axis=0)
    return [ValueEstimate(*map(float, each)) for each in zip(value, low, high, strict=True)]
