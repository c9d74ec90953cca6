"""One thread that does for wires what must not wait for the thread that uses them.

It sends what a socket did not take at once, says that this end lives where nothing else is said, and sees off wires
that are closed. Whoever listens has it also wait for those who come.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

log = logging.getLogger("efvfl")

BEAT: Final = 5.0  # seconds without another word, until a sign of life is sent
LINGER: Final = 1.0  # seconds for the other end to close a wire as well, once all is sent
UNSENT: Final = 10.0  # seconds for what was not sent when a wire was closed
_TICK: Final = 0.02  # seconds between two looks at wires that are being closed


class Held(Protocol):
    """What a postman knows of a wire."""

    def fileno(self) -> int:
        """The number of its socket."""

    def flush(self) -> bool:
        """Send what the socket takes; return whether nothing is left."""

    def beat(self, since: float) -> None:
        """Send a sign of life if nothing was sent since then."""

    def is_over(self) -> bool:
        """Drop what still arrives at a wire that is closed; return whether the other end has closed it too."""

    def close(self) -> None:
        """Close the wire, which the postman then sees off."""

    def let_go(self) -> bool:
        """Close the socket; False if somebody still reads from it, and does so no longer in a moment."""


class Postman:
    """Looks after wires until it is stopped."""

    def __init__(self, name: str) -> None:
        """Begin with no wire; the thread has this name."""
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._was_woken)
        self._todo: deque[Callable[[], None]] = deque()
        self._lines: set[Held] = set()
        self._unsent: dict[Held, int] = {}  # with the number of their sockets, as the selector knows it
        self._leaving: dict[Held, float] = {}  # wires that are closed, and until when to wait for them
        self._beaten = time.monotonic()
        self._stops = float("inf")
        self._pause = BEAT
        self._ticks: Callable[[], float] = lambda: BEAT
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    def start(self, ticks: Callable[[], float] | None = None) -> None:
        """Begin; `ticks` is called again and again, and returns after how many seconds at the latest."""
        self._ticks = ticks or self._ticks
        self._thread.start()

    def soon(self, call: Callable[[], None]) -> None:
        """Have the thread call this."""
        self._todo.append(call)
        with contextlib.suppress(OSError):  # so many wake it already, or it is stopped
            self._wake.send(b"\0")

    def stop(self, seconds: float) -> None:
        """Stop once all wires are seen off, or after so many seconds at the latest."""
        self.soon(lambda: self._stop(seconds))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def watch(self, link: socket.socket, events: int, call: Callable[[], None]) -> None:
        """Call this whenever something can be done with a socket. For the thread itself."""
        self._selector.register(link, events, call)

    def unwatch(self, link: socket.socket) -> None:
        """Call nothing any more. For the thread itself."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(link)

    # For wires, on any thread.

    def take(self, line: Held) -> None:
        """Look after a wire from now on."""
        self.soon(lambda: self._lines.add(line))

    def send_rest(self, line: Held) -> None:
        """Send what a wire's socket does not take now."""
        self.soon(lambda: self._send_rest(line))

    def see_off(self, line: Held) -> None:
        """Close a wire for good, once all is sent and the other end has closed it, or has had its time."""
        until = time.monotonic() + UNSENT
        self.soon(lambda: self._leaving.update({line: until}))

    # The thread.

    def _run(self) -> None:
        while not self._is_done():
            self._do(self._tick)
            pause = min(self._pause, _TICK if self._leaving else BEAT, max(0.0, self._stops - time.monotonic()))
            calls = [key.data for key, _ in self._selector.select(pause)]
            for call in calls:
                self._do(call)
            while self._todo:
                self._do(self._todo.popleft())
            for line in list(self._leaving):
                self._do(partial(self._see_off, line))
            if (now := time.monotonic()) - self._beaten >= BEAT:
                for line in self._lines:
                    self._do(partial(line.beat, now - BEAT))
                self._beaten = now
        for line in self._lines | self._leaving.keys():
            self._do(partial(self._let_go, line))
        self._selector.close()
        self._wake.close()
        self._woken.close()

    def _is_done(self) -> bool:
        return self._stops < float("inf") and (not self._leaving or time.monotonic() >= self._stops)

    def _do(self, call: Callable[[], None]) -> None:
        """Do one thing; whatever is wrong with it must not end all others."""
        try:
            call()
        except Exception:
            log.exception("a connection could not be looked after")

    def _tick(self) -> None:
        self._pause = BEAT  # should it fail
        self._pause = self._ticks()

    def _was_woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def _send_rest(self, line: Held) -> None:
        if line not in self._unsent and line in self._lines and (number := line.fileno()) >= 0:
            self._unsent[line] = number
            self._selector.register(number, selectors.EVENT_WRITE, lambda: self._flush(line))

    def _flush(self, line: Held) -> None:
        if line.flush() and line in self._unsent:
            self._selector.unregister(self._unsent.pop(line))

    def _forget(self, line: Held) -> None:
        self._lines.discard(line)
        if line in self._unsent:
            self._selector.unregister(self._unsent.pop(line))

    def _see_off(self, line: Held) -> None:
        until, now = self._leaving.pop(line), time.monotonic()  # it is back below, unless something is wrong with it
        if until > now + LINGER and line.flush():
            until = now + LINGER
        if line.is_over() or now >= until:
            self._forget(line)
            if line.let_go():
                return
        self._leaving[line] = until

    def _let_go(self, line: Held) -> None:
        self._forget(line)
        for _ in range(100):  # its reader is about to leave
            if line.let_go():
                break
            time.sleep(0.01)

    def _stop(self, seconds: float) -> None:
        self._stops = time.monotonic() + seconds
        for line in list(self._lines):
            self._do(line.close)
