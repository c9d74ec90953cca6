"""How numbers and dates are written as text: found from the evidence of a whole column, then applied to later rows.

A form has a name that shows it, such as `1.234,5` or `d/m/Y`. The empty name is the plain form: numbers as programs
write them, and dates in any form that can be read in one way only. Where numbers have a unit, the name ends in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import polars

from efvfl.data.tables.texts import first_fit, select

GLANCE = 1_000  # values, spread over the column, that a form must fit by half before all are tried
# What may stand before or behind a number and is dropped: 12 % is 12. Of letters only codes of common currencies: any
# three would make numbers of names such as "ROW 12".
UNITS = (
    *"%$€£¥₹₽₩₺₪₫₴₦฿",
    *("zł", "kr", "Kč", "Ft", "R$"),
    *("USD", "EUR", "GBP", "JPY", "CHF", "CNY", "INR", "AUD", "CAD", "NZD", "SEK", "NOK", "DKK", "PLN", "CZK", "HUF"),
    *("RON", "BRL", "MXN", "ZAR", "KRW", "SGD", "HKD", "TRY", "ILS", "THB"),
)
SPACES = r"[ \u00a0\u202f]"

# The separator of thousands and the decimal mark; of forms that fit equally well, the first is used.
NUMBERS: Mapping[str, tuple[str, str]] = {
    "": ("", r"\."),
    "1,234.5": (",", r"\."),
    "1.234,5": (r"\.", ","),
    "1 234.5": (SPACES, r"\."),
    "1 234,5": (SPACES, ","),
    "1'234.5": (r"['\u2019]", r"\."),
}
# Patterns of strptime; of forms that fit equally well, the first is used: 5/6/2024 is a day in June.
DATES: Mapping[str, str] = {
    "Y-m-d": "%Y-%m-%d",
    "Y/m/d": "%Y/%m/%d",
    "d.m.Y": "%d.%m.%Y",
    "d/m/Y": "%d/%m/%Y",
    "m/d/Y": "%m/%d/%Y",
    "d-m-Y": "%d-%m-%Y",
    "d.m.y": "%d.%m.%y",
    "d/m/y": "%d/%m/%y",
    "m/d/y": "%m/%d/%y",
    "d b Y": "%d %b %Y",
    "d-b-Y": "%d-%b-%Y",
    "b d, Y": "%b %d, %Y",
    "Ymd": "%Y%m%d",
}
# Without those that may have day and month the other way round, and without the short year.
PLAIN_DATES = ("Y-m-d", "Y/m/d", "d.m.Y", "d b Y", "d-b-Y", "b d, Y", "Ymd")
CLOCKS = ("%H:%M:%S%.f", "%H:%M", "%I:%M:%S %p", "%I:%M %p")
_TEXT = polars.col("text")
_ANY_UNIT = "|".join(map(re.escape, sorted(UNITS, key=len, reverse=True)))
_UNIT_PATTERNS = (rf"\d\s*({_ANY_UNIT})$", rf"^[+\u2212-]?\s*({_ANY_UNIT})\s*[+\u2212-]?[\d.,]")


@dataclass(frozen=True)
class Found:
    """The form that fits most values of a column."""

    form: str
    fits: int  # how many values
    other: str = ""  # a form that fits as many and gives other values, so that the column does not decide


def numbers(text: polars.Series, form: str) -> polars.Series:
    """Return strings without spaces around them as numbers, null where one is not written in this form.

    >>> numbers(polars.Series(["1.234,5", "-7", "1.5"]), "1.234,5").to_list()
    [1234.5, -7.0, None]
    """
    bare = _TEXT.str.replace("\u2212", "-", literal=True)
    unit = unit_of(form)
    if unit:
        sign = re.escape(unit.strip())
        bare = bare.str.replace(rf"^([+-]?)\s*{sign}\s*", "${1}").str.replace(rf"\s*{sign}$", "")
    thousands, decimal = NUMBERS[form.removesuffix(unit)]
    if thousands:
        whole = rf"(?:[1-9]\d{{0,2}}(?:{thousands}\d{{3}})+|\d+)"
        fits = bare.str.contains(rf"^[+-]?(?:{whole}(?:{decimal}\d*)?|{decimal}\d+)(?:[eE][+-]?\d+)?$")
        cleaned = bare.str.replace_all(thousands, "").str.replace(decimal, ".")
        bare = polars.when(fits).then(cleaned)
    return select(text, bare.cast(polars.Float64, strict=False))


def dates(text: polars.Series, form: str) -> polars.Series:
    """Return strings without spaces around them as datetimes in UTC, null where one is not written in this form.

    >>> dates(polars.Series(["31/12/2024", "31/12/2024 18:30", "12/31/2024"]), "d/m/Y").dt.hour().to_list()
    [0, 18, None]
    """
    tries = [parser for name in ([form] if form else PLAIN_DATES) for parser in _parsers(name)]
    found = first_fit(text, tries)
    return select(text, polars.coalesce(*tries)) if found is None else found


def _parsers(form: str) -> list[polars.Expr]:
    """Return parsers of dates in one form, without and with a time of day."""
    pattern, iso = DATES[form], form == "Y-m-d"
    tries = [_TEXT.str.strptime(polars.Date, pattern, strict=False).cast(polars.Datetime("us"))]
    for between in ("T", " ") if iso else (" ",):
        for clock in CLOCKS:
            tries.append(_TEXT.str.strptime(polars.Datetime("us"), f"{pattern}{between}{clock}", strict=False))
        if iso:
            zoned = f"{pattern}{between}%H:%M:%S%.f%#z"
            parser = _TEXT.str.strptime(polars.Datetime("us", "UTC"), zoned, strict=False)
            tries.append(parser.dt.replace_time_zone(None))
    # Otherwise 31.12.24 would be a day of the year 24.
    whole = _TEXT.str.contains(r"\d{4}") if "Y" in form else polars.lit(True)
    return [polars.when(whole).then(parser) for parser in tries]


def unit_of(form: str) -> str:
    """Return the end of a form's name that is a unit, with the space before it; empty if there is none.

    >>> unit_of("1,234.5 $"), unit_of("1 234.5"), unit_of(" %")
    (' $', '', ' %')
    """
    return next((f" {unit}" for unit in UNITS if form.endswith(f" {unit}")), "")


def is_known(form: str) -> bool:
    """Whether there is a form of this name, of numbers or dates."""
    return form.removesuffix(unit_of(form)) in NUMBERS or form in DATES


def find_number(text: polars.Series) -> Found:
    """Return the form of numbers that fits most values, with the unit that more than half of them have."""
    units = select(text.drop_nulls(), polars.coalesce(*(_TEXT.str.extract(p) for p in _UNIT_PATTERNS))).drop_nulls()
    common = units.value_counts(sort=True).head(1).rows()
    unit = f" {common[0][0]}" if common and 2 * common[0][1] > text.count() else ""
    return _find(text, (form + unit for form in NUMBERS), numbers)


def find_date(text: polars.Series) -> Found:
    """Return the form of dates that fits most values."""
    return _find(text, ("", *(form for form in DATES if form not in PLAIN_DATES)), dates)


def _find(text: polars.Series, forms: Iterable[str], read: Callable[[polars.Series, str], polars.Series]) -> Found:
    text = text.drop_nulls()
    glance = text.gather_every(max(1, len(text) // GLANCE))
    likely = [form for form in forms if 2 * read(glance, form).count() >= len(glance)]
    fits = {form: read(text, form).count() for form in likely}
    most = max(fits.values(), default=0)
    best = [form for form in likely if fits[form] == most]
    if not most:
        return Found("", 0)
    first = read(text, best[0])
    other = next((form for form in best[1:] if not read(text, form).equals(first, null_equal=True)), "")
    return Found(best[0], most, other)
