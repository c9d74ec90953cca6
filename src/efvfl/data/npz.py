"""The user's arrays as .npz files: all parties in one file, or one file per participant.

`y` has the labels and `ids` the ids of the rows, one entry per row. In a common file, every other array has the columns
of the party of that name; in a party's own file, `x` has its columns. A party lacks the rows that are NaN throughout.
`has_NAME`, a bool for each row, says it of a party: in a common file in place of NaN, else for those who cannot see its
columns.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efvfl.data.base import Dataset, cut, cut_rows
from efvfl.errors import ConfigError
from efvfl.training.missing_rows import present_rows
from efvfl.training.whole_numbers import converted

HAS: Final = "has_"  # before the name of a party: which rows it has


@dataclass(frozen=True)
class Arrays:
    """The contents of a file."""

    columns: dict[str, Tensor]  # by name, float32
    labels: Tensor | None  # integers are classes, floats are regression targets
    ids: list[str]  # empty: rows have no ids
    has: dict[str, Tensor] = field(default_factory=dict)  # by party: which rows it has; left out: all, but rows of NaN

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.labels) if self.labels is not None else len(next(iter(self.columns.values())))


def read(path: Path) -> Arrays:
    """Return the contents of a file, after checking them."""
    try:
        with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as file:
            del archive  # only to distinguish a .npz from a single .npy, which numpy would accept too
            arrays: dict[str, NDArray[np.generic]] = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"cannot read {path} as .npz: {error}") from error
    y, ids = arrays.pop("y", None), arrays.pop("ids", None)
    masks = [name for name, array in arrays.items() if name.startswith(HAS) and array.ndim == 1 and array.dtype == bool]
    has = {name.removeprefix(HAS): torch.from_numpy(arrays.pop(name)) for name in masks}
    for name, array in arrays.items():
        if array.ndim < 2 or array.dtype.kind not in "fiub":
            raise ConfigError(
                f"expected rows of numbers as {name!r} in {path}, got shape {array.shape} and dtype {array.dtype}."
            )
    if y is not None and (y.ndim != 1 or y.dtype.kind not in "fiub"):
        raise ConfigError(f"expected one number per row as 'y' in {path}, got shape {y.shape} and dtype {y.dtype}.")
    if y is None and not arrays:
        raise ConfigError(f"expected columns or labels in {path}, got neither.")
    labels = None if y is None else torch.from_numpy(y.astype(np.int64 if y.dtype.kind in "iub" else np.float32))
    columns = {
        name: torch.from_numpy(array.astype(np.float32))
        if array.dtype.kind == "f"
        else converted(torch.from_numpy(array.astype(np.int64)), torch.float32, f"array {name!r} in {path}")
        for name, array in arrays.items()
    }
    found = Arrays(columns, labels, [] if ids is None else [str(i) for i in ids.tolist()], has)
    counts = {"ids": len(found.ids) or found.rows, **{n: len(x) for n, x in columns.items()}}
    for name, count in (counts | {HAS + n: len(mask) for n, mask in has.items()}).items():
        if count != found.rows:
            raise ConfigError(
                f"expected {found.rows:,} rows of {name!r} in {path}, got {count:,}: align the rows first."
            )
    if len(set(found.ids)) != len(found.ids):
        raise ConfigError(f"'ids' in {path} are not unique: every row needs a different id.")
    return found


def classes_of(labels: Tensor) -> int:
    """Return the number of classes; 1 for regression targets."""
    return int(labels.max()) + 1 if labels.dtype == torch.int64 else 1


def npz(path: Path, seed: int = 0, validation: float = 0.15, test: float = 0.15) -> Dataset:
    """Return the data set in one file: every array except `y` and `ids` is a party."""
    found = read(path)
    if found.labels is None or not found.columns:
        names = sorted(found.columns) + ["y"] * (found.labels is not None)
        raise ConfigError(f"expected 'y' and one array per party in {path}, got {names}.")
    columns = {name: _blanked(x, found.has.get(name)) for name, x in found.columns.items()}
    if unknown := sorted(set(found.has) - set(columns)):
        raise ConfigError(f"{HAS + unknown[0]} in {path}: expected the name of a party of {sorted(columns)}.")
    return _dataset(columns, found.labels, found.ids, (validation, test), seed)


def _blanked(x: Tensor, has: Tensor | None) -> Tensor:
    """Return columns with NaN in the rows that a party lacks."""
    if has is None:
        return x
    x = x.clone()
    x[~has] = torch.nan
    return x


def npz_files(labels: Path, parties: Mapping[str, Path], seed: int, shares: tuple[float, float]) -> Dataset:
    """Return a data set from one file with the labels, and one file per party with its columns in `x`."""
    target = read(labels)
    if target.labels is None:
        raise ConfigError(f"expected labels as 'y' in {labels}, got none.")
    columns = {}
    for name, path in parties.items():
        found = read(path)
        columns[name] = own_columns(found, path)
        if found.ids != target.ids:
            raise ConfigError(f"{path} and {labels} have different ids or another order: align the tables first.")
        if name in target.has and not torch.equal(target.has[name], present_rows(columns[name])):
            raise ConfigError(f"{HAS + name} in {labels}: expected False for the rows of NaN in {path} alone.")
    return _dataset(columns, target.labels, target.ids, shares, seed)


def own_columns(found: Arrays, path: Path) -> Tensor:
    """Return the columns in a party's own file."""
    if set(found.columns) != {"x"}:
        raise ConfigError(f"expected only the columns 'x' in a party's file {path}, got {sorted(found.columns)}.")
    return found.columns["x"]


def _dataset(
    columns: dict[str, Tensor], labels: Tensor, ids: list[str], shares: tuple[float, float], seed: int
) -> Dataset:
    train, valid, test = cut(list(columns), list(columns.values()), labels, shares, seed)
    parts = cut_rows(len(labels), shares, seed)
    named = {split: [ids[i] for i in part.tolist()] for split, part in parts.items()} if ids else {}
    return Dataset(list(columns), train, valid, test, classes_of(labels), ids=named)
