"""Several input tensors of one party, such as tokens and a mask: a dict or a tuple in place of one table.

All else knows one tensor of columns for each party. So the tensors of a row are laid side by side as bytes, exactly,
and the local model gets them back as they were, as arguments by name or by place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from efvfl.errors import ConfigError, describe
from efvfl.training.whole_numbers import converted

ReadTable = Callable[[Any, str], Tensor]


@dataclass(frozen=True)
class InputLayout:
    """What one row of several tensors is, without the number of rows."""

    names: tuple[str, ...]  # of arguments; empty: they are given by place
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the rows as bytes, shape (rows, bytes)."""
        rows = len(parts[0])
        return torch.cat([part.contiguous().reshape(rows, -1).view(torch.uint8) for part in parts], dim=1)

    def unpack(self, rows: Tensor) -> list[Tensor]:
        """Return the tensors of rows."""
        found, start = [], 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            stop = start + prod(shape) * dtype.itemsize
            # A clone of its own begins where memory is aligned and has no gaps, as other dtypes need it.
            found.append(
                rows[:, start:stop].clone(memory_format=torch.contiguous_format).view(dtype).reshape(-1, *shape)
            )
            start = stop
        return found


class SeveralInputs(nn.Module):
    """A local model of several inputs, as one of their bytes."""

    def __init__(self, model: nn.Module, layout: InputLayout) -> None:
        """Call this model with what was packed."""
        super().__init__()
        self.model = model
        self.layout = layout

    def forward(self, rows: Tensor) -> Tensor:
        """Return the model's output for packed rows."""
        parts = self.layout.unpack(rows)
        named = dict(zip(self.layout.names, parts, strict=True)) if self.layout.names else {}
        found: Tensor = self.model(**named) if named else self.model(*parts)
        return found


def is_several(table: object) -> bool:
    """Whether a party's columns are several tables: a dict, or a tuple of tensors, arrays or frames."""
    if isinstance(table, Mapping):
        return True
    kinds = (Tensor, np.ndarray)
    return isinstance(table, tuple) and all(isinstance(part, kinds) or hasattr(part, "to_numpy") for part in table)


def packed(
    features: Any, names: Sequence[str], read: ReadTable, layouts: Sequence[InputLayout | None] | None = None
) -> tuple[Any, list[InputLayout | None]]:
    """Return features with one tensor in place of several, and the layouts; those that are given must be kept.

    `read` returns a table as a tensor. What is no collection of tables is left for others to refuse.
    """
    named = isinstance(features, Mapping)
    if not named and (isinstance(features, str | Tensor | np.ndarray) or not isinstance(features, Sequence)):
        return features, []
    tables = dict(features) if named else dict(zip(names, features, strict=False))
    if len(tables) != len(features):
        return features, []  # other parties than these: refused by whoever compares them
    found: list[InputLayout | None] = []
    for place, name in enumerate(names):
        layout = layouts[place] if layouts else None
        if name in tables and (is_several(tables[name]) or layout is not None):
            tables[name], layout = _pack(tables[name], name, read, layout)
        found.append(layout)
    return tables if named else list(tables.values()), found


def _pack(table: Any, name: str, read: ReadTable, known: InputLayout | None) -> tuple[Tensor, InputLayout]:
    keys: Sequence[Any] = list(table) if isinstance(table, Mapping) else range(len(table))
    if known and list(known.names or range(len(known.shapes))) != list(keys):
        wanted = list(known.names) or len(known.shapes)
        raise ConfigError(f"the inputs of {name!r}: expected {wanted}, as in training, got {list(keys)}.")
    if not keys or not (isinstance(keys, range) or all(isinstance(key, str) for key in keys)):
        raise ConfigError(f"the inputs of {name!r}: expected names of arguments, got {describe(keys)}.")
    parts = []
    for place, key in enumerate(keys):
        what = f"input {key!r} of {name!r}"
        part = read(table[key], what)
        part = part if known is None or isinstance(table[key], Tensor) else converted(part, known.dtypes[place], what)
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            raise ConfigError(f"the {what} holds NaN or infinity: fill such rows, and say who lacks them by `present`.")
        parts.append(part)
    if len({len(part) for part in parts}) > 1:
        raise ConfigError(f"the inputs of {name!r}: expected as many rows of each, got {[len(p) for p in parts]}.")
    names = () if isinstance(keys, range) else tuple(keys)
    made = InputLayout(names, tuple(tuple(p.shape[1:]) for p in parts), tuple(p.dtype for p in parts))
    if known is not None and made != known:
        raise ConfigError(f"the inputs of {name!r}: expected {known}, as in training, got {made}.")
    return made.pack(parts), made
