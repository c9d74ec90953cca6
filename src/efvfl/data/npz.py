"""Your own arrays: one .npz file with `y` and one array for every party, rows in the same order."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch

from efvfl.data.base import Dataset, cut
from efvfl.errors import ConfigError


def npz(path: Path, seed: int = 0, validation: float = 0.15, test: float = 0.15) -> Dataset:
    """Return the parties of a file: every array but `y` is one. Integer labels are classes, others are targets."""
    try:
        with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as file:
            del archive  # only to tell a .npz from a lone .npy, which numpy would take too
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"cannot read {path} as .npz: {error}") from error
    if "y" not in arrays or len(arrays) < 2:
        raise ConfigError(f"{path} holds {sorted(arrays)}, but 'y' and one array for each party are expected.")
    y = arrays.pop("y")
    for name, array in arrays.items():
        if array.ndim < 2 or array.dtype.kind not in "fiub":
            raise ConfigError(
                f"{name!r} in {path} has shape {array.shape} and dtype {array.dtype}: rows of numbers needed."
            )
    if y.ndim != 1 or y.dtype.kind not in "fiub":
        raise ConfigError(f"'y' in {path} has shape {y.shape} and dtype {y.dtype}: one number for each row is needed.")
    labels = torch.from_numpy(y.astype(np.int64 if y.dtype.kind in "iub" else np.float32))
    columns = [torch.from_numpy(array.astype(np.float32)) for array in arrays.values()]
    classes = int(labels.max()) + 1 if labels.dtype == torch.int64 else 1
    train, valid, held = cut(list(arrays), columns, labels, (validation, test), seed)
    return Dataset(list(arrays), train, valid, held, classes)
