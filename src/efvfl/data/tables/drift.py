"""How the columns of later rows differ from those of the training rows: counted for the owner of the table alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import polars

from efvfl.data.tables.columns import Category, Column, Number
from efvfl.data.tables.encode import Encoder
from efvfl.data.tables.recognise import EXAMPLES, shown
from efvfl.data.tables.table import column
from efvfl.data.tables.texts import as_text
from efvfl.data.tables.values import numbers_of

# When a difference is worth a warning. These need no setting: the counts are kept in any case, for limits of one's own.
LEAST_ROWS = 20  # a share of fewer rows moves by more than 5 points with a single row
MORE_MISSING = 0.1  # as a share of rows: with 20 rows three of them, rarely chance where training rows had none
FAR = 10  # widths of the training range: hardly a value in the same unit lies that far outside
OUTSIDE = 0.1  # as a share of rows: beside n training rows, one like them lies outside with a chance of 2 / (n + 1)


@dataclass(frozen=True)
class ColumnChange:
    """One column of later rows, beside the same column of the training rows."""

    column: str
    rows: int
    missing: int  # rows without a value, or with one that cannot be read
    missing_in_training: float  # share of the training rows
    unreadable: int = 0
    outside: int = 0  # numbers, dates and times: values beyond the range of the training rows
    far: int = 0  # those beyond it by more than ten times its width
    unseen: int = 0  # categories: rows with a level that training rows did not have
    levels: tuple[str, ...] = field(default=(), repr=False)  # the first of these levels, as they can be printed

    def counts(self) -> dict[str, Any]:
        """Return the numbers for a file, without levels: a report may be passed on."""
        return {name: value for name, value in asdict(self).items() if name != "levels"}

    def sentences(self) -> Iterator[str]:
        """Yield what is worth a warning."""
        share, many = self.missing / max(1, self.rows), self.rows >= LEAST_ROWS
        if self.unseen:
            more = ", ..." if self.unseen > len(self.levels) == EXAMPLES else ""
            yield f"{self._of(self.unseen)} a level that no training row had: {', '.join(self.levels)}{more}."
        if many and abs(share - self.missing_in_training) > MORE_MISSING:
            yield f"{share:.0%} of the values are missing, {self.missing_in_training:.0%} in the training rows."
        if self.far or (many and self.outside > OUTSIDE * self.rows):
            yield f"{self._of(self.outside)} a value outside the range of the training rows, {self.far:,} far outside."

    def _of(self, count: int) -> str:
        return f"{count:,} of {self.rows:,} rows {'have' if count > 1 else 'has'}"


def changes(encoder: Encoder, frame: polars.DataFrame) -> list[ColumnChange]:
    """Return a comparison with the training rows for every column, in order."""
    return [_change(c, column(frame, c.name, "the table")) for c in encoder.columns]


def warnings_about(found: Sequence[ColumnChange]) -> list[str]:
    """Return a sentence for everything that the owner should know."""
    return [f"column {shown(change.column)}: {text}" for change in found for text in change.sentences()]


def as_table(parts: Mapping[str, Sequence[ColumnChange]]) -> dict[str, list[dict[str, Any]]]:
    """Return all numbers for a file, by the rows that were compared."""
    return {rows: [change.counts() for change in found] for rows, found in parts.items()}


def _change(c: Column, values: polars.Series) -> ColumnChange:
    if isinstance(c, Category):
        return _of_category(c, values)
    return _of_number(c, values)


def _of_category(c: Category, values: polars.Series) -> ColumnChange:
    unseen = c.unseen(values)
    levels = tuple(map(shown, unseen.unique(maintain_order=True).head(EXAMPLES)))
    return ColumnChange(c.name, len(values), as_text(values).null_count(), c.gaps, unseen=len(unseen), levels=levels)


def _of_number(c: Number, values: polars.Series) -> ColumnChange:
    numbers = numbers_of(values, c.kind, c.form)
    width, unreadable = c.high - c.low, len(c.unreadable(values))
    beyond = np.fmax(c.low - numbers, numbers - c.high)  # nan where missing, which is not above anything
    gaps, far = int(np.isnan(numbers).sum()), int((beyond > FAR * width).sum()) if width else 0
    return ColumnChange(c.name, len(numbers), gaps, c.gaps, unreadable, int((beyond > 0).sum()), far)
