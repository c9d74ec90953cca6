"""A self-contained HTML report about one run, from the files in its folder. Nothing is trained here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from math import isclose, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from efvfl.errors import ConfigError, DataError, system_text
from efvfl.runs import html, metrics, report_figures, report_tables
from efvfl.runs.column_worth import ColumnWorth, load_column_values
from efvfl.runs.party_worth import NOBODY, Worth, load_values
from efvfl.runs.report_figures import SPLITS
from efvfl.runs.run_folder import ALONE, RECORDS, Outputs, load_outputs, load_settings
from efvfl.runs.svfl_bytes import svfl_bytes
from efvfl.runs.terminal import size
from efvfl.training.record import Record
from efvfl.training.stopping import ending
from efvfl.util.files import write_atomically

HEADLINES = ("auc", "accuracy", "r2")  # the metric of the headline: the first of these that a problem has
NAMES = {"auc": "AUC", "r2": "R²", "ks": "KS statistic", "brier": "Brier score"}  # others are words
MATRIX = 20  # classes that a table of confusions may have
MOST_SHOWN = 25  # columns of a party in a picture; a table has all


def write(folder: Path, out: Path | None = None) -> Path:
    """Write the report of the run in a folder and return its path, by default `report.html` in the folder."""
    path = out or folder / "report.html"
    write_atomically(path, page(folder).encode())
    return path


class _Run:
    """What a folder has of a run."""

    def __init__(self, folder: Path) -> None:
        """Read all of it."""
        self.folder = folder
        self.records, self.settings = read_records(folder), load_settings(folder)
        self.outputs, self.alone = load_outputs(folder), load_outputs(folder, ALONE)
        self.last = self.records[-1]
        self.full = svfl_bytes(self.settings, self.last.step) if self.settings else {}
        seen = {name for table in self.last.ledger.values() for name in table}
        # The label holder's party sends nothing.
        self.senders = [name for name in self.full or sorted(seen) if name in seen]

    def scores(self, outputs: Mapping[str, Outputs]) -> dict[str, dict[str, float]]:
        """Return the metrics of outputs, by split."""
        if not self.settings:
            return {}
        loss = self.settings.config["loss"]
        return {split: metrics.of_loss(loss, part.output, part.labels) for split, part in outputs.items()}

    def sent(self) -> dict[str, tuple[int, int]]:
        """Return the bytes (up, down) of each party."""
        return {name: (_total(self.last, "up", name), _total(self.last, "down", name)) for name in self.senders}

    def times_fewer(self) -> float:
        """Return how many times fewer bytes than SVFL it sent; NaN if that is not known."""
        sent = sum(map(sum, self.sent().values()))
        full = sum(sum(self.full[name]) for name in self.senders) if self.full else 0
        return full / sent if sent and full else float("nan")


def page(folder: Path) -> str:
    """Return the report of the run in a folder as HTML."""
    run, charts = _Run(folder), html.Charts()
    title = f"Run {'/'.join(part for part in folder.resolve().parts[-2:] if part != 'runs')}"
    parts = [f"<h1>{escape(title)}</h1>", *_head(run)]
    parts += ["<h2>Result</h2>", *_result(run)]
    parts += ["<h2>Training</h2>", *_training(run, charts)]
    parts += ["<h2>Predictions</h2>", *_predictions(run, charts)]
    if worth := load_values(folder):
        parts += ["<h2>What each party is worth</h2>", *_worth(worth, charts)]
    if columns := load_column_values(folder):
        parts += ["<h2>Which columns matter</h2>", *_columns(columns, charts)]
    parts += ["<h2>Sent</h2>", *_sent(run, charts)]
    parts += ["<h2>Rows</h2>", *report_tables.rows_of(run.settings, run.outputs)]
    parts += [*report_tables.class_balance(run.settings), *report_tables.columns(folder)]
    parts += [*report_tables.privacy(run.last)]
    parts += ["<h2>Who was missing</h2>", *report_tables.missing(run.records)]
    parts += ["<h2>Settings</h2>", *report_tables.settings_of(run.settings)]
    return html.page(title, parts, charts)


def read_records(folder: Path) -> list[Record]:
    """Return the records of a run."""
    path = folder / RECORDS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}: {system_text(error)}. Name the folder of `efvfl run`, or the label "
            "holder's of `efvfl serve`."
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


def _title(metric: str) -> str:
    """Return a metric's name for people."""
    return NAMES.get(metric, metric.replace("_", " "))


def _number(value: float) -> str:
    return f"{value:.4f}" if isfinite(value) else "not defined"


