"""What the server says on its links: every party gets every request once, whatever is repeated, lost or cut.

Requests are numbered, and a party answers request n with reply n. A party that comes, or comes back, says how many it
has handled; it is sent the next one, from the log if need be, and so on until it has caught up. A party that is ahead,
because the server restarted from a checkpoint, answers again from its own log. So nobody ever rolls back.

With a pipeline, request n + 1 is sent before reply n is here. Replies are taken in order all the same: one that comes
before its turn is put aside unread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from efvfl.errors import AbsentError, EfvflError, ProtocolError
from efvfl.network.links.connections import Connection, Connections, ServerTimeouts
from efvfl.network.links.frame import Frame, FrameKind, json_frame, pack, unpack
from efvfl.network.links.message_log import MessageLog
from efvfl.wire.ledger import Ledger
from efvfl.wire.message import Kind, Message


@dataclass(frozen=True)
class Out:
    """A request that is out: what every party is told, and its bytes."""

    messages: dict[str, Message]
    data: dict[str, bytes]


class Requests(Connections):
    """A transport over wires."""

    def __init__(
        self,
        names: list[str],
        message_log: MessageLog,
        ledger: Ledger,
        greet: Callable[[str, dict[str, Any], int], None],
        check: Callable[[str, Message], None],
        patience: ServerTimeouts | None = None,
        on_missing: Literal["wait", "stop", "stale"] = "wait",
        wrote: Callable[[str, str, Frame], None] | None = None,
    ) -> None:
        """Serve parties of these names.

        `greet` refuses a HELLO that does not fit, `check` a reply; both by raising. `wrote` hears of every frame.
        """
        super().__init__(names, patience, wrote)
        self.message_log = message_log
        self.ledger = ledger
        self.greet = greet
        self.check = check
        self.on_missing = on_missing
        self.number = 0  # of the oldest request that is out, or of the next one
        self.durable = 0  # the server's checkpoint covers all requests below this one
        self.left: dict[str, int] = {}  # parties that steps go without, and the last request that was meant for them
        self._out: dict[int, Out] = {}  # by number
        self._replies: dict[str, tuple[Message, bytes]] = {}  # to the oldest of them
        self._early: dict[str, Frame] = {}  # replies that came before their turn, unread
        self._question: dict[str, bytes] = {}
        self._asked = 0
        self._answers: dict[str, bytes] = {}
        self._check_answer: Callable[[str, bytes], None] = lambda name, answer: None
        self._finished = False
        self.saved: set[str] = set()  # parties that know that all is done
        self._marks: dict[str, int] = {}  # how far every party's own checkpoint is

    # What the server does.

    @property
    def under_way(self) -> int:
        """How many requests were sent and are not collected."""
        return len(self._out)

    def stage(self, messages: Mapping[str, Message], ahead: int = 0) -> None:
        """Put a request in the log, or see that it is the one that is there since before a restart.

        So many requests `ahead` of it are not collected yet.
        """
        # Who was away when cannot be computed again: then the disk itself must have it before anybody hears of it.
        self.message_log.append(self.number + ahead, pack(messages), durable=self.on_missing == "stale")

    def send(self, messages: Mapping[str, Message]) -> None:
        """Send every party its message. The log has them before they leave."""
        number = self.number + self.under_way
        if number not in self.message_log:
            self.stage(messages, self.under_way)
        for name in [name for name in self.left if name in messages]:
            left, link = self.left.pop(name), self.links.get(name)
            if link is not None and link.position > left:  # else it first needs what it missed before it left
                link.position = number
        self._out[number] = Out(dict(messages), {name: message.to_bytes() for name, message in messages.items()})
        self._advance()

    def collect(self) -> dict[str, Message]:
        """Wait for all answers to the oldest request that is out.

        Where steps may go without a party, those of parties that are missing are left out.
        """
        out = self._out[self.number]
        self._take_early()
        planned = self._planned(out)
        self._wait(partial(self._enough, set(out.data), planned))
        taken = self._replies.keys() if planned is None else planned
        found = {name: self._replies[name] for name in out.data if name in taken}
        replies = {name: reply for name, (reply, _) in found.items()}
        for name, (reply, data) in found.items():  # counted now, so that an interrupted request is not counted twice
            self.ledger.record("down", name, out.messages[name], len(out.data[name]))
            self.ledger.record("up", name, reply, len(data))
        for name in set(out.data) - set(found):
            self.left[name] = self.number
        del self._out[self.number]
        self._replies = {}
        self.number += 1
        self.message_log.forget(min([self.durable, *(self._marks.get(name, 0) for name in self.names)]))
        return replies

    def _planned(self, out: Out) -> set[str] | None:
        """After a restart the log says whose answers the next request was made from: it must be made from the same."""
        if self.on_missing != "stale" or self.number + 1 not in self.message_log:
            return None
        following = unpack(self.message_log.read(self.number + 1))
        return {name for name, message in following.items() if message.kind != Kind.SYNC} & set(out.data)

    def _enough(self, asked: set[str], planned: set[str] | None) -> bool:
        if planned is not None:
            return planned <= set(self._replies)
        open_ = asked - set(self._replies)
        if not open_ and (asked or not self.left):
            return True
        # With nobody left there is nothing to do but wait, until one is back.
        return self._gone(open_) and bool(self._replies or self.back())

    def _gone(self, names: Iterable[str]) -> bool:
        """Whether steps go on without these: they have been here, and are missing for long enough."""
        now = time.monotonic()
        return self.on_missing == "stale" and all(
            name in self.known and now - self.missing.get(name, now) > self.patience.stale for name in names
        )

    def back(self) -> list[str]:
        """Return who was away and can go on now: here again, and done with all it was asked before it left."""
        number = self.number + self.under_way
        if number in self.message_log:  # after a restart: as before it
            following = unpack(self.message_log.read(number))
            return [name for name, message in following.items() if message.kind == Kind.SYNC]
        links = [self.links[name] for name in self.left if name in self.links]
        return [link.name for link in links if not link.waiting and link.position > self.left[link.name]]

    def ask(
        self,
        questions: Mapping[str, bytes],
        check: Callable[[str, bytes], None] = lambda name, answer: None,
        over: Callable[[], bool] = lambda: False,
    ) -> dict[str, bytes]:
        """Ask parties something that changes nothing; return their answers, without those of parties that are away.

        `check` refuses an answer by raising. Once `over`, answers that are still to come are not waited for.
        """
        self._question, self._answers, self._check_answer = dict(questions), {}, check
        self._asked += 1
        self._advance()
        self._wait(lambda: not (open_ := set(self._question) - set(self._answers)) or self._gone(open_) or over())
        self._question = {}
        return dict(self._answers)

    def finish(self) -> set[str]:
        """Tell the parties that all is done and wait until they have saved; return those that did not."""
        self._finished = True
        self._advance()
        deadline = time.monotonic() + self.patience.linger
        while self._listen():  # a party that died after its BYE may be back: it is told again
            pass
        self._wait(lambda: (self.saved >= set(self.names) and not self.links) or time.monotonic() > deadline)
        return set(self.names) - self.saved

    # One thing at a time on every link, but for requests of a pipeline.

    def _advance(self) -> None:
        for link in list(self.links.values()):
            self._next(link)

    def _next(self, link: Connection) -> None:
        """Send a party whatever it needs next, if anything: what it has missed one by one, then all that is out."""
        name = link.name
        if any(frame.kind != FrameKind.REQUEST or frame.number < self.number for frame in link.waiting):
            return
        while link.position < min(self.number, self.left.get(name, self.number - 1) + 1):
            missed = unpack(self.message_log.read(link.position)).get(name)
            if missed:
                self._send(link, self._request(link.position, missed.to_bytes()))
                return
            link.position += 1  # asked of the others while it was away
        for number, out in self._out.items():
            if name in out.data and not link.asked(FrameKind.REQUEST, number) and not self._answered(name, number):
                self._send(link, self._request(number, out.data[name]))
        if link.waiting:
            return
        if name in self._question and name not in self._answers:
            self._send(link, Frame(FrameKind.ASK, self._asked, self.durable, self._question[name]))
        elif self._finished:  # one that was away to the end has not heard of the last requests
            self._send(link, Frame(FrameKind.STOP, link.position if name in self.left else self.number, self.durable))

    def _answered(self, name: str, number: int) -> bool:
        early = self._early.get(name)
        return (number == self.number and name in self._replies) or (early is not None and early.number == number)

    def _request(self, number: int, data: bytes) -> Frame:
        return Frame(FrameKind.REQUEST, number, self.durable, data)

    def _look_at_clock(self) -> None:
        super()._look_at_clock()
        if self.on_missing == "stop" and not self._finished:
            for name, since in self.missing.items():
                if (gone := time.monotonic() - since) > self.patience.absent:
                    raise AbsentError(
                        f"{name} has been missing for {gone:,.0f} seconds, and on_missing is 'stop'. Everything is "
                        "saved: start again when it is back, or set on_missing = 'wait'."
                    )

    def _admit(self, name: str, table: dict[str, Any], frame: Frame) -> Frame:
        if frame.number < self.number and frame.number not in self.message_log:
            raise ProtocolError(
                f"{name} has handled {frame.number} requests, but the log here begins at {self.message_log.start}: its "
                "folder is older than it was when it last spoke. Was it restored from a backup? Put its newest folder "
                "back, or start all anew in empty folders."
            )
        self.greet(name, table, frame.number)
        self._mark(name, frame)
        return json_frame(FrameKind.WELCOME, {"number": self.number}, durable=self.durable)

    def _handle(self, link: Connection, frame: Frame) -> None:
        if frame.kind == FrameKind.REPLY:
            self._reply(link, frame)
        elif frame.kind == FrameKind.ANSWER:
            self._answer(link, frame)
        elif frame.kind == FrameKind.BYE:
            self._bye(link, frame)
        else:
            raise ProtocolError(f"a party does not send {frame.kind.name}.")

    def _mark(self, name: str, frame: Frame) -> None:
        """Note how far a party's own checkpoint is."""
        self._marks[name] = max(self._marks.get(name, 0), min(frame.durable, frame.number + 1))

    def _reply(self, link: Connection, frame: Frame) -> None:
        self._mark(link.name, frame)
        asked = link.asked(FrameKind.REQUEST, frame.number)
        if asked is None:
            if frame.number < max(link.position, self.number):
                return  # repeated on its way
            raise ProtocolError(f"{link.name} sent reply {frame.number}, which nobody asked for.")
        if frame.number == self.number:
            self._take(link.name, frame)
        elif frame.number > self.number:
            self._early[link.name] = frame
        link.waiting.remove(asked)
        link.position = max(link.position, frame.number + 1)
        self._next(link)

    def _take(self, name: str, frame: Frame) -> None:
        """Take a reply to the oldest request that is out."""
        message = Message.from_bytes(frame.body)
        self.check(name, message)
        self._replies[name] = (message, frame.body)

    def _take_early(self) -> None:
        """Take the replies whose turn has come; one that is wrong is asked for again, if its party comes back."""
        early, self._early = self._early, {}
        for name, frame in early.items():
            try:
                self._take(name, frame)
            except EfvflError as error:
                if name in self.links:
                    self._refuse(self.links[name], "wrong", str(error))

    def _answer(self, link: Connection, frame: Frame) -> None:
        asked = link.asked(FrameKind.ASK, frame.number)
        if asked is None:
            if frame.number <= self._asked:
                return  # repeated on its way
            raise ProtocolError(f"{link.name} sent answer {frame.number}, which nobody asked for.")
        link.waiting.remove(asked)
        if frame.number == self._asked and link.name in self._question:
            self._check_answer(link.name, frame.body)
            self._answers[link.name] = frame.body
        self._next(link)

    def _bye(self, link: Connection, frame: Frame) -> None:
        self._mark(link.name, frame)
        if self._finished and (frame.number >= self.number or link.name in self.left):
            self.saved.add(link.name)
        self._drop(link, "it said BYE")
