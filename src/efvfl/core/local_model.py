"""One pass of a local model over some of a party's rows."""

from __future__ import annotations

from torch import Tensor, nn

from efvfl.core.batches import Rows, Source, columns_of
from efvfl.core.block import aside
from efvfl.errors import ConfigError
from efvfl.util.rng import seeded


def forward(
    module: nn.Module,
    features: Tensor | Source,
    rows: Rows,
    step: int,
    key: int,
    name: str,
    values: dict[str, Tensor] | None = None,
) -> Tensor:
    """Return a local model's representation of some rows, with its graph; the key decides what is dropped out.

    `values` stand in for parameters and buffers of these names.
    """
    x = columns_of(features, rows, step)
    version = x._version
    with seeded(key):
        h = aside(module, x, values=values or {})
    if x._version != version and isinstance(rows, slice):
        raise ConfigError(
            f"the local model of {name!r} works in place on its input, which would spoil the columns: "
            "give its first layer inplace=False."
        )
    return h
