"""Atomic writes: a file is written under a temporary name, flushed to disk, then renamed.

What is written about a run may tell of its rows and labels, so only its owner may read it, whatever the umask.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from efvfl.errors import CheckpointError


def private(path: str, flags: int) -> int:
    """Open a file that nobody but its owner may read, if it is a new one; for the `opener` of `open`."""
    return os.open(path, flags, 0o600)


def write_atomically(
    path: Path, *pieces: bytes | memoryview, public: bool = False, keep: Path | None = None, flush: bool = True
) -> None:
    """Write these bytes to `path`; after a crash the file is either the old one or complete.

    Only the owner may read it, unless it is `public`: then the umask decides. The old file is kept under the name
    `keep`, if there is one. Without `flush` nobody waits for the disk, and a power failure may leave neither.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb", opener=None if public else private) as file:
            for piece in pieces:
                file.write(piece)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        if keep is not None and path.exists():
            _link(path, keep)
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {path}: {error}. The previous file is unchanged.") from error
    if flush:
        sync_folder(path.parent)


def _link(path: Path, second: Path) -> None:
    """Give a file a second name, in place of what has it; a rename would leave none under the first for a moment."""
    link = path.with_name(f".{path.name}.{os.getpid()}.link")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
        os.replace(link, second)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):  # no links on this file system: none is kept
            raise
    finally:
        link.unlink(missing_ok=True)  # still there if both names were this file's already


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
