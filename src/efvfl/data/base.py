"""A data set that is cut by columns: who holds what."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from efvfl.batches import Source
from efvfl.errors import ConfigError
from efvfl.observe import Split
from efvfl.rng import derive, permutation


@dataclass(frozen=True)
class Dataset:
    """Columns of named parties, and the labels, in three splits."""

    names: list[str]
    train: Split
    validation: Split | None
    test: Split | None
    classes: int  # outputs the network needs: classes, or 1 for regression and binary labels
    sources: list[Source] | None = None  # what parties train on in place of the training rows: augmented images


def cut(names: list[str], columns: list[Tensor], labels: Tensor, shares: tuple[float, float], seed: int) -> list[Split]:
    """Shuffle rows by seed and cut them into train, validation and test; `shares` are those of the last two."""
    rows = len(labels)
    for name, x in zip(names, columns, strict=True):
        if len(x) != rows:
            raise ConfigError(f"{name!r} holds {len(x):,} rows, but there are {rows:,} labels: align the tables first.")
    held = [int(rows * share) for share in shares]
    if min(shares) < 0 or sum(held) >= rows:
        raise ConfigError(f"validation and test shares {shares} leave no rows of {rows:,} to train on.")
    order = torch.from_numpy(permutation(derive(seed, "split"), rows, 0, rows))
    parts = torch.split(order, [rows - sum(held), *held])
    return [Split([x[part] for x in columns], labels[part]) for part in parts]
