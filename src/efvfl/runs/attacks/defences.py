"""Defences of the literature, to be tried on a federation in one process. None of them guarantees anything.

Those of the label holder change cotangents before they leave it (Li et al., arXiv 2102.08504): max-norm and Marvell.
Those by distance correlation are penalties: on columns and representation, at the party that owns both (Vepakomma et
al., arXiv 2008.09161), or on representation and labels, at the label holder (Sun et al., arXiv 2203.01451).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from efvfl.core.fusion import Fusion, StepContext
from efvfl.core.party import Party
from efvfl.errors import ConfigError
from efvfl.runs.attacks import scoring
from efvfl.runs.attacks.distance_correlation import distance_correlation
from efvfl.training.federation import Federation
from efvfl.util.rng import derive
from efvfl.wire.message import Message

POWER = 4.0  # of Marvell's noise, in units of the squared distance between the two classes' mean cotangents
SHARES = 10  # Marvell's noise has four parts, which are found on a grid of so many steps
WEIGHT = 0.5  # of a distance correlation beside the loss

Change = Callable[[Tensor, StepContext, torch.Generator], Tensor]  # of a cotangent, before it leaves the label holder
Defence = Callable[[Federation], None]


def max_norm(federation: Federation) -> None:
    """Make all cotangents of a batch as long as the longest, in expectation, by noise along each."""
    _change_cotangents(federation, with_equal_norms)


def marvell(federation: Federation) -> None:
    """Add the Gaussian noise of a given power that makes the two classes' cotangents as alike as it can."""
    if federation.server.loss.name != "binary_cross_entropy":
        raise ConfigError("marvell: expected labels 0 and 1 and loss = 'binary_cross_entropy', got others.")
    _change_cotangents(federation, with_marvell_noise)


def unlike_columns(federation: Federation) -> None:
    """Have every party but the label holder make its representations less like its columns."""
    for party in _guests(federation):
        _penalise(party)


def unlike_labels(federation: Federation) -> None:
    """Have the label holder ask for representations that are less like the labels."""
    classes = scoring.classes_of(federation.server.labels, federation.server.loss.name)
    if not classes or not federation.fusion.additive:
        raise ConfigError("unlike-labels: expected classes and fusion.combine = 'sum' or 'mean', got others.")

    def change(cotangent: Tensor, context: StepContext, draws: torch.Generator) -> Tensor:
        values = context.combined.detach().requires_grad_()
        labels = torch.nn.functional.one_hot(context.targets.labels.long(), classes).to(values.dtype)
        (slope,) = torch.autograd.grad(distance_correlation(values, labels), values)
        return cotangent + WEIGHT * slope[:, : cotangent.shape[1]]

    _change_cotangents(federation, change)


DEFENCES: Mapping[str, Defence] = {
    "max-norm": max_norm,
    "marvell": marvell,
    "unlike-columns": unlike_columns,
    "unlike-labels": unlike_labels,
}


def with_equal_norms(cotangent: Tensor, context: StepContext, draws: torch.Generator) -> Tensor:
    """Return every row times 1 + z, where z has the variance that gives all rows the largest mean square."""
    norms = cotangent.norm(dim=1, keepdim=True)
    ratio = norms.max() / norms.clamp(min=1e-30)
    noise = torch.randn(len(cotangent), 1, generator=draws, dtype=cotangent.dtype)
    equal: Tensor = cotangent * (1 + (ratio.square() - 1).clamp(min=0).sqrt() * noise)
    return equal


def with_marvell_noise(cotangent: Tensor, context: StepContext, draws: torch.Generator) -> Tensor:
    """Return the cotangent with noise whose covariance differs by class, larger along the line between both means."""
    positive = context.targets.labels > 0.5
    if not bool(positive.any()) or bool(positive.all()):
        return cotangent
    means = [cotangent[~positive].mean(dim=0), cotangent[positive].mean(dim=0)]
    apart = means[1] - means[0]
    distance = float(apart.square().sum())
    if not distance:
        return cotangent
    spreads = [float(cotangent[mask].var(dim=0, correction=0).mean()) for mask in (~positive, positive)]
    along, across = _marvell_variances(distance, spreads, float(positive.double().mean()), cotangent.shape[1])
    line = apart / distance**0.5
    variances = torch.tensor([along, across], dtype=cotangent.dtype)[:, positive.long()]  # of every row
    noise = torch.randn(cotangent.shape, generator=draws, dtype=cotangent.dtype)
    part = (noise @ line)[:, None] * line
    along_line, across_it = (variance.sqrt()[:, None] for variance in variances)
    noisy: Tensor = cotangent + along_line * part + across_it * (noise - part)
    return noisy


