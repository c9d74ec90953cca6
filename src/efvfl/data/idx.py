"""The idx format of MNIST: a magic number, the dimensions, then the values; big-endian, often gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from efvfl.errors import DataError

KINDS = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"


def read_idx(path: Path) -> NDArray[Any]:
    """Return the array in an idx file, gzipped or not, in native byte order."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == _GZIP
        with gzip.open(path) if packed else open(path, "rb") as file:
            magic = file.read(4)
            if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in KINDS or not magic[3]:
                raise _broken(path, f"it starts with {magic.hex(' ') or 'nothing'}, which is not an idx magic number")
            header = file.read(4 * magic[3])
            if len(header) < 4 * magic[3]:
                raise _broken(path, f"it ends within its {magic[3]} dimensions")
            shape = tuple(int(length) for length in np.frombuffer(header, ">u4"))
            kind = np.dtype(KINDS[magic[2]])
            wanted = math.prod(shape) * kind.itemsize
            # One byte more than needed: detects trailing bytes, and makes gzip verify its checksum.
            values = file.read(wanted + 1)
    except (OSError, EOFError, zlib.error, OverflowError, MemoryError) as error:
        raise _broken(path, str(error) or type(error).__name__) from error
    if len(values) != wanted:
        actual = f"{len(values):,}" if len(values) < wanted else "more"
        raise _broken(path, f"expected {wanted:,} bytes for its dimensions {shape}, got {actual}")
    return np.frombuffer(values, kind).astype(kind.newbyteorder("="), copy=False).reshape(shape)


def _broken(path: Path, why: str) -> DataError:
    return DataError(
        f"cannot read {path} as an idx file: {why}. Delete it and download it again with `efvfl data get`."
    )
