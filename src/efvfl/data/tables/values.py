"""The values of one column as numbers, days or texts, with missing ones told apart; nothing here is learnt."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars
from numpy.typing import NDArray

from efvfl.data.tables.texts import as_floats, as_moments, as_text, stripped
from efvfl.errors import DataError

Kind = Literal["number", "boolean", "date", "time", "category"]
TRUE, FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
LARGEST = 1e100  # numbers beyond this count as infinite: their squares must not overflow
MICROSECONDS = 86_400_000_000  # a day
TEXTS = (polars.String, polars.Categorical, polars.Enum, polars.Null)


def kind_of(values: polars.Series) -> Kind:
    """Return what a column holds, going by its type alone."""
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
    raise DataError(f"column {values.name!r} holds {kind}, which no model takes.", "Name it in `leave_out`.")


def numbers_of(values: polars.Series, kind: Kind) -> NDArray[np.float64]:
    """Return one number for each row, NaN where it is missing: booleans as 0 and 1, dates as days since 1970."""
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
    """Return dates, times of day on dates, or texts and numbers such as 20240131 that say them, all in UTC."""
    values = _of_any_kind(values)
    if values.dtype.is_integer() or values.dtype.is_float() or values.dtype in TEXTS:
        text = stripped(as_text(values))
        found = as_moments(text)
        if found is None:
            raise _unlike(values, text, "dates, all written as 2024-01-31 or all in another common way,")
        values = found
    if isinstance(values.dtype, polars.Datetime) and values.dtype.time_zone:
        values = values.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if values.dtype in (polars.Date, polars.Datetime):
        return values.cast(polars.Datetime("us"))
    raise _unlike(values, values, "dates")


def _of_any_kind(values: polars.Series) -> polars.Series:
    """Let a column without any value pass for whatever is expected: its file could not say what it holds."""
    return values.cast(polars.Null) if values.null_count() == len(values) else values


def _floats(values: polars.Series) -> polars.Series:
    if values.dtype == polars.Duration:
        return values.cast(polars.Duration("us")).cast(polars.Int64).cast(polars.Float64) / MICROSECONDS
    if values.dtype in TEXTS:
        text = stripped(as_text(values))
        found = as_floats(text)
        if found is None:
            raise _unlike(values, text.filter(text.cast(polars.Float64, strict=False).is_null()), "numbers")
        return found
    if values.dtype.is_numeric() or values.dtype == polars.Boolean:
        return values.cast(polars.Float64)
    raise _unlike(values, values, "numbers")


def _booleans(values: polars.Series) -> polars.Series:
    if values.dtype == polars.Boolean:
        return values
    text = stripped(as_text(values)).str.to_lowercase()
    known = text.is_in(TRUE) | text.is_in(FALSE)
    if not known.all():  # a missing value is left out of account
        raise _unlike(values, text.filter(~known), "true and false")
    return text.is_in(TRUE)


def _times(values: polars.Series) -> polars.Series:
    if values.dtype == polars.Time or not values.count():
        return values.cast(polars.Time)
    raise _unlike(values, values, "times of day")


def _unlike(values: polars.Series, wrong: polars.Series, expected: str) -> DataError:
    example = wrong.drop_nulls()[0]
    return DataError(
        f"column {values.name!r} holds {example!r} (as {values.dtype}), {expected} are expected.",
        "Mend the table, or set `types` for this column.",
    )
