"""The constants of the paper's theorems, found on a federation where it stands: a `Problem` for `efvfl.core.theory`.

alpha, K, B and N are exact. H, L and sigma^2 are those at the current parameters. Of linear parties and a quadratic
loss, H and L are what the theorems ask for; elsewhere the largest values on the way may be larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from efvfl.core.local_model import evaluating
from efvfl.core.theory import Problem
from efvfl.errors import ConfigError
from efvfl.training import measure
from efvfl.training.federation import Federation

ROUNDS = 500  # of a power iteration, at most
CLOSE = 1e-10  # relative change at which it ends


def problem_of(federation: Federation, mu: float = 0.0) -> Problem:
    """Return the constants of a federation; `mu` is not looked for.

    A report on a batch of B of N rows contracts the memory of all rows by alpha B / N.
    """
    train, models, fusion = federation.splits["train"], federation.models, federation.fusion
    if train.present is not None:
        raise ConfigError("the theorems are about parties that have all rows, and here some lack some.")
    batches, plan = federation.server.batches, federation.server.plan
    size = batches.count(0)
    with evaluating([*models, fusion]):
        derivative = max(_slope(model, x[:]) for model, x in zip(models, train.features, strict=True))
        smooth = max(_curvature_of_rows(federation), _curvature(federation))
    return Problem(
        parties=len(models),
        smooth=smooth,
        alpha=_alpha(federation, size),
        derivative=derivative,
        mu=mu,
        variance=_variance(federation, size),
        batch=size,
        labels="private" if plan.agreement.private else "shared",
    )


def _alpha(federation: Federation, size: int) -> float:
    """Return what every block contracts by at least, in the mean over batches."""
    plan, step = federation.server.plan, federation.server.step_number
    rows = plan.batches.samples if plan.agreement.reports == "all" else size
    found = [
        plan.link(name, "up").compressor.at(step).alpha((rows, width)) * rows / plan.batches.samples
        for name, width in zip(plan.names, plan.widths, strict=True)
    ]
    if plan.agreement.shared and plan.agreement.shared.fusion == "compress":
        found.append(plan.method.fusion.compressor.at(step).alpha((federation.server.block.size(),)))
    return min(found)


def _largest(apply: Callable[[Tensor], Tensor], like: Tensor) -> float:
    """Return the largest absolute eigenvalue of a symmetric map, by power iteration from a fixed start."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(like.numel(), generator=generator, dtype=torch.float64).to(like.dtype)
    found = 0.0
    for _ in range(ROUNDS):
        v = v / v.norm()
        w = apply(v)
        before, found = found, float(w.norm())
        if found == 0 or abs(found - before) <= CLOSE * found:
            break
        v = w
    return found


def _slope(model: nn.Module, x: Tensor) -> float:
    """Return the spectral norm of the derivative of all rows' representations by the parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ConfigError("the theorems are about parties that learn, and a local model has no parameters.")
    h: Tensor = model(x)
    towards = torch.zeros_like(h, requires_grad=True)
    back = torch.autograd.grad(h, parameters, towards, create_graph=True, materialize_grads=True)  # linear in `towards`

    def squared(v: Tensor) -> Tensor:
        """J^T J v: the derivative of (J^T u) v by u is J v."""
        parts = zip(back, _shaped(v, parameters), strict=True)
        (moved,) = torch.autograd.grad(
            torch.stack([(g * part).sum() for g, part in parts]).sum(), towards, retain_graph=True
        )
        return _flat(torch.autograd.grad(h, parameters, moved, retain_graph=True, materialize_grads=True))

    return math.sqrt(_largest(squared, _flat([p.detach() for p in parameters])))


def _curvature(federation: Federation) -> float:
    """Return the largest absolute eigenvalue of the Hessian of f by all parameters."""
    modules = [federation.fusion, *federation.models]
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    train = federation.splits["train"]
    parts = [model(x[:]) for model, x in zip(federation.models, train.features, strict=True)]
    return _top_of_hessian(_loss(federation, parts), parameters)


def _curvature_of_rows(federation: Federation) -> float:
    """Return the same of Phi, by all representations and the fusion model."""
    exact = federation.represent("train").values()
    parts = [h.detach().requires_grad_() for h in exact]
    own = [p for p in federation.fusion.parameters() if p.requires_grad]
    return _top_of_hessian(_loss(federation, parts), [*own, *parts])


def _loss(federation: Federation, parts: Sequence[Tensor]) -> Tensor:
    targets = federation.server.targets
    return federation.server.loss(federation.fusion(list(parts)), targets.labels, targets.weights)


def _top_of_hessian(loss: Tensor, by: Sequence[Tensor]) -> float:
    slopes = torch.autograd.grad(loss, by, create_graph=True, materialize_grads=True)
    if not any(slope.requires_grad for slope in slopes):
        return 0.0  # the loss is linear in these
    slope = torch.cat([s.reshape(-1) for s in slopes])

    def turned(v: Tensor) -> Tensor:
        return _flat(torch.autograd.grad(slope @ v, by, retain_graph=True, materialize_grads=True))

    return _largest(turned, slope)


def _variance(federation: Federation, size: int) -> float:
    """Return sigma^2: B times the mean of |g_B - grad f|^2 over the batches of an epoch."""
    batches, train = federation.server.batches, federation.splits["train"]
    if batches.full:
        return 0.0
    models, fusion, loss = federation.models, federation.fusion, federation.server.loss
    whole = measure.gradient(models, fusion, train, loss).gradient
    missed = []
    for step in range(batches.per_epoch):
        part = measure.gradient(models, fusion, train.part(batches.rows(step)), loss).gradient
        missed.append(measure.squared_norm([a - b for a, b in zip(part, whole, strict=True)]))
    return size * sum(missed) / len(missed)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).detach()


def _shaped(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    sizes = [tensor.numel() for tensor in like]
    return [part.view_as(tensor) for part, tensor in zip(torch.split(vector, sizes), like, strict=True)]
