"""What `efvfl doctor` looks at in a participant's own rows: columns, labels, and how ids are written. It shows none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from efvfl.config.run_file import RunConfig
from efvfl.core.protection import Protection
from efvfl.data import label_draws
from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.data.tables.ids import FORMS, normalise
from efvfl.data.tables.load import Table, label_settings
from efvfl.errors import EfvflError
from efvfl.network.align.aligned_rows import SPLITS
from efvfl.network.align.alignments import Alignments
from efvfl.network.doctor.diagnosis import Diagnosis, problem_of
from efvfl.network.training import participant_data
from efvfl.runs.build import has_tables
from efvfl.util.extras import optional

_FORMAT = {"strip": "have spaces around them", "case": "have capitals", "zeros": "begin with zeros"}
MOST_DOUBTS = 3  # that are shown of a table


@dataclass
class RowsFound:
    """What was found in a participant's rows."""

    names: list[str] = field(default_factory=list)  # of all parties
    rows: dict[str, int] = field(default_factory=dict)  # by split; an upper bound before alignment
    findings: list[Diagnosis] = field(default_factory=list)


def look(config: RunConfig, base: Path, name: str, home: Path) -> RowsFound:
    """Read the rows of a party, or of the label holder (''), as training would; nothing is written."""
    found = RowsFound()
    try:
        if has_tables(config):
            found.names = [party.name for party in config.party]
            _look_at_tables(config, base, name, home, found)
        else:
            data = participant_data.load(replace(config, protect=Protection()), base, name)  # nothing is drawn here
            found.names, found.rows = data.names, {split: len(ids) for split, ids in data.trained_ids.items()}
            found.findings.append(Diagnosis("rows", "ok", _counts(found.rows)))
        if not name and config.protect.releases:
            found.findings.append(_randomised(config, home))
    except EfvflError as error:
        found.findings.append(problem_of("table", error))
    return found


def _randomised(config: RunConfig, home: Path) -> Diagnosis:
    """Say whether labels are randomised already; refuse what training would refuse."""
    participant_data.check_sharing(config)
    drawn = "they are drawn" if (home / label_draws.FILE).exists() else "they are not drawn yet"
    return Diagnosis("labels", "ok", f"randomised once, with epsilon = {config.protect.label_epsilon:g}: {drawn}")


def _counts(rows: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in rows.items() if count) + " rows"


def _look_at_tables(config: RunConfig, base: Path, name: str, home: Path, found: RowsFound) -> None:
    here, least = name or config.label_holder, 0
    own = config.of(here).data
    tables = [(own.path, TableSettings.of(own))] if own else []
    if here and not own:
        found.findings.append(
            Diagnosis(
                "table", "problem", f"{here!r} has no table in this file", "add data = { path, id } to its [[party]]."
            )
        )
    labels = label_settings(config) if not name else None
    if labels and config.data.label:
        tables.append(labels)
    elif not name and labels is None:
        found.findings.append(
            Diagnosis("labels", "problem", "no column of labels is named", "set `label` beside `id`.")
        )
    for number, (path, settings) in enumerate(tables):
        table, findings = _open(config, base / path, settings)
        found.findings += findings
        if table:
            found.findings += _fit(config, table, columns=bool(own) and not number)
            least = min(least or len(table.ids), len(table.ids))
    aligned = Alignments(home)
    if number := aligned.newest:
        counts = aligned.load(number).counts()
        found.rows = {split: counts.get(split, 0) for split in SPLITS}
        found.findings.append(Diagnosis("alignment", "ok", f"alignment {number}: {_counts(found.rows)}"))
    elif least:
        held = {"validation": int(least * config.data.validation), "test": int(least * config.data.test)}
        found.rows = {"train": max(1, least - sum(held.values())), **held}
        if config.data.align != "none":
            text = "the rows that all share are not known yet"
            found.findings.append(Diagnosis("alignment", "warning", text, "run `efvfl align`, all together."))


def _open(config: RunConfig, path: Path, settings: TableSettings) -> tuple[Table | None, list[Diagnosis]]:
    """Return a table, and what is wrong with it and its ids."""
    try:  # an error about ids that occur twice would show one of them
        table = Table.open(path, settings, replace(config.data, duplicates="drop"))
    except EfvflError as error:
        return None, [problem_of("table", error)]
    report = table.found.report
    findings = [
        Diagnosis("table", "ok", f"{path}: {len(table.ids):,} of {report.total:,} rows have an id of their own")
    ]
    if report.duplicates and config.data.duplicates == "refuse":
        text = f"{path}: {report.duplicates:,} rows share their id with another"
        findings.append(
            Diagnosis("ids", "problem", text, "correct the table, or set data.duplicates to 'first' or 'drop'.")
        )
    if report.missing:
        text = f"{path}: {report.missing:,} rows have no id, and are left out"
        findings.append(Diagnosis("ids", "warning", text, "fill in the column of ids if these rows matter."))
    return table, [*findings, _format(path, [str(one) for one in table.written_ids], config.data.id_format)]


def _format(path: Path, ids: Sequence[str], forms: Sequence[str]) -> Diagnosis:
    """Say how ids are written: others that write them otherwise have no row in common."""
    now, total = normalise_all(ids, forms), len(ids)
    letters = sum(one.upper() != one.lower() for one in ids)
    seen, mixed = [], []
    for form in (form for form in FORMS if form not in forms):
        changed = sum(a != b for a, b in zip(now, normalise_all(ids, (*forms, form)), strict=True))
        if not changed:
            continue
        seen.append(f"{changed:,} of {total:,} {_FORMAT[form]}")
        if form == "strip" or (form == "case" and changed < letters) or (form == "zeros" and changed < total):
            mixed.append(form)
    if mixed:
        text = f"{path}: of the ids, {', '.join(seen)}: those of others may be written otherwise"
        advice = f"if they mean the same, agree on data.id_format = {[f for f in FORMS if f in (*forms, *mixed)]}."
        return Diagnosis("ids", "warning", text, advice)
    lengths = sorted({len(one) for one in ids})
    span = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    text = f"{path}: ids of {span} characters" + (f", of which {', '.join(seen)}" if seen else "")
    return Diagnosis("ids", "ok", f"{text}; compare that with the others")


def normalise_all(ids: Sequence[str], forms: Sequence[str]) -> list[str | None]:
    """Return ids in a format."""
    with optional("tables", "reading tables"):
        import polars

    return normalise(polars.Series("id", ids, dtype=polars.String), forms)


def _fit(config: RunConfig, table: Table, columns: bool) -> Iterator[Diagnosis]:
    """Try how labels become numbers, and columns, if the table has any to train on."""
    try:
        if table.settings.label:
            labels = table.encoding(table.ids, config.loss)
            if labels.doubt:
                yield Diagnosis(
                    "labels", "warning", table.label_notice(labels), "change the column, or set its type in `types`."
                )
        if not columns:
            return
        encoder = Encoder.fit(table.frame, table.settings)
        doubts = encoder.doubts
        for text in doubts[:MOST_DOUBTS]:
            yield Diagnosis("columns", "warning", f"{table.path}, {text}", "see `efvfl inspect`.")
        count = f"{len(encoder.columns)} column{'s are' if len(encoder.columns) > 1 else ' is'}"
        more = f"; {len(doubts)} of them are in doubt" if len(doubts) > MOST_DOUBTS else ""
        yield Diagnosis("columns", "ok", f"{table.path}: {count} used{more}")
    except EfvflError as error:
        yield problem_of("columns", error)
