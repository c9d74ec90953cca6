"""The local model of a party that has several workers, as the party sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from efvfl.core.batches import Rows
from efvfl.core.party import Party
from efvfl.core.source_columns import OwnColumns
from efvfl.network.workers.worker_group import WorkerGroup
from efvfl.util.rng import derive


class GroupModel:
    """The local model of a party whose passes are shared by a group of workers; this is the one of rank 0."""

    def __init__(self, group: WorkerGroup, key: int) -> None:
        """Give all workers the model as it is here. The key is private to the party and seeds dropout."""
        self.group = group
        self.key = key
        self.block = group.block
        group.share()

    def forward(self, rows: Rows, step: int, turn: int = 0, values: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return H_k(x_k) of these rows; its backward pass is shared as well.

        Of `values`, only parameters are needed: the models of a group change no buffers.
        """
        named = {name for name, _ in self.block.module.named_parameters()}
        leaves = {name: value for name, value in (values or {}).items() if name in named}
        return self.group.forward(rows, step, derive(self.key, step, turn), leaves)

    def represent(self, x: OwnColumns, alone: bool = False) -> Tensor:
        """Return the representation of rows in evaluation mode."""
        return self.group.represent(x[:], alone)

    def share(self, step: int) -> None:
        """Give x_k, its optimiser and its schedule to all other workers."""
        self.group.share(step)

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Restore x_k here and at all other workers."""
        self.block.load_state_dict(state)
        self.group.share(step)


def workers_of(party: Party) -> WorkerGroup | None:
    """Return the workers that share a party's computing, if there are any."""
    return party.model.group if isinstance(party.model, GroupModel) else None
