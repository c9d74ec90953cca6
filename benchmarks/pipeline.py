"""Costs and benefits of pipelining: test accuracy with and without it, and time per step over the line of link.py.

`python -m benchmarks.pipeline` prints two tables. The first trains the paper's MNIST network in one process. The second
trains over the emulated line, with the parties' models as they are, and with models that rest for a while in every
forward pass, as if each party computed so long on a machine of its own: two cores would not do for four of them.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import torch
from torch import Tensor, nn

from benchmarks.emulated_line import ROUND_TRIP, network
from benchmarks.lines import Line
from benchmarks.link import run_config
from efvfl.config.run_file import ModelConfig, RunConfig
from efvfl.runs.build import load_data, make_federation

METHOD = {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.1}}
RATES = ((1024, 4.0), (128, 1.0), (128, 4.0))  # batch size, learning rate
RESTS = (0.0, ROUND_TRIP / 2, ROUND_TRIP)  # seconds that a party's model sleeps
PIXELS, WIDTH = 196, 16


class Resting(nn.Module):
    """The paper's local model with a delay during training."""

    def __init__(self, seconds: float) -> None:
        """Set the delay of every forward pass."""
        super().__init__()
        self.seconds = seconds
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, WIDTH), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """Sleep, then compute."""
        if self.training:
            time.sleep(self.seconds)
        h: Tensor = self.layers(x)
        return h


def pipelined(config: RunConfig, pipeline: bool) -> RunConfig:
    return replace(config, agreement=replace(config.agreement, pipeline=pipeline))


# Accuracy.


def accuracy(batch: int, rate: float, seed: int, epochs: int, pipeline: bool) -> float:
    """Return the test accuracy, in percent, after training in one process."""
    config = pipelined(run_config(METHOD, batch), pipeline)
    config = replace(config, seed=seed, optimizer={"name": "SGD", "lr": rate})
    federation = make_federation(config, load_data(config, Path()))
    *_, last = federation.train(epochs, observe_every=epochs, gradient=False)
    return 100 * last.test["accuracy"]


def span(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def accuracies(epochs: int, seeds: int) -> str:
    """Return the table of accuracies as Markdown."""
    lines = [
        f"Test accuracy after {epochs} epochs:\n",
        "| batch | learning rate | as usual | pipelined |",
        "|---|---|---|---|",
    ]
    for batch, rate in RATES:
        found = [[accuracy(batch, rate, seed, epochs, pipeline) for seed in range(seeds)] for pipeline in (False, True)]
        lines.append(f"| {batch:,} | {rate:g} | {span(found[0])} | {span(found[1])} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


# Time.


def milliseconds(batch: int, rest: float, rounds: int, pipeline: bool) -> float:
    """Return the median time of a step over the line."""
    model = ModelConfig("benchmarks.pipeline:Resting", width=WIDTH, options={"seconds": rest})
    config = pipelined(replace(run_config(METHOD, batch), model=model), pipeline)
    samples = []
    with network(config) as serving:
        for _ in range(5):
            serving.advance()  # all parties are connected, and the pipeline is full
        for _ in range(rounds):
            started = time.perf_counter()
            serving.advance()
            serving.advance()  # two, because pipelined steps finish in pairs
            samples.append(500 * (time.perf_counter() - started))
    return median(samples)


def times(batch: int, rounds: int, repeats: int) -> str:
    """Return the table of times as Markdown; both variants are measured alternately."""
    lines = ["| a party computes for | a step | pipelined | ratio |", "|---|---|---|---|"]
    for rest in RESTS:
        turns = [[milliseconds(batch, rest, rounds, p) for p in (False, True)] for _ in range(repeats)]
        plain, piped = (mean(turn[side] for turn in turns) for side in (0, 1))
        computes = f"{1000 * rest:.0f} ms" if rest else "less than 1 ms"
        lines.append(f"| {computes} | {plain:.1f} ms | {piped:.1f} ms | {piped / plain:.2f} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def lines(full: bool) -> list[Line]:
    """Measure the times for the suite."""
    out = []
    for rest in RESTS:
        plain, piped = (milliseconds(128, rest, 40, pipeline) for pipeline in (False, True))
        what = f"a step over the line of 20 ms, a party computes {1000 * rest:.0f} ms: pipelined / as usual"
        note = f"{piped:.1f} / {plain:.1f} ms"
        out.append(Line(f"pipeline-{1000 * rest:.0f}", what, piped / plain, note=note))
    return out


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128, help="of the steps that are timed")
    parser.add_argument("--rounds", type=int, default=60, help="pairs of steps that are timed")
    parser.add_argument("--repeats", type=int, default=2, help="federations that are timed, each way")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start")
    found = [times(options.batch, options.rounds, options.repeats), accuracies(options.epochs, options.seeds)]
    print("", *found, f"\nload {os.getloadavg()[0]:.1f} at the end", sep="\n\n")


if __name__ == "__main__":
    main()
