"""What the paper plots: loss, gradient and distortion on *uncompressed* representations, and how well it predicts.

This needs every party's data and model in one place, so it exists in one process only. Models are in evaluation mode
and nothing is left changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from efvfl.core.batches import ALL, Rows, take
from efvfl.core.channel import Channel
from efvfl.core.fusion import Fusion
from efvfl.core.local_model import evaluating, pieces
from efvfl.core.local_model import represent as represent
from efvfl.core.losses import Loss
from efvfl.core.source_columns import OwnColumns
from efvfl.core.targets import Targets
from efvfl.training.several_inputs import InputLayout


@dataclass(frozen=True)
class Split:
    """Rows of all parties, and their labels."""

    features: Sequence[OwnColumns]  # of each party, the same number of rows
    labels: Tensor
    weights: Tensor | None = None  # of the rows in the loss, with a mean of 1; None: all count alike
    present: Tensor | None = None  # who has which rows, bool, shape (rows, parties); None: all have all
    layouts: Sequence[InputLayout | None] = ()  # of parties that gave several tensors, which are packed into one

    @property
    def targets(self) -> Targets:
        """Labels and weights."""
        return Targets(self.labels, self.weights)

    def of_party(self, place: int) -> OwnColumns:
        """Return the columns of the rows that a party has."""
        x = self.features[place]
        return x if self.present is None or bool(self.present[:, place].all()) else x[self.present[:, place]]

    def part(self, rows: slice | Tensor) -> Split:
        """Return some of the rows."""
        weights = None if self.weights is None else self.weights[rows]
        present = None if self.present is None else self.present[rows]
        return Split([x[rows] for x in self.features], self.labels[rows], weights, present)

    def chunks(self) -> Iterator[Split]:
        """Yield the rows a part at a time."""
        for piece in pieces(self.features):
            yield self.part(piece)


def predict(
    models: Sequence[nn.Module], fusion: Fusion, features: Sequence[OwnColumns], present: Tensor | None = None
) -> Tensor:
    """Return the network's output on uncompressed representations, shape (rows, outputs)."""

    def output(part: slice) -> Tensor:
        found = [model(x[part]) for model, x in zip(models, features, strict=True)]
        predicted: Tensor = fusion(found, mask_for(present, part, found[0].dtype))
        return predicted

    with torch.no_grad(), evaluating([*models, fusion]):
        return torch.cat([output(piece) for piece in pieces(features)])


def mask_for(present: Tensor | None, part: slice, dtype: torch.dtype) -> Tensor | None:
    """Return who has which of some rows, as a fusion model takes it."""
    return None if present is None else present[part].to(dtype)


def scores(output: Tensor, targets: Targets, loss: Loss) -> dict[str, float]:
    """Return the mean loss and the metrics of an output; weights of rows count in the loss alone."""
    labels = targets.labels
    return {"loss": float(loss(output, labels, targets.weights))} | loss.measured(output, labels)


def evaluate(models: Sequence[nn.Module], fusion: Fusion, split: Split, loss: Loss) -> dict[str, float]:
    """Return the mean loss and the metric of a split."""
    return scores(predict(models, fusion, split.features, split.present), split.targets, loss)


@dataclass(frozen=True)
class Slope:
    """The full gradient of f, and what was computed on the way."""

    gradient: list[Tensor]  # a tensor for every parameter of fusion model and parties
    output: Tensor  # shape (rows, outputs)
    representations: list[Tensor]  # exact, one tensor for each party


def gradient(models: Sequence[nn.Module], fusion: Fusion, split: Split, loss: Loss) -> Slope:
    """Return the full gradient of f on uncompressed representations."""
    parameters = [p for module in (fusion, *models) for p in module.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    outputs, found = [], []
    with evaluating([*models, fusion]):
        for chunk in split.chunks():
            parts = [m(x) for m, x in zip(models, chunk.features, strict=True)]
            found.append([h.detach() for h in parts])
            output = fusion(parts, mask_for(chunk.present, slice(None), parts[0].dtype))
            outputs.append(output.detach())
            share = loss(output, chunk.labels, chunk.weights) * (len(chunk.labels) / len(split.labels))
            for into, part in zip(total, torch.autograd.grad(share, parameters, allow_unused=True), strict=True):
                if part is not None:
                    into.add_(part)
    return Slope(total, torch.cat(outputs), [torch.cat(parts) for parts in zip(*found, strict=True)])


def squared_norm(tensors: Sequence[Tensor]) -> float:
    """Return the sum of all squares, in double precision."""
    return float(sum(t.cpu().double().square().sum() for t in tensors))


def distortion(channel: Channel, h: Tensor, rows: Rows | None, step: int) -> float:
    """Return D_k = |G_k - H_k(x_k)|^2 of one party, after its report on `step`.

    If that report is still to come (`rows` says on which rows), it is tried out here and not sent. A party whose memory
    has no surrogates is measured on what all rows would become now.
    """
    memory = channel.memory
    if not memory.keeps:
        return squared_norm([channel.try_out(ALL, memory.residual(ALL, h), step) - h])
    gap = memory.surrogate(ALL) - h
    if rows is None:
        return squared_norm([gap])
    reported = h if isinstance(rows, slice) else take(h, rows)
    after = memory.after(rows, channel.try_out(rows, memory.residual(rows, reported), step))
    rest = 0.0 if isinstance(rows, slice) else squared_norm([gap]) - squared_norm([take(gap, rows)])  # not reported
    return rest + squared_norm([after - reported])
