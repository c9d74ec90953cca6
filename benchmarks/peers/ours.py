"""efvfl on the same rows: `python -m benchmarks.peers.ours CASE` prints one line, like a peer's script."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import efvfl
from benchmarks.federation import network
from benchmarks.peers import problem
from efvfl import Agreement, Optimizer, Training, federate
from efvfl.config import run_file
from efvfl.config.run_file import RunConfig
from efvfl.network.training import build
from efvfl.network.training.participant_data import ParticipantData
from efvfl.wire.ledger import Ledger

NAMES = ["a", "b", "c", "d"]
METHODS: dict[str, dict[str, Any]] = {
    "efvfl": {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.1}},
    "svfl": {"name": "svfl"},
}
TITLES = {"efvfl": "EF-VFL, top-k 10 %", "svfl": "SVFL"}


def run_config(method: str) -> RunConfig:
    """The paper's shallow network with private labels."""
    table = {
        "epochs": 10_000,
        "batch_size": problem.BATCH,
        "observe_every": 10_000,
        "agreement": {"labels": "private"},
        "method": METHODS[method],
        "optimizer": {"name": "SGD", "lr": problem.RATE},
    }
    return run_file.read(RunConfig, table, "benchmark")


def holding(name: str) -> ParticipantData:
    """Return the data of a party, or of the server, whose name is ''."""
    x, y = problem.rows()
    ids = {"train": [str(i) for i in range(problem.ROWS)]}
    if name:
        return ParticipantData(NAMES, {"train": x[NAMES.index(name)]}, {}, ids, problem.CLASSES)
    return ParticipantData(NAMES, {}, {"train": y}, ids, problem.CLASSES)


def line(
    mode: str, step: Callable[[], float], ledger: Ledger, central: problem.Central | None, warm: int, steps: int
) -> str:
    """Measure, and return the line."""
    samples, losses = problem.timed(step, warm, steps)
    sent = {"up": ledger.total("up") / len(losses), "down": ledger.total("down") / len(losses)}
    off = problem.deviation(losses, central) if central else None  # compression changes the losses by design
    return problem.report("efvfl", efvfl.__version__, mode, samples, losses, sent, off)


def in_one_process(method: str, warm: int, steps: int) -> str:
    """Measure a federation in one process."""
    (x, y), (local, head) = problem.rows(), problem.models()
    federation = federate(
        x,
        y,
        local,
        head,
        method=run_config(method).method.build(),
        agreement=Agreement(labels="private"),
        training=Training(optimizer=Optimizer("SGD", {"lr": problem.RATE}), batch_size=problem.BATCH),
    )
    central = problem.Central(local, head, federation.server.batches.rows) if method == "svfl" else None
    return line(f"{TITLES[method]}, one process", federation.step, federation.ledger, central, warm, steps)


def over_the_network(method: str, warm: int, steps: int) -> str:
    """Measure a federation of processes."""
    settings = run_config(method)
    with tempfile.TemporaryDirectory() as folder, network(settings, holding, Path(folder)) as serving:
        plan = serving.plan
        local = [build.build_party(settings, plan, holding(name), name).block.module for name in NAMES]
        central = problem.Central(local, serving.server.fusion.head, plan.batches.rows) if method == "svfl" else None

        def step() -> float:
            serving.advance()
            return serving.server.surrogate_loss

        return line(f"{TITLES[method]}, mutual TLS, a process each", step, serving.ledger, central, warm, steps)


def plain(warm: int, steps: int) -> str:
    """Measure central SGD, which sends nothing."""
    samples, losses = problem.timed(problem.Central(*problem.models(), problem.Batches()).step, warm, steps)
    sent = {"up": 0.0, "down": 0.0}
    return problem.report("PyTorch", torch.__version__, "central SGD, one process", samples, losses, sent, 0.0)


CASES: dict[str, Callable[[int, int], str]] = {
    "central": plain,
    **{f"{method}-local": partial(in_one_process, method) for method in METHODS},
    **{f"{method}-network": partial(over_the_network, method) for method in METHODS},
}


def main() -> None:
    """Measure one case, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    options = problem.options(parser)
    torch.set_num_threads(1)
    print(CASES[options.case](options.warm, options.steps))


if __name__ == "__main__":
    main()
