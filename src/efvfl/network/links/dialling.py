"""A party's side of a connection: dial, respond to frames, dial again when it breaks, until the server ends the run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from efvfl.errors import (
    AbsentError,
    ConfigError,
    EfvflError,
    Interrupted,
    LinkError,
    RefusedError,
    WireError,
    WorkerError,
    printable,
)
from efvfl.network.links.frame import Frame, FrameKind, json_frame
from efvfl.network.links.tls_probe import LineError
from efvfl.network.links.wire import Wire

log = logging.getLogger("efvfl")

Dial: TypeAlias = Callable[[], Wire]
NOBODY = "Connection refused"  # in what gRPC says
MOST_REPEATED = 8  # WELCOMEs of one connection that are taken for copies of the first

OnFrame: TypeAlias = Callable[[str, str, Frame], None]  # peer, "in" or "out", frame


@dataclass(frozen=True)
class PartyTimeouts:
    """How long to wait for what, in seconds."""

    welcome: float = 10.0  # for an answer to HELLO
    server: float = 3600.0  # for a server that cannot be reached
    tick: float = 0.2  # between two looks at the clock
    first: float = 0.05  # before dialling again; doubled every time
    longest: float = 2.0
    explain: float = 10.0  # between two looks at why there is no connection


class FrameHandler(Protocol):
    """A party without its wire: it responds to one frame at a time."""

    @property
    def name(self) -> str:
        """The party's name."""

    def hello(self) -> Frame:
        """Return the first frame of a connection."""

    def respond(self, frame: Frame) -> Frame | None:
        """Return the response to a frame, or None if it needs none."""

    def save(self) -> None:
        """Write to disk everything that is needed to continue."""

    def save_if_due(self) -> None:
        """Save if a checkpoint is due."""


