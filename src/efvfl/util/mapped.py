"""Memory-mapped tensors: the operating system may write their pages to disk, so they need not fit into RAM.

The file is temporary and has no name. It disappears with the last tensor that uses it, or with the process.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from efvfl.errors import ConfigError


def zeros(shape: tuple[int, ...], dtype: torch.dtype, folder: Path) -> Tensor:
    """Return zeros of this shape, mapped to a new temporary file in this folder."""
    size = math.prod(shape) * dtype.itemsize
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            _reserve(file.fileno(), size)
            pages = mmap.mmap(file.fileno(), size)
            # The rows of a batch are scattered, so reading ahead would only load pages that are not needed.
            pages.madvise(mmap.MADV_RANDOM)
    except OSError as error:
        raise ConfigError(
            f"cannot create a file of {size:,} bytes for a memory in {folder}: {error}. Free some space there, or keep "
            "memories in RAM."
        ) from error
    return torch.frombuffer(pages, dtype=dtype).reshape(shape)


def _reserve(file: int, size: int) -> None:
    """Allocate the disk space of a file now: writing to a mapped page on a full disk would kill the process."""
    if sys.platform == "linux":
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)
