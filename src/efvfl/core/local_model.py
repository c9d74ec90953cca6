"""A party's model H_k and how it computes: alone here, or shared with other workers of the same party."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from efvfl.core.batches import Rows, Source, columns_of
from efvfl.core.block import Block, aside
from efvfl.core.source_columns import OwnColumns
from efvfl.errors import ConfigError
from efvfl.util.rng import derive, seeded

CHUNK = 16384  # rows represented at a time
IMAGES = 256  # the same of rows that are not flat: the layers of more images do not fit into a processor's cache


class LocalModel(Protocol):
    """The variables x_k, and the two passes over some of the party's rows."""

    block: Block

    def forward(self, rows: Rows, step: int, turn: int = 0, values: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return H_k(x_k) of these rows with its graph, shape (rows, width).

        `turn` numbers the local updates of a step. `values` stand in for parameters and buffers of these names.
        """

    def represent(self, x: OwnColumns, alone: bool = False) -> Tensor:
        """Return the representation of rows in evaluation mode, without a graph; `alone`: each as if it were alone."""

    def share(self, step: int) -> None:
        """Give x_k as it is now, before this step, to all who share its computing."""

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Restore x_k as it was before this step."""


class PlainModel:
    """A model that computes in this process."""

    def __init__(self, block: Block, features: Tensor | Source, key: int, name: str) -> None:
        """Compute on these columns. The key is private to the party and seeds dropout."""
        self.block = block
        self.features = features
        self.key = key
        self.name = name

    def forward(self, rows: Rows, step: int, turn: int = 0, values: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return H_k(x_k) of these rows with its graph."""
        key = derive(self.key, step, turn)
        return forward(self.block.module, columns_of(self.features, rows, step), rows, key, self.name, values)

    def represent(self, x: OwnColumns, alone: bool = False) -> Tensor:
        """Return the representation of rows in evaluation mode, without a graph."""
        return represent(self.block.module, x, alone)

    def share(self, step: int) -> None:
        """Do nothing: nobody shares it."""

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Restore x_k."""
        self.block.load_state_dict(state)


def forward(
    module: nn.Module, x: Tensor, rows: Rows, key: int, name: str, values: Mapping[str, Tensor] | None = None
) -> Tensor:
    """Return a module's output for the columns `x` of these rows, with its graph; the key decides dropout masks."""
    version = x._version
    with seeded(key):
        h = aside(module, x, values=dict(values or {}))
    if x._version != version and isinstance(rows, slice):
        raise ConfigError(
            f"the local model of {name!r} changes its input in place, which would spoil the columns: "
            "give its first layer inplace=False."
        )
    return h


@contextmanager
def evaluating(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Put modules in evaluation mode, and every part of them back as it was."""
    parts = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, training in parts:
            part.training = training


def one_by_one(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function to each row alone: then the result of a row is the same to the last bit whatever is beside it.

    In a batch, the order in which a matrix product adds up depends on how many rows there are and on the row's place.
    """
    # A copy begins where memory is aligned; a slice may not, and that changes the order as well.
    return torch.cat([function(row.clone()) for row in torch.split(x, 1)])


def pieces(features: Sequence[OwnColumns]) -> list[slice]:
    """Return the rows of all parties cut into pieces that are computed at a time.

    >>> [len(pieces([torch.zeros(1000, *shape)])) for shape in [(9,), (3, 3)]]
    [1, 4]
    """
    rows, size = len(features[0]), IMAGES if any(len(x.shape) > 2 for x in features) else CHUNK
    return [slice(start, start + size) for start in range(0, rows, size)]


def represent(module: nn.Module, x: OwnColumns, alone: bool = False) -> Tensor:
    """Return the exact representation of all rows in evaluation mode, shape (rows, width)."""
    with torch.no_grad(), evaluating([module]):
        parts = (x[piece] for piece in pieces([x]))
        return torch.cat([one_by_one(module, part) if alone else module(part) for part in parts])
