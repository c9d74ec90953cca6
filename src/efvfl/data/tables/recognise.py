"""What a column of text holds: numbers, dates, times of day or categories, decided from all training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import polars

from efvfl.config.column_types import ColumnType
from efvfl.data.tables import forms
from efvfl.data.tables.forms import Found
from efvfl.data.tables.texts import as_times, cells, stripped
from efvfl.data.tables.values import TEXTS, Kind, kind_of, unreadable

FEW = 0.1  # up to this share of values that cannot be read, a column is still numbers or dates
MANY = 0.8  # from this share of numbers on, a category is said to be nearly numbers
EXAMPLES = 3
LONGEST = 40  # displayed characters of a value
CODE = r"^0\d"  # a leading zero: such digits name something


@dataclass(frozen=True)
class Reading:
    """How a column is read."""

    kind: Kind
    form: str = ""  # how numbers or dates are written; empty: plainly
    doubt: str = ""  # what its owner should look at


def reading_of(values: polars.Series, declared: ColumnType | None, typed: bool) -> Reading:
    """Return how to read a column of training rows.

    - `declared`: what the settings say about it.
    - `typed`: the table has types of its own, so digits that it stores as text are not meant as numbers.
    """
    if declared is not None:
        return _declared(values, declared)
    if values.dtype != polars.String:
        return Reading(kind_of(values))
    text = cells(values)
    number = forms.find_number(text)
    if typed and not number.form and number.fits == stripped(values).count():  # nothing in it that is no digit
        return Reading("category")
    least = (1 - FEW) * text.count()
    if text.count() and number.fits >= least:
        if (typed or number.fits < text.count()) and text.str.contains(CODE).any():
            return Reading("category", doubt=_looks_like_codes(text))
        return Reading("number", number.form, _other("number", number, text))
    date = forms.find_date(text)
    if text.count() and date.fits >= least:
        return Reading("date", date.form, _other("date", date, text))
    if text.count() and as_times(text).count() >= least:
        return Reading("time")
    nearly = text.count() and number.fits >= MANY * text.count()
    return Reading("category", doubt=_nearly_numbers(values, number) if nearly else "")


def _declared(values: polars.Series, declared: ColumnType) -> Reading:
    kind, _, form = declared.partition(" ")
    form = "" if form == "1234.5" else form
    if values.dtype in TEXTS and kind in ("number", "date"):
        text = cells(values)
        found = forms.find_number(text) if kind == "number" else forms.find_date(text)
        if " " not in declared:
            return Reading(cast(Kind, kind), found.form, _other(kind, found, text))
        form += forms.unit_of(found.form)
    return Reading(cast(Kind, kind), form)


def _other(kind: str, found: Found, text: polars.Series) -> str:
    """Say that a column could be read in another way as well."""
    if not found.other:
        return ""
    read = forms.numbers if kind == "number" else forms.dates
    table = polars.DataFrame({"text": text, "one": read(text, found.form), "two": read(text, found.other)})
    example = table.filter(polars.col("one") != polars.col("two"))["text"][0]
    one, two = (form.removesuffix(forms.unit_of(form)) for form in (found.form, found.other))  # units are not in types
    return (
        f"{shown(example)} is read as {kind} {one or '1234.5'!r}, and no value decides against {two!r}: set types = "
        f"{{ {name_of(text)} = '{kind} {two}' }} if that is meant."
    )


def _looks_like_codes(text: polars.Series) -> str:
    example = text.filter(text.str.contains(CODE))[0]
    return (
        f"nearly all values are digits, but some begin with a zero, such as {shown(example)}: read as categories. Set "
        f"types = {{ {name_of(text)} = 'number' }} if they are numbers."
    )


def _nearly_numbers(values: polars.Series, found: Found) -> str:
    text = cells(values)
    wrong = values.gather(unreadable(values, "number", found.form)).unique(maintain_order=True).head(EXAMPLES)
    return (
        f"{found.fits:,} of {text.count():,} values are numbers, the others, such as {', '.join(map(shown, wrong))}, "
        f"are not: read as categories, because more than {FEW:.0%} cannot be read as numbers. Correct the table, name "
        f"these texts in `missing`, or set types = {{ {name_of(values)} = 'category' }}."
    )


def name_of(values: polars.Series) -> str:
    """Return the name of a column as a key of TOML."""
    plain = values.name.replace("_", "").replace("-", "")
    return values.name if plain.isascii() and plain.isalnum() else shown(values.name)


def shown(value: object) -> str:
    """Return a value as it can be printed: escaped, and not longer than a line."""
    text = str(value)
    return repr(text if len(text) <= LONGEST else text[: LONGEST - 3] + "...")