class Dialler:
    """Connects a frame handler to the server, as often as needed."""

    def __init__(
        self,
        handler: FrameHandler,
        dial: Dial,
        timeouts: PartyTimeouts | None = None,
        on_frame: OnFrame | None = None,
        on_tick: Callable[[], None] | None = None,
        explain: Callable[[], None] | None = None,
    ) -> None:
        """Respond on whatever wire `dial` returns; `on_frame` is called for every frame, `on_tick` while waiting.

        `explain` raises a LineError that says why no connection comes about.
        """
        self.handler = handler
        self.dial = dial
        self.timeouts = timeouts or PartyTimeouts()
        self.on_frame = on_frame or (lambda peer, direction, frame: None)
        self.on_tick = on_tick or (lambda: None)
        self.stopping = threading.Event()
        self.connected = False
        self.waited = 0.0  # seconds spent waiting for the server
        self.explain = explain or (lambda: None)
        self._last_error = ""
        self._explained = float("-inf")
        self._found: LineError | None = None  # why, when it was last looked at
        self._welcomed = False  # at least once: what was right before may become so again
        self._hopeless = 0  # how often in turn the reason was one that dialling again does not mend

    def run(self) -> None:
        """Take part until the server sends STOP."""
        pause, lost = self.timeouts.first, time.monotonic()
        while True:
            wire: Wire | None = None
            try:
                wire = self.dial()
                self._handshake(wire)
                pause, self.connected, self._welcomed = self.timeouts.first, True, True
                self._serve(wire)
                return
            except (LinkError, WireError, TimeoutError) as failure:
                error = self._reason(failure, wire)
                if self.connected:
                    lost, self.connected = time.monotonic(), False
                if str(error) != self._last_error:  # logged once, not at every attempt
                    self._last_error = str(error)
                    log.warning(
                        "no link to the server (%s); dialling again", str(error).rstrip(".") or "it does not answer"
                    )
                if time.monotonic() - lost > self.timeouts.server:
                    self.handler.save()
                    raise AbsentError(
                        f"the server could not be reached for {self.timeouts.server:,.0f} seconds ({error}). "
                        "Everything is saved: start again when it is back."
                    ) from error
            finally:
                if wire is not None:
                    wire.close()
            self._pause(pause)
            pause = min(2 * pause, self.timeouts.longest)

    def _reason(self, failure: Exception, wire: Wire | None) -> Exception:
        """Return why there is no connection, if that can be found out; raise it if certificates must change first.

        Once is not enough to give up: a server that is about to stop looks like one that refuses us.
        """
        now = time.monotonic()
        if wire is not None and wire.connected:
            return failure
        if NOBODY in str(failure):  # unless somebody is found to be the reason
            failure = LinkError("nobody was there when it was dialled")
        if now - self._explained < self.timeouts.explain:
            return self._found or failure
        try:
            self._found = None
            self.explain()
        except LineError as found:
            self._found = found
            self._hopeless = self._hopeless + 1 if found.final else 0
            if self._hopeless > 1 and not self._welcomed:
                self.handler.save()
                raise ConfigError(f"no link to the server: {found}") from failure
            self._explained = now - (self.timeouts.explain - 1.0 if found.final else 0.0)
            return found
        self._explained = now
        return failure

    def _pause(self, seconds: float) -> None:
        self._look()
        self.stopping.wait(seconds)
        self._look()

    def _look(self) -> None:
        """Show that this party is alive, and leave if it is asked to stop."""
        self.on_tick()
        if self.stopping.is_set():
            self.handler.save()
            raise Interrupted

    def _send(self, wire: Wire, frame: Frame) -> None:
        wire.send(frame.to_bytes())
        self.on_frame("server", "out", frame)

    def _receive(self, wire: Wire, timeout: float) -> Frame:
        frame = Frame.from_bytes(wire.receive(timeout))
        self.on_frame("server", "in", frame)
        return frame

    def _handshake(self, wire: Wire) -> None:
        """Send HELLO and wait for WELCOME."""
        hello, frame = self.handler.hello(), None
        wire.send(hello.to_bytes())
        try:
            frame = self._first_frame(wire)
        finally:
            if frame or wire.connected:  # else HELLO has not left
                self.on_frame("server", "out", hello)
        self.on_frame("server", "in", frame)
        if frame.kind == FrameKind.REFUSE:
            self._refused(frame)
        if frame.kind != FrameKind.WELCOME:
            raise WireError(f"expected WELCOME, got {frame.kind.name}.")

    def _first_frame(self, wire: Wire) -> Frame:
        deadline = time.monotonic() + self.timeouts.welcome
        while True:
            try:
                return Frame.from_bytes(wire.receive(min(self.timeouts.tick, self.timeouts.welcome)))
            except TimeoutError:
                self._look()
                if time.monotonic() > deadline:
                    raise

    def _refused(self, frame: Frame) -> None:
        table = frame.json()
        if table.get("code") in ("busy", "silent"):  # the server has not noticed yet that our last connection broke
            raise LinkError(printable(str(table.get("text"))[:2000]))
        raise RefusedError(f"the server refuses {self.handler.name}: {printable(str(table.get('text'))[:2000])}")

    def _serve(self, wire: Wire) -> None:
        """Respond to frames until STOP."""
        began, repeated = time.perf_counter(), 0
        while True:
            self._look()  # whatever is received, and however much of it
            try:
                frame = self._receive(wire, self.timeouts.tick)
            except TimeoutError:
                continue
            if frame.kind == FrameKind.REFUSE:
                self._refused(frame)
            if frame.kind == FrameKind.WELCOME and repeated < MOST_REPEATED:
                repeated += 1
                continue
            self.waited += time.perf_counter() - began
            response = self._respond(wire, frame)
            if response:
                self._send(wire, response)
                if response.kind == FrameKind.BYE:
                    return
                self.handler.save_if_due()
            began = time.perf_counter()

    def _respond(self, wire: Wire, frame: Frame) -> Frame | None:
        """Return the response to a frame; if it is refused, tell the server why."""
        try:
            return self.handler.respond(frame)
        except WorkerError:  # a failure on our side: the server waits, as after a crash
            raise
        except EfvflError as error:
            self._send(wire, json_frame(FrameKind.REFUSE, {"code": "wrong", "text": str(error)}))
            raise
