"""The values of one column as numbers or datetimes, with NaN or null for missing ones; nothing is fitted here."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars
from numpy.typing import NDArray

from efvfl.data.tables.texts import as_floats, as_moments, as_text, stripped
from efvfl.errors import DataError

Kind = Literal["number", "boolean", "date", "time", "category"]
TRUE, FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
LARGEST = 1e100  # larger numbers count as missing, so that squares do not overflow
MICROSECONDS = 86_400_000_000  # per day
TEXTS = (polars.String, polars.Categorical, polars.Enum, polars.Null)


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


def numbers_of(values: polars.Series, kind: Kind) -> NDArray[np.float64]:
    """Return one number per row, NaN if missing: booleans as 0 and 1, dates as days since 1970."""
    values = _of_any_kind(values)
    if kind == "boolean":
        found = _booleans(values).cast(polars.Float64)
    elif kind == "date":
        found = moments(values).dt.epoch("us").cast(polars.Float64) / MICROSECONDS
    elif kind == "time":
        found = _times(values).cast(polars.Int64).cast(polars.Float64) / (1000 * MICROSECONDS)
    else:
        found = _floats(values)
    numbers = found.to_numpy().astype(np.float64)
    numbers[~(np.abs(numbers) <= LARGEST)] = np.nan
    return numbers


def moments(values: polars.Series) -> polars.Series:
    """Return datetimes in UTC, from dates, datetimes, or strings and numbers such as 20240131."""
    values = _of_any_kind(values)
    if values.dtype.is_integer() or values.dtype.is_float() or values.dtype in TEXTS:
        text = stripped(as_text(values))
        found = as_moments(text)
        if found is None:
            raise _unexpected(values, text, "dates, all written as 2024-01-31 or all in another common format")
        values = found
    if isinstance(values.dtype, polars.Datetime) and values.dtype.time_zone:
        values = values.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if values.dtype in (polars.Date, polars.Datetime):
        return values.cast(polars.Datetime("us"))
    raise _unexpected(values, values, "dates")


def _of_any_kind(values: polars.Series) -> polars.Series:
    """Return a column without any value as nulls, which can become any kind: its dtype means nothing."""
    return values.cast(polars.Null) if values.null_count() == len(values) else values


def _floats(values: polars.Series) -> polars.Series:
    if values.dtype == polars.Duration:
        return values.cast(polars.Duration("us")).cast(polars.Int64).cast(polars.Float64) / MICROSECONDS
    if values.dtype in TEXTS:
        text = stripped(as_text(values))
        found = as_floats(text)
        if found is None:
            raise _unexpected(values, text.filter(text.cast(polars.Float64, strict=False).is_null()), "numbers")
        return found
    if values.dtype.is_numeric() or values.dtype == polars.Boolean:
        return values.cast(polars.Float64)
    raise _unexpected(values, values, "numbers")


def _booleans(values: polars.Series) -> polars.Series:
    if values.dtype == polars.Boolean:
        return values
    text = stripped(as_text(values)).str.to_lowercase()
    known = text.is_in(TRUE) | text.is_in(FALSE)
    if not known.all():  # missing values are ignored
        raise _unexpected(values, text.filter(~known), "true or false")
    return text.is_in(TRUE)


def _times(values: polars.Series) -> polars.Series:
    if values.dtype == polars.Time or not values.count():
        return values.cast(polars.Time)
    raise _unexpected(values, values, "times of day")


def _unexpected(values: polars.Series, wrong: polars.Series, expected: str) -> DataError:
    example = wrong.drop_nulls()[0]
    return DataError(
        f"expected {expected} in column {values.name!r}, got {example!r} ({values.dtype}).",
        "Correct the table, or set `types` for this column.",
    )
