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
from efvfl.network.links.line_errors import LineError
from efvfl.network.links.wire import Wire

log = logging.getLogger("efvfl")

Dial: TypeAlias = Callable[[], Wire]
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
    hopeless: float = 1.0  # of a reason that dialling again does not mend, until it is given up


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
    ) -> None:
        """Respond on whatever wire `dial` returns; `on_frame` is called for every frame, `on_tick` while waiting."""
        self.handler = handler
        self.dial = dial
        self.timeouts = timeouts or PartyTimeouts()
        self.on_frame = on_frame or (lambda peer, direction, frame: None)
        self.on_tick = on_tick or (lambda: None)
        self.stopping = threading.Event()
        self.connected = False
        self.waited = 0.0  # seconds spent waiting for the server
        self._last_error = ""
        self._welcomed = False  # at least once: what was right before may become so again
        self._hopeless = 0.0  # since when the reason is one that dialling again does not mend; 0: it is not

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
            except (LinkError, WireError, TimeoutError) as error:
                self._judge(error)
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

    def _judge(self, error: Exception) -> None:
        """End this party if certificates must change before there can be a connection.

        Once is not enough to give up: a server that is about to stop looks like one that refuses us.
        """
        if not isinstance(error, LineError) or not error.final:
            self._hopeless = 0.0
            return
        self._hopeless = self._hopeless or time.monotonic()
        if not self._welcomed and time.monotonic() - self._hopeless > self.timeouts.hopeless:
            self.handler.save()
            raise ConfigError(f"no link to the server: {error}") from error

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
        self._send(wire, self.handler.hello())
        frame = self._first_frame(wire)
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
