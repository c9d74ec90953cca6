"""Values that cannot be read as the kind of their column: counted, and named to the owner of the table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars
from numpy.typing import NDArray

from efvfl.data.tables.columns import Column, Number
from efvfl.data.tables.recognise import EXAMPLES, shown


@dataclass(frozen=True)
class Unreadable:
    """The values of one column that are there but cannot be read as its kind, so that they count as missing."""

    column: str
    kind: str
    places: list[int]  # rows of the table, from 0
    examples: list[str]  # the first of the values

    def text(self, rows: NDArray[np.int64] | None = None) -> str:
        """Return a sentence with the column's name."""
        return f"column {shown(self.column)}: {self.sentence(rows)}"

    def sentence(self, rows: NDArray[np.int64] | None = None) -> str:
        """Return a sentence for the column's owner; `rows` are the numbers of these rows in the file, from 0."""
        numbers = [int(place if rows is None else rows[place]) + 1 for place in self.places[: len(self.examples)]]
        named = ", ".join(f"row {n:,} {value}" for n, value in zip(numbers, self.examples, strict=True))
        more = ", ..." if len(self.places) > len(self.examples) else "."
        several = len(self.places) > 1
        count = f"{len(self.places):,} values are" if several else "1 value is"
        return f"{count} no {self.kind}, and read as missing: {named}{more}"


def unreadable_in(column: Column, values: polars.Series) -> Unreadable | None:
    """Return the values that a column's encoder cannot read; None if there are none."""
    if not isinstance(column, Number) or not len(places := column.unreadable(values)):
        return None
    examples = [shown(value) for value in values.gather(places[:EXAMPLES])]
    return Unreadable(column.name, column.kind, places.tolist(), examples)