def _head(run: _Run) -> Iterator[str]:
    """Yield what one reads first: a sentence, the date, and a few large numbers."""
    metric, split, value, alone = _main_score(run)
    fewer, tiles = run.times_fewer(), {}
    sentence = []
    if metric:
        rows = len(run.outputs[split].ids) if split in run.outputs else 0
        name = _title(metric)
        sentence.append(f"{name[0].upper()}{name[1:]} {value:.3f} on {f'{rows:,} ' if rows else 'the '}{split} rows")
        tiles[f"{name} of {split} rows"] = f"{value:.3f}"
    if isfinite(alone):
        sentence.append(f"the label holder alone has {alone:.3f}")
        tiles["with the label holder's own columns alone"] = f"{alone:.3f}"
    if isfinite(fewer):
        times = f"{fewer:,.1f}".removesuffix(".0") if fewer < 10 else f"{fewer:,.0f}"
        sentence.append(f"{times} times fewer bytes than without compression")
        tiles["of the bytes of uncompressed training"] = f"{1 / fewer:.1%}"
    if run.senders:
        tiles["sent in all"] = size(sum(map(sum, run.sent().values())), 1)
    tiles["of training"] = _duration(run.last.seconds)
    if sentence:
        text = "; ".join(sentence)
        yield f"<p class='headline'>{escape(text)}.</p>"
    yield f"<p class='soft'>{escape(_when(run))}</p>"
    yield html.tiles(tiles)


def _main_score(run: _Run) -> tuple[str, str, float, float]:
    """Return the metric of the headline, its split and its value, and that of the label holder alone."""
    found = run.scores(run.outputs) or {split: dict(getattr(run.last, split)) for split in ("test", "validation")}
    several = any(part.output.dim() > 1 and part.output.shape[1] > 2 for part in run.outputs.values())
    order = ("accuracy", "loss") if several else (*HEADLINES, "loss")  # of several classes an AUC is a mean of means
    for split in ("test", "validation"):
        for metric in order:
            value = found.get(split, {}).get(metric, float("nan"))
            if isfinite(value):
                return metric, split, value, run.scores(run.alone).get(split, {}).get(metric, float("nan"))
    return "", "", float("nan"), float("nan")


def _duration(seconds: float) -> str:
    if not isfinite(seconds):
        return "?"
    if seconds < 120:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def _when(run: _Run) -> str:
    """Say how far the run came, when, and with which version."""
    last, settings = run.last, run.settings
    parts = [f"{last.epoch:,} epochs, {last.step:,} steps."]
    if settings and settings.complete and (ended := ending(last, settings.config["epochs"])):
        parts.append(ended)
    if settings and not settings.complete:
        parts.append(f"Of {settings.config['epochs']:,} epochs: this run is not complete.")
    time = datetime.fromtimestamp((run.folder / RECORDS).stat().st_mtime, UTC)  # of the last record
    if settings and settings.ended:
        time = datetime.fromisoformat(settings.ended)
    parts.append(
        f"{time.day} {time:%B %Y, %H:%M} UTC"
        + (f", efvfl {settings.version}." if settings and settings.version else ".")
    )
    return " ".join(parts)


def _result(run: _Run) -> Iterator[str]:
    found = {split: dict(getattr(run.last, split)) for split in SPLITS}
    for split, scores in run.scores(run.outputs).items():
        found.setdefault(split, {}).update(scores)
    found = {split: scores for split, scores in found.items() if scores}
    if not found:
        yield "<p>Nothing was evaluated.</p>"
        return
    found |= {f"{split}, alone": scores for split, scores in run.scores(run.alone).items() if split == _first(run)}
    _join_losses(found)
    every = dict.fromkeys(name for scores in found.values() for name in scores)
    names = [*(name for name in HEADLINES if name in every), *(name for name in every if name not in HEADLINES)]
    rows = [[_title(name), *(_number(s[name]) if name in s else "" for s in found.values())] for name in names]
    yield html.table(["", *found], rows, texts=1)
    if run.alone:
        yield (
            "<p class='soft'>Alone: the label holder's own columns, the same local model, head, settings and rows, "
            "trained after the run. Nothing was sent for it.</p>"
        )


def _join_losses(found: Mapping[str, dict[str, float]]) -> None:
    """Have one row where the loss of training and the log loss are the same: without weights they are."""
    both = [scores for scores in found.values() if "loss" in scores and "log_loss" in scores]
    if both and all(isclose(scores["loss"], scores["log_loss"], rel_tol=1e-4) for scores in both):
        for scores in found.values():
            if "loss" in scores:
                scores["log_loss"] = scores.pop("loss")


def _training(run: _Run, charts: html.Charts) -> Iterator[str]:
    yield charts.place(*report_figures.training(run.records))
    if not any(isfinite(record.distortion) for record in run.records):
        yield "<p class='soft'>Nobody sees all representations over a network, so there is no distortion here.</p>"


def _predictions(run: _Run, charts: html.Charts) -> Iterator[str]:
    if not run.outputs or not run.settings:
        yield "<p>The folder has no outputs of single rows.</p>"
        return
    parts, loss = _shown(run), run.settings.config["loss"]
    if ":" in loss:
        yield "<p>The loss is your own, so nothing is drawn here of what the outputs mean.</p>"
        return
    probabilities = {name: _probability(loss, part) for name, part in parts.items()}
    labels = {name: part.labels.numpy().reshape(-1) for name, part in parts.items()}
    if all(p is not None for p in probabilities.values()):
        yield charts.place(*report_figures.binary({name: (labels[name], p) for name, p in probabilities.items()}))
    elif loss == "cross_entropy":
        shares = {name: (labels[name], part.output.softmax(dim=1).numpy()) for name, part in parts.items()}
        yield charts.place(*report_figures.multiclass(shares))
        yield from _confusion(*next((name, *pair) for name, pair in shares.items()))
    else:
        output = {name: part.output.reshape(-1) for name, part in parts.items()}
        guess = {name: o.sigmoid() if loss == "binary_cross_entropy" else o for name, o in output.items()}
        yield charts.place(*report_figures.regression({name: (labels[name], g.numpy()) for name, g in guess.items()}))


