"""Every memory against plain loops over single rows in NumPy, in float64, in both label modes.

A link here is a function from rows and values to what arrives. It keeps a dictionary for each end, by row, and shares
nothing with the library but the compressor, which is tested on its own.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from oracle_runs import LR, schedule, topk, trained
from problems import classes, close, columns, head, local_models, problem
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from efvfl import EF14, Agreement, Decay, Direct, EControl, ErrorFeedback, Memory, Momentum, SharedLabels, TopK, efvfl

Rows = list[int]
Values = NDArray[np.float64]
Link = Callable[[Rows, Values], Values]
Compress = Callable[[Values], Values]


def squeeze(ratio: float) -> Compress:
    compressor = topk(ratio)
    return lambda block: np.asarray(compressor(torch.from_numpy(block)).numpy(), dtype=np.float64)


def zeros() -> "defaultdict[int, Any]":
    return defaultdict(float)


def direct(c: Compress) -> Link:
    return lambda rows, h: c(h)


def ef21(c: Compress) -> Link:
    g = zeros()

    def send(rows: Rows, h: Values) -> Values:
        change = c(np.stack([h[i] - g[row] for i, row in enumerate(rows)]))
        for i, row in enumerate(rows):
            g[row] = g[row] + change[i]
        return np.stack([g[row] for row in rows])

    return send


def ef14(c: Compress) -> Link:
    lost = zeros()

    def send(rows: Rows, h: Values) -> Values:
        corrected = np.stack([h[i] + lost[row] for i, row in enumerate(rows)])
        arrived = c(corrected)
        for i, row in enumerate(rows):
            lost[row] = corrected[i] - arrived[i]
        return arrived

    return send


def momentum(eta: float) -> Callable[[Compress], Link]:
    def link(c: Compress) -> Link:
        average: dict[int, Values] = {}
        tracked = ef21(c)

        def send(rows: Rows, h: Values) -> Values:
            for i, row in enumerate(rows):
                average[row] = (1 - eta) * average[row] + eta * h[i] if row in average else h[i]
            return tracked(rows, np.stack([average[row] for row in rows]))

        return send

    return link


def econtrol(eta: float) -> Callable[[Compress], Link]:
    def link(c: Compress) -> Link:
        g, short = zeros(), zeros()

        def send(rows: Rows, h: Values) -> Values:
            change = c(np.stack([eta * short[row] + h[i] - g[row] for i, row in enumerate(rows)]))
            for i, row in enumerate(rows):
                g[row] = g[row] + change[i]
                short[row] = short[row] + h[i] - g[row]
            return np.stack([g[row] for row in rows])

        return send

    return link


def decay(keep: float) -> Callable[[Compress], Link]:
    def link(c: Compress) -> Link:
        g = zeros()

        def send(rows: Rows, h: Values) -> Values:
            for row in rows:
                g[row] = keep * g[row]
            change = c(np.stack([h[i] - g[row] for i, row in enumerate(rows)]))
            for i, row in enumerate(rows):
                g[row] = g[row] + change[i]
            return np.stack([g[row] for row in rows])

        return send

    return link


def carried(link: Link, rows: Rows, value: Tensor) -> Tensor:
    """What arrives of a tensor whose first dimension is that of the rows."""
    flat = value.detach().numpy().reshape(len(rows), -1)
    return torch.from_numpy(link(rows, flat)).reshape(value.shape)


def plainly(private: bool, link: Callable[[Compress], Link], batches: list[Tensor], all_rows: bool) -> list[Tensor]:
    """Train by Algorithm 1 or 2, with this memory on each link, and return all parameters."""
    x, models, top = columns(), local_models(), head()
    y, copy_of_top = classes(x), head()
    ups = [link(squeeze(0.2)) for _ in x]
    downs = [link(squeeze(0.3)) for _ in x]
    of_fusion = link(squeeze(0.4))
    for batch in batches:
        reported = torch.arange(len(y)) if all_rows else batch
        place = torch.zeros(len(y), dtype=torch.long)
        place[reported] = torch.arange(len(reported))
        arrived = [
            carried(up, reported.tolist(), model(part[reported]))[place[batch]]
            for up, model, part in zip(ups, models, x, strict=True)
        ]
        vector = parameters_to_vector(top.parameters()).detach()
        if not private:  # every entry of x0 is a row of its own
            vector_to_parameters(carried(of_fusion, list(range(len(vector))), vector), copy_of_top.parameters())
        gradients = []
        for k, model in enumerate(models):
            h = model(x[k][batch])
            if private:
                leaf = arrived[k].clone().requires_grad_()
                parts = [leaf if j == k else other for j, other in enumerate(arrived)]
                (slope,) = torch.autograd.grad(cross_entropy(top(torch.stack(parts).mean(0)), y[batch]), leaf)
                slope = carried(downs[k], batch.tolist(), slope)
                gradients.append(torch.autograd.grad(h, list(model.parameters()), slope))
            else:
                parts = [h if j == k else other for j, other in enumerate(arrived)]
                loss = cross_entropy(copy_of_top(torch.stack(parts).mean(0)), y[batch])
                gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        loss = cross_entropy(top(torch.stack(arrived).mean(0)), y[batch])
        gradients.append(torch.autograd.grad(loss, list(top.parameters())))
        with torch.no_grad():
            for module, gradient in zip([*models, top], gradients, strict=True):
                for parameter, direction in zip(module.parameters(), gradient, strict=True):
                    parameter.sub_(LR * direction)
    return [p.detach() for p in nn.ModuleList([top, *models]).parameters()]


PAIRS: list[tuple[Memory, Callable[[Compress], Link]]] = [
    (Direct(), direct),
    (ErrorFeedback(), ef21),
    (EF14(), ef14),
    (Momentum(0.3), momentum(0.3)),
    (EControl(0.2), econtrol(0.2)),
    (Decay(0.8), decay(0.8)),
]


@pytest.mark.parametrize("all_rows", [False, True], ids=["batch", "all-rows"])
@pytest.mark.parametrize("private", [True, False], ids=["private", "shared"])
@pytest.mark.parametrize(("memory", "link"), PAIRS, ids=[memory.name for memory, _ in PAIRS])
def test_a_run_equals_the_plain_loops(
    memory: Memory, link: Callable[[Compress], Link], private: bool, all_rows: bool
) -> None:
    batches = schedule(16, 10)
    expected = plainly(private, link, batches, all_rows)
    labels = "private" if private else SharedLabels(fusion="compress")
    agreement = Agreement(labels, reports="all" if all_rows else "batch")  # type: ignore[arg-type]
    method = efvfl(TopK(0.2), down=TopK(0.3), fusion=TopK(0.4), memory=memory)
    assert close(trained(problem(method, agreement=agreement, batch_size=16), 10), expected, 1e-10)
