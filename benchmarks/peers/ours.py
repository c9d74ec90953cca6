"""Ours, on the same rows: `python -m benchmarks.peers.ours CASE` prints one line, as a peer's script does."""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

import efvfl
from benchmarks.peers import problem
from efvfl import Agreement, Optimizer, config, federate
from efvfl.config import RunConfig
from efvfl.ledger import Ledger
from efvfl.network import certs, participant, terms
from efvfl.network.grpc import dial, listen
from efvfl.network.holding import Holding
from efvfl.network.join import Joining
from efvfl.network.member import Member
from efvfl.network.serve import Serving

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
    return config.read(RunConfig, table, "benchmark")


def holding(name: str) -> Holding:
    """What a party holds, or the server, whose name is ''."""
    x, y = problem.rows()
    ids = {"train": [str(i) for i in range(problem.ROWS)]}
    if name:
        return Holding(NAMES, {"train": x[NAMES.index(name)]}, {}, ids, problem.CLASSES)
    return Holding(NAMES, {}, {"train": y}, ids, problem.CLASSES)


def party(folder: Path, method: str, name: str, port: int) -> None:
    """Be a party until the server goes."""
    torch.set_num_threads(1)
    settings, held = run_config(method), holding(name)
    plan = participant.make_plan(settings, held)
    made = participant.build_party(settings, plan, held, name)
    about = terms.about(settings, name, held.names, held.trained_ids)
    member = Member(made, folder / name, about, participant.Answerer(made, held))
    identity = certs.load(folder / "certs", name)
    Joining(member, partial(dial, f"127.0.0.1:{port}", identity, participant.frame_limit(plan))).run()


@contextmanager
def network(method: str) -> Iterator[Serving]:
    """Start a federation over mutual TLS on loopback, a process for each party."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        certs.make(folder / "certs", [certs.SERVER, *NAMES])
        serving = Serving(run_config(method), holding(""), folder / "server")
        identity, limit = certs.load(folder / "certs", certs.SERVER), participant.frame_limit(serving.plan)
        listening, port = listen("127.0.0.1:0", identity, limit, len(NAMES), serving.hub.accept)
        processes = [context.Process(target=party, args=(folder, method, name, port), daemon=True) for name in NAMES]
        for process in processes:
            process.start()
        try:
            yield serving
        finally:
            for process in processes:
                process.kill()
                process.join()
            serving.hub.close()
            serving.journal.close()
            listening.stop(None).wait(5)


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
        optimizer=Optimizer("SGD", {"lr": problem.RATE}),
        batch_size=problem.BATCH,
    )
    central = problem.Central(local, head, federation.server.batches.rows) if method == "svfl" else None
    return line(f"{TITLES[method]}, one process", federation.step, federation.ledger, central, warm, steps)


def over_the_network(method: str, warm: int, steps: int) -> str:
    """Measure a federation of processes."""
    with network(method) as serving:
        settings, plan = run_config(method), serving.plan
        local = [participant.build_party(settings, plan, holding(name), name).block.module for name in NAMES]
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
