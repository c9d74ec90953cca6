"""A data set that is cut by columns: who holds what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from efvfl.core.batches import Rows, Source
from efvfl.errors import ConfigError
from efvfl.training.measure import Split
from efvfl.util.rng import derive, permutation

if TYPE_CHECKING:
    from efvfl.data.tables.encode import Encoder


@dataclass(frozen=True)
class Dataset:
    """Columns of named parties, and the labels, in three splits."""

    names: list[str]
    train: Split
    validation: Split | None
    test: Split | None
    classes: int  # how many there are; 1 for targets that are not classes
    sources: list[Source] | None = None  # what parties train on in place of the training rows: augmented images
    ids: dict[str, list[str]] = field(default_factory=dict)  # of the rows, by split; empty: they are only counted
    encoders: Mapping[str, Encoder] = field(default_factory=dict)  # tables: how each party's became numbers
    class_names: tuple[str, ...] = ()  # where labels were texts

    def subset(self, rows: int, seed: int) -> Dataset:
        """Return a data set with so many of the training rows, chosen by seed; the other splits stay."""
        count = len(self.train.labels)
        if not 0 < rows <= count:
            raise ConfigError(f"a subset of {rows:,} training rows came, 1 to {count:,} are there.")
        chosen = torch.from_numpy(permutation(derive(seed, "subset"), count, 0, rows)).sort().values
        train = Split([x[chosen] for x in self.train.features], self.train.labels[chosen])
        sources: list[Source] | None = [_Some(source, chosen) for source in self.sources] if self.sources else None
        ids = self.ids | {"train": [self.ids["train"][i] for i in chosen.tolist()]} if self.ids else {}
        return replace(self, train=train, sources=sources, ids=ids)


@dataclass(frozen=True)
class _Some:
    """Some rows of a source."""

    source: Source
    chosen: Tensor

    def __len__(self) -> int:
        return len(self.chosen)

    def batch(self, rows: Rows, step: int) -> Tensor:
        """Return rows by their number among the chosen."""
        return self.source.batch(self.chosen[rows], step)


def cut(
    names: list[str], columns: list[Tensor], labels: Tensor, shares: tuple[float, float], seed: int
) -> tuple[Split, Split | None, Split | None]:
    """Shuffle rows by seed and cut them into train, validation and test; `shares` are those of the last two."""
    rows = len(labels)
    for name, x in zip(names, columns, strict=True):
        if len(x) != rows:
            raise ConfigError(f"{name!r} holds {len(x):,} rows, but there are {rows:,} labels: align the tables first.")
    train, valid, test = (
        Split([x[part] for x in columns], labels[part]) if len(part) else None
        for part in cut_rows(rows, shares, seed).values()
    )
    assert train is not None, "checked above"
    return train, valid, test


def cut_rows(rows: int, shares: tuple[float, float], seed: int) -> dict[str, Tensor]:
    """Return the numbers of the rows of every split: everyone who has the seed and the number of rows cuts alike."""
    held = [int(rows * share) for share in shares]
    if min(shares) < 0 or sum(held) >= rows:
        raise ConfigError(f"validation and test shares {shares} leave no rows of {rows:,} to train on.")
    order = torch.from_numpy(permutation(derive(seed, "split"), rows, 0, rows))
    return dict(zip(("train", "validation", "test"), torch.split(order, [rows - sum(held), *held]), strict=True))


def halves(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Cut the official test rows at random by seed: one half to validate on, one to test on."""
    order = torch.from_numpy(permutation(derive(seed, "split"), rows, 0, rows))
    return order[: rows // 2], order[rows // 2 :]
