"""One participant of a federation: a command of `efvfl` in a process of its own, or in one for each of its workers."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from ports import free_port
from warm_processes import WARM, run_command

PATIENT = 60.0  # seconds for a process to end after a signal
RESTARTS = 6  # of workers, as with `torchrun --max-restarts`
STOPPED = (130, -signal.SIGTERM)  # exit codes after SIGTERM; the second one before a process could say what to do then
FINAL = (0, 2, 4, 5)  # exit codes after which nobody would start a party's workers again


class Hung(Exception):
    """Somebody waits, and nothing happens any more."""


def run_limited(words: list[str], said: Path, environment: dict[str, str], limit: int) -> None:
    """Run a command in this process; no file may grow beyond `limit` bytes, if that is not 0.

    After SIGUSR1 the main thread does nothing until SIGUSR2, while the connection answers pings as ever.
    """
    os.environ |= environment
    hanging = threading.Event()

    def hang(number: int, frame: object) -> None:
        hanging.set()
        while hanging.is_set():
            time.sleep(0.02)

    signal.signal(signal.SIGUSR1, hang)
    signal.signal(signal.SIGUSR2, lambda number, frame: hanging.clear())
    if limit:  # a write beyond it fails as on a full disk: OSError, here with EFBIG
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    run_command(words, None, said, said)


class Participant:
    """A participant that can be started, killed, stopped and started again, always with the same command."""

    def __init__(self, name: str, root: Path, certs: Path, workers: int = 1) -> None:
        """Prepare its command; its folder is that of its name in `root`."""
        self.name = name
        self.root = root
        self.workers = workers
        self.folder = root / name
        self.file = root / f"{name}.toml"
        words = ["serve"] if name == "server" else ["join", "--party", name]
        self.words = [*words, str(self.file), "--dir", str(self.folder), "--certs", str(certs), "--status", "quiet"]
        self.lives = 0
        self.restarts = 0
        self.processes: list[BaseProcess] = []  # none: it was killed or stopped, and not started again

    def start(self, limit: int = 0) -> None:
        """Start it; see `run_limited`."""
        self.lives += 1
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "lab"}
        self.processes = []
        for rank in range(self.workers):
            own = {"RANK": str(rank), "WORLD_SIZE": str(self.workers), **shared} if self.workers > 1 else {}
            process = WARM.Process(target=run_limited, args=(self.words, self._said(rank), own, limit), daemon=True)
            process.start()
            self.processes.append(process)

    def _said(self, rank: int) -> Path:
        return self.root / f"{self.name}.{self.lives}.{rank}.log"

    @property
    def said(self) -> str:
        """All that its last life has printed."""
        return self._said(0).read_text(encoding="utf-8") if self._said(0).exists() else ""

    @property
    def all_said(self) -> str:
        """All that it has printed in all its lives."""
        paths = sorted(self.root.glob(f"{self.name}.*.log"))
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)

    @property
    def code(self) -> int | None:
        """Its exit code if it has ended by itself."""
        return self.processes[0].exitcode if self.processes else None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return bool(self.processes) and self.processes[0].exitcode is None

    def mend_workers(self) -> None:
        """Do as torchrun does: if one worker is lost, end the others and start all again."""
        codes = [process.exitcode for process in self.processes]
        lost = any(code not in (None, 0) for code in codes) and codes[0] not in FINAL
        if self.workers > 1 and lost and self.restarts < RESTARTS:
            self.restarts += 1
            self.kill_all()
            self.start()

    def signal(self, number: int) -> None:
        """Send a signal to all its processes."""
        for process in self.processes:
            if process.exitcode is None and process.pid:
                os.kill(process.pid, number)

    def kill_one(self, rank: int) -> None:
        """Kill one of its workers."""
        self.processes[rank].kill()

    def kill_all(self) -> None:
        """Kill it, whatever state it is in."""
        for process in self.processes:
            process.kill()
            process.join(PATIENT)

    def kill(self) -> bool:
        """Kill it; return whether it was alive: what has ended by itself is not to be started again."""
        self.kill_all()
        if self.code != -signal.SIGKILL:
            return False
        self.processes = []
        return True

    def stop(self) -> bool:
        """Have it save and end; return whether it did: what has ended by itself is not to be started again."""
        self.signal(signal.SIGTERM)
        ends = time.monotonic() + PATIENT
        for process in self.processes:
            process.join(max(0.1, ends - time.monotonic()))
            if process.exitcode is None:
                raise Hung(f"{self.name} does not end {PATIENT:g} s after SIGTERM")
        if self.code not in STOPPED:
            return False
        self.processes = []
        return True