def _shown(run: _Run) -> dict[str, Outputs]:
    """Return the rows whose curves are drawn: test rows, with those of the label holder alone or validation rows."""
    first = _first(run)
    if first in run.alone:
        return {first: run.outputs[first], report_figures.ALONE: run.alone[first]}
    return {first: run.outputs[first]} | run.outputs


def _first(run: _Run) -> str:
    """Return the split that counts: the test rows, if there are any."""
    return "test" if "test" in run.outputs else next(iter(run.outputs), "")


def _probability(loss: str, part: Outputs) -> Any:
    """Return the probability of class 1, or None if there are not two classes."""
    if loss == "cross_entropy" and part.output.shape[1] == 2:
        return part.output.softmax(dim=1)[:, 1].numpy()
    if loss == "binary_cross_entropy" and bool(((part.labels == 0) | (part.labels == 1)).all()):
        return part.output.sigmoid().reshape(-1).numpy()
    return None


def _confusion(split: str, labels: Any, shares: Any) -> Iterator[str]:
    """Yield how many rows of each class were taken for which."""
    classes = shares.shape[1]
    if classes > MATRIX:
        return
    counts = np.zeros((classes, classes), dtype=int)
    np.add.at(counts, (labels.astype(int), shares.argmax(axis=1)), 1)
    rows = [[str(k), *(f"{n:,}" for n in row)] for k, row in enumerate(counts)]
    title = f"Which class was taken for which, {split} rows"
    table = html.table(["class", *(f"as {k}" for k in range(classes))], rows, texts=1)
    yield html.fold(title, table)


def _columns(columns: ColumnWorth, charts: html.Charts) -> Iterator[str]:
    name = NAMES.get(columns.metric, columns.metric.replace("_", " "))
    most = {party: dict(list(columns.ordered(party).items())[:MOST_SHOWN]) for party in columns.parties}
    yield charts.place(*report_figures.columns(name, most))
    yield f"<p class='soft'>{escape(columns.note())}</p>"
    rows = [
        [party, column, *(f"{number:.4f}" for number in (e.value, e.low, e.high))]
        for party in columns.parties
        for column, e in columns.ordered(party).items()
    ]
    yield html.folded_table("The same as numbers", ["party", "column", f"{name} lost", "low", "high"], rows, texts=2)


def _worth(worth: Worth, charts: html.Charts) -> Iterator[str]:
    name = _title(worth.metric)
    subsets = {" + ".join(names) or NOBODY: estimate for names, estimate in worth.shown()}
    yield charts.place(*report_figures.worth(name, subsets, worth.values))
    yield f"<p class='soft'>{escape(worth.note())}</p>"
    parts = {"subset of parties": subsets, "party": worth.values}
    for heading, found in parts.items():
        rows = [[key, *(f"{number:.4f}" for number in (e.value, e.low, e.high))] for key, e in found.items()]
        title = "Subsets as a table" if found is subsets else "Values as a table"
        yield html.fold(title, html.table([heading, name, "low", "high"], rows, texts=1))


def _sent(run: _Run, charts: html.Charts) -> Iterator[str]:
    full, sent = run.full, run.sent()
    evaluation = sum(_total(run.last, "up", name, "evaluation") for name in run.senders)
    which = f" {evaluation:,} of the bytes up are of validation and test rows." if evaluation else ""
    yield f"<p>Training messages as they were sent: up is from a party to the server, down the other way.{which}</p>"
    headings, rows = ["party", "", "bytes"], []
    for name in run.senders:
        for way, direction in enumerate(("up", "down")):
            row = [name, direction, f"{sent[name][way]:,}"]
            rows.append([*row, f"{full[name][way]:,}", f"{sent[name][way] / full[name][way]:.1%}"] if full else row)
    if full:
        headings += ["SVFL", "share"]
        yield (
            "<p class='soft'>SVFL is what uncompressed training would have sent in as many steps with all parties "
            "here, counted from the settings: rows times width times 4 bytes for every step and party, and the fusion "
            "model where it is sent; headers aside.</p>"
        )
        yield charts.place(report_figures.sent(sent, full))
    yield html.fold("These bytes as a table", html.table(headings, rows)) if full else html.table(headings, rows)
    yield from report_tables.frames(run.folder)


def _total(record: Record, direction: str, name: str, kind: str = "") -> int:
    """Return the bytes of a party in a direction, of one kind of message or of all."""
    counts = record.ledger.get(direction, {}).get(name, {})
    return counts.get(kind, 0) if kind else sum(counts.values())
