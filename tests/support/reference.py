"""The algorithms once more, as plainly as they can be written: no packets, no channels, no parties.

This cannot share a bug with the library's step, except the compressor itself, which is tested on its own.
"""

import copy
from collections.abc import Callable, Container

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

Compress = Callable[[Tensor], Tensor]


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
        F.cross_entropy(head(combine([m(v[rows]) for m, v in zip(models, x, strict=True)], how)), y[rows]).backward()
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
    how: str,
    batches: list[Tensor],
    lr: float,
    *,
    compress: Compress,
    feedback: bool,
    private: bool,
    local_steps: int = 1,
    all_rows: bool = False,
    down: Compress | None = None,
    fusion: Compress | None = None,
    delayed: bool = False,
) -> list[Tensor]:
    """EF-VFL or CVFL, Algorithm 1 or 2, with Q local updates.

    `down` compresses cotangents, `fusion` compresses x0 on its way to the parties, both with the memory of `feedback`.
    `delayed`: what is reported, and learnt from first, is computed with the local models of one step before.
    """
    parties = range(len(models))
    width = models[0](x[0][:1]).shape[1]
    g = [torch.zeros(len(y), width, dtype=x[0].dtype) for _ in parties]
    everything = torch.arange(len(y))
    down_memory = [torch.zeros_like(m) for m in g]
    copy_of_head = copy.deepcopy(head)  # what the parties use
    g0 = torch.zeros_like(parameters_to_vector(head.parameters()))
    used = models
    for rows in batches:
        reported = everything if all_rows else rows
        current = copy.deepcopy(models)
        for k in parties:
            h = used[k](x[k][reported]).detach()
            if feedback:
                g[k][reported] += compress(h - g[k][reported])
            else:
                g[k][reported] = compress(h)
        surrogates = [g[k][rows] for k in parties]
        x0 = parameters_to_vector(head.parameters()).detach()
        if fusion is not None:
            g0 = g0 + fusion(x0 - g0) if feedback else fusion(x0)
        vector_to_parameters(x0.clone() if fusion is None else g0.clone(), copy_of_head.parameters())
        updates: list[tuple[nn.Module, list[Tensor]]] = []
        for k in parties:
            before = [p.detach().clone() for p in models[k].parameters()]
            for turn in range(local_steps):
                model = used[k] if turn == 0 else models[k]
                h = model(x[k][rows])
                if private:
                    leaves = [s.clone().requires_grad_() for s in surrogates]
                    loss = F.cross_entropy(head(combine(leaves, how)), y[rows])
                    (cotangent,) = torch.autograd.grad(loss, leaves[k])
                    if down is not None and feedback:
                        down_memory[k][rows] += down(cotangent - down_memory[k][rows])
                        cotangent = down_memory[k][rows]
                    elif down is not None:
                        cotangent = down(cotangent)
                    grads = torch.autograd.grad(h, list(model.parameters()), cotangent)
                else:
                    parts = [h if j == k else surrogates[j] for j in parties]
                    loss = F.cross_entropy(copy_of_head(combine(parts, how)), y[rows])
                    grads = torch.autograd.grad(loss, list(model.parameters()))
                _descend(models[k], grads, lr)
            updates.append((models[k], [p.detach().clone() for p in models[k].parameters()]))
            _assign(models[k], before)  # the other blocks must not see this update yet
        for _ in range(local_steps):
            loss = F.cross_entropy(head(combine(surrogates, how)), y[rows])
            _descend(head, torch.autograd.grad(loss, list(head.parameters())), lr)
        for model, values in updates:
            _assign(model, values)
        used = current if delayed else models
    return [p.detach() for p in nn.ModuleList([head, *models]).parameters()]


def _descend(module: nn.Module, grads: tuple[Tensor, ...], lr: float) -> None:
    with torch.no_grad():
        for p, grad in zip(module.parameters(), grads, strict=True):
            p -= lr * grad


def _assign(module: nn.Module, values: list[Tensor]) -> None:
    with torch.no_grad():
        for p, value in zip(module.parameters(), values, strict=True):
            p.copy_(value)
