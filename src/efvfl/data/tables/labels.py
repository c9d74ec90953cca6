"""The label column as numbers: classes by the order of their names, or targets as they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars
import torch
from torch import Tensor

from efvfl.data.tables.texts import as_text
from efvfl.errors import DataError

TARGETS = ("mse", "huber")  # losses of numbers; all others are of classes


@dataclass(frozen=True)
class Labels:
    """How a label becomes a number."""

    names: tuple[str, ...] = ()  # of the classes, by their number; empty: labels are numbers already

    @classmethod
    def of(cls, values: polars.Series, loss: str) -> Labels:
        """Learn the classes of all rows; whole numbers 0, 1, ... and the targets of a regression stay as they are."""
        if values.null_count():
            raise DataError(
                f"the label {values.name!r} is missing in {values.null_count():,} of {len(values):,} shared rows: "
                "leave such rows out of the table."
            )
        if loss in TARGETS:
            if not values.dtype.is_numeric():
                raise DataError(f"loss {loss!r} needs numbers, but the label {values.name!r} is of {values.dtype}.")
            return cls()
        if values.dtype.is_integer():
            found = values.unique().sort().to_list()
            if found == list(range(len(found))):
                return cls()
        names = as_text(values).unique().drop_nulls().sort().to_list()
        if len(names) < 2:
            raise DataError(f"the label {values.name!r} has only the class {names}: two are needed to learn anything.")
        if values.dtype.is_float() and len(names) > 100:
            raise DataError(
                f"the label {values.name!r} has {len(names):,} different numbers, too many for classes: is it a "
                "target? Then set loss = 'mse' or 'huber'."
            )
        return cls(tuple(sorted(names, key=_order)))

    def encode(self, values: polars.Series) -> Tensor:
        """Return one number a row: int64 for classes, float32 for targets."""
        if not self.names:
            kind = np.int64 if values.dtype.is_integer() else np.float32
            return torch.from_numpy(values.to_numpy().astype(kind))
        numbers = {name: number for number, name in enumerate(self.names)}
        return torch.tensor([numbers[name] for name in as_text(values)], dtype=torch.int64)


def _order(name: str) -> tuple[bool, float, str]:
    """Numbers by size, then texts by the alphabet."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name
