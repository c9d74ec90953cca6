"""The best model so far, kept beside the one that learns: a copy of a block's parameters and buffers.

At the end of training the two change places: predictions are the kept model's. If training goes on after all, they
change places again first, so that it goes on from where it was and not from the kept model, whose optimiser has moved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from efvfl.core.block import Block


class KeptModel:
    """A second set of values for the tensors of a block."""

    def __init__(self, block: Block) -> None:
        """Keep nothing yet."""
        self.block = block
        self.in_use = False  # whether the block holds the kept values, and the ones it learnt last are here
        self._values: list[Tensor] = []

    @property
    def exists(self) -> bool:
        """Whether something was kept."""
        return bool(self._values)

    def keep(self) -> None:
        """Keep the block as it is now, in place of what was kept before."""
        self._values = [tensor.detach().clone() for tensor in self.block.tensors()]

    def use(self) -> None:
        """Have the block hold the kept values."""
        if not self.in_use:
            self._exchange()

    def go_on(self) -> bool:
        """Have the block hold the values that it learnt last; return whether that was a change."""
        changes = self.in_use
        if changes:
            self._exchange()
        return changes

    @torch.no_grad()
    def _exchange(self) -> None:
        for tensor, value in zip(self.block.tensors(), self._values, strict=True):
            before = tensor.clone()
            tensor.copy_(value)
            value.copy_(before)
        self.in_use = not self.in_use

    def state_dict(self) -> dict[str, Any]:
        """Return the values that the block does not hold."""
        return {"values": [value.clone() for value in self._values], "in_use": self.in_use}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; the block has one of its own."""
        self._values, self.in_use = [value.clone() for value in state["values"]], bool(state["in_use"])
