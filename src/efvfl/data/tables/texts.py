"""Values and the texts that say them: one text for each value, and what the texts of a CSV hold."""

from __future__ import annotations

from collections.abc import Iterable

import polars

from efvfl.errors import DataError

# What a CSV has in place of a value; other formats have a missing value of their own.
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
LARGEST_WHOLE = 2.0**63  # floats from here on do not fit whole numbers of 64 bits
GLANCE = 100  # values that are tried before the whole column is

# Ways to understand a text, each missing where it cannot.
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
    """Return values as text, the same for a CSV and a Parquet: 12.0 is '12'; an empty text is a missing value."""
    kind = values.dtype
    if kind.is_nested() or kind in (polars.Binary, polars.Object):
        raise DataError(f"column {values.name!r} holds {kind}, which has no text form: numbers or texts are expected.")
    if kind.is_float():
        whole = values.is_finite() & (values == values.floor()) & (values.abs() < LARGEST_WHOLE)
        text = values.set(~values.is_finite(), None).cast(polars.String)
        return values.set(~whole, None).cast(polars.Int64).cast(polars.String).zip_with(whole.fill_null(True), text)
    text = values.cast(polars.String).str.replace(r"^(-?[0-9]+)\.0+$", "$1")
    return text.set(text == "", None)


def typed(text: polars.Series) -> polars.Series:
    """Return a column as what all its texts say: numbers, booleans, dates or times of day; else as it is."""
    bare = stripped(text)
    if bare.null_count() == len(bare):
        return bare
    found = _understood(bare, (*_NUMBERS, *_BOOLEANS, *_DATES, *_MOMENTS, *_TIMES))
    return text if found is None else found


def stripped(text: polars.Series) -> polars.Series:
    """Return texts without spaces around them; nothing but spaces is a missing value."""
    bare = text.str.strip_chars()
    return bare.set(bare == "", None)


def as_floats(text: polars.Series) -> polars.Series | None:
    """Return texts as numbers, if all are."""
    return _understood(text, _NUMBERS[1:])


def as_moments(text: polars.Series) -> polars.Series | None:
    """Return texts as dates, or as dates with a time of day, if one way of writing them fits all."""
    return _understood(text, (*_DATES, *_MOMENTS))


def _understood(text: polars.Series, ways: Iterable[polars.Expr]) -> polars.Series | None:
    """Return the first way to understand a column that leaves no value out."""
    for way in ways:
        for part in (text.head(GLANCE), text):
            found = part.alias("text").to_frame().select(way).to_series()
            if found.null_count() > part.null_count():
                break
        else:
            return found.alias(text.name)
    return None
