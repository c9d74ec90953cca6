"""The request log: who asked for which rows, when, and with what outcome. One JSON line for every request.

A thread of its own writes, so that a slow disk keeps nobody waiting. What cannot be written is counted, said in the
process's log, and noted in the file as soon as it can be written again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

log = logging.getLogger("efvfl")

FILE = "requests.jsonl"
SIZE = 64 << 20  # bytes of one file
FILES = 4  # the one in use and those before it
PENDING = 32 << 20  # characters of ids that may wait to be written
STRANGERS = 60  # lines a minute about requests without credentials: a flood must not push out all other lines
CLOSING = 5.0  # seconds to write the rest at the end


@dataclass(frozen=True)
class RequestLine:
    """One request."""

    client: str | None  # its certificate's name, or 'token'; None: no valid credentials
    address: str
    status: int = 200
    ids: tuple[str, ...] = ()  # as in the request
    unknown: int = 0  # how many of them some party does not hold, as far as that was found out
    omitted: int = 0  # requests without credentials since the last line about one

    def weight(self) -> int:
        """Return about how much memory it takes."""
        return 200 + sum(map(len, self.ids))

    def table(self) -> dict[str, Any]:
        """Return what is written."""
        line: dict[str, Any] = {"client": self.client, "address": self.address, "status": self.status}
        line |= {"count": len(self.ids), "unknown": self.unknown, "ids": self.ids}
        return line | ({"omitted": self.omitted} if self.omitted else {})


class RequestLog:
    """Writes the request log in a folder."""

    def __init__(self, folder: Path, size: int = SIZE, clock: Callable[[], float] = time.time) -> None:
        """Append to the folder's file; when it has reached its size, a new one is begun and the oldest deleted."""
        self.path = folder / FILE
        self.size = size
        self.lost = 0  # lines that could not be written, until the file says so
        self._clock = clock
        self._file: IO[bytes] | None = None
        self._changed = threading.Condition()
        self._pending: deque[tuple[float, RequestLine]] = deque()
        self._weight = 0
        self._closing = False
        self._warned = False
        self._strangers: deque[float] = deque(maxlen=STRANGERS)  # when the last lines about them were written
        self._omitted = 0
        self._thread = threading.Thread(target=self._run, name="efvfl-request-log", daemon=True)
        self._thread.start()

    def record(self, line: RequestLine) -> None:
        """Have a line written soon."""
        now = self._clock()
        with self._changed:
            if line.client is None:
                if len(self._strangers) == STRANGERS and now - self._strangers[0] < 60:
                    self._omitted += 1
                    return
                self._strangers.append(now)
                line, self._omitted = replace(line, omitted=self._omitted), 0
            if self._weight + line.weight() > PENDING:
                self.lost += 1
                return
            self._pending.append((now, line))
            self._weight += line.weight()
            self._changed.notify()

    def close(self) -> None:
        """Write what is left, if that does not take long."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSING)
        if self._thread.is_alive() or self.lost:
            log.error("the request log %s is incomplete: its disk is full or too slow", self.path)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._closing:
                    self._changed.wait(60)
                if not self._pending:
                    break
                moment, line = self._pending.popleft()
                self._weight -= line.weight()
            self._write(moment, line)
        self._close_file()

    def _write(self, moment: float, line: RequestLine) -> None:
        tables = [line.table()]
        with self._changed:
            lost = self.lost
        if lost:
            tables.insert(0, {"lost": lost})
        text = "".join(json.dumps({"time": round(moment, 3)} | table) + "\n" for table in tables).encode()
        try:
            self._append(text)
        except OSError as error:
            self._close_file()
            with self._changed:
                self.lost += 1
            if not self._warned:
                self._warned = True
                log.error("cannot write %s: %s. Requests are answered, but not logged, until it can be", FILE, error)
            return
        with self._changed:
            self.lost -= lost
        if self._warned:
            self._warned = False
            log.warning("%s can be written again; %d lines are missing", FILE, lost)

    def _append(self, data: bytes) -> None:
        """Write to the end of the file; a line that was only partly written is taken back."""
        if self._file is None:
            self._file = self._open()
        end = self._file.seek(0, os.SEEK_END)
        if end and end + len(data) > self.size:
            self._rotate()
            self._file, end = self._open(), 0
        try:
            if self._file.write(data) != len(data):  # as much as there was room for
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), end)
            raise

    def _open(self) -> IO[bytes]:
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        file = open(descriptor, "ab", buffering=0)  # noqa: SIM115
        os.fchmod(descriptor, 0o600)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a crash has cut the last line
            file.write(b"\n")
        return file

    def _rotate(self) -> None:
        self._close_file()
        for number in range(FILES - 1, 0, -1):
            older = self.path.with_name(f"{FILE}.{number - 1}") if number > 1 else self.path
            with contextlib.suppress(FileNotFoundError):
                os.replace(older, self.path.with_name(f"{FILE}.{number}"))

    def _close_file(self) -> None:
        if self._file:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
