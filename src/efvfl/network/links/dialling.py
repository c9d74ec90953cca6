"""A party's process: dial, answer, dial again when the link breaks, until the server says that all is done."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from efvfl.errors import AbsentError, EfvflError, Interrupted, LinkError, RefusedError, WireError, WorkerError
from efvfl.network.links.frame import Frame, FrameKind, printable, words
from efvfl.network.links.wire import Wire

log = logging.getLogger("efvfl")


@dataclass(frozen=True)
class PartyTimeouts:
    """How long to wait for what, in seconds."""

    welcome: float = 10.0  # for an answer to HELLO
    server: float = 3600.0  # for a server that cannot be reached
    tick: float = 0.2  # between two looks at the clock
    first: float = 0.05  # before dialling again; doubled every time
    longest: float = 2.0


class FrameHandler(Protocol):
    """A party without its wire: a frame comes in, a frame goes out."""

    @property
    def name(self) -> str:
        """Who it is."""

    def hello(self) -> Frame:
        """Return the first frame of a connection."""

    def respond(self, frame: Frame) -> Frame | None:
        """Return the answer, if there is one."""

    def save(self) -> None:
        """Leave everything on disk that is needed to go on."""

    def save_if_due(self) -> None:
        """Save if it is time."""


class Dialler:
    """A member and the wire it dials."""

    def __init__(
        self,
        member: FrameHandler,
        dial: Callable[[], Wire],
        waiting: PartyTimeouts | None = None,
        wrote: Callable[[str, str, Frame], None] | None = None,
    ) -> None:
        """Answer through whatever wire `dial` returns."""
        self.member = member
        self.dial = dial
        self.waiting = waiting or PartyTimeouts()
        self.wrote = wrote or (lambda name, direction, frame: None)
        self.stopping = threading.Event()
        self.on_tick: Callable[[], None] = lambda: None
        self.connected = False
        self._trouble = ""
        self.waited = 0.0  # seconds spent waiting for the server

    def run(self) -> None:
        """Take part until the server says STOP."""
        pause, lost = self.waiting.first, time.monotonic()
        while True:
            wire: Wire | None = None
            try:
                wire = self.dial()
                self._greet(wire)
                pause, self.connected = self.waiting.first, True
                self._serve(wire)
                return
            except (LinkError, WireError, TimeoutError) as error:
                if self.connected:
                    lost, self.connected = time.monotonic(), False
                if str(error) != self._trouble:  # said once, not at every attempt
                    self._trouble = str(error)
                    log.warning("no link to the server (%s); dialling again", error or "it does not answer")
                if time.monotonic() - lost > self.waiting.server:
                    self.member.save()
                    raise AbsentError(
                        f"the server could not be reached for {self.waiting.server:,.0f} seconds ({error}). Everything "
                        "is saved: start again when it is back."
                    ) from error
            finally:
                if wire is not None:
                    wire.close()
            self._pause(pause)
            pause = min(2 * pause, self.waiting.longest)

    def _pause(self, seconds: float) -> None:
        self.on_tick()
        if self.stopping.wait(seconds):
            self._leave()

    def _leave(self) -> None:
        self.member.save()
        raise Interrupted

    def _send(self, wire: Wire, frame: Frame) -> None:
        wire.send(frame.to_bytes())
        self.wrote("server", "out", frame)

    def _receive(self, wire: Wire, timeout: float) -> Frame:
        frame = Frame.from_bytes(wire.receive(timeout))
        self.wrote("server", "in", frame)
        return frame

    def _greet(self, wire: Wire) -> None:
        self._send(wire, self.member.hello())
        frame = self._receive(wire, self.waiting.welcome)
        if frame.kind == FrameKind.REFUSE:
            self._refused(frame)
        if frame.kind != FrameKind.WELCOME:
            raise WireError(f"{frame.kind.name} came, WELCOME is expected.")

    def _refused(self, frame: Frame) -> None:
        table = frame.words()
        if table.get("code") in ("busy", "silent"):  # the server has not noticed yet that our last link broke
            raise LinkError(printable(str(table.get("text"))[:2000]))
        raise RefusedError(f"the server refuses {self.member.name}: {printable(str(table.get('text'))[:2000])}")

    def _serve(self, wire: Wire) -> None:
        """Answer until STOP."""
        waiting = time.perf_counter()
        while True:
            try:
                frame = self._receive(wire, self.waiting.tick)
            except TimeoutError:
                self.on_tick()
                if self.stopping.is_set():
                    self._leave()
                continue
            if frame.kind == FrameKind.REFUSE:
                self._refused(frame)
            if frame.kind == FrameKind.WELCOME:  # repeated on its way
                continue
            self.waited += time.perf_counter() - waiting
            try:
                answer = self.member.respond(frame)
            except WorkerError:  # our own trouble: the server waits, as after a crash
                raise
            except EfvflError as error:
                self._send(wire, words(FrameKind.REFUSE, {"code": "wrong", "text": str(error)}))
                raise
            if answer is None:
                continue
            self._send(wire, answer)
            if answer.kind == FrameKind.BYE:
                return
            self.member.save_if_due()
            self.on_tick()
            if self.stopping.is_set():
                self._leave()
            waiting = time.perf_counter()
