"""Code and data of the user that a run file names: code as 'package.module:attribute', beside the file or installed.

The file's folder is on Python's search path only while such code is imported or called, and after everything else: a
file that somebody put there under the name of a library's optional module is never run, and what is installed wins.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from efvfl.errors import ConfigError

_beside: list[Path] = []  # the folder of the run file, once it is known


def look_in(folder: Path) -> None:
    """Say where a user's modules are: beside the run file that names them."""
    _beside[:] = [folder.resolve()]


@contextlib.contextmanager
def on_path() -> Iterator[None]:
    """Have the run file's folder last on the module search path, while a user's code is imported or called."""
    added = [place for place in map(str, _beside) if place not in sys.path]
    sys.path.extend(added)
    try:
        yield
    finally:
        for place in added:
            with contextlib.suppress(ValueError):  # the user's code may have removed it
                sys.path.remove(place)


def attribute(path: str) -> object:
    """Return the object that 'package.module:attribute' names; raise ImportError or AttributeError if there is none.

    >>> attribute("math:pi")
    3.141592653589793
    """
    module, _, name = path.partition(":")
    if not all(part.isidentifier() for part in module.split(".")):
        raise ImportError(f"expected 'package.module:attribute', got {path!r:.80}")
    with on_path():
        found = importlib.import_module(module)
    _refuse_another(module, getattr(found, "__file__", None))
    return getattr(found, name)


def named(path: str, what: str) -> object:
    """Return the object that 'package.module:attribute' names, or say which setting, `what`, cannot be imported."""
    try:
        return attribute(path)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import the {what} {path!r}: {error}") from error


def _refuse_another(module: str, found: str | None) -> None:
    """Refuse a module beside the file if another one of its name was imported: an installed or an earlier one."""
    for folder in _beside:
        base = folder.joinpath(*module.split("."))
        own = [place.resolve() for place in (base.with_suffix(".py"), base / "__init__.py") if place.is_file()]
        if own and (found is None or Path(found).resolve() not in own):
            raise ImportError(
                f"expected the module {module!r} to be {own[0]}, beside the run file, got {found or 'a built-in one'}, "
                "which Python knows by the same name: rename yours"
            )


def own_functions(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a scheduler with the functions that `lr_lambda` names, also within those that follow."""
    found = dict(options)
    if isinstance(path := found.get("lr_lambda"), str):
        if ":" not in path:
            raise ConfigError(f"scheduler.lr_lambda: expected 'package.module:function', got {path!r:.80}.")
        found["lr_lambda"] = named(path, "scheduler's function")
    if isinstance(parts := found.get("schedulers"), list):
        found["schedulers"] = [own_functions(part) if isinstance(part, dict) else part for part in parts]
    return found


def names_in(value: Any) -> list[str]:
    """Return all texts in nested settings that name code: those with a colon.

    >>> names_in({"a": ["mine:rate", "b"], "c": 3})
    ['mine:rate']
    """
    if isinstance(value, dict | list | tuple):
        return [name for item in (value.values() if isinstance(value, dict) else value) for name in names_in(item)]
    return [value] if isinstance(value, str) and ":" in value else []


def digest_of_module(module: str) -> str:
    """Return the SHA-256 digest of a module's source file, or an empty string if there is none."""
    try:
        with on_path():  # the packages above a module are imported to find it
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
