"""The labels and weights of all rows of a list, where labels are shared and a party may lack rows.

A party cannot look up the labels of rows that it does not have, so the label holder tells them, by the rows' numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from efvfl.core.label_mechanism import as_table, of_table
from efvfl.core.label_release import LabelRelease
from efvfl.core.ranges import FLOAT32
from efvfl.core.targets import Targets
from efvfl.errors import ConfigError, WireError

if TYPE_CHECKING:
    from efvfl.data.tables.load import Table

# From a loss, and labels and ids by split, to labels that may be told; None: they are told as they are.
Draw = Callable[[str, Mapping[str, Tensor], Mapping[str, Sequence[str]]], LabelRelease | None]

MOST_CLASSES: Final = 1 << 20
LONGEST: Final = 1_000  # characters of a class's name


@dataclass(frozen=True)
class ListTargets:
    """Labels as numbers, and how much every row counts."""

    labels: Sequence[int] | Sequence[float]  # classes or regression targets
    weights: Sequence[float | None]  # None throughout a split: its rows count alike
    names: tuple[str, ...]  # of the classes; empty: labels are numbers
    loss: str  # that was asked for, or follows from the labels
    drawn: Mapping[str, Any] | None = None  # how labels were randomised, and whether the loss corrects for it

    @classmethod
    def of(
        cls, table: Table, by_split: Mapping[str, Sequence[str]], loss: str, draw: Draw | None = None
    ) -> ListTargets:
        """Return those of a table for the ids of a list, split by split; `draw` randomises labels that are told."""
        classes = table.encoding([name for ids in by_split.values() for name in ids], loss)
        truth = {split: classes.encode(table.labels(ids)) for split, ids in by_split.items()}
        release = draw(classes.loss, truth, by_split) if draw else None
        labels = torch.cat([*(release.labels if release else truth).values()])
        weights: list[float | None] = []
        for ids in by_split.values():
            found = table.weights(ids)
            weights += [None] * len(ids) if found is None else found.tolist()
        drawn = {**as_table(release.mechanism), "corrects": release.corrects} if release else None
        return cls(labels.tolist(), weights, classes.names, classes.loss, drawn)

    def part(self, rows: slice) -> ListTargets:
        """Return those of some rows."""
        return replace(self, labels=self.labels[rows], weights=self.weights[rows])

    def joined(self, more: ListTargets) -> ListTargets:
        """Return these, and then those of further rows of the same list."""
        if (self.names, self.loss, self.drawn) != (more.names, more.loss, more.drawn):
            raise WireError("expected the classes and the loss of the parts before, got others.")
        return replace(self, labels=[*self.labels, *more.labels], weights=[*self.weights, *more.weights])

    def release(self, labels: Mapping[str, Tensor]) -> LabelRelease | None:
        """Return how these labels, by split, were randomised before they were told; None: they were not."""
        if self.drawn is None:
            return None
        table = dict(self.drawn)
        corrects = bool(table.pop("corrects"))
        return LabelRelease(of_table(table), dict(labels), {}, corrects=corrects)

    def of_split(self, rows: slice) -> Targets:
        """Return the targets of a split, which has these rows."""
        labels, weights = self.labels[rows], self.weights[rows]
        kind = torch.int64 if isinstance(labels[0], int) else torch.float32
        counting = [weight for weight in weights if weight is not None]
        return Targets(
            torch.tensor(labels, dtype=kind), torch.tensor(counting, dtype=torch.float64) if counting else None
        )

    def table(self) -> dict[str, Any]:
        """Return them for JSON."""
        return {
            "labels": list(self.labels),
            "weights": list(self.weights),
            "names": list(self.names),
            "loss": self.loss,
        } | ({} if self.drawn is None else {"drawn": dict(self.drawn)})

    @classmethod
    def read(cls, table: Mapping[str, Any], rows: int) -> ListTargets:
        """Return what another organisation sent, after checking it."""
        labels, weights, names, loss = (table.get(key) for key in ("labels", "weights", "names", "loss"))
        named = isinstance(names, list) and len(names) <= MOST_CLASSES
        if not named or not all(isinstance(n, str) and len(n) <= LONGEST for n in names or ()):
            raise WireError("expected the names of the classes as texts, got something else.")
        if not isinstance(loss, str) or len(loss) > LONGEST or not loss.isprintable():
            raise WireError(f"expected the name of a loss, got {loss!r:.80}.")
        most = len(names or ()) or MOST_CLASSES
        if not isinstance(labels, list) or len(labels) != rows or not _are_labels(labels, most):
            raise WireError(f"expected {rows:,} labels that are all classes or all numbers, got something else.")
        if not isinstance(weights, list) or len(weights) != rows or not all(map(_is_weight, weights)):
            raise WireError(f"expected {rows:,} weights of 0 or more, or none, got something else.")
        return cls(labels, weights, tuple(names or ()), loss, read_drawn(table.get("drawn")))


def read_drawn(table: object) -> dict[str, Any] | None:
    """Return how labels were randomised, as somebody else or a file tells it, after checking it; None: they were not.

    >>> read_drawn({"kind": "response", "classes": 2, "other": 1 << 62, "corrects": True})["classes"]
    2
    """
    if table is None:
        return None
    if not isinstance(table, dict) or not isinstance(table.get("corrects"), bool):
        raise WireError(f"expected how labels were randomised, got {table!r:.80}.")
    try:
        of_table({key: value for key, value in table.items() if key != "corrects"})
    except ConfigError as error:
        raise WireError(str(error)) from error
    return dict(table)


def _are_labels(values: list[Any], most: int) -> bool:
    if all(type(value) is int for value in values):
        return all(0 <= value < most for value in values)
    return all(type(value) is float and isfinite(value) and abs(value) <= FLOAT32 for value in values)


def _is_weight(value: Any) -> bool:
    return value is None or (type(value) is float and isfinite(value) and value >= 0)
