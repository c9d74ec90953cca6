"""What the comparisons with plain loops share."""

from typing import Any

import torch
from problems import parameters
from torch import Tensor

from efvfl import Batches, Federation, TopK
from efvfl.compress import decode
from efvfl.core.batches import Rows
from efvfl.util.rng import derive

LR = 0.5


def schedule(size: int, steps: int, rows: int = 60, seed: int = 0) -> list[Tensor]:
    """The rows of each step, as the federation will choose them."""
    batches = Batches(rows, size, derive(seed, "batches"))

    def numbers(chosen: Rows) -> Tensor:
        return torch.arange(rows)[chosen] if isinstance(chosen, slice) else chosen

    return [numbers(batches.rows(step)) for step in range(steps)]


def trained(federation: Federation, steps: int) -> list[Tensor]:
    for step in range(steps):
        federation.step(hold=step == steps - 1)
    return parameters(federation)


def topk(ratio: float) -> Any:
    return lambda block: torch.from_numpy(decode(TopK(ratio).encode(block.contiguous().numpy())).copy())
