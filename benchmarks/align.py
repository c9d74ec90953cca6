"""`python -m benchmarks.align`: ids a second of a private alignment of two organisations, 60 % of whose ids are shared.

Two processes on loopback with mTLS, each with threads for all cores. On one machine they share its cores, so two
machines of this kind would take about half as long. Core seconds are those of all processes, their start included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from functools import partial
from pathlib import Path

from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.network.align import points
from efvfl.network.align.messages import FRAME
from efvfl.network.align.party import AlignmentParty
from efvfl.network.align.server import AlignmentServer
from efvfl.network.identity import authority, certificates
from efvfl.network.links.connections import Hooks
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.grpc import dial, listen

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


def core_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure(count: int) -> tuple[float, float, int, int, int]:
    """Return seconds from the first question to the end, core seconds, shards, and bytes received and sent."""
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
        listening.stop(None).wait()
    assert len(found.ids) == round(OVERLAP * count)
    return seconds, core_seconds() - before, server.total, moved["in"], moved["out"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Private alignment over loopback.")
    parser.add_argument("counts", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="ids of each side")
    counts = parser.parse_args().counts
    print(f"{points.cores()} cores for both sides together.\n")
    print("| ids of each | shards | seconds | ids a second | core seconds | MB to the label holder | MB to the party |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for count in counts:
        seconds, work, shards, received, sent = measure(count)
        rate, up, down = count / seconds, received / 1e6, sent / 1e6
        print(
            f"| {count:,} | {shards} | {seconds:,.1f} | {rate:,.0f} | {work:,.1f} | {up:,.1f} | {down:,.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
