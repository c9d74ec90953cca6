"""A self-contained HTML report about one run, from the files in its folder. Nothing is trained here."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

from efvfl.core.batches import Batches
from efvfl.errors import ConfigError, DataError
from efvfl.runs import html, metrics, report_figures
from efvfl.runs.run_folder import RECORDS, Outputs, RunSettings, load_columns, load_outputs, load_settings
from efvfl.training.record import Record
from efvfl.training.stopping import ending
from efvfl.util.files import write_atomically

LEDGER = "ledger.jsonl"
SPLITS = ("train", "validation", "test")
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


def write(folder: Path, out: Path | None = None) -> Path:
    """Write the report of the run in a folder and return its path, by default `report.html` in the folder."""
    path = out or folder / "report.html"
    write_atomically(path, page(folder).encode())
    return path


def page(folder: Path) -> str:
    """Return the report of the run in a folder as HTML."""
    records, settings, outputs = read_records(folder), load_settings(folder), load_outputs(folder)
    title = f"Run {'/'.join(folder.resolve().parts[-2:])}"
    last = records[-1]
    done = f"{last.epoch:,} epochs, {last.step:,} steps, {last.seconds:,.1f} seconds of training."
    if settings and (ended := ending(last, settings.config["epochs"])):
        done = f"{done} {ended}"
    parts = [f"<h1>{escape(title)}</h1><p>{done}</p>"]
    parts += ["<h2>Result</h2>", *_result(records, settings, outputs)]
    parts += ["<h2>Training</h2>", *report_figures.training(records)]
    parts += ["<h2>Predictions</h2>", *_predictions(settings, outputs)]
    parts += ["<h2>Sent</h2>", *_sent(records, settings, folder)]
    parts += ["<h2>Rows</h2>", *_rows(settings, outputs), *_columns(folder)]
    parts += ["<h2>Who was missing</h2>", *_missing(records)]
    parts += ["<h2>Settings</h2>", *_settings(settings)]
    return html.page(title, parts)


def read_records(folder: Path) -> list[Record]:
    """Return the records of a run."""
    path = folder / RECORDS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}: {error}. Name the folder of `efvfl run`, or the label holder's of `efvfl serve`."
        ) from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(Record.from_json(line))
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(f"line {number} of {path} is not a record: {error}.") from error
    if not records:
        raise ConfigError(f"expected records in {path}, got none: wait for the first evaluated epoch.")
    return records


def _number(value: float) -> str:
    return f"{value:.4f}" if isfinite(value) else "not defined"


def _result(records: Sequence[Record], settings: RunSettings | None, outputs: Mapping[str, Outputs]) -> Iterator[str]:
    last = records[-1]
    found = {split: dict(getattr(last, split)) for split in SPLITS}
    if settings:
        for split, part in outputs.items():
            found.setdefault(split, {}).update(metrics.of_loss(settings.config["loss"], part.output, part.labels))
    found = {split: scores for split, scores in found.items() if scores}
    if not found:
        yield "<p>Nothing was evaluated.</p>"
        return
    names = list(dict.fromkeys(name for scores in found.values() for name in scores))
    rows = [
        [name.replace("_", " "), *(_number(s[name]) if name in s else "" for s in found.values())] for name in names
    ]
    yield html.table(["", *found], rows, texts=1)


def _predictions(settings: RunSettings | None, outputs: Mapping[str, Outputs]) -> Iterator[str]:
    if not outputs or not settings:
        yield "<p>The folder has no outputs of single rows.</p>"
        return
    curves = {}
    for split, part in outputs.items():
        if (probability := _probability(settings.config["loss"], part)) is not None:
            curves[split] = (part.labels.numpy(), probability)
    if curves:
        yield report_figures.binary(curves)
    else:
        yield "<p>ROC, precision-recall and calibration are drawn for labels of two classes.</p>"


def _probability(loss: str, part: Outputs) -> Any:
    """Return the probability of class 1, or None if there are not two classes."""
    if loss == "cross_entropy" and part.output.shape[1] == 2:
        return part.output.softmax(dim=1)[:, 1].numpy()
    if loss == "binary_cross_entropy" and bool(((part.labels == 0) | (part.labels == 1)).all()):
        return part.output.sigmoid().reshape(-1).numpy()
    return None


def svfl_bytes(settings: RunSettings, steps: int) -> dict[str, tuple[int, int]]:
    """Return the bytes that SVFL would have sent, (up, down) by party: float32 values without headers."""
    config, widths = settings.config, settings.widths
    agreement, label_holder = config["agreement"], config["label_holder"]
    batches = Batches(settings.rows["train"], config["batch_size"], 0, config["batch_order"])
    visited = sum(batches.count(step) for step in range(steps))
    reported = steps * batches.samples if agreement["reports"] == "all" else visited
    fusion_bytes = 4 * steps * settings.fusion if agreement["fusion"] != "replicate" else 0
    out = {}
    for name, width in widths.items():
        if agreement["labels"] == "private":
            down = 4 * visited * width
        elif agreement["downlink"] == "aggregate":
            down = 4 * visited * width + fusion_bytes
        else:
            down = 4 * reported * (sum(widths.values()) - width) + fusion_bytes
        out[name] = (4 * reported * width, down) if name != label_holder else (0, 0)
    return out


def _sent(records: Sequence[Record], settings: RunSettings | None, folder: Path) -> Iterator[str]:
    last = records[-1]
    full = svfl_bytes(settings, last.step) if settings else {}
    seen = {name for table in last.ledger.values() for name in table}
    names = [name for name in full or sorted(seen) if name in seen]  # the label holder's party sends nothing
    sent = {name: (_total(last, "up", name), _total(last, "down", name)) for name in names}
    evaluation = sum(_total(last, "up", name, "evaluation") for name in names)
    which = f" {evaluation:,} of the bytes up are of validation and test rows." if evaluation else ""
    yield f"<p>Training messages as they were sent: up is from a party to the server, down the other way.{which}</p>"
    headings, rows = ["party", "", "bytes"], []
    for name in names:
        for way, direction in enumerate(("up", "down")):
            row = [name, direction, f"{sent[name][way]:,}"]
            rows.append([*row, f"{full[name][way]:,}", f"{sent[name][way] / full[name][way]:.1%}"] if full else row)
    if full:
        headings += ["SVFL", "share"]
        yield (
            "<p>SVFL is what uncompressed training would have sent in as many steps with all parties here, counted "
            "from the settings: rows times width times 4 bytes for every step and party, and the fusion model where "
            "it is sent; headers aside.</p>"
        )
        yield report_figures.sent(sent, full)
    yield html.table(headings, rows)
    yield from _frames(folder)


def _total(record: Record, direction: str, name: str, kind: str = "") -> int:
    """Return the bytes of a party in a direction, of one kind of message or of all."""
    counts = record.ledger.get(direction, {}).get(name, {})
    return counts.get(kind, 0) if kind else sum(counts.values())


def _frames(folder: Path) -> Iterator[str]:
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
    yield "<h3>All frames</h3><p>With handshakes, evaluation, predictions and what was repeated after a break.</p>"
    rows = [[*key, f"{count:,}", f"{size:,}"] for key, (count, size) in sorted(sums.items())]
    yield html.table(["with", "", "kind", "frames", "bytes"], rows, texts=3)
    if sockets:
        yield (
            f"<p>On the socket, TLS and HTTP/2 included, as the kernel counted: {sockets['out']:,} bytes out, "
            f"{sockets['in']:,} in.</p>"
        )


def _rows(settings: RunSettings | None, outputs: Mapping[str, Outputs]) -> Iterator[str]:
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


def _columns(folder: Path) -> Iterator[str]:
    """Yield how columns of later rows differ from those of training rows, as far as this folder knows any."""
    rows = [
        [party, of, change["column"], *(f"{change[key]:,}" for key in CHANGES.values())]
        for party, parts in load_columns(folder).items()
        for of, found in parts.items()
        for change in found
        if any(change[key] for key in CHANGES.values() if key != "rows")
    ]
    if rows:
        yield "<p>Columns of later rows that differ from those of the training rows:</p>"
        yield html.table(["party", "rows of", "column", *CHANGES], rows, texts=3)


def _missing(records: Sequence[Record]) -> Iterator[str]:
    rows = [
        [f"{record.epoch:,}", name, ", ".join(f"{first:,} to {last:,}" for first, last in spans)]
        for record in records
        for name, spans in record.absent.items()
    ]
    yield html.table(["until epoch", "party", "steps without it"], rows, texts=3) if rows else "<p>Nobody.</p>"


def _settings(settings: RunSettings | None) -> Iterator[str]:
    if not settings:
        yield "<p>The folder has no settings.json.</p>"
        return
    rows = [[name, f"{width:,}"] for name, width in settings.widths.items()]
    yield html.table(["party", "width"], rows, texts=1)
    yield html.table(["key", "value"], _flat(settings.config))


def _flat(value: Any, key: str = "") -> list[list[str]]:
    """Return nested settings as rows of a table."""
    if isinstance(value, dict) and value:
        return [row for name, item in value.items() for row in _flat(item, f"{key}.{name}" if key else name)]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [row for place, item in enumerate(value) for row in _flat(item, f"{key}[{place}]")]
    return [[key, json.dumps(value)]]
