"""The server's connections: parties connect, say who they are, are welcomed or refused, and leave.

One thread owns all of this: wires only put what they receive in a queue, which is read while the server waits.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from efvfl.errors import CheckpointError, EfvflError, Interrupted, LinkError, ProtocolError, printable
from efvfl.network.links.frame import Frame, FrameKind, json_frame
from efvfl.network.links.presence import Presence
from efvfl.network.links.wire import Wire

log = logging.getLogger("efvfl")

ROOM = 8  # frames of one party that may wait to be looked at: a flood blocks nobody but its sender


@dataclass(frozen=True)
class ServerTimeouts:
    """How long to wait for what, in seconds."""

    hello: float = 10.0  # from a connection to its HELLO
    repeat: float = 30.0  # for a reply, until the request is sent again
    tick: float = 0.2  # between two looks at the clock
    absent: float = 3600.0  # for a missing party, where on_missing is 'stop'
    stale: float = 5.0  # for a missing party, where on_missing is 'stale'
    silent: float = 300.0  # for an answer, until a party counts as missing although it is connected
    linger: float = 60.0  # at the end, for the parties to save


@dataclass(frozen=True)
class Hooks:
    """What is called on the way."""

    on_frame: Callable[[str, str, Frame], None] = lambda name, direction, frame: None  # for every frame, 'in' or 'out'
    on_tick: Callable[[], None] = lambda: None  # again and again while the server waits


@dataclass(eq=False)
class Connection:
    """One connection."""

    wire: Wire
    certified: str | None  # the name in its certificate; None: plaintext, which loopback alone may use
    opened: float = field(default_factory=time.monotonic)
    name: str = ""  # once it is welcome
    position: int = 0  # requests it has handled
    waiting: list[Frame] = field(default_factory=list)  # what it was sent and has not answered
    sent: float = 0.0
    room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(ROOM))
    closed: bool = False
    broken: str = ""  # why nothing more can be read from it

    def close(self) -> None:
        """Cut the wire, and let go of the thread that reads from it, which may be waiting for room."""
        self.closed = True
        self.wire.close()
        self.room.release()

    @property
    def title(self) -> str:
        """Who it is, as far as is known."""
        return self.name or self.certified or "?"

    def asked(self, kind: FrameKind, number: int) -> Frame | None:
        """Return what it was sent of this kind and number, if it has not answered."""
        return next((frame for frame in self.waiting if (frame.kind, frame.number) == (kind, number)), None)


class Connections(ABC):
    """All connections of a server. What is said on them is for a subclass to decide."""

    def __init__(self, presence: Presence, timeouts: ServerTimeouts | None = None, hooks: Hooks | None = None) -> None:
        """Welcome the parties that are expected, each once at a time."""
        self.presence = presence
        self.timeouts = timeouts or ServerTimeouts()
        self.hooks = hooks or Hooks()
        self.stopping = threading.Event()
        self.connections: dict[str, Connection] = {}
        self.waited = 0.0  # seconds spent waiting for parties
        self.handled = 0.0  # seconds spent on what came meanwhile, such as decoding it
        self._unidentified: set[Connection] = set()
        # Not a SimpleQueue: its timeout can be lost when a signal handler runs meanwhile (seen with Python 3.11).
        self._events: queue.Queue[tuple[Connection, Frame | EfvflError | None] | None] = queue.Queue()
        self._looked = 0.0

    @abstractmethod
    def _admit(self, name: str, table: dict[str, Any], frame: Frame) -> Frame:
        """Refuse a HELLO that does not fit, by raising; return what is said in return."""

    @abstractmethod
    def _handle(self, connection: Connection, frame: Frame) -> None:
        """Deal with a frame of a party that is welcome, or refuse it by raising."""

    @abstractmethod
    def _next(self, connection: Connection) -> None:
        """Send a party whatever it needs next, if anything."""

    @property
    def names(self) -> list[str]:
        """The parties that are expected."""
        return self.presence.names

    # Wires come and go on threads of their own.

    def accept(self, wire: Wire, certified: str | None) -> None:
        """Take a new connection."""
        connection = Connection(wire, certified)
        self._events.put((connection, None))
        threading.Thread(target=self._read, args=(connection,), daemon=True, name="efvfl-connection").start()

    def _read(self, connection: Connection) -> None:
        try:
            while True:
                frame = Frame.from_bytes(connection.wire.receive(None))
                connection.room.acquire()
                if connection.closed:
                    return
                self._events.put((connection, frame))
        except EfvflError as error:
            connection.broken = str(error)
            connection.wire.close()  # now: the owner's thread may be busy, or done
            self._events.put((connection, error))

    # The owner's thread.

    def idle(self, done: Callable[[], bool]) -> None:
        """Welcome parties and see them off while there is nothing to ask them, until `done`."""
        before = self.waited
        self._wait(done)
        self.waited = before  # no party kept us waiting

    def wake(self) -> None:
        """Have the thread that waits check at once whether it is done; for other threads."""
        self._events.put(None)

    def close(self) -> None:
        """Cut all wires, those included that nobody has looked at yet."""
        with contextlib.suppress(queue.Empty):
            while True:
                if event := self._events.get_nowait():
                    event[0].close()
        for connection in (*self.connections.values(), *self._unidentified):
            connection.close()
        self.connections.clear()
        self._unidentified.clear()

    def _wait(self, done: Callable[[], bool]) -> None:
        """Listen until `done`."""
        began, before = time.monotonic(), self.waited
        while not done():
            if self.stopping.is_set():
                raise Interrupted
            if time.monotonic() - self._looked >= self.timeouts.tick:
                self._look_at_clock()
            self._listen(self.timeouts.tick)
        self.handled += time.monotonic() - began - (self.waited - before)

    def _listen(self, seconds: float = 0.0) -> bool:
        """Deal with one event of a wire; return False if there was none in time."""
        began = time.monotonic()
        try:
            event = self._events.get(timeout=seconds) if seconds else self._events.get_nowait()
        except queue.Empty:
            return False
        finally:
            self.waited += time.monotonic() - began
        if event is None:
            return True
        connection, item = event
        if item is None:
            self._unidentified.add(connection)
        elif isinstance(item, Frame):
            connection.room.release()
            self._receive(connection, item)
        else:
            self._drop(connection, str(item))
        return True

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        # Of the time since the last look, what was spent computing is no fault of the parties.
        self._count_silence(min(now - self._looked, 2 * self.timeouts.tick))
        self._looked = now
        for connection in [
            connection for connection in self._unidentified if now - connection.opened > self.timeouts.hello
        ]:
            self._refuse(connection, "silent", f"no HELLO was received within {self.timeouts.hello:g} seconds.")
        for connection in [
            connection for connection in self.connections.values() if now - connection.sent > self.timeouts.repeat
        ]:
            connection.sent = now
            for frame in connection.waiting if connection.wire.settled else ():  # else it is still on its way
                self._put(connection, frame)
        self.hooks.on_tick()

    def _count_silence(self, seconds: float) -> None:
        """Note who does not answer; one that is silent for too long must dial again, unless all is waited for."""
        asked = [name for name, connection in self.connections.items() if connection.waiting]
        for name in self.presence.wait(asked, seconds, self.timeouts.silent):
            if self.presence.on_missing != "wait" and name in self.connections:
                self._refuse(
                    self.connections[name],
                    "silent",
                    f"{name} is connected, but has not answered for {self.timeouts.silent:g} seconds: if it needs "
                    "longer to compute, raise silent_seconds in the server's file.",
                )

    def _receive(self, connection: Connection, frame: Frame) -> None:
        if connection not in self._unidentified and self.connections.get(connection.name) is not connection:
            return  # its wire is cut already
        self.hooks.on_frame(connection.title, "in", frame)
        try:
            if not connection.name:
                self._welcome(connection, frame)
            elif frame.kind == FrameKind.REFUSE:
                self._drop(connection, f"it refuses: {frame.json().get('text', '')!s:.2000}", loud=True)
            elif frame.kind != FrameKind.HELLO:  # a HELLO that was repeated on its way is no harm
                self._handle(connection, frame)
        except CheckpointError:
            raise  # our own disk, not their fault
        except EfvflError as error:
            self._refuse(connection, "wrong", str(error))

    def _welcome(self, connection: Connection, frame: Frame) -> None:
        if frame.kind != FrameKind.HELLO:
            raise ProtocolError(f"expected HELLO as the first frame of a connection, got {frame.kind.name}.")
        table = frame.json()
        name = table.get("name")
        if not isinstance(name, str) or name not in self.names:
            raise ProtocolError(f"{name!r:.80} is not a party of this federation; they are {', '.join(self.names)}.")
        if connection.certified not in (None, name):
            raise ProtocolError(
                f"the certificate is that of {connection.certified!r}, but {name!r} says HELLO with it."
            )
        if name in self.connections:
            self._refuse(
                connection, "busy", f"{name} is connected already: a second one must wait until the first is gone."
            )
            return
        welcome = self._admit(name, table, frame)
        connection.wire.trust()
        self._unidentified.discard(connection)
        connection.name, connection.position = name, frame.number
        self.connections[name] = connection
        self.presence.arrive(name)
        log.info("%s is here, after request %d", name, frame.number)
        self._put(connection, welcome)
        self._next(connection)

    def _send(self, connection: Connection, frame: Frame) -> None:
        """Send a frame that is to be answered."""
        connection.waiting.append(frame)
        connection.sent = time.monotonic()
        self.presence.ask(connection.name)  # now: one that answers wrongly may be gone before the clock is looked at
        self._put(connection, frame)

    def _put(self, connection: Connection, frame: Frame) -> None:
        try:
            connection.wire.send(frame.to_bytes())
        except LinkError as error:
            self._drop(connection, connection.broken or str(error))
            return
        self.hooks.on_frame(connection.title, "out", frame)

    def _refuse(self, connection: Connection, code: str, text: str) -> None:
        """Say why, and cut the wire. Nothing else changes: the others go on."""
        log.warning("refused %s: %s", connection.name or connection.certified or "a connection", printable(text))
        with contextlib.suppress(LinkError):
            frame = json_frame(FrameKind.REFUSE, {"code": code, "text": text})
            connection.wire.send(frame.to_bytes())
            self.hooks.on_frame(connection.title, "out", frame)
        self._drop(connection, text)

    def _drop(self, connection: Connection, reason: str, loud: bool = False) -> None:
        connection.close()
        self._unidentified.discard(connection)
        if connection.name and self.connections.get(connection.name) is connection:
            del self.connections[connection.name]
            self.presence.depart(connection.name)
            log.log(logging.WARNING if loud else logging.INFO, "%s is gone: %s", connection.name, printable(reason))
