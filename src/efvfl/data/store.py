"""The location of data sets: the folder named by EFVFL_DATA, then the user's cache directory."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from efvfl.errors import CheckpointError, DataError
from efvfl.util.files import write_atomically

VARIABLE = "EFVFL_DATA"


def cache() -> Path:
    """Return the efvfl folder in the user's cache directory; it need not exist yet."""
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        base = Path(chosen)
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path.home() / ".cache"
    return base / "efvfl"


def roots() -> list[Path]:
    """Return the folders to search, in order."""
    chosen = os.environ.get(VARIABLE)
    return [Path(chosen).expanduser(), cache()] if chosen else [cache()]


def find(relative: str, needed: Sequence[Sequence[str]] = ()) -> Path | None:
    """Return the first path under the roots where this file or folder exists, or None.

    `needed` is for folders: for each entry, one of its names must be a file in the folder. A folder that lacks one is
    skipped, because a download may have been interrupted between two files.
    """
    for root in roots():
        path = root / relative
        if path.exists() and all(any((path / name).is_file() for name in names) for names in needed):
            return path
    return None


def missing(name: str, relative: str) -> DataError:
    """Return the error about a missing data set; it says how to get it."""
    looked = " and ".join(str(root / relative) for root in roots())
    return DataError(
        f"the data set {name!r} was not found (searched {looked}). Run `efvfl data get {name}`, "
        f"or set {VARIABLE} to the folder that has it."
    )


def require(name: str, relative: str, needed: Sequence[Sequence[str]] = ()) -> Path:
    """Return the path of a data set, or raise an error that says how to get it."""
    path = find(relative, needed)
    if path is None:
        raise missing(name, relative)
    return path


def home() -> Path:
    """Return the folder for new data; it is created if needed."""
    root = roots()[0]
    remedy = f"Change or unset {VARIABLE}" if os.environ.get(VARIABLE) else f"Set {VARIABLE} to a writable folder"
    try:
        root.mkdir(parents=True, exist_ok=True)
        # A folder without any write permission bit is left unchanged, even if the superuser could write to it.
        if not root.stat().st_mode & 0o222:
            raise PermissionError("it is marked read-only")
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise DataError(f"cannot write data to {root}: {error.strerror or error}. {remedy}.") from error
    return root


def write(path: Path, data: bytes, sha256: str | None = None) -> None:
    """Write a file of a data set atomically, after verifying its checksum."""
    actual = hashlib.sha256(data).hexdigest()
    if sha256 not in (None, actual):
        raise DataError(f"wrong checksum of {path.name}: expected sha256 {sha256}, got {actual}.")
    try:
        write_atomically(path, data, public=True)
    except (CheckpointError, OSError) as error:
        problem = f"cannot write {path}: {error.strerror}." if isinstance(error, OSError) else str(error)
        raise DataError(f"{problem} Free some space, or set {VARIABLE} to another folder.") from error
