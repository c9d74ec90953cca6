"""Rows that a party of an estimator lacks: those in which all of its values are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from efvfl.errors import InputError
from efvfl.util.extras import optional

with optional("sklearn", "an estimator"):
    import polars


def present(frame: polars.DataFrame, parties: Mapping[str, Sequence[str]]) -> Tensor:
    """Return which rows every party has, shape (rows, parties), or refuse rows that nobody has."""
    masks = [torch.from_numpy(_any_value(frame.select(columns)).to_numpy().copy()) for columns in parties.values()]
    table = torch.stack(masks, dim=1)
    nobody = int((~table.any(dim=1)).sum())
    if nobody:
        raise InputError(f"expected a value in every row of X, got {nobody:,} rows without any: leave them out.")
    return table


def _any_value(frame: polars.DataFrame) -> polars.Series:
    """Return which rows have a value in some column; NaN and infinity are none."""
    found = polars.Series([False]).new_from_index(0, frame.height)
    for column in frame:
        here = column.is_not_null()
        found = found | (here & column.is_finite().fill_null(False) if column.dtype.is_float() else here)
    return found


def own_rows(frame: polars.DataFrame, names: Sequence[str], table: Tensor | None) -> dict[str, polars.DataFrame]:
    """Return the rows that every party has; `table` None: all have all."""
    if table is None:
        return dict.fromkeys(names, frame)
    return {name: frame.filter(polars.Series(table[:, k].numpy())) for k, name in enumerate(names)}


def blanked(features: Mapping[str, Tensor], table: Tensor) -> dict[str, Tensor]:
    """Return features with NaN in the rows that a party lacks, as `federate` takes them."""
    return {name: x.masked_fill(~table[:, k, None], torch.nan) for k, (name, x) in enumerate(features.items())}
