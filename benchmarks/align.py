"""`python -m benchmarks.align`: ids a second of a private alignment of two organisations, 60 % of whose ids are shared.

Two processes on loopback with mTLS, each with threads for all cores. On one machine they share its cores, so two
machines of this kind would take about half as long. Core seconds are those of all processes, their start included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import secrets
import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.lines import Line
from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.network.align import points, psi
from efvfl.network.align.messages import FRAME, POINT
from efvfl.network.align.party import AlignmentParty
from efvfl.network.align.server import AlignmentServer
from efvfl.network.identity import authority, certificates
from efvfl.network.links.connecting import dial
from efvfl.network.links.connections import Hooks
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.listening import listen

NAME = "party"
OVERLAP = 0.6


def run_config() -> RunConfig:
    return configs.read(RunConfig, {"party": [{"name": NAME}]}, "benchmark")


def ids(count: int, start: int) -> list[str]:
    return [f"customer-{i:09d}" for i in range(start, start + count)]


def party(folder: Path, count: int, port: int) -> None:
    member = AlignmentParty(run_config(), NAME, ids(count, round((1 - OVERLAP) * count)), folder / NAME)
    try:
        Dialler(member, partial(dial, f"127.0.0.1:{port}", certificates.load(folder / "certs", NAME), FRAME)).run()
    finally:
        member.close()


@dataclass(frozen=True)
class Measured:
    """One alignment."""

    count: int  # ids of each side
    seconds: float  # from the first question to the end
    core_seconds: float  # of both sides, their start included
    shards: int
    received: int  # bytes
    sent: int
    holder: float  # MB of memory at most
    party: float

    @property
    def multiplications(self) -> int:
        """How often a point was multiplied by a key: those of both sides, by both."""
        both = psi.holder_points(self.count, self.shards) + psi.party_points(self.count, self.shards)
        return 2 * self.shards * both


def core_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def memory(who: int) -> float:
    return resource.getrusage(who).ru_maxrss / 1e3


def multiplication() -> float:
    """Return the core seconds of one multiplication by libsodium, the median of some."""
    made, key, times = points.blinded(points.new_key(), [secrets.token_bytes(8)] * 500), points.new_key(), []
    for _ in range(20):
        began = time.process_time()
        points.multiply(key, made)
        times.append((time.process_time() - began) / (len(made) // POINT))
    return statistics.median(times)


def measure(count: int) -> Measured:
    """Align so many ids of each side."""
    before = core_seconds()
    moved = {"in": 0, "out": 0}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        authority.make(folder / "certs", [certificates.SERVER, NAME])
        server = AlignmentServer(
            run_config(),
            ids(count, 0),
            None,
            folder / "server",
            hooks=Hooks(lambda _, direction, frame: moved.update({direction: moved[direction] + len(frame.body)})),
        )
        identity = certificates.load(folder / "certs", certificates.SERVER)
        listening, port = listen("127.0.0.1:0", identity, FRAME, 1, server.requests.accept)
        other = multiprocessing.get_context("spawn").Process(target=party, args=(folder, count, port))
        other.start()
        server.requests.idle(lambda: bool(server.requests.connections))
        began = time.perf_counter()
        found = server.run()
        seconds = time.perf_counter() - began
        other.join()
        server.requests.close()
        listening.close()
    assert len(found.ids) == round(OVERLAP * count)
    used = core_seconds() - before
    most = [memory(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Measured(count, seconds, used, server.total, moved["in"], moved["out"], *most)


def lines(full: bool) -> list[Line]:
    """Return the lines of the suite: a small alignment, and in the long run one of a million ids."""
    found = []
    for count in (20_000, 1_000_000) if full else (20_000,):
        start, once = measure(100).core_seconds, multiplication()
        one = measure(count)
        note = (
            f"{one.core_seconds:,.0f} core seconds of both sides on {points.cores()} cores that they share, "
            f"{count / one.seconds:,.0f} ids a second; at most {one.holder:,.0f} MB at the label holder, "
            f"{one.party:,.0f} MB at the party; {one.received / 1e6:,.0f} MB received, {one.sent / 1e6:,.0f} MB sent"
        )
        goal = 120.0 if count == 1_000_000 else None
        what = f"private set intersection of {count:,} ids with {count:,}"
        found.append(Line(f"align-{count}", what, one.seconds, "s", goal, note=note))
        ratio = (one.core_seconds - start) / (one.multiplications * once)
        part = f"{one.multiplications:,} multiplications of {once * 1e6:.1f} µs"
        note = f"{part}; {start:.1f} core seconds of the start left out"
        what = "its core seconds / those of its multiplications alone"
        found.append(Line(f"align-{count}-ratio", what, ratio, note=note))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Private alignment over loopback.")
    parser.add_argument("counts", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="ids of each side")
    counts = parser.parse_args().counts
    print(f"{points.cores()} cores for both sides together.\n")
    heads = ["ids of each", "shards", "seconds", "ids a second", "core seconds", "MB to the label holder"]
    heads += ["MB to the party", "memory of the label holder, MB", "of the party, MB"]
    print(f"| {' | '.join(heads)} |")
    print(f"| {' | '.join(['---:'] * len(heads))} |")
    for count in counts:
        one = measure(count)
        cells = (
            *(f"{count:,}", f"{one.shards}", f"{one.seconds:,.1f}", f"{count / one.seconds:,.0f}"),
            *(f"{one.core_seconds:,.1f}", f"{one.received / 1e6:,.1f}", f"{one.sent / 1e6:,.1f}"),
            *(f"{one.holder:,.0f}", f"{one.party:,.0f}"),
        )
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
