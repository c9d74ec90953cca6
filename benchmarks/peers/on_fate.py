"""FATE: its hetero network with the plain aggregation layer, by its own launcher of local processes.

The guest holds the labels and the fusion model, the hosts the columns. The layer adds, so the fusion model divides.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import problem
import torch
import torch.nn.functional as F
from fate.arch.launchers.multiprocess_launcher import launch
from fate.ml.nn.model_zoo.hetero_nn_model import HeteroNNModelGuest, HeteroNNModelHost
from torch import nn

FIRST = 10000  # FATE numbers its parties
SHARED = Path("/dev/shm")  # messages travel through files that are synced at every write: memory is the fastest place


class Mean(nn.Module):
    """What makes a mean of a sum."""

    def forward(self, total: torch.Tensor) -> torch.Tensor:
        """Return the mean."""
        return total / problem.PARTIES


def count(federation: Any) -> dict[str, int]:
    """Have the guest's federation count what it pushes and pulls from now on."""
    sent, push, pull = {"up": 0, "down": 0}, federation.push_bytes, federation.pull_bytes

    def pushing(v: bytes, name: str, tag: str, parties: list[Any]) -> None:
        sent["down"] += len(v) * len(parties)
        push(v, name, tag, parties)

    def pulling(name: str, tag: str, parties: list[Any]) -> list[bytes]:
        received: list[bytes] = pull(name, tag, parties)
        sent["up"] += sum(map(len, received))
        return received

    federation.push_bytes, federation.pull_bytes = pushing, pulling
    return sent


def guest(ctx: Any, warm: int, steps: int) -> None:
    """Train, and print one line."""
    labels, head, rows = problem.rows()[1], problem.models()[1], map(problem.Batches(), itertools.count())
    model = HeteroNNModelGuest(top_model=nn.Sequential(Mean(), head), ctx=ctx)
    optimizer, sent = problem.sgd(head), count(ctx.federation)

    def step() -> float:
        loss = F.cross_entropy(model(), labels[next(rows)])
        optimizer.zero_grad()
        model.backward(loss)
        optimizer.step()
        return loss.item()

    samples, losses = problem.timed(step, warm, steps)
    per_step = {way: total / len(losses) for way, total in sent.items()}
    mode = "hetero NN, plain aggregation, a local process each"
    print(
        problem.report("FATE", version("pyfate"), mode, samples, losses, per_step, problem.deviation(losses)),
        flush=True,
    )


def host(ctx: Any, steps: int) -> None:
    """Be a party."""
    index = int(ctx.local.party[1]) - FIRST
    columns, local, batches = problem.rows()[0][index], problem.models()[0][index], problem.Batches()
    model, optimizer = HeteroNNModelHost(bottom_model=local, ctx=ctx), problem.sgd(local)
    for step in range(steps):
        optimizer.zero_grad()
        model(columns[batches(step)])
        model.backward()
        optimizer.step()


def run(warm: int, steps: int, ctx: Any) -> None:
    """Be whoever this process is."""
    torch.set_num_threads(1)
    if ctx.is_on_guest:
        guest(ctx, warm, steps)
    else:
        host(ctx, warm + steps)


def main() -> None:
    """Measure, and print one line."""
    options = problem.options(argparse.ArgumentParser(description=__doc__))
    with tempfile.TemporaryDirectory(dir=SHARED if SHARED.is_dir() else None) as folder:
        hosts = [f"host:{FIRST + k}" for k in range(problem.PARTIES)]
        # The launcher reads its settings here, and so do the processes that it starts.
        sys.argv[1:] = ["--parties", "guest:9999", *hosts, "--log_level", "ERROR", "--data_dir", folder]
        launch(partial(run, options.warm, options.steps))


if __name__ == "__main__":
    main()
