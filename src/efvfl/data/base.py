"""A data set whose columns belong to different parties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from efvfl.core.batches import Rows, Source
from efvfl.core.targets import scaled
from efvfl.data.participation import Participation
from efvfl.errors import ConfigError
from efvfl.training.measure import Split
from efvfl.util.rng import derive, permutation

if TYPE_CHECKING:
    from efvfl.data.tables.encode import Encoder


@dataclass(frozen=True)
class Dataset:
    """The columns of named parties, and the labels, in three splits."""

    names: list[str]
    train: Split
    validation: Split | None
    test: Split | None
    classes: int  # number of classes; 1 for regression targets
    sources: list[Source] | None = None  # used for training instead of the training rows: augmented images
    ids: dict[str, list[str]] = field(default_factory=dict)  # of the rows, by split; empty: rows have no ids
    encoders: Mapping[str, Encoder] = field(default_factory=dict)  # of the parties' tables
    class_names: tuple[str, ...] = ()  # if the labels were strings
    loss: str = ""  # of tables: what was asked for, or follows from the labels
    participation: Mapping[str, Participation] = field(default_factory=dict)  # of the rows of the parties' tables
    columns: Mapping[str, Any] = field(default_factory=dict)  # of tables: how later rows differ, as `drift` counts it

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that have rows, by name."""
        found = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: split for name, split in found.items() if split is not None and len(split.labels)}

    def subset(self, rows: int, seed: int) -> Dataset:
        """Return a data set with `rows` of the training rows, chosen by seed; the other splits stay the same."""
        chosen = training_subset(seed, len(self.train.labels), rows)
        train = self.train.part(chosen)
        if train.weights is not None:
            train = replace(train, weights=scaled(train.weights, rows))
        sources: list[Source] | None = (
            [SourceSubset(source, chosen) for source in self.sources] if self.sources else None
        )
        ids = self.ids | {"train": [self.ids["train"][i] for i in chosen.tolist()]} if self.ids else {}
        return replace(self, train=train, sources=sources, ids=ids)

    def with_held_out(self, rows: int, seed: int) -> Dataset:
        """Return a data set with at most `rows` validation rows, and as many test rows, chosen by seed."""
        ids = dict(self.ids)

        def part(name: str, split: Split | None) -> Split | None:
            if split is None or len(split.labels) <= rows:
                return split
            chosen = chosen_rows(seed, name, len(split.labels), rows)
            if name in ids:
                ids[name] = [ids[name][i] for i in chosen.tolist()]
            return split.part(chosen)

        return replace(self, validation=part("validation", self.validation), test=part("test", self.test), ids=ids)


def chosen_rows(seed: int, purpose: str, count: int, rows: int) -> Tensor:
    """Return so many of `count` rows, a function of the seed and the purpose alone, in increasing order."""
    return torch.from_numpy(permutation(derive(seed, purpose), count, 0, rows)).sort().values


def training_subset(seed: int, count: int, rows: int) -> Tensor:
    """Return which of `count` training rows are in a subset."""
    if not 0 < rows <= count:
        raise ConfigError(f"expected a subset of 1 to {count:,} training rows, got {rows:,}.")
    return chosen_rows(seed, "subset", count, rows)


@dataclass(frozen=True)
class SourceSubset:
    """A subset of the rows of a source."""

    source: Source
    chosen: Tensor

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, rows: Rows, step: int) -> Tensor:
        """Return rows by their index in the subset."""
        return self.source.batch(self.chosen[rows], step)


def cut(
    names: list[str], columns: list[Tensor], labels: Tensor, shares: tuple[float, float], seed: int
) -> tuple[Split, Split | None, Split | None]:
    """Return train, validation and test splits of rows shuffled by seed; `shares` are those of validation and test."""
    rows = len(labels)
    for name, x in zip(names, columns, strict=True):
        if len(x) != rows:
            raise ConfigError(
                f"expected {rows:,} rows of {name!r}, one per label, got {len(x):,}: align the tables first."
            )
    train, valid, test = (
        Split([x[part] for x in columns], labels[part]) if len(part) else None
        for part in cut_rows(rows, shares, seed).values()
    )
    assert train is not None, "checked above"
    return train, valid, test


def cut_rows(rows: int, shares: tuple[float, float], seed: int) -> dict[str, Tensor]:
    """Return the row indices of every split, a function of the seed and the number of rows alone."""
    valid = all(0 <= share < 1 for share in shares)
    sizes = [int(rows * share) for share in shares] if valid else []
    if not valid or sum(sizes) >= rows:
        raise ConfigError(f"validation and test shares {shares} leave no rows of {rows:,} to train on.")
    order = torch.from_numpy(permutation(derive(seed, "split"), rows, 0, rows))
    return dict(zip(("train", "validation", "test"), torch.split(order, [rows - sum(sizes), *sizes]), strict=True))


def halves(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return two random halves of the official test rows, for validation and for testing."""
    order = torch.from_numpy(permutation(derive(seed, "split"), rows, 0, rows))
    return order[: rows // 2], order[rows // 2 :]
