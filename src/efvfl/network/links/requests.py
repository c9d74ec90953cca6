"""The server's requests over a network: every party gets every request once, whatever is repeated, lost or cut.

Requests are numbered, and a party answers request n with reply n. A party that connects, for the first time or again,
says how many it has handled; it is sent the next one, from the log if need be, and so on until it has caught up. A
party that is ahead, because the server restarted from a checkpoint, replies again from its own log. So nobody ever
rolls back.

With a pipeline, further requests are sent before reply n is here. Replies are taken in order all the same: one that
comes before its turn is put aside unread. A party that steps go without still gets what was under way for it then, but
what it replies is not taken. Asynchronous parties have one open request each, and are asked again one by one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from efvfl.errors import EfvflError, ProtocolError
from efvfl.network.links.asking import Asking
from efvfl.network.links.checks import Checks, ahead, behind
from efvfl.network.links.connections import Connection, Hooks, ServerTimeouts
from efvfl.network.links.frame import Frame, FrameKind, json_frame, pack, unpack
from efvfl.network.links.message_log import MessageLog
from efvfl.network.links.open_requests import OpenRequests
from efvfl.network.links.posted import LocalParty, Posted
from efvfl.network.links.presence import Presence
from efvfl.network.links.replay import Replay
from efvfl.training.arrivals import Enough
from efvfl.training.transport import Request
from efvfl.wire.ledger import Ledger
from efvfl.wire.message import Kind, Message


class Requests(Asking):
    """A transport over wires; it keeps the contract of `efvfl.training.transport`."""

    def __init__(
        self,
        presence: Presence,
        message_log: MessageLog,
        ledger: Ledger,
        checks: Checks,
        timeouts: ServerTimeouts | None = None,
        hooks: Hooks | None = None,
        local: Mapping[str, LocalParty] | None = None,
    ) -> None:
        """Serve the parties that are expected, and those in this process."""
        super().__init__(presence, timeouts, hooks, local)
        self.message_log = message_log
        self.replay = Replay(message_log)
        self.ledger = ledger
        self.checks = checks
        self.durable = 0  # the server's checkpoint covers all requests below this one
        self.told: set[str] = set()  # parties that know that all is done
        self.out = OpenRequests(presence.asynchronous)
        self._replies: dict[str, tuple[Message, bytes]] = {}  # to the oldest of them
        self._early: dict[tuple[str, int], Frame] = {}  # replies received before their turn, unread; by number
        self._finished = False
        self._marks: dict[str, int] = {}  # how far every party's own checkpoint is

    # What the server does.

    @property
    def here(self) -> Collection[str]:
        """The parties in this process."""
        return self.local.keys()

    @property
    def number(self) -> int:
        """The number of the oldest request that is under way, or of the next one."""
        return self.out.number

    @property
    def under_way(self) -> list[Request]:
        """The requests that were posted and not collected, oldest first."""
        return self.out.requests()

    def post(self, messages: Mapping[str, Message]) -> None:
        """Send every party its message. The log has them before they leave.

        After a restart the log may have this very request already; then it is seen to be the same.
        """
        number = self.out.posted
        # Who reported when cannot be computed again: then the disk itself must have it before anybody hears of it.
        self.message_log.append(number, pack(messages), durable=self.presence.time_decides)
        out = Posted.of(messages, self.local)
        for name in out.data:
            left, connection = self.presence.rejoin(name), self.connections.get(name)
            if left is not None and connection is not None and connection.position > left:
                connection.position = number  # else it first needs what it missed before it left
        self.out.add(out)
        self._advance()

    def collect(self, enough: Enough | None = None) -> dict[str, Message]:
        """Wait for all replies to the oldest request under way, while local parties make theirs.

        Where steps may go without a party, those of parties that are missing are left out. With `enough`, what is still
        to come stays open.
        """
        if not self.out:
            raise ProtocolError("no request is under way: post one before its replies are collected.")
        if enough:
            return self._collect_some(enough)
        out = self.out[self.number]
        own = {name: party.handle(out.messages[name]) for name, party in self.local.items() if name in out.messages}
        self._take_early()
        planned = self.replay.taken(self.out.posted) if self.presence.on_missing == "stale" else None
        self._wait(partial(self._enough, out, planned))
        taken = self._replies.keys() if planned is None else planned
        found = {name: self._replies[name] for name in out.data if name in taken}
        for name, replied in found.items():
            self._count(name, out, *replied)
        for name in out.data.keys() - found.keys() - self.presence.left.keys():
            self._leave(name)
        del self.out[self.number]
        self._replies = {}
        self._forget()
        return {name: reply for name, (reply, _) in found.items()} | own

    def _collect_some(self, enough: Enough) -> dict[str, Message]:
        """Wait for enough of all that is under way; after a restart for just what it was then."""
        asked = {name: message for out in self.out.values() for name, message in out.messages.items()}
        own = {name: party.handle(asked[name]) for name, party in self.local.items() if name in asked}
        planned = self.replay.taken(self.out.posted)
        if planned is not None:
            enough = replace(enough, planned=frozenset(planned))
        began = time.monotonic()
        self._wait(lambda: enough.met({*self._replies, *own}, asked, time.monotonic() - began))
        found = {name: self._replies.pop(name) for name in enough.taken({*self._replies, *own}) if name not in own}
        for name, replied in found.items():
            self._count(name, self.out.close(name), *replied)
        for name in own:
            self.out.close(name)
        self._forget()
        return {name: reply for name, (reply, _) in found.items()} | own

    def _count(self, name: str, out: Posted, reply: Message, data: bytes) -> None:
        """Count what was exchanged with a party: now, so that a request that is interrupted is not counted twice."""
        self.ledger.record("down", name, out.messages[name], len(out.data[name]))
        self.ledger.record("up", name, reply, len(data))

    def _forget(self) -> None:
        self.message_log.forget(min([self.durable, *(self._marks.get(name, 0) for name in self.names)]))

    def _leave(self, name: str) -> None:
        """Go on without a party, and without what it says to all that is under way for it."""
        self.presence.leave(name, max(number for number, out in self.out.items() if name in out.data))
        self._early = {key: frame for key, frame in self._early.items() if key[0] != name}

    def _enough(self, out: Posted, planned: set[str] | None) -> bool:
        if planned is not None:  # after a restart: the next request must be made from the same replies
            return planned & out.data.keys() <= self._replies.keys()
        open_ = out.data.keys() - self.presence.left.keys() - self._replies.keys()
        if not open_ and (out.data or not self.presence.left):
            return True
        # With nobody left there is nothing to do but wait, until one is back.
        return self._given_up(open_) and bool(self._replies or self._returned())

    def back(self) -> list[str]:
        """Return who was away and can take part again; no request that it was meant to answer is under way."""
        logged = self.replay.back(self.out.posted)
        if logged is not None:
            return logged
        return [name for name in self._returned() if self.presence.left[name] < self.number]

    def returning(self) -> bool:
        """Whether somebody who was away waits to take part again."""
        logged = self.replay.held(self.out.posted)
        return bool(self._returned()) if logged is None else logged

    def _returned(self) -> list[str]:
        """Return who was away and is connected again, and done with all it was asked before it left."""
        left = self.presence.left
        here = [self.connections[name] for name in left if name in self.connections]
        return [party.name for party in here if not party.waiting and party.position > left[party.name]]

    def finish(self) -> set[str]:
        """Tell the parties that all is done and wait until they have saved; return those that did not."""
        self._finished = True
        self._advance()
        deadline = time.monotonic() + self.timeouts.linger
        while self._listen():  # a party that died after its BYE may be back: it is told again
            pass
        self._wait(
            lambda: (
                (self.presence.gone(set(self.names) - self.told) and not self.connections)
                or time.monotonic() > deadline
            )
        )
        return set(self.names) - self.told

    def state_dict(self) -> dict[str, Any]:
        """Return where the requests stand; those under way are in the log."""
        return self.out.state_dict() | {"told": sorted(self.told), "presence": self.presence.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state: requests that were under way are so again, and are sent to whoever connects."""
        self.out.load_state_dict(state, self.message_log, self.local)
        self.durable = self.number
        self.told = set(state["told"])
        self.presence.load_state_dict(state["presence"])

    # One thing at a time on every connection, but for requests of a pipeline.

    def _next(self, connection: Connection) -> None:
        """Send a party whatever it needs next, if anything: what it has missed one by one, then all that is out."""
        name, first = connection.name, self.out.first(connection.name)
        if any(frame.kind != FrameKind.REQUEST or frame.number < first for frame in connection.waiting):
            return
        while connection.position < min(first, self.presence.left.get(name, first - 1) + 1):
            missed = unpack(self.message_log.read(connection.position)).get(name)
            if missed:
                self._send(connection, self._request(connection.position, missed.to_bytes()))
                return
            connection.position += 1  # asked of the others while it was away
        for number, out in self.out.items():
            if name not in out.data or self._answered(connection, number):
                continue
            if not connection.asked(FrameKind.REQUEST, number):
                self._send(connection, self._request(number, out.data[name]))
            if out.messages[name].kind == Kind.SYNC:
                break  # its number may be higher than the party expects: nothing else may arrive before it
        if connection.waiting:
            return
        if name in self._question and name not in self._answers:
            if connection.position > self.number:  # then this checkpoint is from before an evaluation
                self._refuse(connection, "wrong", ahead(name, connection.position, self.number))
                return
            self._send(connection, Frame(FrameKind.ASK, self._asked, self.durable, self._question[name]))
        elif self._finished:  # one that was away to the end has not heard of the last requests
            number = connection.position if name in self.presence.left else self.number
            self._send(connection, Frame(FrameKind.STOP, number, self.durable, self.checks.stop(name)))

    def _answered(self, connection: Connection, number: int) -> bool:
        name = connection.name
        if connection.position <= number:  # it may have forgotten its reply, and must handle this before what follows
            return False
        early = (name, number) in self._early
        taken = number == self.out.first(name) and name in self._replies
        return name in self.presence.left or early or taken

    def _request(self, number: int, data: bytes) -> Frame:
        return Frame(FrameKind.REQUEST, number, self.durable, data)

    def _look_at_clock(self) -> None:
        super()._look_at_clock()
        if self.presence.on_missing == "stop" and not self._finished:
            self.presence.refuse_absence(self.timeouts.absent)

    def _admit(self, name: str, table: dict[str, Any], frame: Frame) -> Frame:
        if frame.number < self.number and frame.number not in self.message_log:
            raise ProtocolError(behind(name, frame.number, self.message_log.start))
        self.checks.hello(name, table, frame.number)
        self._marks.pop(name, None)  # it may have gone back to the checkpoint before its last
        self._mark(name, frame)
        return json_frame(FrameKind.WELCOME, {"number": self.number}, durable=self.durable)

    def _handle(self, connection: Connection, frame: Frame) -> None:
        if frame.kind == FrameKind.REPLY:
            self._reply(connection, frame)
        elif frame.kind == FrameKind.ANSWER:
            self._answer(connection, frame)
        elif frame.kind == FrameKind.BYE:
            self._bye(connection, frame)
        else:
            raise ProtocolError(f"a party does not send {frame.kind.name}.")

    def _mark(self, name: str, frame: Frame) -> None:
        """Note how far a party's own checkpoint is."""
        self._marks[name] = max(self._marks.get(name, 0), min(frame.durable, frame.number + 1))

    def _reply(self, connection: Connection, frame: Frame) -> None:
        self._mark(connection.name, frame)
        asked = connection.asked(FrameKind.REQUEST, frame.number)
        if asked is None:
            if frame.number < max(connection.position, self.out.first(connection.name)):
                return  # repeated on its way
            raise ProtocolError(f"{connection.name} sent reply {frame.number}, which nobody asked for.")
        first = self.out.first(connection.name)
        if frame.number < first or connection.name in self.presence.left:
            self.presence.answered(connection.name)
        elif frame.number == first:
            self._take(connection.name, frame)
        else:
            self._early[connection.name, frame.number] = frame
        connection.waiting.remove(asked)
        connection.position = max(connection.position, frame.number + 1)
        self._next(connection)

    def _take(self, name: str, frame: Frame) -> None:
        """Take a reply to the oldest request that is out."""
        message = Message.from_bytes(frame.body)
        self.checks.reply(name, message, self.out[frame.number].messages[name])
        self._replies[name] = (message, frame.body)
        self.presence.answered(name)

    def _take_early(self) -> None:
        """Take the replies whose turn has come; one that is wrong is asked for again, if its party comes back."""
        due = [(name, number) for name, number in self._early if number <= self.number]
        for name, number in due:
            frame = self._early.pop((name, number))
            try:
                self._take(name, frame)
            except EfvflError as error:
                if name in self.connections:
                    self._refuse(self.connections[name], "wrong", str(error))

    def _bye(self, connection: Connection, frame: Frame) -> None:
        self._mark(connection.name, frame)
        if self._finished and (frame.number >= self.number or connection.name in self.presence.left):
            self.told.add(connection.name)
            self.checks.bye(connection.name, frame.body)
        self._drop(connection, "it said BYE")
