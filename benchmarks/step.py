"""One training step against central SGD on the same network: MNIST's shapes, top-k 10 %, encoding to bytes included."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.timing import Timing, alternate
from efvfl import Agreement, Compressor, Federation, Optimizer, TopK, efvfl, federate

PARTIES, PIXELS, WIDTH, CLASSES = 4, 196, 16, 10


def models() -> tuple[list[nn.Module], nn.Module]:
    torch.manual_seed(0)
    local: list[nn.Module] = [nn.Sequential(nn.Linear(PIXELS, WIDTH), nn.Sigmoid()) for _ in range(PARTIES)]
    return local, nn.Linear(WIDTH, CLASSES)


def rows(samples: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(samples, PIXELS) for _ in range(PARTIES)], torch.randint(0, CLASSES, (samples,))


def central(x: list[torch.Tensor], y: torch.Tensor, batch: int) -> Callable[[], object]:
    """Plain PyTorch: one optimiser, one backward pass, batches drawn anew every epoch."""
    local, head = models()
    network = nn.ModuleList([head, *local])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    batches: list[torch.Tensor] = []

    def step() -> None:
        if batch and not batches:
            batches.extend(torch.randperm(len(y)).split(batch))
        chosen = batches.pop() if batch else None
        parts = x if chosen is None else [v[chosen] for v in x]
        target = y if chosen is None else y[chosen]
        optimizer.zero_grad()
        F.cross_entropy(head(torch.stack([m(v) for m, v in zip(local, parts, strict=True)]).mean(0)), target).backward()
        optimizer.step()

    return step


def federation(
    x: list[torch.Tensor], y: torch.Tensor, batch: int, labels: str, compressor: Compressor | None = None
) -> Federation:
    local, head = models()
    return federate(
        x,
        y,
        local,
        head,
        method=efvfl(compressor or TopK(0.1)),
        agreement=Agreement(labels=labels),  # type: ignore[arg-type]
        optimizer=Optimizer("SGD", {"lr": 0.1}),
        batch_size=batch,
    )


def against_central(batch: int, rounds: int, inner: int, samples: int = 60000) -> dict[str, Timing]:
    """Return milliseconds a step of central SGD and of EF-VFL in both label modes."""
    x, y = rows(samples)
    sides: dict[str, Callable[[], object]] = {"central": central(x, y, batch)}
    for labels in ("private", "shared"):
        sides[labels] = federation(x, y, batch, labels).step
    return alternate(sides, rounds, inner)


def growth(labels: str, rounds: int, inner: int) -> dict[str, Timing]:
    """Return milliseconds a step at batch 128 for ten thousand and a million rows."""
    sides: dict[str, Callable[[], object]] = {}
    for samples in (10_000, 1_000_000):
        x, y = rows(samples)
        sides[f"{samples:,}"] = federation(x, y, 128, labels).step
    return alternate(sides, rounds, inner, warm=200)
