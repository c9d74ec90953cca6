"""Files that a run writes for its report: its settings, and the network's outputs for labelled rows."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from efvfl.data.participation import Participation
from efvfl.errors import DataError
from efvfl.training.record import Record
from efvfl.util.extras import left_out, optional
from efvfl.util.files import write_atomically
from efvfl.util.versions import versions

log = logging.getLogger("efvfl")

RECORDS = "records.jsonl"
OUTPUTS = "outputs.parquet"
ALONE = "alone.parquet"  # the same of a network that the label holder trained with its own columns alone
SETTINGS = "settings.json"
COLUMNS = "columns.json"


@dataclass(frozen=True)
class Outputs:
    """The network's outputs for the rows of a split."""

    ids: list[str]
    labels: Tensor  # shape (rows,)
    output: Tensor  # of the fusion model, shape (rows, outputs)


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run, and the sizes that follow from them."""

    config: dict[str, Any]  # of the run file as `true_settings` has it
    widths: dict[str, int]  # of the parties' representations
    rows: dict[str, int]  # by split
    fusion: int  # parameters of the fusion model
    participation: dict[str, dict[str, int]] = field(default_factory=dict)  # of rows, by table, as far as known here
    balance: dict[str, dict[str, int]] = field(default_factory=dict)  # rows by split and class; empty without classes
    ended: str = ""  # when training was over, in UTC
    version: str = ""  # of efvfl
    complete: bool = True  # whether training is over
    versions: dict[str, str] = field(default_factory=dict)  # of what computed it; empty: by efvfl 0.2.0 or before


@dataclass(frozen=True)
class Sizes:
    """What the settings of a run alone do not say."""

    widths: Mapping[str, int]  # of the parties' representations
    fusion: int  # parameters of the fusion model
    labels: Mapping[str, Tensor]  # by split
    classes: Sequence[str] = ()  # their names, if they have any


def save_records(folder: Path, records: Sequence[Record], flush: bool = True) -> None:
    """Write one line for each record; without `flush` for who watches, and not to last."""
    write_atomically(folder / RECORDS, "".join(f"{record.to_json()}\n" for record in records).encode(), flush=flush)


def save_outputs(folder: Path, splits: Mapping[str, Outputs], name: str = OUTPUTS) -> None:
    """Write one row for each row of the splits: split, id, label and the outputs. Without polars there is no file."""
    with left_out(log.warning):
        write_atomically(folder / name, _parquet(splits))


def _parquet(splits: Mapping[str, Outputs]) -> bytes:
    with optional("tables", OUTPUTS):
        import polars

    frames = []
    for split, part in splits.items():
        output = part.output.detach().reshape(len(part.ids), -1).double()
        columns: dict[str, Any] = {"split": [split] * len(part.ids), "id": part.ids}
        columns["label"] = part.labels.detach().double().reshape(-1).tolist()
        columns |= {f"output_{k}": output[:, k].tolist() for k in range(output.shape[1])}
        frames.append(polars.DataFrame(columns))
    buffer = io.BytesIO()
    polars.concat(frames).write_parquet(buffer)
    return buffer.getvalue()


def load_outputs(folder: Path, name: str = OUTPUTS) -> dict[str, Outputs]:
    """Return what `save_outputs` wrote, or an empty dict if there is no file."""
    path = folder / name
    if not path.exists():
        return {}
    with optional("tables", OUTPUTS):
        import polars

    try:
        frame = polars.read_parquet(path)
        names = [name for name in frame.columns if name.startswith("output_")]
        found = {}
        for (split,), part in frame.group_by(["split"], maintain_order=True):
            labels, output = part["label"].to_numpy(), part.select(names).to_numpy()
            found[str(split)] = Outputs(part["id"].to_list(), torch.tensor(labels), torch.tensor(output))
    except (polars.exceptions.PolarsError, OSError, TypeError, ValueError) as error:
        raise DataError(
            f"expected the columns split, id, label and output_0, ... in {path}: {error}. Delete it."
        ) from error
    return found


def save_settings(
    folder: Path,
    config: Mapping[str, Any],
    sizes: Sizes,
    participation: Mapping[str, Participation] | None = None,
    complete: bool = True,
) -> None:
    """Write the settings of a run: once when it begins, for who watches it, and once when it is complete."""
    made_with = versions()
    table = RunSettings(
        dict(config),
        dict(sizes.widths),
        {split: len(labels) for split, labels in sizes.labels.items()},
        sizes.fusion,
        {name: part.counts() for name, part in (participation or {}).items()},
        balance(sizes.labels, str(config["loss"]), sizes.classes),
        datetime.now(UTC).isoformat(timespec="seconds") if complete else "",
        made_with["efvfl"],
        complete,
        made_with,
    )
    write_atomically(folder / SETTINGS, (json.dumps(asdict(table), indent=1) + "\n").encode())


def balance(labels: Mapping[str, Tensor], loss: str, names: Sequence[str] = ()) -> dict[str, dict[str, int]]:
    """Return how many rows each class has, by split; nothing where labels are no classes.

    >>> balance({"train": torch.tensor([0, 1, 1])}, "cross_entropy", ["no", "yes"])
    {'train': {'no': 1, 'yes': 2}}
    """
    every = torch.cat([part.detach().reshape(-1).double() for part in labels.values()] or [torch.empty(0)])
    classes = loss == "cross_entropy" or (loss == "binary_cross_entropy" and bool(((every == 0) | (every == 1)).all()))
    if not classes:
        return {}
    known = range(max(len(names), int(every.max()) + 1 if len(every) else 0))
    named = {k: names[k] if k < len(names) else str(k) for k in known}
    return {split: {named[k]: int((part.reshape(-1) == k).sum()) for k in known} for split, part in labels.items()}


def save_columns(folder: Path, columns: Mapping[str, Any]) -> None:
    """Write how the columns of later rows differ from those of training rows, by party; nothing without tables."""
    if columns:
        write_atomically(folder / COLUMNS, (json.dumps(columns, indent=1) + "\n").encode())


def load_columns(folder: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return what `save_columns` wrote, or an empty dict if there is no file."""
    path = folder / COLUMNS
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        [change["column"] for parts in found.values() for changes in parts.values() for change in changes]
    except (OSError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise DataError(f"expected what a run wrote about its columns in {path}: {error}. Delete it.") from error
    return dict(found)


def load_settings(folder: Path) -> RunSettings | None:
    """Return what `save_settings` wrote, or None if there is no file."""
    path = folder / SETTINGS
    if not path.exists():
        return None
    try:
        return RunSettings(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"expected the settings of a run in {path}: {error}. Delete it.") from error
