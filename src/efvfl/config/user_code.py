"""What a file names of your own: code as 'package.module:attribute', beside the file or installed, and data."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from functools import lru_cache
from pathlib import Path


def look_in(folder: Path) -> None:
    """Find modules in this folder first: your own lie beside the file that names them."""
    place = str(folder.resolve())
    if sys.path[:1] != [place]:
        sys.path.insert(0, place)


def attribute(path: str) -> object:
    """Return what 'package.module:attribute' names; ImportError or AttributeError if there is no such thing."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ValueError as error:  # an empty name of a module
        raise ImportError(str(error)) from error


def digest_of_module(module: str) -> str:
    """Return a digest of a module's source file; empty if it has none, or is not found."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return ""
    return digest_of_file(Path(spec.origin)) if spec and spec.has_location and spec.origin else ""


def digest_of_file(path: Path) -> str:
    """Return a digest of a file; empty if it is not there."""
    try:
        about = path.stat()
        return _digest(path, about.st_mtime_ns, about.st_size)
    except OSError:
        return ""


@lru_cache
def _digest(path: Path, changed: int, size: int) -> str:
    """Read a file once for as long as it stays the same: a sweep asks for it at every record."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
