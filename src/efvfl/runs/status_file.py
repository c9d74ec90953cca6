"""Where a process stands, in a small file beside its records: what a dashboard shows between two records.

It is written at most once a second and never waited for; a disk that does not take it costs the picture, not the run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

from efvfl.errors import CheckpointError, EfvflError, Interrupted, printable
from efvfl.training.record import finite_or_null
from efvfl.util.files import write_atomically

STATUS: Final = "status.json"
INTERVAL: Final = 1.0  # seconds between two writes
RATE: Final = 60.0  # seconds over which the speed is taken
WARNINGS: Final = 20
TEXT: Final = 500  # characters of a warning

State = Callable[[], dict[str, Any]]
Stage = Literal["running", "finished", "stopped", "failed"]


class StatusFile(logging.Handler):
    """Keeps the file of one process, and the last warnings of its log."""

    def __init__(self, folder: Path, command: str, name: str, state: State) -> None:
        """Write to a folder what `state` returns, for a command of a participant (or run) of this name."""
        super().__init__(logging.WARNING)
        self.path = folder / STATUS
        self.state = state
        self._about = {"command": command, "name": name, "pid": os.getpid(), "born": born(os.getpid())}
        self._about |= {"host": socket.gethostname(), "began": round(time.time(), 3)}
        self._warnings: deque[dict[str, Any]] = deque(maxlen=WARNINGS)
        self._steps: deque[tuple[float, int]] = deque()  # of the last minute
        self._last = -INTERVAL
        self._closed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        text = printable(record.getMessage())[:TEXT]
        self._warnings.append({"time": round(record.created, 3), "level": record.levelname.lower(), "text": text})

    def __call__(self) -> None:
        """Write the state if it is time; cheap enough to call after every step."""
        if not self._closed and time.monotonic() - self._last >= INTERVAL:
            self._write("running")

    def leave(self, kind: type[BaseException] | None, value: BaseException | None, trace: object) -> None:
        """Write how it ended: as the end of a context."""
        logging.getLogger("efvfl").removeHandler(self)
        stage: Stage = "finished"
        if kind:
            stopped = issubclass(kind, Interrupted | KeyboardInterrupt)
            stage = "stopped" if stopped else "failed"
        why = printable(str(value))[:TEXT] if isinstance(value, EfvflError) else kind.__name__ if kind else ""
        self._write(stage, why)
        self._closed = True

    def watch(self) -> None:
        """Keep the warnings of the log from now on."""
        logging.getLogger("efvfl").addHandler(self)

    def _write(self, stage: Stage, why: str = "") -> None:
        now = time.monotonic()
        self._last, state = now, self.state()
        table = {**self._about, "time": round(time.time(), 3), "stage": stage, "why": why, **state}
        table |= {"rate": self._rate(now, int(state.get("step", 0))), "warnings": list(self._warnings)}
        with contextlib.suppress(CheckpointError):  # a full disk: whatever must be saved will say so
            write_atomically(self.path, json.dumps(finite_or_null(table)).encode(), flush=False)

    def _rate(self, now: float, step: int) -> float:
        """Return the steps a second of the last minute."""
        self._steps.append((now, step))
        while now - self._steps[0][0] > RATE:
            self._steps.popleft()
        passed = now - self._steps[0][0]
        return (step - self._steps[0][1]) / passed if passed else 0.0


@contextlib.contextmanager
def kept(status: StatusFile) -> Iterator[None]:
    """Write the file in the background while the work in this context goes on, and in the end how it ended."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(INTERVAL):
            with contextlib.suppress(RuntimeError):  # a table that grew while it was read: next time
                status()

    status.watch()
    status()
    thread = threading.Thread(target=work, name="status", daemon=True)
    thread.start()
    kind: type[BaseException] | None = None
    value: BaseException | None = None
    try:
        yield
    except BaseException as error:
        kind, value = type(error), error
        raise
    finally:
        over.set()
        thread.join(timeout=10 * INTERVAL)
        status.leave(kind, value, None)


def born(pid: int) -> str:
    """Return when a process started, in a form that tells it from a later one of its number; "" if nobody knows."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def how_it_ended(folder: Path) -> str:
    """Say how the last process in a folder ended; "" if it may still run, or if nothing there says so."""
    try:
        status = json.loads((folder / STATUS).read_bytes())
        stage = status["stage"]
        if stage == "running":
            return "was killed" if is_alive(status) is False else ""
        return {"finished": "has finished", "stopped": "was stopped", "failed": "failed"}.get(stage, "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""


def is_alive(status: dict[str, Any]) -> bool | None:
    """Return whether the process that wrote a status still runs; None if that cannot be told from here."""
    pid, then = status.get("pid"), status.get("born")
    if status.get("host") != socket.gethostname() or not isinstance(pid, int) or pid < 1:
        return None
    if then:
        return born(pid) == str(then)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return None
    return True
