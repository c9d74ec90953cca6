"""Ids of rows, normalised so that organisations that write them differently still find their common rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars
from numpy.typing import NDArray

from efvfl.data.tables.texts import as_text
from efvfl.errors import ConfigError, DataError, nearest

FORMS = ("strip", "case", "zeros")
EXAMPLES = 3


@dataclass(frozen=True)
class IdReport:
    """The outcome of reading the ids of a table."""

    total: int  # all rows of the table
    missing: int  # rows without an id, left out
    duplicates: int  # rows left out because another row has the same id
    changed: int  # ids that normalisation altered
    examples: list[str]  # a few of the changed ones, before and after

    def text(self) -> str:
        """Return a summary for users."""
        left = self.total - self.missing - self.duplicates
        parts = [f"{left:,} of {self.total:,} rows have a unique id"]
        if self.missing:
            parts.append(f"{self.missing:,} without an id are left out")
        if self.duplicates:
            parts.append(f"{self.duplicates:,} that share an id are left out")
        text = "; ".join(parts) + "."
        if self.changed:
            text += f" {self.changed:,} ids were normalised, such as {', '.join(self.examples)}."
        return text


@dataclass(frozen=True)
class Ids:
    """The unique ids of a table."""

    ids: list[str]  # in table order
    rows: NDArray[np.int64]  # their row numbers in the table
    report: IdReport


def normalise(values: polars.Series, forms: Sequence[str]) -> list[str | None]:
    """Return normalised ids: without surrounding spaces ("strip"), case ("case") or leading zeros ("zeros").

    Whole numbers have the same text for every dtype, and a missing or empty id is None.

    >>> normalise(polars.Series([" A07", "", "b1"]), ("strip", "case"))
    ['a07', None, 'b1']
    """
    normalised: list[str | None] = _normalised(as_text(values), forms).to_list()
    return normalised


def normalise_texts(ids: Sequence[str], forms: Sequence[str]) -> list[str]:
    """Return normalised ids that a user typed; an empty one stays empty."""
    normalised = normalise(polars.Series(ids, dtype=polars.String), forms)
    return [typed if normal is None else normal for typed, normal in zip(ids, normalised, strict=True)]


def read_ids(
    values: polars.Series, forms: Sequence[str], duplicates: Literal["refuse", "first", "drop"], what: str
) -> Ids:
    """Return the unique ids of a table; `what` names the table in errors."""
    raw = as_text(values)
    table = polars.DataFrame({"raw": raw, "id": _normalised(raw, forms)}).with_row_index("row")
    there = table.filter(polars.col("id").is_not_null())
    twice = there.filter(polars.col("id").is_duplicated())
    if twice.height and duplicates == "refuse":
        example, count = twice["id"][0], twice["id"].n_unique()
        raise DataError(
            f"{what}: expected a unique id for every row, but {twice.height:,} rows share {count:,} ids, such as "
            f"{example!r}. Correct the table, or set data.duplicates to 'first' (keep the first row) or 'drop' (keep "
            "none)."
        )
    kept = there.unique("id", keep="first" if duplicates == "first" else "none", maintain_order=True)
    changed = there.filter(polars.col("raw") != polars.col("id"))
    examples = [f"{before!r} as {after!r}" for before, after in changed.head(EXAMPLES).select("raw", "id").iter_rows()]
    report = IdReport(table.height, table.height - there.height, there.height - kept.height, changed.height, examples)
    if not kept.height:
        raise DataError(f"{what}: no row has a unique id. {report.text()} Is this the column of ids?")
    return Ids(kept["id"].to_list(), kept["row"].to_numpy().astype(np.int64), report)


def _normalised(text: polars.Series, forms: Sequence[str]) -> polars.Series:
    for form in forms:
        if form not in FORMS:
            raise ConfigError(f"there is no id format {form!r}. {nearest(form, FORMS)}")
    # Always applied in this order, so that parties that list them differently get the same ids.
    if "strip" in forms:
        text = as_text(text.str.strip_chars())
    if "case" in forms:
        folded = {value: value.casefold() for value in text.drop_nulls().unique() if value != value.casefold()}
        text = text.replace(folded)
    if "zeros" in forms:  # the last digit stays, and so does a zero before a dot or a dash
        text = text.str.replace(r"^0+([\p{L}\p{N}])", "$1")
    return text
