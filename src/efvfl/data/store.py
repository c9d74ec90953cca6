"""Where data sets live: the folder named by EFVFL_DATA, then the user's cache directory."""

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
    """Return our folder in the user's cache directory, which need not exist yet."""
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
    """Return the folders that are searched, in order."""
    chosen = os.environ.get(VARIABLE)
    return [Path(chosen).expanduser(), cache()] if chosen else [cache()]


def find(relative: str, needed: Sequence[Sequence[str]] = ()) -> Path | None:
    """Return the first place under the roots that holds this file or folder.

    `needed` is for folders: for each entry, one of its names must be a file in there. A folder that lacks one is passed
    over, because a download may have been interrupted between two files.
    """
    for root in roots():
        path = root / relative
        if path.exists() and all(any((path / name).is_file() for name in names) for names in needed):
            return path
    return None


def missing(name: str, relative: str) -> DataError:
    """Return the error about a data set that is not here: it says how to get it."""
    looked = " and ".join(str(root / relative) for root in roots())
    return DataError(
        f"the data set {name!r} is not here (looked at {looked}). Run `efvfl data get {name}`, "
        f"or set {VARIABLE} to the folder that has it."
    )


def require(name: str, relative: str, needed: Sequence[Sequence[str]] = ()) -> Path:
    """Return where a data set is, or say how to get it."""
    path = find(relative, needed)
    if path is None:
        raise missing(name, relative)
    return path


def home() -> Path:
    """Return the folder that new data is written to, made if need be."""
    root = roots()[0]
    remedy = f"Change or unset {VARIABLE}" if os.environ.get(VARIABLE) else f"Set {VARIABLE} to a folder of yours"
    try:
        root.mkdir(parents=True, exist_ok=True)
        # A folder without any write bit is meant to stay as it is, even where the administrator could write to it.
        if not root.stat().st_mode & 0o222:
            raise PermissionError("it is marked read-only")
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise DataError(f"cannot write data to {root}: {error.strerror or error}. {remedy}.") from error
    return root


def write(path: Path, data: bytes, sha256: str | None = None) -> None:
    """Put a file of a data set in its place, whole or not at all, if its checksum is right."""
    came = hashlib.sha256(data).hexdigest()
    if sha256 not in (None, came):
        raise DataError(f"wrong checksum of {path.name}: sha256 {sha256} was expected, {came} came.")
    try:
        write_atomically(path, data)
    except (CheckpointError, OSError) as error:
        said = f"cannot write {path}: {error.strerror}." if isinstance(error, OSError) else str(error)
        raise DataError(f"{said} Free some space, or set {VARIABLE} to another folder.") from error