def _marvell_variances(
    distance: float, spreads: list[float], share: float, width: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the variances of the noise, of each class: along the line between the means, and across it.

    They minimise the sum of both Kullback-Leibler divergences between two Gaussians for a given mean power.
    """
    grid = torch.arange(SHARES + 1, dtype=torch.float64) / SHARES
    parts = torch.cartesian_prod(grid, grid, grid)
    parts = torch.cat([parts, 1 - parts.sum(dim=1, keepdim=True)], dim=1)
    parts = parts[parts[:, 3] > -1e-9].clamp(min=0)  # shares of the power, which all together are 1
    rest, power = max(width - 1, 1), POWER * distance
    cost = torch.tensor([1 - share, share, (1 - share) * rest, share * rest], dtype=torch.float64)
    found = parts * power / cost
    along, across = found[:, :2], found[:, 2:] if width > 1 else torch.zeros_like(found[:, 2:])
    allowed = (across <= along + 1e-12).all(dim=1)
    along, across = along[allowed], across[allowed]
    u, v = (max(spread, 1e-12 * distance) for spread in spreads)
    total = (along[:, 0] + u + distance) / (along[:, 1] + v) + (along[:, 1] + v + distance) / (along[:, 0] + u)
    if width > 1:
        ratio = (across[:, 0] + u) / (across[:, 1] + v)
        total = total + rest * (ratio + 1 / ratio)
    least = int(total.argmin())
    return (float(along[least, 0]), float(along[least, 1])), (float(across[least, 0]), float(across[least, 1]))


def _guests(federation: Federation) -> list[Party]:
    holder = federation.server.plan.label_holder
    return [party for name, party in federation.parties.items() if name != holder]


def _change_cotangents(federation: Federation, change: Change) -> None:
    """Change what every party but the label holder is sent; for a sum or mean all get the same."""
    server = federation.server
    if not server.plan.agreement.private:
        raise ConfigError("a defence of cotangents: expected labels = 'private', got 'shared', where none are sent.")
    if server.plan.presence is not None:
        raise ConfigError("a defence of cotangents: expected parties that have all rows, got some that lack rows.")
    mode, honest = server.label_mode, server.label_mode.answers
    holder = server.plan.label_holder

    def answers(context: StepContext, reports: Mapping[str, Message], hold: bool) -> dict[str, Message]:
        exact = context.cotangents

        def cotangents(fusion: Fusion, widths: list[int]) -> list[Tensor]:
            changed: dict[int, Tensor] = {}
            found = []
            for place, (name, one) in enumerate(zip(server.plan.names, exact(fusion, widths), strict=True)):
                if name != holder and id(one) not in changed:
                    key = derive(server.batches.seed, "defence", context.step, place)
                    draws = torch.Generator().manual_seed(key >> 1)
                    changed[id(one)] = change(one, context, draws)
                found.append(one if name == holder else changed[id(one)])
            return found

        hooked: Any = context
        hooked.cotangents = cotangents
        return honest(context, reports, hold)

    mode.answers = answers  # type: ignore[method-assign]


def _penalise(party: Party) -> None:
    """Add the slope of the distance correlation of columns and representation to what a party learns from."""
    mode, honest, features = party.label_mode, party.label_mode.cotangent, party.model

    def cotangent(h: Tensor, step: int, turn: int) -> Tensor | None:
        found = honest(h, step, turn)
        if found is None:
            return None
        columns: Any = getattr(features, "features", None)
        if not isinstance(columns, Tensor):
            raise ConfigError(f"unlike-columns: expected columns of {party.name!r} in memory, got augmented ones.")
        values = h.detach().requires_grad_()
        x = columns[party.batches.rows(step)].flatten(1)
        (slope,) = torch.autograd.grad(distance_correlation(x, values), values)
        return found + WEIGHT * slope

    mode.cotangent = cotangent  # type: ignore[method-assign]
