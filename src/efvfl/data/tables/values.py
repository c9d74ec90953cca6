"""The values of one column as numbers or datetimes, with NaN or null for missing ones; nothing is fitted here."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars
from numpy.typing import NDArray

from efvfl.data.tables import forms
from efvfl.data.tables.texts import as_times, cells
from efvfl.errors import DataError

Kind = Literal["number", "boolean", "date", "time", "category"]
TRUE, FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
LARGEST = 1e100  # larger numbers count as missing, so that squares do not overflow
MICROSECONDS = 86_400_000_000  # per day
TEXTS = (polars.String, polars.Categorical, polars.Enum, polars.Null)
WRITTEN = {
    "number": "numbers",
    "boolean": "true or false",
    "date": "dates, all written as 2024-01-31 or all in another common format",
    "time": "times of day",
}
ANOTHER = 10  # so many values of which none can be read belong to another column


def kind_of(values: polars.Series) -> Kind:
    """Return the kind of a column according to its dtype."""
    kind = values.dtype
    if kind.is_numeric() or kind == polars.Duration:
        return "number"
    if kind == polars.Boolean:
        return "boolean"
    if kind == polars.Time:
        return "time"
    if kind.is_temporal():
        return "date"
    if kind in TEXTS:
        return "category"
    raise DataError(
        f"expected numbers, dates or strings in column {values.name!r}, got {kind}.", "Name it in `leave_out`."
    )


def numbers_of(values: polars.Series, kind: Kind, form: str = "") -> NDArray[np.float64]:
    """Return one number per row, NaN if missing or not readable: booleans as 0 and 1, dates as days since 1970."""
    found = _read(values, kind, form)
    if found.dtype == polars.Datetime:
        found = found.dt.epoch("us").cast(polars.Float64) / MICROSECONDS
    elif found.dtype == polars.Time:
        found = found.cast(polars.Int64).cast(polars.Float64) / (1000 * MICROSECONDS)
    numbers = found.cast(polars.Float64).to_numpy().astype(np.float64)
    numbers[~(np.abs(numbers) <= LARGEST)] = np.nan
    return numbers


def moments(values: polars.Series, form: str = "") -> polars.Series:
    """Return datetimes in UTC, from dates, datetimes, or strings and numbers such as 20240131; null if not readable."""
    return _read(values, "date", form)


def unreadable(values: polars.Series, kind: Kind, form: str = "") -> NDArray[np.int64]:
    """Return the places of values that are there but cannot be read as this kind."""
    if kind == "category" or not _is_written(values, kind):
        return np.empty(0, dtype=np.int64)
    return (cells(values).is_not_null() & _parse(values, kind, form).is_null()).arg_true().to_numpy().astype(np.int64)


def check_readable(values: polars.Series, kind: Kind, form: str, share: float) -> None:
    """Raise an error if more than a share of the values that are there cannot be read as this kind."""
    wrong = unreadable(values, kind, form)
    if len(wrong) and len(wrong) > share * cells(values).count():
        raise _unexpected(values, values.gather(wrong), WRITTEN[kind])


def _read(values: polars.Series, kind: Kind, form: str) -> polars.Series:
    """Return a column as numbers, booleans, datetimes or times; refuse one that is another column."""
    found = _parse(values, kind, form)
    if len(found) >= ANOTHER and not found.count() and _is_written(values, kind):
        there = cells(values).drop_nulls()
        if len(there) >= ANOTHER:
            raise _unexpected(values, there, WRITTEN[kind])
    return found


def _is_written(values: polars.Series, kind: Kind) -> bool:
    """Whether values of this kind would have to be read from text."""
    stored = values.dtype
    if kind == "date":
        return stored in TEXTS or stored.is_integer() or stored.is_float()
    return stored in TEXTS or (kind == "boolean" and stored != polars.Boolean)


def _parse(values: polars.Series, kind: Kind, form: str) -> polars.Series:
    values = _of_any_kind(values)
    if _is_written(values, kind):
        return _from_text(cells(values), kind, form)
    stored = values.dtype
    if kind == "number" and stored == polars.Duration:
        return values.cast(polars.Duration("us")).cast(polars.Int64).cast(polars.Float64) / MICROSECONDS
    if kind == "number" and (stored.is_numeric() or stored == polars.Boolean):
        return values.cast(polars.Float64)
    if kind == "boolean" or (kind == "time" and stored == polars.Time):
        return values
    if kind == "date" and stored in (polars.Date, polars.Datetime):
        if isinstance(stored, polars.Datetime) and stored.time_zone:
            values = values.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return values.cast(polars.Datetime("us"))
    raise _unexpected(values, values, WRITTEN[kind].partition(",")[0])


def _from_text(text: polars.Series, kind: Kind, form: str) -> polars.Series:
    if kind == "number":
        return forms.numbers(text, form)
    if kind == "date":
        return forms.dates(text, form)
    if kind == "time":
        return as_times(text)
    small = text.str.to_lowercase()
    return small.is_in(TRUE).set(~(small.is_in(TRUE) | small.is_in(FALSE)), None)


def _of_any_kind(values: polars.Series) -> polars.Series:
    """Return a column without any value as nulls, which can become any kind: its dtype means nothing."""
    return values.cast(polars.Null) if values.null_count() == len(values) else values


def _unexpected(values: polars.Series, wrong: polars.Series, expected: str) -> DataError:
    example = wrong.drop_nulls()[0]
    return DataError(
        f"expected {expected} in column {values.name!r}, got {example!r} ({values.dtype}).",
        "Correct the table, or set `types` for this column.",
    )
