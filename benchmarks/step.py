"""One training step relative to central SGD on the same network: top-k 10 % or qsgd 4 bit, including encoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.lines import Line, ratio
from benchmarks.timing import Timing, alternate, best_threads
from efvfl import QSGD, Agreement, Compressor, Federation, Optimizer, TopK, Training, efvfl, federate

PARTIES, PIXELS, WIDTH, CLASSES = 4, 196, 16, 10
MNIST = 60_000  # rows


@dataclass(frozen=True)
class Network:
    """The trained network: a local model per party, and a linear head on the mean of their outputs."""

    local: Callable[[], nn.Module]
    columns: tuple[int, ...]  # shape of a party's part of a row
    rate: float = 0.1

    def models(self, parties: int) -> tuple[list[nn.Module], nn.Module]:
        """Return the local models and the head, with fixed initial parameters."""
        torch.manual_seed(0)
        return [self.local() for _ in range(parties)], nn.Linear(WIDTH, CLASSES)

    def rows(self, samples: int, parties: int) -> tuple[list[Tensor], Tensor]:
        """Return random columns for each party, and labels."""
        torch.manual_seed(1)
        return [torch.randn(samples, *self.columns) for _ in range(parties)], torch.randint(0, CLASSES, (samples,))


SHALLOW = Network(lambda: nn.Sequential(nn.Linear(PIXELS, WIDTH), nn.Sigmoid()), (PIXELS,))


def models() -> tuple[list[nn.Module], nn.Module]:
    """Return the shallow local models of four parties, and the head."""
    return SHALLOW.models(PARTIES)


def rows(samples: int) -> tuple[list[Tensor], Tensor]:
    """Return random rows in MNIST's shapes."""
    return SHALLOW.rows(samples, PARTIES)


def chosen_rows(x: list[Tensor], chosen: Tensor) -> list[Tensor]:
    """Return a batch for plain PyTorch."""
    return [v[chosen] for v in x]


def represent(local: list[nn.Module], parts: list[Tensor]) -> Tensor:
    """Return the mean of the outputs of the local models."""
    return torch.stack([model(part) for model, part in zip(local, parts, strict=True)]).mean(0)


def head_loss(head: nn.Module, combined: Tensor, target: Tensor) -> Tensor:
    """Return the loss of the whole network."""
    return F.cross_entropy(head(combined), target)


def central(x: list[Tensor], y: Tensor, batch: int, network: Network = SHALLOW) -> Callable[[], object]:
    """Plain PyTorch: one optimiser, one backward pass, new random batches every epoch."""
    local, head = network.models(len(x))
    optimizer = torch.optim.SGD(nn.ModuleList([head, *local]).parameters(), lr=network.rate)
    batches: list[Tensor] = []

    def step() -> None:
        if batch and not batches:
            batches.extend(torch.randperm(len(y)).split(batch))
        chosen = batches.pop() if batch else None
        parts = x if chosen is None else chosen_rows(x, chosen)
        target = y if chosen is None else y[chosen]
        optimizer.zero_grad()
        head_loss(head, represent(local, parts), target).backward()
        optimizer.step()

    return step


def federation(
    x: list[Tensor],
    y: Tensor,
    batch: int,
    labels: str,
    compressor: Compressor | None = None,
    network: Network = SHALLOW,
) -> Federation:
    """Return EF-VFL on the same network and rows."""
    local, head = network.models(len(x))
    return federate(
        x,
        y,
        local,
        head,
        method=efvfl(compressor or TopK(0.1)),
        agreement=Agreement(labels=labels),
        training=Training(optimizer=Optimizer("SGD", {"lr": network.rate}), batch_size=batch),
    )


@dataclass(frozen=True)
class Found:
    """Milliseconds per step of every side, and the fastest number of torch threads of each."""

    times: dict[str, Timing]
    threads: dict[str, int]

    def line(self, side: str, name: str, what: str, target: float | None = None) -> Line:
        """Return one side relative to central SGD."""
        threads = f"threads {self.threads[side]} / {self.threads['central']}"
        return ratio(name, what, self.times[side], self.times["central"], target, threads)


def against_central(
    batch: int,
    rounds: int,
    inner: int,
    samples: int = MNIST,
    parties: int = PARTIES,
    network: Network = SHALLOW,
    compressors: dict[str, Compressor] | None = None,
) -> Found:
    """Measure central SGD and EF-VFL in both label modes, called "private topk" and so on."""
    x, y = network.rows(samples, parties)
    sides: dict[str, Callable[[], object]] = {"central": central(x, y, batch, network)}
    for name, compressor in (compressors or {"topk": TopK(0.1)}).items():
        for labels in ("private", "shared"):
            sides[f"{labels} {name}"] = federation(x, y, batch, labels, compressor, network).step
    # Work this small is not parallelised, and a second thread would only compete for a core.
    small = network is SHALLOW and 0 < batch <= 128
    threads = dict.fromkeys(sides, 1) if small else best_threads(sides, inner)
    return Found(alternate(sides, rounds, inner, warm=1, threads=threads), threads)


def lines(full: bool) -> list[Line]:
    """Measure the shallow network of the paper's MNIST runs."""
    both: dict[str, Compressor] = {"topk": TopK(0.1), "qsgd": QSGD(4)}
    whole = against_central(0, rounds=21 if full else 9, inner=1, compressors=both)
    out = []
    for name, text, targets in (
        ("topk", "top-k 10 %", (1.4, 1.8)),
        ("qsgd", "qsgd 4 bit", (1.7, 1.7)),
    ):
        for labels, target in zip(("private", "shared"), targets, strict=True):
            what = f"full batch of 60,000, K = 4, {text}, {labels} labels"
            out.append(whole.line(f"{labels} {name}", f"step-full-{labels}-{name}", what, target))
    targets_128 = {"private": 1.6, "shared": 2.3}
    for batch, inner in ((128, 20), (1024, 8)):
        for parties in (2, 4, 12):
            if parties != PARTIES and batch != 128 and not full:
                continue
            found = against_central(batch, rounds=40 if full else 20, inner=inner, samples=12_800, parties=parties)
            for labels, target in targets_128.items():
                wanted = target if (batch, parties) == (128, PARTIES) else None
                what = f"batch {batch:,}, K = {parties}, top-k 10 %, {labels} labels"
                out.append(found.line(f"{labels} topk", f"step-{batch}-{labels}-{parties}", what, wanted))
    for parties in (2, 12) if full else ():
        found = against_central(0, rounds=9, inner=1, parties=parties)
        for labels in ("private", "shared"):
            what = f"full batch of 60,000, K = {parties}, top-k 10 %, {labels} labels"
            out.append(found.line(f"{labels} topk", f"step-full-{labels}-{parties}", what))
    return out
