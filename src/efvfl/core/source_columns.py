"""A party's columns that are read when they are asked for: a `Source` in place of a tensor of all rows.

What a source returns is data of somebody else's code, so every batch is checked before it is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from efvfl.core.batches import Rows, Source
from efvfl.errors import ConfigError, describe

LOOKED_AT = -1  # the step at which rows are read that nobody trains on: those of records, predictions and held-out rows


class SourceColumns:
    """The rows of a source as a party, a record or a prediction takes them: by step, or by place as of a tensor.

    >>> class Squares:
    ...     def __len__(self):
    ...         return 4
    ...
    ...     def batch(self, rows, step):
    ...         return (torch.arange(4.0)[rows] ** 2).unsqueeze(1)
    >>> columns = SourceColumns(Squares(), "columns of 'bank'")
    >>> columns.shape, columns[2:].flatten().tolist()
    ((4, 1), [4.0, 9.0])
    """

    def __init__(self, source: Source, what: str) -> None:
        """Read one row, to know shape and dtype; `what` they are is said in errors."""
        self.source = source
        self.what = what
        self._rows = len(source)
        first = self._read(torch.zeros(min(1, self._rows), dtype=torch.int64), LOOKED_AT)
        self.dtype = first.dtype
        self.shape = (self._rows, *first.shape[1:])

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._rows

    def __getitem__(self, rows: int | Rows) -> Tensor:
        """Return rows, or the one of a number, as they are looked at."""
        if isinstance(rows, int):
            return self.batch(torch.tensor([rows]), LOOKED_AT)[0]
        return self.batch(rows, LOOKED_AT)

    def batch(self, rows: Rows, step: int) -> Tensor:
        """Return these rows as they are at this step, or refuse what is read."""
        x = self._read(rows, step)
        if x.shape[1:] != self.shape[1:] or x.dtype != self.dtype:
            raise ConfigError(
                f"the {self.what} at step {step}: expected {self.dtype} of shape {(len(x), *self.shape[1:])} from the "
                f"source, as its first row is, got {x.dtype} of {tuple(x.shape)}."
            )
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise ConfigError(f"the {self.what} at step {step} hold NaN or infinity: fill or drop such rows first.")
        return x

    def _read(self, rows: Rows, step: int) -> Tensor:
        x = self.source.batch(rows, step)
        if not isinstance(x, Tensor) or not x.dim():
            raise ConfigError(f"the {self.what}: expected a tensor of rows from the source, got {describe(x)}.")
        count = len(range(*rows.indices(self._rows))) if isinstance(rows, slice) else len(rows)
        if len(x) != count:
            raise ConfigError(
                f"the {self.what} at step {step}: expected {count:,} rows from the source, got a tensor of shape "
                f"{tuple(x.shape)}: return the rows that are asked for, in their order. (numpy takes a tensor of one "
                "number as that number: index arrays with rows.numpy().)"
            )
        return x


OwnColumns = Tensor | SourceColumns  # of one party


def is_source(table: object) -> bool:
    """Whether something is a `Source`, and no table itself."""
    return not isinstance(table, Tensor) and callable(getattr(table, "batch", None)) and hasattr(table, "__len__")
