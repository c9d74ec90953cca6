"""All participants of one federation, and what they are seen to do."""

from __future__ import annotations

import json
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from ports import free_port

from faults.cases import CASES, write_tables
from faults.participant import Hung, Participant
from faults.proxy import Proxy

LOOK = 0.01  # seconds between two looks
STALL = 90.0  # seconds without any progress; a server waits up to 60 for parties that it cannot tell of the end


class Ended(Exception):
    """Somebody has ended by itself before all was done."""


class Federation:
    """The processes of one run, in one folder."""

    def __init__(self, root: Path, case: str, certs: Path, epochs: int, save: int, proxied: bool = False) -> None:
        """Write every participant's file; `proxied`: each party reaches the server by a line of its own."""
        self.root, self.certs = root, certs
        self.case = CASES[case]
        self.steps = self.case.per_epoch * epochs
        self.names = ["server", *self.case.parties]
        root.mkdir(parents=True)
        if self.case.tables:
            write_tables(root, self.names)
        port = free_port()
        self.proxies = {name: Proxy(port) for name in self.case.parties} if proxied else {}
        self.participants: dict[str, Participant] = {}
        for name in self.names:
            dialled = self.proxies[name].port if name in self.proxies else port
            text = self.case.file(f"127.0.0.1:{dialled}", save, epochs)
            (root / f"{name}.toml").write_text(text, encoding="utf-8")
            workers = 2 if name == self.case.workers else 1
            self.participants[name] = Participant(name, root, certs, workers)
        self._due: dict[str, float] = {}  # who is to be started again, and when
        self._seen: tuple[object, ...] = ()
        self._since = time.monotonic()

    def __getitem__(self, name: str) -> Participant:
        return self.participants[name]

    @property
    def server(self) -> Participant:
        """The label holder's process."""
        return self.participants["server"]

    @property
    def alive(self) -> list[str]:
        """Who runs."""
        return [name for name, each in self.participants.items() if each.alive]

    def start(self, chance: random.Random) -> None:
        """Start everybody, in any order."""
        for name in chance.sample(self.names, len(self.names)):
            self[name].start()

    def start_later(self, name: str, seconds: float) -> None:
        """Start somebody again after a while; whatever happens until then happens without it."""
        self._due[name] = time.monotonic() + seconds

    def position(self) -> int:
        """Return the number of the request that the server was last seen to send or to have answered."""
        path = self.server.folder / "ledger.jsonl"
        with suppress(OSError):
            size = path.stat().st_size
            with open(path, "rb") as file:
                file.seek(max(0, size - 4096))
                lines = file.read().decode(errors="replace").splitlines()
            for line in reversed(lines):
                with suppress(ValueError, KeyError, TypeError):
                    table = json.loads(line)
                    if table["step"] is not None:
                        return int(table["number"])
        return 0

    def look(self) -> None:
        """Start whom it is time to start; raise if somebody has ended by itself, or if nothing happens any more."""
        for name in [name for name, due in self._due.items() if time.monotonic() >= due]:
            del self._due[name]
            if not self[name].processes:
                self[name].start()
        for each in self.participants.values():
            each.mend_workers()
        codes = tuple(each.code for each in self.participants.values())
        if any(code not in (None, 0) for code in codes):
            raise Ended
        seen = (self.position(), *codes)
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        elif time.monotonic() - self._since > STALL:
            raise Hung(f"nothing has happened for {STALL:g} s at request {seen[0]}")

    def reach(self, number: int) -> bool:
        """Wait until the server is at this request; return False if it has ended before."""
        self._since = time.monotonic()
        while self.server.code is None:  # it may be about to be started again
            self.look()
            if self.position() >= number:
                return True
            time.sleep(LOOK)
        return False

    def pause(self, seconds: float) -> None:
        """Look on for a while."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.look()
            time.sleep(LOOK)

    def finish(self) -> None:
        """Wait until all are done."""
        self._since = time.monotonic()
        while any(each.code != 0 for each in self.participants.values()):
            self.look()
            time.sleep(LOOK)

    def stop_rest(self) -> None:
        """Have those that still run save and end, as somebody would whose federation cannot go on."""
        for name in self.alive:
            self[name].signal(signal.SIGCONT)
            self[name].stop()

    def close(self) -> None:
        """Leave nothing running."""
        for each in self.participants.values():
            each.kill_all()
        for proxy in self.proxies.values():
            proxy.close()
