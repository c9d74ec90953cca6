"""Atomic writes: a file is written under a temporary name, flushed to disk, then renamed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from efvfl.errors import CheckpointError


def write_atomically(path: Path, *pieces: bytes | memoryview) -> None:
    """Write these bytes to `path`; after a crash the file is either the old one or complete."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {path}: {error}. The previous file is unchanged.") from error
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that new file names survive a power failure."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise CheckpointError(f"cannot flush {folder}: {error}.") from error
