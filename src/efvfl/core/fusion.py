"""The fusion model: representations are combined without parameters, then a torch module predicts.

Where rows may lack parties, sums and means are over those present, and in a concatenation a vector that is learnt with
the head stands in for a party that is absent. Who is present is given as a mask of 0 and 1, shape (batch, parties).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from efvfl.core.batches import Rows
from efvfl.core.block import aside
from efvfl.core.local_model import evaluating, one_by_one
from efvfl.core.losses import Loss
from efvfl.core.presence import PresentBatch
from efvfl.core.targets import Targets
from efvfl.errors import ConfigError
from efvfl.util.rng import seeded

Combine = Literal["sum", "mean", "concat"]


class Fusion(nn.Module):
    """phi(x) = head(combine(h_1, ..., h_K)) (Appendix D: phi_2 after phi_1)."""

    def __init__(
        self,
        head: nn.Module,
        combine: Combine = "mean",
        widths: Sequence[int] | None = None,
        shows_presence: bool = False,
    ) -> None:
        """Use `head` on the sum, the mean or the concatenation of the representations.

        With `widths`, those of the representations, parties may be absent. If `shows_presence`, the head is told who is
        present: a further input for each party.
        """
        super().__init__()
        if combine not in ("sum", "mean", "concat"):
            raise ConfigError(f"combine: expected 'sum', 'mean' or 'concat', got {combine!r}.")
        self.head = head
        self.kind: Combine = combine
        self.widths = list(widths or ())
        self.shows_presence = shows_presence
        stands_in = widths is not None and combine == "concat"
        self.stand_in = nn.Parameter(torch.zeros(sum(widths or ()), dtype=_dtype(head))) if stands_in else None

    def forward(self, representations: list[Tensor], present: Tensor | None = None) -> Tensor:
        """Predict from all representations, each of shape (batch, width); `present` None: all are."""
        output: Tensor = self.head(self.head_input(self.combine(representations, present), present))
        return output

    @property
    def additive(self) -> bool:
        """Whether a party's share can be taken out of the combination and put back."""
        return self.kind != "concat"

    def weight(self, parties: int) -> float:
        """Return the factor with which a representation enters the combination."""
        return 1 / parties if self.kind == "mean" else 1.0

    def weights(self, present: Tensor) -> Tensor:
        """Return this factor for every row, shape (batch, 1): a sum over fewer parties is as large as one over all."""
        total = 1.0 if self.kind == "mean" else float(present.shape[1])
        return total / present.sum(dim=1, keepdim=True).clamp(min=1)

    def combine(self, parts: list[Tensor], present: Tensor | None = None) -> Tensor:
        """Return the combination, a new tensor; in a concatenation an absent party's part is zero."""
        if present is not None:
            parts = [part * present[:, place : place + 1] for place, part in enumerate(parts)]
        if not self.additive:
            return torch.cat(parts, dim=1)
        total = _total(parts)
        if present is not None:
            return total * self.weights(present)
        return total * self.weight(len(parts)) if self.kind == "mean" else total

    def head_input(self, combined: Tensor, present: Tensor | None) -> Tensor:
        """Return what the head works on: with what stands in for the absent, and who is present if it asks for that."""
        if present is None:
            if not self.shows_presence:
                return combined
            present = combined.new_ones(len(combined), len(self.widths))
        if self.stand_in is not None:
            absent = [1 - present[:, k : k + 1].expand(-1, width) for k, width in enumerate(self.widths)]
            combined = combined + torch.cat(absent, dim=1) * self.stand_in
        return torch.cat([combined, present], dim=1) if self.shows_presence else combined

    def join(self, parts: list[Tensor], present: PresentBatch | None) -> Tensor:
        """Return what the loss of a batch is computed from: the combination, or all parts where subsets are drawn."""
        if present is None:
            return self.combine(parts)
        spread = present.spread_all(parts)
        return torch.cat(spread, dim=1) if present.tasks else self.combine(spread, present.mask)

    def cotangents(self, of_joined: Tensor, widths: list[int], present: PresentBatch | None = None) -> list[Tensor]:
        """Return the derivative by every representation of the whole batch, given the one by what was joined.

        For sums and means it is the same for all parties, and the same tensor is returned for all.
        """
        if not self.additive or (present and present.tasks):
            return [part.contiguous() for part in torch.split(of_joined, widths, dim=1)]
        if present:
            return [of_joined * self.weights(present.mask)] * len(widths)
        one = of_joined * self.weight(len(widths)) if self.kind == "mean" else of_joined
        return [one] * len(widths)

    def insert(self, rest: list[Tensor], place: int, h: Tensor, parties: int) -> Tensor:
        """Return the combination with `h` as the representation at this place (from 0).

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


def _dtype(head: nn.Module) -> torch.dtype:
    return next((p.dtype for p in head.parameters()), torch.get_default_dtype())


def predict_alone(fusion: Fusion, parts: list[Tensor], present: Tensor | None = None) -> Tensor:
    """Return the output of each row in evaluation mode, as if it were alone: the same bits whatever is beside it."""
    with torch.no_grad(), evaluating([fusion]):
        combined = fusion.combine(parts, present)  # sums of numbers do not depend on their neighbours
        return one_by_one(fusion.head, fusion.head_input(combined, present))


def _total(parts: list[Tensor]) -> Tensor:
    """Return the sum as a new tensor, in one pass a part."""
    total = parts[0] + parts[1] if len(parts) > 1 else parts[0].clone()
    for part in parts[2:]:
        total = total + part if total.requires_grad or part.requires_grad else total.add_(part)
    return total


class StepContext:
    """One batch at the server: the combined representation, the targets, and which rows take part."""

    def __init__(
        self,
        step: int,
        rows: Rows,
        values: Tensor,
        targets: Targets,
        mask: Tensor | None,
        needs_cotangent: bool,
        present: PresentBatch | None = None,
    ) -> None:
        """Take what the fusion model made of a batch's surrogates, shape (batch, width).

        `mask` None: all rows take part; `present` None: at every row all parties are.
        """
        self.present = present
        self.step = step
        self.rows = rows
        self.mask = mask
        self.combined, self.targets = select(values, mask), targets.select(mask)  # of the rows that take part
        self.combined.requires_grad_(needs_cotangent)
        self.values = values.detach()  # of the whole batch

    def loss(self, fusion: Fusion, loss: Loss, key: int) -> Tensor:
        """Return the loss of the rows that take part."""
        return head_loss(fusion, self.combined, self.targets, loss, key, present=self.present)

    def cotangents(self, fusion: Fusion, widths: list[int]) -> list[Tensor]:
        """Return the derivative of the loss by every party's surrogate of the whole batch."""
        return fusion.cotangents(self.slope, widths, self.present)

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
    fusion: Fusion,
    joined: Tensor,
    targets: Targets,
    loss: Loss,
    key: int,
    keep_buffers: bool = False,
    present: PresentBatch | None = None,
) -> Tensor:
    """Return the loss on what was joined of a batch, as `head_output` predicts from it."""
    if present is None:
        return loss(head_output(fusion, joined, key, keep_buffers), targets.labels, targets.weights)
    mask, tasks = present.mask, present.tasks
    if tasks:
        parts = torch.split(joined, list(present.widths), dim=1)
        joined, mask = fusion.combine([part.index_select(0, tasks.rows) for part in parts], tasks.masks), tasks.masks
    output = head_output(fusion, fusion.head_input(joined, mask), key, keep_buffers)
    return tasks.loss(output, targets, loss) if tasks else loss(output, targets.labels, targets.weights)


def head_output(fusion: Fusion, combined: Tensor, key: int, keep_buffers: bool = False) -> Tensor:
    """Return what the head makes of a combination; all who compute it with the same key draw the same dropout masks.

    The head gets a copy, because it may work in place and others still need the combination. What was computed from a
    leaf for this pass alone needs no copy.
    """
    with seeded(key):
        given = combined.clone() if combined.is_leaf else combined
        output: Tensor = aside(fusion.head, given) if keep_buffers else fusion.head(given)
        return output
