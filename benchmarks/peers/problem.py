"""What every peer trains: the paper's shallow network on random rows in MNIST's shapes, batch 128, plain SGD.

This file needs torch and nothing else, because it runs in each peer's own environment. The peer brings the messages:
what a party and the server say here is raw float32, 128 x 16 numbers each way.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

PARTIES, PIXELS, WIDTH, CLASSES, RATE = 4, 196, 16, 10, 0.1
ROWS, BATCH = 12_800, 128
PER_EPOCH = ROWS // BATCH
BLOCK = 10  # steps that are timed together
END = 20  # losses that are averaged at either end of a run


def models() -> tuple[list[nn.Module], nn.Module]:
    """Return the local models and the fusion model."""
    torch.manual_seed(0)
    local: list[nn.Module] = [nn.Sequential(nn.Linear(PIXELS, WIDTH), nn.Sigmoid()) for _ in range(PARTIES)]
    return local, nn.Linear(WIDTH, CLASSES)


def rows() -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the columns of each party, and the labels."""
    torch.manual_seed(1)
    return [torch.randn(ROWS, PIXELS) for _ in range(PARTIES)], torch.randint(0, CLASSES, (ROWS,))


class Batches:
    """The rows of each step, which all participants compute without communication."""

    def __init__(self) -> None:
        """Start before the first epoch."""
        self.epoch, self.drawn = -1, torch.empty(0)

    def __call__(self, step: int) -> torch.Tensor:
        """Return the rows of a step."""
        if step // PER_EPOCH != self.epoch:
            self.epoch = step // PER_EPOCH
            generator = torch.Generator().manual_seed(self.epoch)
            self.drawn = torch.randperm(ROWS, generator=generator).view(PER_EPOCH, BATCH)
        return self.drawn[step % PER_EPOCH]


def sgd(module: nn.Module) -> torch.optim.SGD:
    """Return the optimiser of one block."""
    return torch.optim.SGD(module.parameters(), lr=RATE)


def as_tensor(data: bytes) -> torch.Tensor:
    """Return the block encoded in these bytes."""
    return torch.frombuffer(bytearray(data), dtype=torch.float32).view(BATCH, WIDTH)


class Party:
    """One party's columns and local model."""

    def __init__(self, index: int) -> None:
        """Create the party of this index, from 0."""
        torch.set_num_threads(1)
        self.x, self.model = rows()[0][index], models()[0][index]
        self.optimizer, self.batches = sgd(self.model), Batches()
        self.step, self.out = 0, torch.empty(0)

    def forward(self) -> bytes:
        """Return the representation of the step's rows."""
        self.out = self.model(self.x[self.batches(self.step)])
        return self.out.detach().numpy().tobytes()

    def learn(self, cotangent: bytes) -> None:
        """Apply the server's answer to the last representation, and go to the next step."""
        self.optimizer.zero_grad()
        self.out.backward(as_tensor(cotangent))  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1

    def answer(self, cotangent: bytes) -> bytes:
        """Update the model, except in the first step, and return the next representation: one exchange per step."""
        if cotangent:
            self.learn(cotangent)
        return self.forward()


class Server:
    """The labels and the fusion model."""

    def __init__(self) -> None:
        """Start with the first step."""
        torch.set_num_threads(1)
        self.y, self.head = rows()[1], models()[1]
        self.optimizer, self.batches = sgd(self.head), Batches()
        self.losses: list[float] = []

    def step(self, reports: Sequence[bytes]) -> list[bytes]:
        """Update the fusion model; return each party's cotangent."""
        h = torch.stack([as_tensor(report) for report in reports]).requires_grad_()
        loss = F.cross_entropy(self.head(h.mean(0)), self.y[self.batches(len(self.losses))])
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.losses.append(loss.item())
        assert h.grad is not None
        return [cotangent.numpy().tobytes() for cotangent in h.grad]


class Central:
    """Plain SGD on the whole network: the reference of every peer, and the lower bound of its time."""

    def __init__(
        self, local: Sequence[nn.Module], head: nn.Module, batches: Callable[[int], torch.Tensor | slice]
    ) -> None:
        """Train copies of these models on these rows, step by step."""
        self.local, self.head = copy.deepcopy(list(local)), copy.deepcopy(head)
        self.optimizer, self.batches = sgd(nn.ModuleList([self.head, *self.local])), batches
        self.x, self.y = rows()
        self.steps = 0

    def step(self) -> float:
        """Return the loss before the update."""
        chosen = self.batches(self.steps)
        out = self.head(torch.stack([m(v[chosen]) for m, v in zip(self.local, self.x, strict=True)]).mean(0))
        loss = F.cross_entropy(out, self.y[chosen])
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.steps += 1
        return loss.item()


def deviation(losses: Sequence[float], central: Central | None = None) -> float:
    """Return the largest difference of losses from those of plain SGD on the same batches."""
    central = central or Central(*models(), Batches())
    return max(abs(loss - central.step()) for loss in losses)


Exchange = Callable[[list[bytes]], list[bytes]]  # cotangents (empty at first) to representations, one of each party


def timed(step: Callable[[], float], warm: int, steps: int) -> tuple[list[float], list[float]]:
    """Return milliseconds a step, of every block of steps after the first `warm`, and the losses of all steps.

    Parties may run ahead of a delayed server, so a single step can look shorter than it is.
    """
    losses = [step() for _ in range(warm)]
    samples = []
    for _ in range(steps // BLOCK):
        started = time.perf_counter()
        losses += [step() for _ in range(BLOCK)]
        samples.append(1e3 * (time.perf_counter() - started) / BLOCK)
    return samples, losses


def train(exchange: Exchange, warm: int, steps: int) -> tuple[list[float], list[float]]:
    """Train with a peer's messages; return times and losses."""
    server, replies = Server(), [b""] * PARTIES

    def step() -> float:
        replies[:] = server.step(exchange(replies))
        return server.losses[-1]

    return timed(step, warm, steps)


def options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the command-line options of a script."""
    parser.add_argument("--warm", type=int, default=20, help="steps that are not timed")
    parser.add_argument("--steps", type=int, default=200, help="steps that are timed")
    return parser.parse_args()


def report(
    peer: str,
    version: str,
    mode: str,
    samples: Sequence[float],
    losses: Sequence[float],
    sent: dict[str, float],
    off: float | None,
) -> str:
    """Return the line that a script prints: what was measured, and whether the training was real.

    `sent` is bytes a step `up` and `down`, of all parties; `off` is the deviation from plain SGD, or nothing
    where there must be one.
    """
    return json.dumps(
        {
            "peer": peer,
            "version": version,
            "mode": mode,
            "parties": PARTIES,
            "batch": BATCH,
            "steps": BLOCK * len(samples),
            "milliseconds": list(samples),
            "bytes": sent,
            "loss": [statistics.fmean(losses[:END]), statistics.fmean(losses[-END:])],
            "deviation": off,
        }
    )
