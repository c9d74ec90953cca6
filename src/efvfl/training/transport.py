"""How messages travel: the contract that every transport keeps, and the transport within one process.

The server posts requests, one message for each party that is asked, and collects the replies in the order of posting.
With a pipeline, several requests are under way at a time. With asynchronous parties a request is collected before all
replies to it are there; what is still open then is part of the next one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from efvfl.errors import ProtocolError
from efvfl.training.absences import Absences
from efvfl.training.arrivals import Enough
from efvfl.training.simulated_clock import SimulatedClock
from efvfl.wire.ledger import Ledger
from efvfl.wire.message import Kind, Message


class Handler(Protocol):
    """Whatever replies to a message: a party."""

    def handle(self, message: Message) -> Message:
        """Return the reply to a message."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of a request that is under way."""

    names: frozenset[str]  # the parties that were asked
    hold: bool  # they learn, and send no further report

    @classmethod
    def of(cls, messages: Mapping[str, Message]) -> Request:
        """Describe the request that these messages make."""
        return cls(frozenset(messages), any(message.hold for message in messages.values()))


class Transport(Protocol):
    """Carries messages between the server and its parties: within one process, or over a network."""

    @property
    def ledger(self) -> Ledger:
        """The bytes of everything sent."""

    @property
    def here(self) -> Collection[str]:
        """The parties that sit next to the server: what they exchange with it is not sent, and costs no bytes."""

    @property
    def under_way(self) -> Sequence[Request]:
        """The requests that were posted and not collected, oldest first."""

    def post(self, messages: Mapping[str, Message]) -> None:
        """Send each of these parties its message; they form one request."""

    def collect(self, enough: Enough | None = None) -> dict[str, Message]:
        """Return the replies to the oldest request that is under way; those of parties that are away are left out.

        With `enough`, it waits for no more than that, and the other replies stay open.
        """

    def back(self) -> list[str]:
        """Return the parties that steps went without and that can take part again, now that no step is under way."""

    def returning(self) -> bool:
        """Whether there are such parties, or will be as soon as no step is under way."""

    def ask(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return parties' answers to questions that change nothing; those of parties that are away are left out."""

    def close(self) -> None:
        """Let go of whatever is held."""


class LocalTransport:
    """Hands messages over as they are, and counts the bytes of every one of them.

    A message is immutable and its bytes decode to the same message, so delivering the object and delivering its bytes
    are the same; `wire=True` really goes through the bytes, for tests that show it.
    """

    def __init__(
        self,
        parties: Mapping[str, Handler],
        ledger: Ledger | None = None,
        here: Collection[str] = (),
        wire: bool = False,
        answer: Callable[[str, bytes], bytes] | None = None,
        times: SimulatedClock | None = None,
        absences: Absences | None = None,
    ) -> None:
        """Connect these parties; those in `here` cost no bytes. `answer` is what a party says to a question.

        `times` says when replies would be there, in virtual time; None: all at once. `absences` says who is away when.
        """
        self.parties = parties
        self.ledger = ledger or Ledger()
        self.here = frozenset(here)
        self.wire = wire
        self.answer = answer
        self.seconds = dict.fromkeys(parties, 0.0)  # that every party has computed, by this clock
        self.clock: Callable[[], float] = time.perf_counter
        self.times = times
        self.absences = absences or Absences()
        self.away: set[str] = set()  # who missed something, and is not back yet
        self._asked = 0  # requests for reports so far, one for each step
        self._posted: deque[tuple[Request, dict[str, Message]]] = deque()
        self._late: dict[str, Message] = {}  # replies that were left open
        self._arrivals: dict[tuple[str, int], float] = {}  # of reports under way, by party and step, in virtual time

    @property
    def under_way(self) -> list[Request]:
        """The requests whose replies were not collected, oldest first."""
        return [request for request, _ in self._posted]

    def post(self, messages: Mapping[str, Message]) -> None:
        """Have every party that is here reply at once; the replies wait here."""
        request, late = Request.of(messages), self._late
        replies = self._of_those_here(messages, request.hold)
        self._asked += not request.hold
        if self.times:
            reports = {name: reply.step for name, reply in replies.items() if reply.kind == Kind.REPORT}
            self._arrivals |= {(name, step): self.times.arrival(name, step) for name, step in reports.items()}
        if late:
            request, replies, self._late = Request(request.names | set(late), request.hold), late | replies, {}
        self._posted.append((request, replies))

    def collect(self, enough: Enough | None = None) -> dict[str, Message]:
        """Return the replies to the oldest request, or enough of them."""
        if not self._posted:
            raise ProtocolError("no request is under way: post one before its replies are collected.")
        _, replies = self._posted.popleft()
        keys = {name: (name, reply.step) for name, reply in replies.items()}
        arrivals = {name: self._arrivals[key] for name, key in keys.items() if key in self._arrivals}
        if enough is None:
            taken = set(replies)
            if self.times:
                self.times.wait_for(arrivals.values())
        else:
            taken = self.times.wait_until(enough, arrivals) if self.times else enough.taken(replies)
            self._late = {name: reply for name, reply in replies.items() if name not in taken}
        for name in arrivals.keys() & taken:
            del self._arrivals[keys[name]]
        return {name: reply for name, reply in replies.items() if name in taken}

    def reopen(self, reports: Sequence[Mapping[str, Message]]) -> None:
        """Have these reports under way and nothing else: those of parties that were restored, oldest step first."""
        # Who is away was asked too, unless the server knows that already, and then it makes no difference.
        self._posted = deque((Request(frozenset(replies) | self.away, False), dict(replies)) for replies in reports)
        self._late = {}

    def state_dict(self) -> dict[str, Any]:
        """Return who is away and what time it is, where that is simulated; parties save what is under way."""
        state: dict[str, Any] = {"away": sorted(self.away), "asked": self._asked} if self.absences.away else {}
        if self.times:
            arrivals = [[name, step, moment] for (name, step), moment in self._arrivals.items()]
            state |= {"times": self.times.state_dict(), "arrivals": arrivals}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        if self.absences.away and state:
            self.away, self._asked = set(state["away"]), int(state["asked"])
        if self.times and state:
            self.times.load_state_dict(state["times"])
            self._arrivals = {(name, int(step)): float(moment) for name, step, moment in state["arrivals"]}

    def exchange(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Return every party's reply, in order."""
        return {name: self._deliver(name, message) for name, message in messages.items()}

    def _deliver(self, name: str, message: Message) -> Message:
        if name in self.here:
            return self._handled(name, message)
        self.ledger.record("down", name, message)
        reply = self._handled(name, self._through_bytes(message))
        self.ledger.record("up", name, reply)
        return self._through_bytes(reply)

    def _handled(self, name: str, message: Message) -> Message:
        started = self.clock()
        reply = self.parties[name].handle(message)
        self.seconds[name] += self.clock() - started
        return reply

    def _through_bytes(self, message: Message) -> Message:
        return Message.from_bytes(message.to_bytes()) if self.wire else message

    def _of_those_here(self, messages: Mapping[str, Message], hold: bool) -> dict[str, Message]:
        """Return the replies that arrive. Who leaves has still got a message, as over a network, and is not heard."""
        self.away -= {name for name, message in messages.items() if message.kind == Kind.SYNC}
        replies = self.exchange({name: message for name, message in messages.items() if name not in self.away})
        if self.absences.away and not hold:
            self.away |= {name for name in messages if self.absences.has(name, self._asked)}
        return {name: reply for name, reply in replies.items() if name not in self.away}

    def back(self) -> list[str]:
        """Return who has missed something, and would take part in the next step."""
        return [name for name in self.parties if name in self.away and not self.absences.has(name, self._asked)]

    def returning(self) -> bool:
        """Whether there is anybody like that."""
        return bool(self.back())

    def ask(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return every party's answer."""
        if self.answer is None:
            raise ProtocolError("these parties answer no questions: give LocalTransport an `answer`.")
        return {name: self.answer(name, question) for name, question in questions.items()}

    def close(self) -> None:
        """Nothing is held."""
