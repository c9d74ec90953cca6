"""The server's end of all links: every party gets every request once, whatever is repeated, lost or cut.

Requests are numbered, and a party answers request n with reply n. A party that comes, or comes back, says how many it
has handled; the hub sends it the next one, from its log if need be, and so on until it has caught up. A party that is
ahead, because the server restarted from a checkpoint, answers again from its own log. So nobody ever rolls back.

One thread owns all of this: wires only put what they hear in a queue, and it is looked at while the server waits.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from efvfl.errors import AbsentError, EfvflError, Interrupted, LinkError, ProtocolError
from efvfl.ledger import Ledger
from efvfl.network.frame import Frame, FrameKind, pack, unpack, words
from efvfl.network.journal import Journal
from efvfl.network.wire import Wire
from efvfl.packet import Message

log = logging.getLogger("efvfl")

ROOM = 8  # frames of one party that may wait to be looked at: a flood blocks nobody but its sender


@dataclass(frozen=True)
class Patience:
    """How long to wait for what, in seconds."""

    hello: float = 10.0  # from a connection to its HELLO
    repeat: float = 30.0  # for a reply, until the request is sent again
    tick: float = 0.2  # between two looks at the clock
    absent: float = 3600.0  # for a missing party, where on_missing is 'stop'
    linger: float = 60.0  # at the end, for the parties to save


@dataclass(eq=False)
class Link:
    """One connection."""

    wire: Wire
    certified: str | None  # the name in its certificate; None: plaintext, which loopback alone may use
    opened: float = field(default_factory=time.monotonic)
    name: str = ""  # once it is welcome
    position: int = 0  # requests it has handled
    waiting: Frame | None = None  # what it was sent and has not answered
    sent: float = 0.0
    room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(ROOM))


class Hub:
    """A transport over wires."""

    def __init__(
        self,
        names: list[str],
        journal: Journal,
        ledger: Ledger,
        greet: Callable[[str, dict[str, Any], int], None],
        check: Callable[[str, Message], None],
        patience: Patience | None = None,
        on_missing: Literal["wait", "stop"] = "wait",
        wrote: Callable[[str, str, Frame], None] | None = None,
    ) -> None:
        """Serve parties of these names.

        `greet` refuses a HELLO that does not fit, `check` a reply; both by raising. `wrote` hears of every frame.
        """
        self.names = names
        self.journal = journal
        self.ledger = ledger
        self.greet = greet
        self.check = check
        self.patience = patience or Patience()
        self.on_missing = on_missing
        self.wrote = wrote or (lambda name, direction, frame: None)
        self.number = 0  # of the request that is out, or will be next
        self.durable = 0  # the server's checkpoint covers all requests below this one
        self.stopping = threading.Event()
        self.links: dict[str, Link] = {}
        self.missing: dict[str, float] = dict.fromkeys(names, time.monotonic())  # since when
        self.waited = 0.0  # seconds spent waiting for parties
        self.on_tick: Callable[[], None] = lambda: None
        self._strangers: set[Link] = set()
        self._events: queue.SimpleQueue[tuple[Link, Frame | EfvflError]] = queue.SimpleQueue()
        self._bytes: dict[str, bytes] = {}  # the request that is out, by party
        self._messages: dict[str, Message] = {}
        self._replies: dict[str, tuple[Message, bytes]] = {}
        self._question: dict[str, bytes] = {}
        self._asked = 0
        self._answers: dict[str, bytes] = {}
        self._finished = False
        self.saved: set[str] = set()  # parties that know that all is done
        self._marks: dict[str, int] = {}  # how far every party's own checkpoint is

    # Wires come and go on threads of their own.

    def accept(self, wire: Wire, certified: str | None) -> None:
        """Take a new connection."""
        link = Link(wire, certified)
        self._events.put((link, Frame(FrameKind.WELCOME)))  # it has opened
        threading.Thread(target=self._read, args=(link,), daemon=True, name="efvfl-link").start()

    def _read(self, link: Link) -> None:
        try:
            while True:
                frame = Frame.from_bytes(link.wire.receive(None))
                link.room.acquire()
                self._events.put((link, frame))
        except EfvflError as error:
            self._events.put((link, error))

    # What the server does.

    def stage(self, messages: Mapping[str, Message]) -> None:
        """Put the next request in the log, or see that it is the one that is there since before a restart."""
        self.journal.append(self.number, pack(messages))

    def exchange(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Send every party its message, and return all answers."""
        self.send(messages)
        return self.collect()

    def send(self, messages: Mapping[str, Message]) -> None:
        """Send every party its message. The log has them before they leave."""
        if self.number not in self.journal:
            self.stage(messages)
        self._messages = dict(messages)
        self._bytes = {name: message.to_bytes() for name, message in messages.items()}
        self._replies = {}
        self._advance()

    def collect(self) -> dict[str, Message]:
        """Wait for all answers."""
        self._wait(lambda: len(self._replies) == len(self._bytes))
        replies = {name: self._replies[name][0] for name in self._bytes}
        for name, data in self._bytes.items():  # counted now, so that an interrupted request is not counted twice
            self.ledger.record("down", name, self._messages[name], data)
            self.ledger.record("up", name, *self._replies[name])
        self._bytes = {}
        self.number += 1
        self.journal.forget(min([self.durable, *(self._marks.get(name, 0) for name in self.names)]))
        return replies

    def ask(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """Ask parties something that changes nothing; return their answers."""
        self._question, self._answers = dict(questions), {}
        self._asked += 1
        self._advance()
        self._wait(lambda: len(self._answers) == len(self._question))
        self._question = {}
        return {name: self._answers[name] for name in questions}

    def finish(self) -> set[str]:
        """Tell the parties that all is done and wait until they have saved; return those that did not."""
        self._finished = True
        self._advance()
        deadline = time.monotonic() + self.patience.linger
        self._wait(lambda: self.saved >= set(self.names) or time.monotonic() > deadline)
        return set(self.names) - self.saved

    def close(self) -> None:
        """Cut all wires."""
        for link in (*self.links.values(), *self._strangers):
            link.wire.close()
        self.links.clear()
        self._strangers.clear()

    # One thing at a time on every link.

    def _advance(self) -> None:
        for link in list(self.links.values()):
            self._next(link)

    def _next(self, link: Link) -> None:
        """Send a party that owes nothing whatever it needs next, if anything."""
        if link.waiting is not None:
            return
        name = link.name
        if link.position < self.number:
            self._send(link, self._request(link.position, unpack(self.journal.read(link.position))[name].to_bytes()))
        elif name in self._bytes and name not in self._replies:
            self._send(link, self._request(self.number, self._bytes[name]))
        elif name in self._question and name not in self._answers:
            self._send(link, Frame(FrameKind.ASK, self._asked, self.durable, self._question[name]))
        elif self._finished and name not in self.saved:
            self._send(link, Frame(FrameKind.STOP, self.number, self.durable))

    def _request(self, number: int, data: bytes) -> Frame:
        return Frame(FrameKind.REQUEST, number, self.durable, data)

    def _send(self, link: Link, frame: Frame) -> None:
        link.waiting, link.sent = frame, time.monotonic()
        self._put(link, frame)

    def _put(self, link: Link, frame: Frame) -> None:
        try:
            link.wire.send(frame.to_bytes())
        except LinkError as error:
            self._drop(link, str(error))
            return
        self.wrote(link.name or link.certified or "?", "out", frame)

    def _wait(self, done: Callable[[], bool]) -> None:
        """Listen until `done`."""
        began = time.monotonic()
        while not done():
            if self.stopping.is_set():
                raise Interrupted("stopped as asked: everything is saved, the same command goes on from here.")
            try:
                link, item = self._events.get(timeout=self.patience.tick)
            except queue.Empty:
                self._look_at_clock()
                continue
            if isinstance(item, Frame):
                if item.kind != FrameKind.WELCOME:
                    link.room.release()
                self._hear(link, item)
            else:
                self._drop(link, str(item))
        self.waited += time.monotonic() - began

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        for link in [link for link in self._strangers if now - link.opened > self.patience.hello]:
            self._refuse(link, "silent", f"no HELLO came within {self.patience.hello:g} seconds.")
        for link in [link for link in self.links.values() if now - link.sent > self.patience.repeat]:
            if link.waiting is not None:
                self._send(link, link.waiting)
        if self.on_missing == "stop" and not self._finished:
            for name, since in self.missing.items():
                if now - since > self.patience.absent:
                    raise AbsentError(
                        f"{name} has been missing for {now - since:,.0f} seconds, and on_missing is 'stop'. Everything "
                        "is saved: start again when it is back, or set on_missing = 'wait'."
                    )
        self.on_tick()

    def _hear(self, link: Link, frame: Frame) -> None:
        if frame.kind == FrameKind.WELCOME and not link.name:
            self._strangers.add(link)
            return
        if link not in self._strangers and self.links.get(link.name) is not link:
            return  # its wire is cut already
        self.wrote(link.name or link.certified or "?", "in", frame)
        try:
            if not link.name:
                self._welcome(link, frame)
            elif frame.kind == FrameKind.REPLY:
                self._reply(link, frame)
            elif frame.kind == FrameKind.ANSWER:
                self._answer(link, frame)
            elif frame.kind == FrameKind.BYE:
                self._bye(link, frame)
            elif frame.kind == FrameKind.REFUSE:
                self._drop(link, f"it refuses: {frame.words().get('text', '')!s:.2000}", loud=True)
            elif frame.kind != FrameKind.HELLO:  # a HELLO that was repeated on its way is no harm
                raise ProtocolError(f"a party does not send {frame.kind.name}.")
        except EfvflError as error:
            self._refuse(link, "wrong", str(error))

    def _welcome(self, link: Link, frame: Frame) -> None:
        if frame.kind != FrameKind.HELLO:
            raise ProtocolError(f"{frame.kind.name} came, a connection starts with HELLO.")
        table = frame.words()
        name = table.get("name")
        if not isinstance(name, str) or name not in self.names:
            raise ProtocolError(f"{name!r:.80} is not a party of this federation; they are {', '.join(self.names)}.")
        if link.certified not in (None, name):
            raise ProtocolError(f"the certificate is {link.certified!r}'s, but {name!r} says HELLO with it.")
        if name in self.links:
            self._refuse(link, "busy", f"{name} is connected already: a second one must wait until the first is gone.")
            return
        self.greet(name, table, frame.number)
        self._strangers.discard(link)
        link.name, link.position = name, frame.number
        self.links[name] = link
        self.missing.pop(name, None)
        self._mark(name, frame)
        log.info("%s is here, after request %d", name, frame.number)
        self._put(link, words(FrameKind.WELCOME, {"number": self.number}, durable=self.durable))
        self._next(link)

    def _mark(self, name: str, frame: Frame) -> None:
        """Note how far a party's own checkpoint is."""
        self._marks[name] = max(self._marks.get(name, 0), frame.durable)

    def _reply(self, link: Link, frame: Frame) -> None:
        self._mark(link.name, frame)
        asked = link.waiting
        if asked is None or asked.kind != FrameKind.REQUEST or frame.number != asked.number:
            if frame.number < max(link.position, self.number):
                return  # repeated on its way
            raise ProtocolError(f"{link.name} sent reply {frame.number}, which nobody asked for.")
        if frame.number == self.number:
            message = Message.from_bytes(frame.body)
            self.check(link.name, message)
            self._replies[link.name] = (message, frame.body)
        link.waiting, link.position = None, max(link.position, frame.number + 1)
        self._next(link)

    def _answer(self, link: Link, frame: Frame) -> None:
        asked = link.waiting
        if asked is None or asked.kind != FrameKind.ASK or frame.number != asked.number:
            if frame.number <= self._asked:
                return  # repeated on its way
            raise ProtocolError(f"{link.name} sent answer {frame.number}, which nobody asked for.")
        link.waiting = None
        if frame.number == self._asked and link.name in self._question:
            self._answers[link.name] = frame.body
        self._next(link)

    def _bye(self, link: Link, frame: Frame) -> None:
        self._mark(link.name, frame)
        if self._finished and frame.number >= self.number:
            self.saved.add(link.name)
        self._drop(link, "it said BYE")

    def _refuse(self, link: Link, code: str, text: str) -> None:
        """Say why, and cut the wire. Nothing else changes: the others go on."""
        log.warning("refused %s: %s", link.name or link.certified or "a connection", text)
        with contextlib.suppress(LinkError):
            link.wire.send(words(FrameKind.REFUSE, {"code": code, "text": text}).to_bytes())
        self._drop(link, text)

    def _drop(self, link: Link, reason: str, loud: bool = False) -> None:
        link.wire.close()
        self._strangers.discard(link)
        if link.name and self.links.get(link.name) is link:
            del self.links[link.name]
            self.missing[link.name] = time.monotonic()
            log.log(logging.WARNING if loud else logging.INFO, "%s is gone: %s", link.name, reason)
