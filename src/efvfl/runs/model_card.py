"""A page of Markdown beside exported models: what they are, what goes in, how good they were, how to combine them."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from efvfl.errors import DataError, printable
from efvfl.runs.model_notes import ModelNotes
from efvfl.runs.run_folder import RECORDS, load_settings
from efvfl.runs.trackers import flat
from efvfl.runs.trained import TrainedRun
from efvfl.training.record import Record

FILE = "MODEL_CARD.md"
MEANING = {
    "cross_entropy": "logits of the classes: `softmax` gives probabilities",
    "binary_cross_entropy": "the logit of class 1: `sigmoid` gives its probability",
    "mse": "the prediction itself",
    "huber": "the prediction itself",
}


def text(trained: TrainedRun, notes: ModelNotes, differences: Mapping[str, float]) -> str:
    """Return the card; `differences` has how far each ONNX file was from torch when it was written."""
    sections = [_about(trained, notes), _files(notes, differences), _inputs(trained, notes), _scores(trained.folder)]
    sections += [_combine(notes), _settings(trained, notes), _versions()]
    return "\n\n".join("\n".join(section) for section in map(list, sections)) + "\n"


def _cell(value: object) -> str:
    """Return a value that cannot break out of a table."""
    return printable(str(value)).replace("|", "\\|").replace("`", "'")


def _about(trained: TrainedRun, notes: ModelNotes) -> Iterator[str]:
    yield "# Model card"
    yield ""
    yield "A network that was trained by vertical federated learning with the parties"
    yield f"{_cell(', '.join(trained.widths))}: every party turns its own columns of a row into a"
    yield "representation, and the label holder's fusion model predicts from all of them."
    held = ", ".join([*notes.locals, *(["the fusion model"] if notes.head else [])])
    yield f"Here: {_cell(held)}."
    if set(notes.locals) != set(trained.widths) or notes.head is None:
        alone = "" if notes.head and notes.head.any_subset else "; none of them can predict alone"
        yield f"The other parts belong to the other participants{alone}."
    yield ""
    yield "Handle it like the rows it was trained on: parameters and encoders (levels, quantiles, ranges) tell of them."


def _files(notes: ModelNotes, differences: Mapping[str, float]) -> Iterator[str]:
    yield "## Files"
    yield ""
    yield "Every part, in `parties/NAME` or `fusion`, has `model.safetensors` (parameters by name), `model.pt2`"
    yield "(`torch.export.load(path).module()`) and `model.onnx`; a party with a table also `encoder.json`"
    yield "(`efvfl.data.tables.encode.Encoder.from_json`)."
    yield ""
    yield "| part | input of a row | output of a row | ONNX, largest difference on 64 random rows |"
    yield "| --- | --- | --- | --- |"
    for name, note in notes.locals.items():
        shape = " x ".join(map(str, note.row))
        yield f"| {_cell(name)} | `columns`: {shape} {note.dtype} | `representation` | {_measured(name, differences)} |"
    if notes.head:
        inputs = ", ".join(f"`{_cell(name)}`: {width}" for name, width in notes.head.widths.items())
        inputs += f", `{notes.head.present}`: {len(notes.head.widths)}" if notes.head.any_subset else ""
        yield f"| fusion | {inputs} | `output`: {notes.head.outputs} | {_measured('', differences)} |"


def _measured(part: str, differences: Mapping[str, float]) -> str:
    return f"{differences[part]:.1e}" if part in differences else "not written"


def _inputs(trained: TrainedRun, notes: ModelNotes) -> Iterator[str]:
    yield "## Columns"
    for name, note in notes.locals.items():
        yield ""
        encoder = trained.encoders.get(name)
        if encoder is None:
            yield f"{_cell(name)}: numbers as they were given, of shape {' x '.join(map(str, note.row))}."
            continue
        columns, numbers = len(encoder.columns), note.row[0]
        yield f"{_cell(name)}: a table of {columns} columns, which `encoder.json` turns into {numbers} numbers."
        yield ""
        yield "| column | kind | becomes |"
        yield "| --- | --- | --- |"
        for column in encoder.columns:
            kind = asdict(column).get("kind", "category")
            yield f"| {_cell(column.name)} | {kind} | {_count(column.names)} |"


def _count(names: list[str]) -> str:
    return f"{len(names)} number{'s' if len(names) > 1 else ''}"


def _scores(folder: Path) -> Iterator[str]:
    yield "## Scores"
    yield ""
    last = _last_record(folder)
    if last is None:
        yield "Not known here: the label holder has them."
        return
    yield f"After epoch {last.epoch}, {last.step:,} steps and {last.bytes_up + last.bytes_down:,.0f} bytes sent:"
    yield ""
    yield "| rows | metric | value |"
    yield "| --- | --- | --- |"
    for split in ("train", "validation", "test"):
        for metric, value in getattr(last, split).items():
            yield f"| {split} | {_cell(metric)} | {value:.4f} |"


def _last_record(folder: Path) -> Record | None:
    path = folder / RECORDS
    if not path.exists():
        return None
    try:
        return Record.from_json(path.read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"expected the records of a run in {path}: {error}.") from error


def _combine(notes: ModelNotes) -> Iterator[str]:
    yield "## From parts to a prediction"
    yield ""
    yield "1. Each party encodes its columns of the same rows, in the same order, and runs its part, which gives one"
    yield "   representation for each row."
    yield "2. The label holder runs `fusion` with the representations of all parties, each under its party's name."
    if notes.head and notes.head.any_subset:
        yield "   Of a row that a party lacks, give zeros in place of its representation, and say who has the row in"
        yield f"   `{notes.head.present}`: for each party 1 or 0, in the order above."
    if notes.head:
        yield f"3. The output is {MEANING.get(notes.head.loss, f'what the loss {_cell(notes.head.loss)} takes')}."
        if notes.head.classes:
            yield f"   Classes in this order: {_cell(', '.join(notes.head.classes))}."
    yield ""
    yield "```python"
    yield "import onnxruntime"
    yield ""
    yield 'session = onnxruntime.InferenceSession("fusion/model.onnx")'
    yield '(output,) = session.run(None, {"NAME": representation, ...})  # one float32 array of (rows, width) a party'
    yield "```"


def _settings(trained: TrainedRun, notes: ModelNotes) -> Iterator[str]:
    yield "## Settings"
    yield ""
    yield "| setting | value |"
    yield "| --- | --- |"
    settings = load_settings(trained.folder)
    found = (
        flat(settings.config) if settings else flat({name: asdict(note.config) for name, note in notes.locals.items()})
    )
    if trained.encoders:
        found.pop("data.name", None)  # its default names a data set, but the rows came from tables
    for name, value in found.items():
        if value not in (None, "", [], (), {}):  # these have not been set
            yield f"| {_cell(name)} | `{_cell(json.dumps(value))}` |"


def _versions() -> Iterator[str]:
    yield "## Versions"
    yield ""
    versions = f"efvfl {version('efvfl')}, torch {version('torch')}, Python {platform.python_version()}"
    yield f"Exported {datetime.now(UTC):%Y-%m-%d} with {versions}."
