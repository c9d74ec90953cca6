"""Your own arrays as .npz files: all parties in one file, or a file for each of those who hold something.

`y` are the labels, `ids` the names of the rows (both one entry a row); every other array is the columns of the party of
that name, or of the party whose own file it is, and then it is called `x`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efvfl.data.base import Dataset, cut, cut_rows
from efvfl.errors import ConfigError


@dataclass(frozen=True)
class Arrays:
    """What a file holds."""

    columns: dict[str, Tensor]  # by name, float32
    labels: Tensor | None  # integers are classes, others are targets
    ids: list[str]  # empty: rows have no names

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.labels) if self.labels is not None else len(next(iter(self.columns.values())))


def read(path: Path) -> Arrays:
    """Read a file and check its form."""
    try:
        with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as file:
            del archive  # only to tell a .npz from a lone .npy, which numpy would take too
            arrays: dict[str, NDArray[np.generic]] = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"cannot read {path} as .npz: {error}") from error
    y, ids = arrays.pop("y", None), arrays.pop("ids", None)
    for name, array in arrays.items():
        if array.ndim < 2 or array.dtype.kind not in "fiub":
            raise ConfigError(
                f"{name!r} in {path} has shape {array.shape} and dtype {array.dtype}: rows of numbers needed."
            )
    if y is not None and (y.ndim != 1 or y.dtype.kind not in "fiub"):
        raise ConfigError(f"'y' in {path} has shape {y.shape} and dtype {y.dtype}: one number for each row is needed.")
    if y is None and not arrays:
        raise ConfigError(f"{path} holds neither columns nor labels.")
    labels = None if y is None else torch.from_numpy(y.astype(np.int64 if y.dtype.kind in "iub" else np.float32))
    columns = {name: torch.from_numpy(array.astype(np.float32)) for name, array in arrays.items()}
    found = Arrays(columns, labels, [] if ids is None else [str(i) for i in ids.tolist()])
    for name, count in (("ids", len(found.ids) or found.rows), *((n, len(x)) for n, x in columns.items())):
        if count != found.rows:
            raise ConfigError(f"{name!r} in {path} has {count:,} rows, {found.rows:,} are expected: align first.")
    if len(set(found.ids)) != len(found.ids):
        raise ConfigError(f"'ids' in {path} are not all different: every row needs an id of its own.")
    return found


def classes_of(labels: Tensor) -> int:
    """Return how many classes there are; 1 for targets that are not classes."""
    return int(labels.max()) + 1 if labels.dtype == torch.int64 else 1


def npz(path: Path, seed: int = 0, validation: float = 0.15, test: float = 0.15) -> Dataset:
    """Return the parties of one file: every array but `y` and `ids` is one."""
    found = read(path)
    if found.labels is None or not found.columns:
        names = sorted(found.columns) + ["y"] * (found.labels is not None)
        raise ConfigError(f"{path} holds {names}, but 'y' and one array for each party are expected.")
    return _dataset(found.columns, found.labels, found.ids, (validation, test), seed)


def npz_files(labels: Path, parties: Mapping[str, Path], seed: int, shares: tuple[float, float]) -> Dataset:
    """Return the parties of one file each, `x` in every one, and the labels of another."""
    held = read(labels)
    if held.labels is None:
        raise ConfigError(f"{labels} holds no labels: 'y' is expected.")
    columns = {}
    for name, path in parties.items():
        found = read(path)
        columns[name] = own_columns(found, path)
        if found.ids != held.ids:
            raise ConfigError(f"{path} and {labels} list other ids, or in another order: align the tables first.")
    return _dataset(columns, held.labels, held.ids, shares, seed)


def own_columns(found: Arrays, path: Path) -> Tensor:
    """Return the columns in a party's own file."""
    if set(found.columns) != {"x"}:
        raise ConfigError(f"{path} holds {sorted(found.columns)}, but a party's own file has its columns in 'x'.")
    return found.columns["x"]


def _dataset(
    columns: dict[str, Tensor], labels: Tensor, ids: list[str], shares: tuple[float, float], seed: int
) -> Dataset:
    train, valid, held = cut(list(columns), list(columns.values()), labels, shares, seed)
    parts = cut_rows(len(labels), shares, seed)
    named = {split: [ids[i] for i in part.tolist()] for split, part in parts.items()} if ids else {}
    return Dataset(list(columns), train, valid, held, classes_of(labels), ids=named)
