"""Compressors as a run file names them: a table with a name and knobs."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from efvfl.compress import REGISTRY, Compressor, lookup
from efvfl.compress.ramp import Ramp
from efvfl.config import user_code
from efvfl.config.registered import made_from
from efvfl.errors import ConfigError


def compressor_from(table: dict[str, Any]) -> Compressor | None:
    """Make a compressor from `{ name = ..., knobs }`; an empty table is none."""
    made = made_from(table, "compressor", "{ name = 'topk', ratio = 0.1 }", REGISTRY, lookup)
    return None if made is None else _with_own_shapes(made)


def _with_own_shapes(made: Compressor) -> Compressor:
    """Return the compressor with the functions that its ramps name."""
    given = {f.name: value for f in fields(made) if isinstance(value := getattr(made, f.name), Ramp)}
    named = {name: (ramp, ramp.shape) for name, ramp in given.items() if isinstance(ramp.shape, str)}
    own = {name: replace(ramp, shape=_shape(shape)) for name, (ramp, shape) in named.items() if ":" in shape}
    return replace(made, **own)


def _shape(path: str) -> Any:
    found = user_code.named(path, "ramp's shape")
    if not callable(found):
        raise ConfigError(f"{path!r}: expected a function from t / steps to a share of the way, got {found!r:.80}.")
    return found
