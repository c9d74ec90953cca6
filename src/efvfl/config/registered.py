"""What a run file names by a table: a registered class by its name, or one of yours by its import path, with knobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from efvfl.config import user_code
from efvfl.config.parsing import read
from efvfl.errors import ConfigError

Made = TypeVar("Made")


def made_from(
    table: dict[str, Any],
    kind: str,
    example: str,
    registry: Mapping[str, type[Made]],
    lookup: Callable[[str], type[Made]],
) -> Made | None:
    """Make what `{ name = ..., knobs }` says; an empty table is none. `kind` is what errors call it."""
    if not table:
        return None
    knobs = dict(table)
    name = knobs.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"expected a {kind} with a name, such as {example}, got {table}.")
    return read(_own(name, kind, registry) if ":" in name else lookup(name), knobs, f"{kind} {name}")


def _own(path: str, kind: str, registry: Mapping[str, type[Made]]) -> type[Made]:
    """Return the class that 'package.module:Class' names; importing it has registered it."""
    found = user_code.named(path, kind)
    for cls in registry.values():
        if cls is found:
            return cls
    raise ConfigError(f"{path!r}: expected a class under @register, got {found!r}: see docs/adding-a-{kind}.md.")
