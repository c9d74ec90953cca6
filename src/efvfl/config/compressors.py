"""Compressors as a run file names them: a table with a name and knobs."""

from __future__ import annotations

from typing import Any

from efvfl.compress import REGISTRY, Compressor, lookup
from efvfl.config import user_code
from efvfl.config.parsing import read
from efvfl.errors import ConfigError


def compressor_from(table: dict[str, Any]) -> Compressor | None:
    """Make a compressor from `{ name = ..., knobs }`; an empty table is none."""
    if not table:
        return None
    knobs = dict(table)
    name = knobs.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"expected a compressor with a name, such as {{ name = 'topk', ratio = 0.1 }}, got {table}.")
    return read(_own_compressor(name) if ":" in name else lookup(name), knobs, f"compressor {name}")


def _own_compressor(path: str) -> type[Compressor]:
    """Return the class that 'package.module:Class' names; importing it has registered it."""
    try:
        found = user_code.attribute(path)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import the compressor {path!r}: {error}") from error
    if not isinstance(found, type) or found not in REGISTRY.values():
        raise ConfigError(
            f"{path!r}: expected a class under @register(name, code), got {found!r}: see docs/adding-a-compressor.md."
        )
    return found
