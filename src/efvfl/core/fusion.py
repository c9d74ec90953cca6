"""The fusion model: representations are combined without parameters, then a torch module predicts."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from efvfl.core.batches import Rows
from efvfl.core.block import aside
from efvfl.core.local_model import evaluating, one_by_one
from efvfl.core.losses import Loss
from efvfl.core.targets import Targets
from efvfl.errors import ConfigError
from efvfl.util.rng import seeded

Combine = Literal["sum", "mean", "concat"]


class Fusion(nn.Module):
    """phi(x) = head(combine(h_1, ..., h_K)) (Appendix D: phi_2 after phi_1)."""

    def __init__(self, head: nn.Module, combine: Combine = "mean") -> None:
        """Use `head` on the sum, the mean or the concatenation of the representations."""
        super().__init__()
        if combine not in ("sum", "mean", "concat"):
            raise ConfigError(f"combine: expected 'sum', 'mean' or 'concat', got {combine!r}.")
        self.head = head
        self.kind: Combine = combine

    def forward(self, representations: list[Tensor]) -> Tensor:
        """Predict from all representations, each of shape (batch, width)."""
        output: Tensor = self.head(self.combine(representations))
        return output

    @property
    def additive(self) -> bool:
        """Whether a party's share can be taken out of the combination and put back."""
        return self.kind != "concat"

    def weight(self, parties: int) -> float:
        """Return the factor with which a representation enters the combination."""
        return 1 / parties if self.kind == "mean" else 1.0

    def combine(self, parts: list[Tensor]) -> Tensor:
        """Return the head's input, a new tensor."""
        if not self.additive:
            return torch.cat(parts, dim=1)
        total = _total(parts)
        return total * self.weight(len(parts)) if self.kind == "mean" else total

    def cotangents(self, of_input: Tensor, widths: list[int]) -> list[Tensor]:
        """Return the derivative by every representation, given the one by the head's input.

        For sums and means it is the same for all parties, and the same tensor is returned for all.
        """
        if not self.additive:
            return [part.contiguous() for part in torch.split(of_input, widths, dim=1)]
        one = of_input * self.weight(len(widths)) if self.kind == "mean" else of_input
        return [one] * len(widths)

    def insert(self, rest: list[Tensor], place: int, h: Tensor, parties: int) -> Tensor:
        """Return the head's input with `h` as the representation at this place (from 0).

        `rest` is, for a sum or mean, one tensor: the others' share; for a concatenation all parts, one of them unused.
        """
        if not self.additive:
            return torch.cat([h if j == place else part for j, part in enumerate(rest)], dim=1)
        return torch.add(rest[0], h, alpha=self.weight(parties))

    def others(self, parts: list[Tensor], place: int) -> list[Tensor]:
        """Return the `rest` for `insert` from the surrogates of all parties."""
        if not self.additive:
            return parts
        weight = self.weight(len(parts))
        others = [part for j, part in enumerate(parts) if j != place]
        total = _total(others) if others else torch.zeros_like(parts[place])
        return [total.mul_(weight)] if self.kind == "mean" else [total]

    def without(self, combined: Tensor, surrogate: Tensor, parties: int) -> list[Tensor]:
        """Return the `rest` for `insert` from the combination and the one surrogate in it that is replaced."""
        return [torch.sub(combined, surrogate, alpha=self.weight(parties))]


def predict_alone(fusion: Fusion, parts: list[Tensor]) -> Tensor:
    """Return the output of each row in evaluation mode, as if it were alone: the same bits whatever is beside it."""
    with torch.no_grad(), evaluating([fusion]):
        return one_by_one(fusion.head, fusion.combine(parts))  # sums of numbers do not depend on their neighbours


def _total(parts: list[Tensor]) -> Tensor:
    """Return the sum as a new tensor, in one pass a part."""
    total = parts[0] + parts[1] if len(parts) > 1 else parts[0].clone()
    for part in parts[2:]:
        total = total + part if total.requires_grad or part.requires_grad else total.add_(part)
    return total


class StepContext:
    """One batch at the server: the combined representation, the targets, and which rows take part."""

    def __init__(
        self, step: int, rows: Rows, values: Tensor, targets: Targets, mask: Tensor | None, needs_cotangent: bool
    ) -> None:
        """Take the combined representation of a batch, shape (batch, width); `mask` None: all rows take part."""
        self.step = step
        self.rows = rows
        self.mask = mask
        self.combined, self.targets = select(values, mask), targets.select(mask)  # of the rows that take part
        self.combined.requires_grad_(needs_cotangent)
        self.values = values.detach()  # of the whole batch

    @property
    def slope(self) -> Tensor:
        """The derivative of the loss by the combination of the whole batch: zero for rows that were left out."""
        slope = self.combined.grad
        if self.mask is None:
            assert slope is not None, "the server has run its backward pass"
            return slope
        whole = torch.zeros_like(self.values)
        if slope is not None:
            whole[self.mask] = slope
        return whole


def select(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the rows that take part."""
    return values if mask is None else values[mask]


def head_loss(
    fusion: Fusion, combined: Tensor, targets: Targets, loss: Loss, key: int, keep_buffers: bool = False
) -> Tensor:
    """Return the loss on a combined representation, as `head_output` predicts from it."""
    return loss(head_output(fusion, combined, key, keep_buffers), targets.labels, targets.weights)


def head_output(fusion: Fusion, combined: Tensor, key: int, keep_buffers: bool = False) -> Tensor:
    """Return what the head makes of a combination; all who compute it with the same key draw the same dropout masks.

    The head gets a copy, because it may work in place and others still need the combination. What was computed from a
    leaf for this pass alone needs no copy.
    """
    with seeded(key):
        given = combined.clone() if combined.is_leaf else combined
        output: Tensor = aside(fusion.head, given) if keep_buffers else fusion.head(given)
        return output
