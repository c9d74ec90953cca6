"""A round over the network: four parties and a server as processes on loopback with mTLS, relative to a bare exchange.

The bare exchange carries messages of the same sizes between as many processes over gRPC streams with mTLS, and does
nothing else; one over plain TLS sockets is measured beside it. What a round may cost besides is everybody's computing,
divided by the cores. Participants do all that they do elsewhere: they keep logs of messages and audit logs.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks import bare, federation, step
from benchmarks.federation import CpuSeconds
from benchmarks.lines import Line
from benchmarks.timing import Timing, alternate
from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.core.source_columns import SourceColumns
from efvfl.network.links.connections import Hooks
from efvfl.network.links.frame import Frame
from efvfl.network.training.participant_data import ParticipantData
from efvfl.network.training.server_process import ServerProcess

NAMES = ["a", "b", "c", "d"]
ROWS, BATCH = 12_800, 128


def run_config(labels: str) -> RunConfig:
    """The paper's shallow network, batch 128, top-k 10 %."""
    table = {
        "epochs": 10_000,
        "batch_size": BATCH,
        "observe_every": 10_000,
        "agreement": {"labels": labels},
        "method": {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.1}},
        "optimizer": {"name": "SGD", "lr": 0.1},
    }
    return configs.read(RunConfig, table, "benchmark")


def holding(name: str) -> ParticipantData:
    """Random rows in MNIST's shapes."""
    x, y = step.rows(ROWS)
    columns: dict[str, Tensor | SourceColumns] = {"train": x[NAMES.index(name)]} if name else {}
    return ParticipantData(NAMES, columns, {"train": y}, {"train": [str(i) for i in range(ROWS)]}, step.CLASSES)


@contextmanager
def network(labels: str, cpu: CpuSeconds | None = None) -> Iterator[tuple[ServerProcess, Path]]:
    """Start a federation; yield its server and the common folder."""
    with (
        tempfile.TemporaryDirectory() as place,
        federation.network(run_config(labels), holding, Path(place), cpu=cpu) as serving,
    ):
        yield serving, Path(place)


def largest(serving: ServerProcess, rounds: int = 5) -> tuple[int, int]:
    """Return the bytes of the largest message of some rounds that came in, and of the largest that went out."""
    sizes, hooks = {"in": 0, "out": 0}, serving.requests.hooks

    def wrote(peer: str, direction: str, frame: Frame) -> None:
        sizes[direction] = max(sizes[direction], len(frame.body))

    serving.requests.hooks = Hooks(on_frame=wrote)
    for _ in range(rounds):
        serving.advance()
    serving.requests.hooks = hooks
    return sizes["in"], sizes["out"]


def against_bare(labels: str, rounds: int, inner: int) -> dict[str, Timing]:
    """Return milliseconds of a round, of bare exchanges of such messages, and of all computation in one process."""
    torch.set_num_threads(1)
    x, y = step.rows(ROWS)
    alone = step.federation(x, y, BATCH, labels)
    with network(labels) as (serving, folder):
        sizes = largest(serving)
        with bare.over_grpc(folder, NAMES, *sizes) as grpc, bare.over_tls(folder, NAMES, *sizes) as tls:
            sides: dict[str, Callable[[], object]] = {"gRPC": grpc, "TLS": tls}
            sides |= {"round": serving.advance, "compute": alone.step}
            return alternate(sides, rounds, inner, warm=20)


def after_a_pause(labels: str, rounds: int, pause: float = 0.005) -> float:
    """Return the median milliseconds of a step in one process after a sleep, as in every process of a round.

    Caches are cold then: this, not the step in a tight loop, is what computing costs in a round.
    """
    x, y = step.rows(ROWS)
    alone = step.federation(x, y, BATCH, labels)
    times = []
    for _ in range(rounds):
        time.sleep(pause)
        started = time.perf_counter()
        alone.step()
        times.append(time.perf_counter() - started)
    return 1e3 * median(times)


class Cpu(NamedTuple):
    """CPU milliseconds of a participant for a round."""

    all: float
    computing: float

    @property
    def beyond(self) -> float:
        """All but computing."""
        return self.all - self.computing

    def __str__(self) -> str:
        """Show both."""
        return f"{self.all:.2f} ms, {self.computing:.2f} of it computing"


def cpu_times(labels: str, rounds: int, repeats: int) -> tuple[Cpu, list[Cpu]]:
    """Return the CPU time of the server in the median of some repeats, and that of a party in every one of them."""
    torch.set_num_threads(1)
    cpu, server, party = CpuSeconds(["", *NAMES]), [], []
    with network(labels, cpu) as (serving, _):
        for _ in range(50):
            serving.advance()
        before = {name: cpu.of(name) for name in ("", *NAMES)}
        for _ in range(repeats):
            for _ in range(rounds):
                serving.advance()
            after = {name: cpu.of(name) for name in before}
            spent = {
                name: [1e3 * (b - a) / rounds for a, b in zip(before[name], after[name], strict=True)]
                for name in before
            }
            server.append(Cpu(*spent[""]))
            party.append(Cpu(*map(mean, zip(*(spent[name] for name in NAMES), strict=True))))
            before = after
    return sorted(server)[len(server) // 2], party


def lines(full: bool) -> list[Line]:
    """Measure a round relative to its lower bound: the bare exchange, and all computation divided by the cores."""
    cores, out = os.cpu_count() or 1, []
    for labels in ("private", "shared"):
        found = against_bare(labels, rounds=30 if full else 15, inner=40)
        both = zip(found["gRPC"].samples, found["compute"].samples, strict=True)
        over = found["round"].over(Timing([bare + compute / cores for bare, compute in both]))
        server, party = cpu_times(labels, rounds=200, repeats=10 if full else 5)
        note = (
            f"round {found['round'].middle:.2f} ms, bare exchange {found['gRPC'].middle:.2f} ms over gRPC and "
            f"{found['TLS'].middle:.2f} ms over TLS, all computing {found['compute'].middle:.2f} ms (after a pause "
            f"{after_a_pause(labels, 200):.2f} ms) on {cores} cores, CPU of a round at the server {server}"
        )
        what = f"round of 4 parties, batch 128, {labels} labels / bare exchange and computing"
        out.append(Line(f"round-{labels}", what, over.middle, target=1.6, spread=over.spread, note=note))
        beyond = Timing([one.beyond for one in party])
        middle = sorted(party)[len(party) // 2]
        what = f"CPU time of a party for a round beyond computing, batch 128, {labels} labels"
        out.append(
            Line(f"party-{labels}", what, beyond.middle, "ms", target=0.35, spread=beyond.spread, note=f"{middle}")
        )
    return out


def main() -> None:
    """Print what is measured."""
    for line in lines(full=False):
        print(f"{line.what}: {line.value:.2f} {line.unit} ({line.note})")


if __name__ == "__main__":
    main()
