"""Cached steps: between two rounds every participant goes on learning from what it remembers of the last batches.

This is not part of the paper. It follows CELU-VFL (Fu et al., arXiv 2207.14628) and FedBCD, of which it is the case of
one batch and no weights: a party takes a batch's last cotangent for the present one, and the server takes the last
surrogates. Rows weigh less the more they have turned since: by the cosine between then and now, and nothing beyond an
angle. No byte more is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import cos, radians
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from efvfl.core.agreement import CachedSteps
from efvfl.core.batches import Batches, BatchRows, Rows
from efvfl.core.fusion import StepContext, head_output
from efvfl.core.targets import Targets
from efvfl.util.rng import derive

if TYPE_CHECKING:
    from efvfl.core.party import Party
    from efvfl.core.server import Server


class Remembered(Protocol):
    """What a participant remembers of a batch."""

    @property
    def step(self) -> int:
        """The number of its step."""

    def tensors(self) -> dict[str, Tensor]:
        """Return what must be saved."""


@dataclass(frozen=True)
class PartyBatch:
    """What a party remembers of a batch."""

    step: int
    rows: Rows
    h: Tensor  # its exact representation at the time, shape (batch, width)
    cotangent: Tensor

    @classmethod
    def of_step(cls, step: int, rows: Rows, h: Tensor, cotangent: Tensor) -> Self:
        """Keep the batch that was learnt from."""
        # Of all rows the cotangent may be a view of a memory, which goes on.
        return cls(step, rows, h.detach(), cotangent.clone() if isinstance(rows, slice) else cotangent)

    def tensors(self) -> dict[str, Tensor]:
        """Return representation and cotangent; the rows follow from the step."""
        return {"h": self.h, "cotangent": self.cotangent}

    @classmethod
    def of(cls, step: int, batches: BatchRows, saved: dict[str, Tensor]) -> Self:
        """Return what was saved."""
        return cls(step, batches.rows(step), saved["h"], saved["cotangent"])


@dataclass(frozen=True)
class ServerBatch:
    """What the server remembers of a batch, of the rows that took part."""

    step: int
    combined: Tensor  # the surrogates' combination, shape (rows, width)
    slope: Tensor  # the derivative of the loss by it at the time
    targets: Targets
    mask: Tensor | None = None  # which rows took part; None: all

    @classmethod
    def of_step(cls, context: StepContext) -> Self:
        """Keep the batch that was answered."""
        slope = context.combined.grad
        assert slope is not None, "the server has run its backward pass"
        return cls(context.step, context.combined.detach(), slope.clone(), context.targets, context.mask)

    def tensors(self) -> dict[str, Tensor]:
        """Return combination, slope and mask; the targets follow from the step."""
        return {"combined": self.combined, "slope": self.slope} | ({} if self.mask is None else {"mask": self.mask})

    @classmethod
    def of(cls, step: int, batches: Batches, targets: Targets, saved: dict[str, Tensor]) -> Self:
        """Return what was saved."""
        mask = saved.get("mask")
        past = targets.take(batches.rows(step)).select(mask)
        return cls(step, saved["combined"], saved["slope"], past, mask)


Batch = TypeVar("Batch", bound=Remembered)


class WorkSet(Generic[Batch]):
    """The last batches of one participant."""

    def __init__(self, cached: CachedSteps, per_epoch: int) -> None:
        """Keep as many batches as were agreed on, or as an epoch has."""
        self.cached = cached
        self.size = cached.batches or per_epoch
        self.on = cached.steps > 0
        self._batches: dict[int, Batch] = {}  # by their place in a ring

    def add(self, batch: Batch) -> None:
        """Remember a batch in place of the oldest one."""
        self._batches[batch.step % self.size] = batch

    def due(self, step: int) -> Iterator[tuple[int, Batch]]:
        """Yield what to learn from after a step, each with its number from 1.

        The ring is gone through round robin: a batch is used as often as there are cached steps until it is replaced.
        """
        places = sorted(self._batches)
        for turn in range(self.cached.steps if places else 0):
            yield turn + 1, self._batches[places[(step * self.cached.steps + turn) % len(places)]]

    def weights(self, then: Tensor, now: Tensor) -> Tensor:
        """Return the weight of every row, shape (rows, 1), from vectors of shape (rows, width) then and now."""
        if self.cached.angle == 180:  # FedBCD
            return torch.ones_like(now[:, :1])
        cosine = cosine_similarity(then, now, dim=1)
        return torch.where(cosine >= cos(radians(self.cached.angle)), cosine, 0.0).unsqueeze(1)

    def state_dict(self) -> list[list[Any]]:
        """Return all batches."""
        return [[batch.step, batch.tensors()] for batch in self._batches.values()]

    def load(self, batches: list[Batch]) -> None:
        """Continue with these batches."""
        self._batches = {}
        for batch in batches:
            self.add(batch)


def learn_at_party(party: Party) -> None:
    """x_k <- x_k - eta g_k on batches of before, with the cotangents they had."""
    for turn, past in party.cached.due(party.step):
        h = party.model.forward(past.rows, party.step, turn)
        party.block.descend_from(h, past.cotangent * party.cached.weights(past.h, h.detach()), {})


def learn_at_server(server: Server, context: StepContext) -> None:
    """x0 <- x0 - eta g_0 on batches of before, with the surrogates they had; `context` is the one that was answered."""
    if server.took_part:
        server.cached.add(ServerBatch.of_step(context))
    for turn, past in server.cached.due(context.step):
        server.block.zero_grad()
        leaf = past.combined.clone().requires_grad_()
        output = head_output(server.fusion, leaf, derive(server.plan.fusion_key, context.step, turn))
        visited = server.visit(server.batches.rows(past.step), past.mask, "cached", context.step, turn)
        loss = visited(output, past.targets.labels, past.targets.weights)
        of_output, slope = torch.autograd.grad(loss, (output, leaf), retain_graph=True)
        weights = server.cached.weights(past.slope, slope)
        output.backward(of_output * weights.reshape(-1, *[1] * (output.dim() - 1)))  # type: ignore[no-untyped-call]
        server.block.update()
