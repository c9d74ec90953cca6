"""Code and data of the user that a run file names: code as 'package.module:attribute', beside the file or installed."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from functools import lru_cache
from pathlib import Path


def look_in(folder: Path) -> None:
    """Put a folder first on the module search path: a user's modules are beside the run file that names them."""
    place = str(folder.resolve())
    if sys.path[:1] != [place]:
        sys.path.insert(0, place)


def attribute(path: str) -> object:
    """Return the object that 'package.module:attribute' names; raise ImportError or AttributeError if there is none.

    >>> attribute("math:pi")
    3.141592653589793
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ValueError as error:  # an empty module name
        raise ImportError(str(error)) from error


def digest_of_module(module: str) -> str:
    """Return the SHA-256 digest of a module's source file, or an empty string if there is none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return ""
    return digest_of_file(Path(spec.origin)) if spec and spec.has_location and spec.origin else ""


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 digest of a file, or an empty string if it cannot be read."""
    try:
        about = path.stat()
        return _digest(path, about.st_mtime_ns, about.st_size)
    except OSError:
        return ""


@lru_cache
def _digest(path: Path, changed: int, size: int) -> str:
    """Return the digest of a file; cached while the file is unchanged, because a sweep asks for every record."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
