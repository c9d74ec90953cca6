"""The label column as numbers: class indices in the order of their names, or regression targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars
import torch
from torch import Tensor

from efvfl.data.tables.texts import as_text
from efvfl.errors import DataError

TARGETS = ("mse", "huber")  # regression losses; all others are for classes


@dataclass(frozen=True)
class Labels:
    """The encoding of labels as numbers."""

    names: tuple[str, ...] = ()  # of the classes, by index; empty: labels are already numbers

    @classmethod
    def of(cls, values: polars.Series, loss: str) -> Labels:
        """Return the encoding of these labels; class indices 0, 1, ... and regression targets stay unchanged."""
        if values.null_count():
            raise DataError(
                f"the label {values.name!r} is missing in {values.null_count():,} of {len(values):,} shared rows: "
                "remove these rows from the table."
            )
        if loss in TARGETS:
            if not values.dtype.is_numeric():
                raise DataError(f"loss {loss!r}: expected numbers as the label {values.name!r}, got {values.dtype}.")
            return cls()
        if values.dtype.is_integer():
            found = values.unique().sort().to_list()
            if found == list(range(len(found))):
                return cls()
        names = as_text(values).unique().drop_nulls().sort().to_list()
        if len(names) < 2:
            raise DataError(f"expected two or more classes as the label {values.name!r}, got {names}.")
        if values.dtype.is_float() and len(names) > 100:
            raise DataError(
                f"the label {values.name!r} has {len(names):,} different numbers, too many for classes: for a "
                "regression target set loss = 'mse' or 'huber'."
            )
        return cls(tuple(sorted(names, key=_order)))

    def encode(self, values: polars.Series) -> Tensor:
        """Return the encoded labels, shape (rows,): int64 for classes, float32 for regression targets."""
        if not self.names:
            kind = np.int64 if values.dtype.is_integer() else np.float32
            return torch.from_numpy(values.to_numpy().astype(kind))
        numbers = {name: number for number, name in enumerate(self.names)}
        return torch.tensor([numbers[name] for name in as_text(values)], dtype=torch.int64)


def _order(name: str) -> tuple[bool, float, str]:
    """Return a sort key: numbers by value, then strings in alphabetical order."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name
