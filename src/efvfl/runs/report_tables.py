"""The tables of a run's report: frames, rows, columns, absences and settings."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from efvfl.runs import html, spent_file
from efvfl.runs.run_folder import Outputs, RunSettings, load_columns
from efvfl.training.record import Record

LEDGER = "ledger.jsonl"
TAKING_PART = {
    "rows": "rows",
    "take part": "taking_part",
    "id not in all tables": "unmatched",
    "no label": "unlabelled",
    "no id": "without_id",
    "same id": "duplicates",
    "weight 0": "weightless",
}

CHANGES = {
    "rows": "rows",
    "missing": "missing",
    "unreadable": "unreadable",
    "outside the training range": "outside",
    "level not in training": "unseen",
}


def frames(folder: Path) -> Iterator[str]:
    """Yield a table of all frames, including handshakes, evaluation and repeated messages."""
    path = folder / LEDGER
    if not path.exists():
        return
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    sockets: dict[str, int] = defaultdict(int)
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                table = json.loads(line)
                if table.get("socket"):
                    sockets[str(table["direction"])] += int(table["socket"])
                    continue
                entry = sums[str(table["peer"]), str(table["direction"]), str(table["kind"])]
                entry[1] += int(table["frame"])
                entry[0] += 1
            except (ValueError, TypeError, KeyError):
                continue  # a line cut short by a crash
    rows = [[*key, f"{count:,}", f"{size:,}"] for key, (count, size) in sorted(sums.items())]
    inner = "<p>With handshakes, evaluation, predictions and what was repeated after a break.</p>"
    yield html.fold("All frames", inner + html.table(["with", "", "kind", "frames", "bytes"], rows, texts=3))
    if sockets:
        yield (f"<p>On the sockets, TLS included: {sockets['out']:,} bytes out, {sockets['in']:,} in.</p>")


def rows_of(settings: RunSettings | None, outputs: Mapping[str, Outputs]) -> Iterator[str]:
    """Yield how many rows there were, by split and by table."""
    counts = dict(settings.rows) if settings else {split: len(part.ids) for split, part in outputs.items()}
    if counts:
        yield html.table(["split", "rows"], [[split, f"{count:,}"] for split, count in counts.items()], texts=1)
    else:
        yield "<p>The folder does not say how many there were.</p>"
    if settings and settings.participation:
        yield html.table(["table", *TAKING_PART], list(_taking_part(settings.participation)), texts=1)


def _taking_part(tables: Mapping[str, Mapping[str, int]]) -> Iterator[list[str]]:
    """Yield a row for each table: how many of its rows take part, and why the others do not."""
    for name, counts in tables.items():
        yield [name, *(f"{counts.get(key, 0):,}" for key in TAKING_PART.values())]


def columns(folder: Path) -> Iterator[str]:
    """Yield how columns of later rows differ from those of training rows, as far as this folder knows any."""
    rows = [
        [party, of, change["column"], *(f"{change[key]:,}" for key in CHANGES.values())]
        for party, parts in load_columns(folder).items()
        for of, found in parts.items()
        for change in found
        if any(change[key] for key in CHANGES.values() if key != "rows")
    ]
    if rows:
        title = "Columns of later rows that differ from those of the training rows"
        yield html.folded_table(title, ["party", "rows of", "column", *CHANGES], rows, texts=3)


def missing(records: Sequence[Record]) -> Iterator[str]:
    """Yield which steps went without whom."""
    rows = [
        [f"{record.epoch:,}", name, ", ".join(f"{first:,} to {last:,}" for first, last in spans)]
        for record in records
        for name, spans in record.absent.items()
    ]
    headings = ["until epoch", "party", "steps without it"]
    if not rows:
        yield "<p>Nobody.</p>"
    elif len(rows) > html.LONG:
        yield html.fold(f"{len(rows):,} absences", html.table(headings, rows, texts=3))
    else:
        yield html.table(headings, rows, texts=3)


def privacy(last: Record) -> Iterator[str]:
    """Yield what was spent on what is protected; nothing where nothing is."""
    if last.spent:
        items = "".join(f"<li>{escape(line)}</li>" for line in spent_file.lines(last.spent))
        yield f"<h2>Privacy</h2><p>Spent by the end of training:</p><ul>{items}</ul>"


def class_balance(settings: RunSettings | None) -> Iterator[str]:
    """Yield how many rows of each split every class has."""
    found = settings.balance if settings else {}
    if not found:
        return
    classes = list(next(iter(found.values())))
    totals = {split: max(1, sum(counts.values())) for split, counts in found.items()}
    table = [
        [name, *(f"{found[split].get(name, 0):,} ({found[split].get(name, 0) / totals[split]:.1%})" for split in found)]
        for name in classes
    ]
    yield html.folded_table("Class balance", ["class", *found], table, texts=1)


def settings_of(settings: RunSettings | None) -> Iterator[str]:
    """Yield the settings of a run, folded."""
    if not settings:
        yield "<p>The folder has no settings.json.</p>"
        return
    rows = [[name, f"{width:,}"] for name, width in settings.widths.items()]
    yield html.table(["party", "width"], rows, texts=1)
    yield html.fold("All settings of this run", html.table(["key", "value"], _flat(settings.config)))


def _flat(value: Any, key: str = "") -> list[list[str]]:
    """Return nested settings as rows of a table."""
    if isinstance(value, dict) and value:
        return [row for name, item in value.items() for row in _flat(item, f"{key}.{name}" if key else name)]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [row for place, item in enumerate(value) for row in _flat(item, f"{key}[{place}]")]
    return [[key, json.dumps(value)]]
