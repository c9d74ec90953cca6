"""Results of an experiment: one file for each run while it is at work, one compact file of them all to keep.

A sweep writes every finished run to a file of its own in the working folder `results/TASK/`, so that parallel workers
never share one. `fold` moves them into `results/TASK.jsonl`, one line for each run: that file is committed and read by
pages and tests. A run counts as finished wherever it is found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from efvfl.errors import DataError
from efvfl.experiments.experiment_file import Job, file_name, key_in
from efvfl.training.record import finite_or_null, nan_for_null
from efvfl.util.files import write_atomically


@dataclass(frozen=True)
class Result:
    """A finished run: its configuration and one column for every number it recorded."""

    cell: str
    config: dict[str, Any]
    columns: dict[str, list[float]]  # by name: "epoch", "train_loss", "test_accuracy", "bytes_up", ...
    ledger: dict[str, dict[str, dict[str, int]]]  # at the end
    versions: dict[str, str]
    steps: dict[str, list[float]] = field(default_factory=dict)  # the same of every n-th step, with `note_every`

    def to_json(self) -> str:
        """Return the whole as JSON, the same text for the same run."""
        return json.dumps(self.table(), indent=0, sort_keys=True, allow_nan=False)

    def table(self) -> dict[str, Any]:
        """Return the whole as a JSON object."""
        found: dict[str, Any] = finite_or_null(asdict(self))
        if not self.steps:
            del found["steps"]
        return found

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Result:
        """Return the result that a JSON object describes."""
        fields = dict(table)
        columns, steps = ({n: nan_for_null(c) for n, c in fields.pop(key, {}).items()} for key in ("columns", "steps"))
        return cls(columns=columns, steps=steps, **fields)

    @classmethod
    def read(cls, path: Path) -> Result:
        """Read a result's working file."""
        return cls.from_table(json.loads(path.read_text(encoding="utf-8")))


def compact_file(folder: Path) -> Path:
    """Return where the results of the working folder `results/TASK` are kept: `results/TASK.jsonl`."""
    whole = folder if folder.name else folder.absolute()
    return whole.with_name(f"{whole.name}.jsonl")


def read_compact(path: Path) -> dict[str, Result]:
    """Read a compact file: results by the names their working files had. It is empty if it is not there."""
    found: dict[str, Result] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            table = json.loads(line)
            key = table.pop("key")
            result = Result.from_table(table)
            name = file_name(result.cell, result.config["seed"], key)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"line {number} of {path}: expected a run as `make results` writes it, got {line[:40]!r}. "
                "Restore the file, or remove the line to train that run again."
            ) from error
        if name in found:
            raise DataError(f"line {number} of {path}: expected every run once, got {name} again: remove one.")
        found[name] = result
    return found


def write_compact(path: Path, results: Mapping[str, Result]) -> None:
    """Write a compact file, sorted: the same text for the same runs, whatever the order in which they finished."""
    tables = [{"key": key_in(name), **result.table()} for name, result in results.items()]
    tables.sort(key=lambda table: (table["cell"], table["config"]["seed"], table["key"]))
    lines = [json.dumps(table, sort_keys=True, separators=(",", ":"), allow_nan=False) for table in tables]
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode(), public=True)


def find(jobs: Iterable[Job], folder: Path) -> list[Result]:
    """Read the results there are of these jobs, in their order, from the compact file or from the working folder."""
    kept, found = read_compact(compact_file(folder)), []
    for name in (job.file for job in jobs):
        if name in kept:
            found.append(kept[name])
        elif (folder / name).exists():
            found.append(Result.read(folder / name))
    return found


def unfinished(jobs: Iterable[Job], folder: Path) -> list[Job]:
    """Return the jobs that have no result yet."""
    kept = read_compact(compact_file(folder))
    return [job for job in jobs if (name := job.file) not in kept and not (folder / name).exists()]


def fold(jobs: Iterable[Job], folder: Path) -> int:
    """Move finished runs of these jobs from the working folder into the compact file; return how many were new.

    Other runs of the folder stay there: a quick trial with fewer epochs does not get into what is committed. A working
    file is removed only after the compact file is safely written, and a run that was kept before is never replaced.
    """
    kept = read_compact(compact_file(folder))
    finished = [path for job in jobs if (path := folder / job.file).exists()]
    new = {path.name: Result.read(path) for path in finished if path.name not in kept}
    if new:
        write_compact(compact_file(folder), kept | new)
    for path in finished:
        path.unlink()
    return len(new)
