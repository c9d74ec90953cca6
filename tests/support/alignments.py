"""An alignment in one process: the label holder in the test, every party in a thread, wires in memory that keep all."""

import base64
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tapped_wire import TappedWire

from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.errors import EfvflError, LinkError
from efvfl.network.align.aligned_rows import Aligned
from efvfl.network.align.listing import TargetsOf
from efvfl.network.align.party import AlignmentParty
from efvfl.network.align.server import AlignmentServer
from efvfl.network.links.connections import Hooks, ServerTimeouts
from efvfl.network.links.dialling import Dialler, PartyTimeouts
from efvfl.network.links.frame import Frame
from efvfl.network.links.wire import Wire, memory_pair

TIMEOUTS = ServerTimeouts(hello=5.0, tick=0.01, linger=0.5)
WAITING = PartyTimeouts(tick=0.01, first=0.01, longest=0.05, welcome=5.0, server=20.0)
SECONDS = 300.0  # until a test that hangs fails


def config(*names: str, **data: Any) -> RunConfig:
    """A federation of parties of these names."""
    return configs.read(RunConfig, {"seed": 5, "data": data, "party": [{"name": name} for name in names]}, "case")


class Killed(BaseException):
    """What SIGKILL is in a test: nobody catches it, nothing is saved."""


class Meeting:
    """A label holder ('') and its parties; any of them may be killed at its n-th frame, and starts again."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        ids: Mapping[str, list[str]],
        labels: Any = None,
        killed: tuple[str, int] = ("", 0),
        threads: int = 1,
    ) -> None:
        self.folder = folder
        self.config = config
        self.ids = ids
        self.labels = None if labels is None else np.asarray(labels)
        self.threads = threads
        self.heard: dict[str, list[bytes]] = {name: [] for name in ids}  # every byte each one received
        self.configs: dict[str, RunConfig] = {}  # of parties whose copy of the file differs
        self.kinds: dict[str, type[AlignmentParty]] = {}  # of parties that deviate
        self.members: dict[str, AlignmentParty] = {}
        self.targets_of: TargetsOf | None = None  # of the label holder's table, where labels are shared
        self.server: AlignmentServer | None = None
        self.lives = dict.fromkeys(ids, 0)
        self._killed = killed
        self._joinings: dict[str, Dialler] = {}
        self._futures: dict[str, Future[None]] = {}
        self._threads = ThreadPoolExecutor(8)

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(self, *_: object) -> None:
        for joining in self._joinings.values():
            joining.stopping.set()
        if self.server is not None:
            self.server.requests.close()
        self._threads.shutdown()
        for member in self.members.values():
            member.close()

    def run(self) -> Aligned:
        """Align to the end, whoever is killed on the way."""
        for name in self.ids:
            if name and name not in self.members:
                self.join(name)
        while True:
            try:
                self.server = self.serve()
                return self.server.run()
            except Killed:
                assert self.server is not None
                dead, self.server = self.server, None
                dead.requests.close()

    def serve(self) -> AlignmentServer:
        hooks = Hooks(self._events(""), partial(self._look, time.monotonic() + SECONDS))
        made = AlignmentServer(
            self.config, self.ids[""], self.labels, self.folder / "server", TIMEOUTS, hooks, self.threads
        )
        made.targets_of = self.targets_of
        return made

    def _look(self, ends: float) -> None:
        assert time.monotonic() < ends, "this alignment hangs"
        for name, future in list(self._futures.items()):
            if future.done() and isinstance(future.exception(), Killed):
                self.join(name)

    def _events(self, name: str) -> Callable[[str, str, Frame], None]:
        """Count the frames of a participant's life, and kill it at the one that was chosen, in its first life."""
        self.lives[name] += 1
        chosen, at = self._killed
        left = [at if name == chosen and self.lives[name] == 1 else 0]

        def event(peer: str, direction: str, frame: Frame) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Killed

        return event

    def join(self, name: str) -> Future[None]:
        """Start a party, or start it again."""
        if name in self.members:
            self.members[name].close()
        own = self.configs.get(name, self.config)
        kind = self.kinds.get(name, AlignmentParty)
        self.members[name] = kind(own, name, self.ids[name], self.folder / name, self.threads)
        joining = Dialler(self.members[name], partial(self.dial, name), WAITING, self._events(name))
        self._joinings[name] = joining
        self._futures[name] = self._threads.submit(joining.run)
        return self._futures[name]

    def dial(self, name: str) -> Wire:
        server = self.server
        if server is None:
            raise LinkError("nobody listens.")
        there, here = memory_pair()
        server.requests.accept(TappedWire(there, received=self.heard[""].append), None)
        return TappedWire(here, received=self.heard[name].append)

    def run_until_ended(self, name: str) -> BaseException | None:
        """Align until this party has ended for good, which stops the label holder too; return how the latter ended."""
        self.server = server = self.serve()
        look = server.requests.hooks.on_tick

        def watch() -> None:
            look()
            if self.ended(name):
                server.requests.stopping.set()

        server.requests.hooks = replace(server.requests.hooks, on_tick=watch)
        for one in self.ids:
            if one:
                self.join(one)
        try:
            server.run()
        except EfvflError as error:
            return error
        return None

    def ended(self, name: str) -> bool:
        return self._futures[name].done()

    def wait(self, name: str) -> BaseException | None:
        """Wait until a party is done; return how it ended."""
        return self._futures[name].exception(SECONDS)


# What must not be in what somebody received.


def forms(secret: str) -> Iterator[tuple[str, bytes]]:
    """Every way in which an id might be written."""
    plain = {"utf-8": secret.encode(), "utf-16-le": secret.encode("utf-16-le"), "utf-16-be": secret.encode("utf-16-be")}
    hashes = ("blake2b", "blake2s", "md5", "sha1", "sha256", "sha512", "sha3_256")
    hashed = {f"{name} of {how}": hashlib.new(name, code).digest() for how, code in plain.items() for name in hashes}
    short = {f"blake2b-{n}": hashlib.blake2b(secret.encode(), digest_size=n).digest() for n in (8, 16, 20, 32)}
    for how, code in (plain | hashed | short).items():
        yield how, code
        yield f"{how} in hex", code.hex().encode()
        yield f"{how} in HEX", code.hex().upper().encode()
        for shift in range(3):  # base64 of a text with this one in its midst
            encoded = base64.b64encode(bytes(shift) + code)
            yield f"{how} in base64", encoded[(shift * 8 + 5) // 6 : (shift + len(code)) * 8 // 6]


def leaks(heard: list[bytes], secrets: list[str]) -> list[str]:
    """Return which secrets were found in what was received, and how written."""
    data = b"\xfe\xdc\xff".join(heard)
    return [f"{secret!r} as {how}" for secret in secrets for how, code in forms(secret) if code in data]
