"""Rows that some parties lack, as people give them: rows of NaN, masks, or parties that are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efvfl.core.source_columns import OwnColumns, SourceColumns
from efvfl.errors import ConfigError, describe

Masks = Mapping[str, Any] | Sequence[Any]  # of every party a bool for each row, by name or in their order


def masks_of(given: Masks | None, names: Sequence[str], rows: int) -> dict[str, Tensor]:
    """Return the masks that were given, by party; a list of names is those that have all rows, and nobody else any.

    >>> masks_of(["bank"], ["bank", "telco"], 2)
    {'bank': tensor([True, True]), 'telco': tensor([False, False])}
    """
    if given is None:
        return {}
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise ConfigError(f"present: expected a mask for each party or a list of names, got {describe(given)}.")
    if not isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        _check_names(given, names)
        return {name: torch.full((rows,), name in given) for name in names}
    if not isinstance(given, Mapping) and len(given) != len(names):
        raise ConfigError(f"present: expected {len(names)} masks, one for each of {list(names)}, got {len(given)}.")
    named = given if isinstance(given, Mapping) else dict(zip(names, given, strict=True))
    _check_names(named, names)
    return {name: _mask(mask, name, rows) for name, mask in named.items()}


def with_left_out(features: Any, names: Sequence[str], like: Sequence[OwnColumns]) -> tuple[Any, dict[str, Tensor]]:
    """Return features with rows of zeros for parties that are left out of them, and masks that say so.

    `like` are columns of each party, in their order; empty: they are not known, and nobody can be left out.
    """
    absent = [name for name in names if name not in features] if isinstance(features, Mapping) and like else []
    if not absent or len(absent) == len(names):
        return features, {}
    rows = len(next(iter(features.values())))
    made = {
        name: torch.zeros(rows, *like[place].shape[1:], dtype=like[place].dtype) for place, name in enumerate(names)
    }
    return {**features, **{name: made[name] for name in absent}}, {
        name: torch.zeros(rows, dtype=torch.bool) for name in absent
    }


def _check_names(given: Any, names: Sequence[str]) -> None:
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ConfigError(f"present: expected names of the parties {list(names)}, got {describe(unknown[0])}.")


def _mask(given: Any, name: str, rows: int) -> Tensor:
    mask = given if isinstance(given, Tensor) else torch.from_numpy(np.array(given))
    if mask.dtype != torch.bool or mask.shape != (rows,):
        raise ConfigError(
            f"present of {name!r}: expected a bool for each of {rows:,} rows, got {mask.dtype} of {tuple(mask.shape)}."
        )
    return mask


def set_aside(
    tables: Mapping[str, OwnColumns], given: Mapping[str, Tensor]
) -> tuple[dict[str, OwnColumns], Tensor | None]:
    """Return tables with zeros in the rows that a party lacks, and who has which, shape (rows, parties).

    A party lacks a row that its mask says so of, and a row of nothing but NaN. None: nobody lacks any.
    """
    found: dict[str, OwnColumns] = {}
    masks = []
    for name, x in tables.items():
        mask = present_rows(x) & given[name] if name in given else present_rows(x)
        masks.append(mask)
        found[name] = x if bool(mask.all()) else _zeroed(x, mask)
    table = torch.stack(masks, dim=1)
    return found, None if bool(table.all()) else table


def present_rows(x: OwnColumns) -> Tensor:
    """Return which rows are there: those that are anything but NaN throughout. A source has all of its rows."""
    if isinstance(x, SourceColumns) or not x.is_floating_point() or not bool(torch.isnan(x).any()):
        return torch.ones(len(x), dtype=torch.bool)
    return ~torch.isnan(x).flatten(1).all(dim=1)


def _zeroed(x: OwnColumns, mask: Tensor) -> Tensor:
    if isinstance(x, SourceColumns):
        raise ConfigError(
            f"the {x.what}: expected all rows of a party that gives a source, got some missing: give a table."
        )
    zeroed = x.clone()
    zeroed[~mask] = 0
    return zeroed
