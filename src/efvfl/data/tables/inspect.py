"""Inspection of a table before training: the type of each column, whether it is used, and possible problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars
from rich.console import Console
from rich.table import Table
from rich.text import Text

from efvfl.config.column_types import ColumnType
from efvfl.data.tables.columns import fit_column
from efvfl.data.tables.encode import TableSettings
from efvfl.data.tables.id_hints import better_format
from efvfl.data.tables.ids import read_ids
from efvfl.data.tables.labels import row_weights
from efvfl.data.tables.recognise import Reading, reading_of
from efvfl.data.tables.table import column, has_types, read
from efvfl.data.tables.texts import as_text
from efvfl.data.tables.unreadable import unreadable_in
from efvfl.data.tables.values import Kind, kind_of, numbers_of
from efvfl.errors import ConfigError, DataError

NEARLY = 0.99  # a column with this share of one value is nearly constant
MANY_LEVELS = 100
SEPARATES = 0.999  # from this area under the ROC curve, a column predicts the label suspiciously well
LEAST_ROWS = 20  # with fewer, a column may look like an id or the label by chance
LONGEST = 20  # displayed characters of a value
NANOSECONDS = 86_400_000_000_000  # per day


@dataclass(frozen=True)
class Finding:
    """The findings about one column."""

    column: str
    kind: str
    used: bool
    why: str  # reason for using it or not
    missing: float  # share of rows without a value
    distinct: int
    example: str  # the range of numbers, or the most common categories
    warnings: tuple[str, ...]
    form: str = ""  # how its numbers or dates are written, where that was assumed


def inspect(frame: polars.DataFrame, settings: TableSettings, written: polars.DataFrame | None = None) -> list[Finding]:
    """Return the findings about every column, in order; `written` is the same table without guessed types."""
    chosen = set(settings.chosen(frame))
    label = None
    if settings.label:
        raw = column(frame, settings.label, "the table")
        label = _plain(raw, Reading(kind_of(raw)))
    if settings.weight:
        column(frame, settings.weight, "the table")  # or refuse it
    found = [_finding(values, settings, values.name in chosen, label) for values in frame.get_columns()]
    return found if written is None else [_with_doubt(finding, written, settings) for finding in found]


def _with_doubt(finding: Finding, written: polars.DataFrame, settings: TableSettings) -> Finding:
    """Return a finding with what could be read in another way, which a guessed type no longer shows."""
    if not finding.used:
        return finding
    doubt = reading_of(written[finding.column], settings.types.get(finding.column), settings.typed).doubt
    return replace(finding, warnings=tuple(dict.fromkeys((*finding.warnings, doubt)))) if doubt else finding


def show(console: Console, findings: Sequence[Finding]) -> None:
    """Print a table of the columns, followed by the warnings."""
    table = Table(title="Columns")
    for heading in ("column", "kind", "used", "missing", "distinct", "values"):
        table.add_column(heading, justify="right" if heading in ("missing", "distinct") else "left")
    for found in findings:
        used = "yes" if found.used else f"no: {found.why}"
        kind = f"{found.kind} as {found.form.strip()}" if found.form else found.kind
        cells = (found.column, kind, used, f"{found.missing:.1%}", f"{found.distinct:,}", found.example)
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    for found in findings:
        for warning in found.warnings:
            console.print(Text(f"{found.column}: {warning}", style="yellow"))


@dataclass(frozen=True)
class Inspection:
    """What was found in a file."""

    file: str
    rows: int
    columns: list[Finding]
    ids: str  # what was found about them; empty: no column of ids was named


@dataclass(frozen=True)
class SharedIds:
    """How many ids two tables share."""

    shared: int
    tables: dict[str, int]  # how many ids each has
    hint: str  # another format that would match more; empty: none does


def inspect_file(path: Path, id: str, label: str, weight: str = "") -> Inspection:
    """Return the findings about a file."""
    texts = (id,) if id else ()
    frame = read(path, texts, label=label)
    ids = read_ids(frame[id], ("strip",), "first", str(path)).report.text() if id else ""
    settings = TableSettings(id=id, label=label, weight=weight, typed=has_types(path))
    found = inspect(frame, settings, None if settings.typed else read(path, texts, raw=frame.columns))
    return Inspection(str(path), frame.height, found, ids)


def show_inspection(found: Inspection, console: Console) -> None:
    """Print the findings about a file."""
    console.print(Text(f"{found.file}: {found.rows:,} rows, {len(found.columns):,} columns."))
    if found.ids:
        console.print(Text(found.ids))
    show(console, found.columns)


def compare_ids(columns: Mapping[Path, str]) -> SharedIds:
    """Return how many ids two tables share, and whether another format would match more; `columns` are those of ids."""
    forms = ("strip",)
    if not all(columns.values()):
        raise ConfigError("--against needs --id, the column of ids: name it.")
    found, written = {}, {}
    for path, id in columns.items():
        values = column(read(path, (id,)), id, str(path))
        ids = read_ids(values, forms, "first", str(path))
        found[str(path)], written[str(path)] = set(ids.ids), values.gather(ids.rows)
    shared = len(set.intersection(*found.values()))
    hint = better_format(written, forms, shared)
    return SharedIds(shared, {where: len(known) for where, known in found.items()}, hint or "")


def show_ids(found: SharedIds, console: Console) -> None:
    """Print how many ids two tables share."""
    for where, count in found.tables.items():
        console.print(Text(f"{where}: {found.shared:,} of {count:,} ids are in both tables."))
    if found.hint:
        console.print(Text(found.hint, style="yellow"))


def _finding(values: polars.Series, settings: TableSettings, chosen: bool, label: polars.Series | None) -> Finding:
    name, declared = values.name, settings.types.get(values.name)
    roles = {settings.label: "the label", settings.weight: "the weight", settings.id: "the id"}
    roles |= dict.fromkeys(settings.leave_out, "left out")
    why = "chosen" if chosen else roles.get(name, "not among `columns`")
    try:
        reading = reading_of(values, declared, settings.typed)
        plain = _plain(values, reading)
    except DataError as error:
        return Finding(
            name, str(values.dtype), False, "refused" if chosen else why, _missing(values), 0, "", (str(error),)
        )
    there, kind = plain.drop_nulls(), reading.kind
    warnings = _of_weights(values, declared) if name == settings.weight else ()
    if chosen:
        try:
            fitted = fit_column(values, reading, settings.categories == "embed", declared is not None)
            unread = unreadable_in(fitted, values)
            assumed = (reading.doubt, unread.sentence() if unread else "")
            warnings = (*filter(None, assumed), *_warnings(plain, kind, values.dtype, label))
        except DataError as error:  # training would raise the same error
            chosen, why, warnings = False, "refused", (str(error),)
    example = _example(there, kind)
    return Finding(name, kind, chosen, why, _missing(plain), there.n_unique(), example, warnings, reading.form)


def _of_weights(values: polars.Series, declared: ColumnType | None) -> tuple[str, ...]:
    """Return what is wrong with weights of rows, or how many rows they leave out."""
    try:
        zero = int((row_weights(values, declared) == 0).sum())
    except DataError as error:  # training would raise the same error
        return (str(error),)
    return (f"{zero:,} of {len(values):,} rows have weight 0 and are left out.",) if zero else ()


def _plain(values: polars.Series, reading: Reading) -> polars.Series:
    """Return a column as strings or as numbers, with nulls for all missing values."""
    if reading.kind == "category":
        return as_text(values)
    return polars.Series(values.name, numbers_of(values, reading.kind, reading.form)).fill_nan(None)


def _missing(values: polars.Series) -> float:
    return values.null_count() / max(1, len(values))


def _example(there: polars.Series, kind: Kind) -> str:
    if not len(there):
        return ""
    if kind == "category":
        common = there.value_counts(sort=True).head(3).get_column(there.name)
        return ", ".join(repr(value[:LONGEST]) for value in common)
    ends = there.sort().gather([0, -1])
    if kind == "date":
        ends = ends.floor().cast(polars.Int32).cast(polars.Date)
    elif kind == "time":
        ends = (ends * NANOSECONDS).cast(polars.Int64).cast(polars.Time)
    return " to ".join(f"{end:.6g}" if isinstance(end, float) else str(end) for end in ends)


def _warnings(plain: polars.Series, kind: Kind, stored: polars.DataType, label: polars.Series | None) -> Iterator[str]:
    there = plain.drop_nulls()
    distinct = there.n_unique()
    most = there.value_counts(sort=True)["count"][0] / len(there)
    if distinct == 1:
        yield "constant: it carries no information."
    elif most >= NEARLY:
        yield f"nearly constant: {most:.1%} of its values are the same."
    if distinct == len(there) >= LEAST_ROWS and (kind == "category" or stored.is_integer()):
        yield "all values are different: if it is an id, name it in `leave_out`."
    elif kind == "category" and distinct > MANY_LEVELS:
        yield f'{distinct:,} levels: `categories = "embed"` needs fewer columns.'
    if label is not None:
        yield from _leaks(plain, kind, label)


def _leaks(plain: polars.Series, kind: Kind, label: polars.Series) -> Iterator[str]:
    """Yield warnings if a column reveals the label, which it is unlikely to do for new rows."""
    table = polars.DataFrame({"x": plain, "y": label, "gap": plain.is_null().cast(polars.Float64)}).drop_nulls("y")
    if _separates(table["gap"], table["y"]):
        yield "missing for one of the two labels and present for the other. Name it in `leave_out`."
    pairs = table.drop_nulls("x").select("x", "y")
    x, y = pairs["x"], pairs["y"]
    if pairs.height < LEAST_ROWS or y.n_unique() < 2:
        return
    if (as_text(x) == as_text(y)).all():
        yield "equal to the label. Name it in `leave_out`."
    elif _one_to_one(pairs):
        yield "determines the label exactly, one value each. Was it known before the label? If not, leave it out."
    elif kind != "category" and _separates(x, y):
        yield "separates the two labels almost perfectly. Was it known before the label? If not, leave it out."


def _one_to_one(pairs: polars.DataFrame) -> bool:
    x, y = pairs["x"], pairs["y"]
    if not x.n_unique() == y.n_unique() == pairs.n_unique():
        return False
    if 2 * y.n_unique() <= len(y):
        return True
    # If nearly all labels differ, nearly all values of a number do too: then the order must agree as well.
    if y.dtype == polars.String or x.dtype == polars.String:
        return False
    ranks, labels = x.rank("dense"), y.rank("dense")
    return bool((ranks == labels).all() or (labels == x.rank("dense", descending=True)).all())


def _separates(x: polars.Series, y: polars.Series) -> bool:
    """Return whether a number separates two labels almost perfectly, by the area under its ROC curve."""
    if len(y) < LEAST_ROWS or y.n_unique() != 2:
        return False
    positive = y == y.max()
    count = int(positive.sum())
    above = float(x.rank("average").filter(positive).sum()) - count * (count + 1) / 2
    area = above / (count * (len(y) - count))
    return max(area, 1 - area) >= SEPARATES
