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

from efvfl.errors import CheckpointError, EfvflError, Interrupted, LinkError, ProtocolError
from efvfl.network.links.frame import Frame, FrameKind, json_frame, printable
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

    @property
    def title(self) -> str:
        """Who it is, as far as is known."""
        return self.name or self.certified or "?"

    def asked(self, kind: FrameKind, number: int) -> Frame | None:
        """Return what it was sent of this kind and number, if it has not answered."""
        return next((frame for frame in self.waiting if (frame.kind, frame.number) == (kind, number)), None)


class Connections(ABC):
    """All connections of a server. What is said on them is for a subclass to decide."""

    def __init__(self, presence: Presence, patience: ServerTimeouts | None = None, hooks: Hooks | None = None) -> None:
        """Welcome the parties that are expected, each once at a time."""
        self.presence = presence
        self.patience = patience or ServerTimeouts()
        self.hooks = hooks or Hooks()
        self.stopping = threading.Event()
        self.links: dict[str, Connection] = {}
        self.waited = 0.0  # seconds spent waiting for parties
        self._strangers: set[Connection] = set()
        # Not a SimpleQueue: its timeout can be lost when a signal handler runs meanwhile (seen with Python 3.11).
        self._events: queue.Queue[tuple[Connection, Frame | EfvflError | None] | None] = queue.Queue()
        self._looked = 0.0

    @abstractmethod
    def _admit(self, name: str, table: dict[str, Any], frame: Frame) -> Frame:
        """Refuse a HELLO that does not fit, by raising; return what is said in return."""

    @abstractmethod
    def _handle(self, link: Connection, frame: Frame) -> None:
        """Deal with a frame of a party that is welcome, or refuse it by raising."""

    @abstractmethod
    def _next(self, link: Connection) -> None:
        """Send a party whatever it needs next, if anything."""

    @property
    def names(self) -> list[str]:
        """The parties that are expected."""
        return self.presence.names

    # Wires come and go on threads of their own.

    def accept(self, wire: Wire, certified: str | None) -> None:
        """Take a new connection."""
        link = Connection(wire, certified)
        self._events.put((link, None))
        threading.Thread(target=self._read, args=(link,), daemon=True, name="efvfl-link").start()

    def _read(self, link: Connection) -> None:
        try:
            while True:
                frame = Frame.from_bytes(link.wire.receive(None))
                link.room.acquire()
                self._events.put((link, frame))
        except EfvflError as error:
            self._events.put((link, error))

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
        """Cut all wires."""
        for link in (*self.links.values(), *self._strangers):
            link.wire.close()
        self.links.clear()
        self._strangers.clear()

    def _wait(self, done: Callable[[], bool]) -> None:
        """Listen until `done`."""
        began = time.monotonic()
        while not done():
            if self.stopping.is_set():
                raise Interrupted
            if time.monotonic() - self._looked >= self.patience.tick:
                self._look_at_clock()
            self._listen(self.patience.tick)
        self.waited += time.monotonic() - began

    def _listen(self, seconds: float = 0.0) -> bool:
        """Deal with one event of a wire; return False if there was none in time."""
        try:
            event = self._events.get(timeout=seconds) if seconds else self._events.get_nowait()
        except queue.Empty:
            return False
        if event is None:
            return True
        link, item = event
        if item is None:
            self._strangers.add(link)
        elif isinstance(item, Frame):
            link.room.release()
            self._receive(link, item)
        else:
            self._drop(link, str(item))
        return True

    def _look_at_clock(self) -> None:
        now = self._looked = time.monotonic()
        for link in [link for link in self._strangers if now - link.opened > self.patience.hello]:
            self._refuse(link, "silent", f"no HELLO was received within {self.patience.hello:g} seconds.")
        for link in [link for link in self.links.values() if now - link.sent > self.patience.repeat]:
            link.sent = now
            for frame in link.waiting:
                self._put(link, frame)
        self.hooks.on_tick()

    def _receive(self, link: Connection, frame: Frame) -> None:
        if link not in self._strangers and self.links.get(link.name) is not link:
            return  # its wire is cut already
        self.hooks.on_frame(link.title, "in", frame)
        try:
            if not link.name:
                self._welcome(link, frame)
            elif frame.kind == FrameKind.REFUSE:
                self._drop(link, f"it refuses: {frame.json().get('text', '')!s:.2000}", loud=True)
            elif frame.kind != FrameKind.HELLO:  # a HELLO that was repeated on its way is no harm
                self._handle(link, frame)
        except CheckpointError:
            raise  # our own disk, not their fault
        except EfvflError as error:
            self._refuse(link, "wrong", str(error))

    def _welcome(self, link: Connection, frame: Frame) -> None:
        if frame.kind != FrameKind.HELLO:
            raise ProtocolError(f"expected HELLO as the first frame of a connection, got {frame.kind.name}.")
        table = frame.json()
        name = table.get("name")
        if not isinstance(name, str) or name not in self.names:
            raise ProtocolError(f"{name!r:.80} is not a party of this federation; they are {', '.join(self.names)}.")
        if link.certified not in (None, name):
            raise ProtocolError(f"the certificate is that of {link.certified!r}, but {name!r} says HELLO with it.")
        if name in self.links:
            self._refuse(link, "busy", f"{name} is connected already: a second one must wait until the first is gone.")
            return
        welcome = self._admit(name, table, frame)
        self._strangers.discard(link)
        link.name, link.position = name, frame.number
        self.links[name] = link
        self.presence.arrive(name)
        log.info("%s is here, after request %d", name, frame.number)
        self._put(link, welcome)
        self._next(link)

    def _send(self, link: Connection, frame: Frame) -> None:
        """Send a frame that is to be answered."""
        link.waiting.append(frame)
        link.sent = time.monotonic()
        self._put(link, frame)

    def _put(self, link: Connection, frame: Frame) -> None:
        try:
            link.wire.send(frame.to_bytes())
        except LinkError as error:
            self._drop(link, str(error))
            return
        self.hooks.on_frame(link.title, "out", frame)

    def _refuse(self, link: Connection, code: str, text: str) -> None:
        """Say why, and cut the wire. Nothing else changes: the others go on."""
        log.warning("refused %s: %s", link.name or link.certified or "a connection", printable(text))
        with contextlib.suppress(LinkError):
            frame = json_frame(FrameKind.REFUSE, {"code": code, "text": text})
            link.wire.send(frame.to_bytes())
            self.hooks.on_frame(link.title, "out", frame)
        self._drop(link, text)

    def _drop(self, link: Connection, reason: str, loud: bool = False) -> None:
        link.wire.close()
        self._strangers.discard(link)
        if link.name and self.links.get(link.name) is link:
            del self.links[link.name]
            self.presence.depart(link.name)
            log.log(logging.WARNING if loud else logging.INFO, "%s is gone: %s", link.name, printable(reason))
