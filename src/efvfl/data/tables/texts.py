"""Conversion between values and strings: one canonical string per value, and the types of CSV columns."""

from __future__ import annotations

from collections.abc import Iterable

import polars

from efvfl.errors import DataError

# Strings that mean a missing value in a CSV; other formats have a null.
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
LARGEST_WHOLE = 2.0**63  # floats of this size and above do not fit into 64-bit integers
GLANCE = 100  # number of values to try before the whole column

# Parsers of strings, null where they fail.
_TEXT = polars.col("text")
_NUMBERS = tuple(_TEXT.cast(kind, strict=False) for kind in (polars.Int64, polars.Float64))
_BOOLEANS = (_TEXT.str.to_lowercase().replace_strict({"true": True, "false": False}, default=None),)
_DATES = tuple(
    _TEXT.str.strptime(polars.Date, form, strict=False)
    for form in ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%Y%m%d")
)
_MOMENTS = tuple(
    _TEXT.str.strptime(polars.Datetime("us", zone), f"%Y-%m-%d{between}{time}", strict=False)
    for between in "T "
    for time, zone in (("%H:%M:%S%.f", None), ("%H:%M", None), ("%H:%M:%S%.f%#z", "UTC"))
)
_TIMES = tuple(_TEXT.str.strptime(polars.Time, form, strict=False) for form in ("%H:%M:%S%.f", "%H:%M"))


def as_text(values: polars.Series) -> polars.Series:
    """Return values as strings, the same for a CSV and a Parquet file: 12.0 is '12'; an empty string is null."""
    kind = values.dtype
    if kind.is_nested() or kind in (polars.Binary, polars.Object):
        raise DataError(f"expected numbers or strings in column {values.name!r}, got {kind}.")
    if kind.is_float():
        whole = values.is_finite() & (values == values.floor()) & (values.abs() < LARGEST_WHOLE)
        text = values.set(~values.is_finite(), None).cast(polars.String)
        return values.set(~whole, None).cast(polars.Int64).cast(polars.String).zip_with(whole.fill_null(True), text)
    text = values.cast(polars.String).str.replace(r"^(-?[0-9]+)\.0+$", "$1")
    return text.set(text == "", None)


def typed(text: polars.Series) -> polars.Series:
    """Return a column as numbers, booleans, dates or times of day if all its strings are such; else unchanged."""
    bare = stripped(text)
    if bare.null_count() == len(bare):
        return bare
    found = _parsed(bare, (*_NUMBERS, *_BOOLEANS, *_DATES, *_MOMENTS, *_TIMES))
    return text if found is None else found


def stripped(text: polars.Series) -> polars.Series:
    """Return strings without surrounding spaces; a blank string is null."""
    bare = text.str.strip_chars()
    return bare.set(bare == "", None)


def as_floats(text: polars.Series) -> polars.Series | None:
    """Return strings as numbers, or None if some are not."""
    return _parsed(text, _NUMBERS[1:])


def as_moments(text: polars.Series) -> polars.Series | None:
    """Return strings as dates or datetimes, or None if no single format fits all."""
    return _parsed(text, (*_DATES, *_MOMENTS))


def _parsed(text: polars.Series, parsers: Iterable[polars.Expr]) -> polars.Series | None:
    """Return the column by the first parser that fails for no value, or None."""
    for parser in parsers:
        for part in (text.head(GLANCE), text):
            found = part.alias("text").to_frame().select(parser).to_series()
            if found.null_count() > part.null_count():
                break
        else:
            return found.alias(text.name)
    return None
