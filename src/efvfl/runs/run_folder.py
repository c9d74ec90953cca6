"""What a run leaves in its folder for its report: what the network said of rows with known labels, and the settings."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from efvfl.config.run_file import RunConfig
from efvfl.errors import DataError
from efvfl.training.record import Record
from efvfl.util.extras import left_out, optional
from efvfl.util.files import write_atomically

log = logging.getLogger("efvfl")

RECORDS = "records.jsonl"
OUTPUTS = "outputs.parquet"
SETTINGS = "settings.json"


@dataclass(frozen=True)
class Outputs:
    """What the network said of the rows of a split."""

    ids: list[str]
    labels: Tensor  # shape (rows,)
    output: Tensor  # as the fusion model gives it, shape (rows, outputs)


@dataclass(frozen=True)
class RunSettings:
    """What was set, and what follows from it about sizes."""

    config: dict[str, Any]  # a run file's, without private seeds
    widths: dict[str, int]  # of the parties' representations
    rows: dict[str, int]  # by split
    fusion: int  # parameters of the fusion model


def save_records(folder: Path, records: Sequence[Record]) -> None:
    """Write one line for each record."""
    write_atomically(folder / RECORDS, "".join(f"{record.to_json()}\n" for record in records).encode())


def save_outputs(folder: Path, splits: Mapping[str, Outputs]) -> None:
    """Write one row for each row of the splits: split, id, label and the outputs. Without polars there is no file."""
    with left_out(log.warning):
        write_atomically(folder / OUTPUTS, _parquet(splits))


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


def load_outputs(folder: Path) -> dict[str, Outputs]:
    """Read what `save_outputs` wrote; nothing, if there is none."""
    path = folder / OUTPUTS
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
        raise DataError(f"{path} does not hold split, id, label and output_0, ...: {error}. Delete it.") from error
    return found


def save_settings(
    folder: Path, config: RunConfig, widths: Mapping[str, int], rows: Mapping[str, int], fusion: int
) -> None:
    """Write the settings of a run; private seeds stay where they are."""
    table = RunSettings(_without_seeds(asdict(config)), dict(widths), dict(rows), fusion)
    write_atomically(folder / SETTINGS, (json.dumps(asdict(table), indent=1) + "\n").encode())


def _without_seeds(value: Any) -> Any:
    """Leave out what a page that is handed on must not show."""
    if isinstance(value, dict):
        return {key: _without_seeds(item) for key, item in value.items() if key != "private_seed"}
    return [_without_seeds(item) for item in value] if isinstance(value, list | tuple) else value


def load_settings(folder: Path) -> RunSettings | None:
    """Read what `save_settings` wrote; None, if there is none."""
    path = folder / SETTINGS
    if not path.exists():
        return None
    try:
        return RunSettings(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"{path} does not hold the settings of a run: {error}. Delete it.") from error
