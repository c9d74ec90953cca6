"""A round over the network: four parties and a server as processes on loopback with mTLS, relative to a bare exchange.

The bare exchange carries messages of the same sizes between as many processes over gRPC streams with mTLS, and does
nothing else. What a round may cost besides is everybody's computing, divided by the cores.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import grpc
import torch

from benchmarks import federation, step
from benchmarks.lines import Line
from benchmarks.timing import Timing, alternate
from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.network.identity import certificates
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
    columns = {"train": x[NAMES.index(name)]} if name else {}
    return ParticipantData(NAMES, columns, {"train": y}, {"train": [str(i) for i in range(ROWS)]}, step.CLASSES)


@contextmanager
def network(labels: str) -> Iterator[tuple[ServerProcess, Path]]:
    """Start a federation; yield its server and the common folder."""
    with (
        tempfile.TemporaryDirectory() as place,
        federation.network(run_config(labels), holding, Path(place)) as serving,
    ):
        yield serving, Path(place)


def bare_party(folder: Path, name: str, port: int, up: int) -> None:
    """Answer every request with `up` bytes."""
    identity = certificates.load(folder / "certs", name)
    credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
    channel = grpc.secure_channel(
        f"127.0.0.1:{port}", credentials, [("grpc.ssl_target_name_override", certificates.SERVER)]
    )
    out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    out.put(b"")
    for _ in channel.stream_stream("/bare/Link")(iter(out.get, None)):
        out.put(bytes(up))


def bare(folder: Path, up: int, down: int) -> tuple[Callable[[], object], Callable[[], None]]:
    """Start the same processes without computation; return functions for one exchange and to stop."""
    identity = certificates.load(folder / "certs", certificates.SERVER)
    replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    outs: list[queue.SimpleQueue[bytes | None]] = []

    def read(incoming: Iterator[bytes]) -> None:
        try:
            for item in incoming:
                replies.put(item)
        except grpc.RpcError:
            return

    readers = ThreadPoolExecutor(len(NAMES))

    def link(incoming: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        context.add_callback(lambda: out.put(None))
        outs.append(out)
        readers.submit(read, incoming)
        while (item := out.get()) is not None:
            yield item

    class Service(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.stream_stream_rpc_method_handler(link)

    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((Service(),))
    credentials = grpc.ssl_server_credentials(
        [(identity.key, identity.certificate)], identity.ca, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=bare_party, args=(folder, name, port, up), daemon=True) for name in NAMES]
    for process in processes:
        process.start()
    for _ in NAMES:
        replies.get(timeout=120)

    def exchange() -> None:
        for out in outs:
            out.put(bytes(down))
        for _ in outs:
            replies.get(timeout=60)

    def stop() -> None:
        for process in processes:
            process.kill()
            process.join()
        server.stop(None).wait(5)

    return exchange, stop


def against_bare(labels: str, rounds: int, inner: int) -> dict[str, Timing]:
    """Return milliseconds of a round, of a bare exchange of such messages, and of all computation in one process."""
    torch.set_num_threads(1)
    x, y = step.rows(ROWS)
    alone = step.federation(x, y, BATCH, labels)
    sizes = {"in": 0, "out": 0}

    def wrote(peer: str, direction: str, frame: Frame) -> None:
        sizes[direction] = max(sizes[direction], len(frame.body))

    with network(labels) as (serving, folder):
        serving.requests.hooks = Hooks(on_frame=wrote)
        for _ in range(5):
            serving.advance()
        exchange, stop_bare = bare(folder, sizes["in"], sizes["out"])
        try:
            sides = {"round": serving.advance, "bare": exchange, "compute": alone.step}
            return alternate(sides, rounds, inner, warm=20)
        finally:
            stop_bare()


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


def cpu_times(labels: str, rounds: int) -> tuple[float, float]:
    """Return CPU milliseconds of a round at the server and at all parties together (Linux)."""

    def at_parties() -> float:
        stats = [Path(f"/proc/{child.pid}/stat").read_text() for child in multiprocessing.active_children()]
        ticks = sum(int(ticks) for stat in stats for ticks in stat.rpartition(")")[2].split()[11:13])  # user, system
        return ticks / os.sysconf("SC_CLK_TCK")

    with network(labels) as (serving, _):
        for _ in range(50):
            serving.advance()
        here, there = time.process_time(), at_parties()
        for _ in range(rounds):
            serving.advance()
        return 1e3 * (time.process_time() - here) / rounds, 1e3 * (at_parties() - there) / rounds


def lines(full: bool) -> list[Line]:
    """Measure a round relative to its lower bound: the bare exchange, and all computation divided by the cores."""
    cores, out = os.cpu_count() or 1, []
    for labels in ("private", "shared"):
        found = against_bare(labels, rounds=30 if full else 15, inner=40)
        both = zip(found["bare"].samples, found["compute"].samples, strict=True)
        over = found["round"].over(Timing([bare + compute / cores for bare, compute in both]))
        note = (
            f"round {found['round'].middle:.2f} ms, bare exchange {found['bare'].middle:.2f} ms, all computing "
            f"{found['compute'].middle:.2f} ms (after a pause {after_a_pause(labels, 200):.2f} ms) on {cores} cores"
        )
        if Path("/proc/self/stat").exists():
            note += ", CPU of a round {:.1f} ms at the server and {:.1f} ms at the parties".format(
                *cpu_times(labels, rounds=500)
            )
        what = f"round of 4 parties, batch 128, {labels} labels / bare exchange and computing"
        out.append(Line(f"round-{labels}", what, over.middle, target=1.5, spread=over.spread, note=note))
    return out


def main() -> None:
    """Print the ratios."""
    for line in lines(full=False):
        print(f"{line.what}: {line.value:.2f} ({line.note})")


if __name__ == "__main__":
    main()
