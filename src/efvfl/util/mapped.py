"""Tensors that lie in a file: the system may write their pages out and drop them, so they need not fit into RAM.

The file is scratch and has no name. It is gone when the last tensor on it is, or the process, however that ends.
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
    """Return zeros in a new file on the disk of this folder."""
    size = math.prod(shape) * dtype.itemsize
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            _reserve(file.fileno(), size)
            pages = mmap.mmap(file.fileno(), size)
            # A batch is rows from everywhere: what lies around them need not be read, held or written with them.
            pages.madvise(mmap.MADV_RANDOM)
    except OSError as error:
        raise ConfigError(
            f"cannot make a file of {size:,} bytes for a memory in {folder}: {error}. Make room there, or keep "
            "memories in RAM."
        ) from error
    return torch.frombuffer(pages, dtype=dtype).reshape(shape)


def _reserve(file: int, size: int) -> None:
    """Give a file its size. Without blocks of its own, writing to a full disk would later kill the process."""
    if sys.platform == "linux":
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)
