"""Conversion between values and strings: one canonical string per value, and the types of CSV columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars

from efvfl.errors import DataError

# Strings that mean a missing value in a CSV; other formats have a null, so there they do so only among numbers.
DASHES = ("-", "--", ".")  # but not in a label, nor beside a "+": there a dash means something
MISSING = ("", "?", *DASHES, "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "null", "NULL")
LARGEST_WHOLE = 2.0**63  # floats of this size and above do not fit into 64-bit integers
GLANCE = 100  # number of values to try before the whole column

# Parsers of strings, null where they fail.
_TEXT = polars.col("text")
_NUMBERS = tuple(_TEXT.cast(kind, strict=False) for kind in (polars.Int64, polars.Float64))
_BOOLEANS = (_TEXT.str.to_lowercase().replace_strict({"true": True, "false": False}, default=None),)
# Without 05/06/2024, whose form must be remembered, and without 31.12.24, which would be a day of the year 24.
_DATES = tuple(
    polars.when(_TEXT.str.contains(r"\d{4}")).then(_TEXT.str.strptime(polars.Date, form, strict=False))
    for form in ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y")
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
    """Return a column as numbers, booleans, dates or times of day if all its strings are such; else unchanged.

    Only forms that can be read in one way count here: others are found when an encoder is fitted, which remembers them.
    """
    bare = stripped(text)
    if bare.null_count() == len(bare):
        return bare
    found = first_fit(bare, (*_NUMBERS, *_BOOLEANS, *_DATES, *_MOMENTS, *_TIMES))
    return text if found is None else found


def without_markers(text: polars.Series, markers: Sequence[str] = MISSING) -> polars.Series:
    """Return strings with null for those that mean a missing value, with or without spaces around them."""
    bare = text.cast(polars.String).str.strip_chars()
    if (bare == "+").any():
        markers = [marker for marker in markers if marker not in DASHES]
    return text.set(bare.is_in(list(markers)), None) if markers else text


def cells(values: polars.Series) -> polars.Series:
    """Return a column as strings to read numbers or dates from: without spaces around them and markers."""
    # As text, 1.000 is not 1 here: it may be a thousand.
    plain = as_text(values) if values.dtype.is_numeric() else values.cast(polars.String)
    return without_markers(stripped(plain))


def stripped(text: polars.Series) -> polars.Series:
    """Return strings without surrounding spaces; a blank string is null."""
    bare = text.str.strip_chars()
    return bare.set(bare == "", None)


def as_times(text: polars.Series) -> polars.Series:
    """Return strings as times of day, null where they are not."""
    return select(text, polars.coalesce(*_TIMES))


def first_fit(text: polars.Series, parsers: Iterable[polars.Expr]) -> polars.Series | None:
    """Return the column by the first parser of `text` that fails for no value, or None."""
    for parser in parsers:
        for part in (text.head(GLANCE), text):
            found = select(part, parser)
            if found.null_count() > part.null_count():
                break
        else:
            return found
    return None


def select(text: polars.Series, parser: polars.Expr) -> polars.Series:
    """Return what an expression of the column `text` gives for these strings."""
    return text.cast(polars.String).alias("text").to_frame().select(parser.alias(text.name)).to_series()
