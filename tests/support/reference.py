"""What the library is compared with: the algorithms on one page, and plain SGD on the whole network.

They cannot share a bug with the library's step, except in the compressor itself, which is tested on its own.
"""

import copy
from collections.abc import Container

import torch
import torch.nn.functional as F
from examples import algorithms_on_one_page as one_page
from examples.algorithms_on_one_page import Setting as Setting
from torch import Tensor, nn


def combine(parts: list[Tensor], how: str) -> Tensor:
    if how == "concat":
        return torch.cat(parts, dim=1)
    total = torch.stack(parts).sum(0)
    return total / len(parts) if how == "mean" else total


def central_sgd(
    x: list[Tensor], y: Tensor, models: list[nn.Module], head: nn.Module, how: str, batches: list[Tensor], lr: float
) -> list[Tensor]:
    """Train the whole network in one place; return the parameters of the head and the models."""
    network = nn.ModuleList([head, *models])
    optimizer = torch.optim.SGD(network.parameters(), lr=lr)
    for rows in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(head(combine([m(v[rows]) for m, v in zip(models, x, strict=True)], how)), y[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [p.detach() for p in network.parameters()]


def delayed_sgd(
    x: list[Tensor],
    y: Tensor,
    models: list[nn.Module],
    head: nn.Module,
    how: str,
    batches: list[Tensor],
    lr: float,
    fresh: Container[int] = (0,),
) -> list[Tensor]:
    """The same, but the models' gradient is taken where they were one step before, unless a step is `fresh`."""
    before = models
    for step, rows in enumerate(batches):
        used = models if step in fresh else before
        parts = [m(v[rows]) for m, v in zip(used, x, strict=True)]
        loss = F.cross_entropy(head(combine(parts, how)), y[rows])
        blocks = [head, *used]
        grads = [torch.autograd.grad(loss, list(block.parameters()), retain_graph=True) for block in blocks]
        before = copy.deepcopy(models)
        for block, grad in zip([head, *models], grads, strict=True):
            _descend(block, grad, lr)
    return [p.detach() for p in nn.ModuleList([head, *models]).parameters()]


def vertical(
    x: list[Tensor],
    y: Tensor,
    models: list[nn.Module],
    head: nn.Module,
    batches: list[Tensor],
    setting: Setting,
) -> list[Tensor]:
    """Train by the algorithms on one page; return the parameters of the head and the models."""
    one_page.vertical(x, y, models, head, batches, setting)
    return [p.detach() for p in nn.ModuleList([head, *models]).parameters()]


def _descend(module: nn.Module, grads: tuple[Tensor, ...], lr: float) -> None:
    with torch.no_grad():
        for p, grad in zip(module.parameters(), grads, strict=True):
            p.sub_(lr * grad)
