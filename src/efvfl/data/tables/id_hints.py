"""Whether other settings of `data.id_format` would match more rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import polars

from efvfl.data.tables.ids import FORMS, normalise


def better_format(ids: Mapping[str, polars.Series], forms: Sequence[str], matched: int) -> str:
    """Return a hint if the ids of these tables match better in another format; empty if they do not.

    - `ids`: the columns of ids by table, as they are written.
    - `matched`: how many ids all tables share now.
    """
    best, count = tuple(forms), matched
    for more in _larger(forms):
        found = len(set.intersection(*(_unique(values, more) for values in ids.values())))
        if found > count:
            best, count = more, found
    if count == matched:
        return ""
    return (
        f"data.id_format = {list(best)} would match {count:,} rows in place of {matched:,}: set it if ids that differ "
        f"only in {_differences([form for form in best if form not in forms])} mean the same."
    )


def own_format(values: polars.Series, forms: Sequence[str]) -> str:
    """Return what each further format would do to the ids of one table, without knowing any other; else empty."""
    now = _normal(values, forms)
    effects = []
    for form in (form for form in FORMS if form not in forms):
        then = _normal(values, (*forms, form))
        equal = (then.is_duplicated() & now.is_unique() & then.is_not_null()).sum()
        if changed := (now != then).sum():
            effects.append(f"'{form}' would change {changed:,}" + (f" and make {equal:,} equal" if equal else ""))
    if not effects:
        return ""
    return f"Of the ids here, {', '.join(effects)}. If others write them differently, agree on it in data.id_format."


def _larger(forms: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the formats that ignore more than this one, those with the fewest additions first."""
    others = [form for form in FORMS if form not in forms]
    for count in range(1, len(others) + 1):
        for more in combinations(others, count):
            yield tuple(form for form in FORMS if form in (*forms, *more))


def _unique(values: polars.Series, forms: Sequence[str]) -> set[str]:
    """Return the ids that only one row has in this format."""
    text = _normal(values, forms).drop_nulls()
    return set(text.filter(text.is_unique()))


def _normal(values: polars.Series, forms: Sequence[str]) -> polars.Series:
    return polars.Series("id", normalise(values, forms), dtype=polars.String)


def _differences(forms: Sequence[str]) -> str:
    words = {"strip": "spaces around them", "case": "upper and lower case", "zeros": "leading zeros"}
    return " and ".join(words[form] for form in forms)
