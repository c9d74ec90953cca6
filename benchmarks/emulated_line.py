"""An emulated line for each party of a federation: a round trip of 20 ms, 10 Mbit/s up and 100 Mbit/s down.

A proxy in a process of its own delivers every chunk of bytes when a real line of this rate and delay would.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks import federation
from benchmarks.replay import Replies
from efvfl.config.run_file import RunConfig
from efvfl.network.training import participant_data
from efvfl.network.training.participant_data import ParticipantData
from efvfl.network.training.server_process import ServerProcess

ROUND_TRIP = 0.020  # seconds
UP, DOWN = 10e6 / 8, 100e6 / 8  # bytes a second
CHUNK = 16 << 10  # bytes that travel together
BUFFER = 0.05  # seconds of data that the line buffers before it blocks the sender


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float) -> None:
    """Forward one direction."""
    free = 0.0  # the time when the line is free again
    travelling: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def deliver() -> None:
        while True:
            due, data = await travelling.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    delivery = asyncio.ensure_future(deliver())
    while data := await reader.read(CHUNK):
        free = max(free, loop.time()) + len(data) / rate
        travelling.put_nowait((free + ROUND_TRIP / 2, data))
        await asyncio.sleep(max(0.0, free - loop.time() - BUFFER))
    travelling.put_nowait((max(free, loop.time()) + ROUND_TRIP / 2, b""))
    await delivery


async def _lines(target: int, count: int, ports: Connection) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(_pump(reader, back, UP), _pump(there, writer, DOWN), return_exceptions=True)
        back.close()
        writer.close()

    servers = [await asyncio.start_server(connect, "127.0.0.1", 0) for _ in range(count)]
    ports.send([server.sockets[0].getsockname()[1] for server in servers])
    await asyncio.gather(*(server.serve_forever() for server in servers))


def lines(target: int, count: int, ports: Connection) -> None:
    """Run the lines of all parties to a server's port, in a separate process."""
    asyncio.run(_lines(target, count, ports))


def hold(config: RunConfig, name: str) -> ParticipantData:
    """Return the data of a party or of the server."""
    return participant_data.load(config, Path(), name)


@contextmanager
def network(config: RunConfig, replies: Mapping[str, Replies] | None = None) -> Iterator[ServerProcess]:
    """Start a federation whose parties are connected by lines; with `replies` they compute nothing (replay.py)."""
    context = multiprocessing.get_context("spawn")
    started: list[BaseProcess] = []

    def behind_lines(port: int, count: int) -> Sequence[int]:
        ports, theirs = context.Pipe()
        started.append(context.Process(target=lines, args=(port, count, theirs), daemon=True))
        started[0].start()
        found: list[int] = ports.recv()
        return found

    with tempfile.TemporaryDirectory() as place:
        try:
            with federation.network(config, partial(hold, config), Path(place), behind_lines, replies) as serving:
                yield serving
        finally:
            for process in started:  # after the parties, which would otherwise log errors
                process.kill()
                process.join()
