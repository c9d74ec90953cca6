"""The requests that are under way, by number: what each party still has to reply to.

Without asynchronous parties all that was asked in a request is collected together. With them every party has one open
request, and replies are collected one by one: the numbers that are under way may have gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from efvfl.network.links.frame import unpack
from efvfl.network.links.message_log import MessageLog
from efvfl.network.links.posted import LocalParty, Posted
from efvfl.training.transport import Request
from efvfl.wire.message import Kind


class OpenRequests(dict[int, Posted]):
    """Requests by number, oldest first."""

    def __init__(self, asynchronous: bool) -> None:
        """Begin with none."""
        super().__init__()
        self.asynchronous = asynchronous
        self.posted = 0  # how many there have been: the number of the next one

    @property
    def number(self) -> int:
        """The number of the oldest one, or of the next one if none is under way."""
        return next(iter(self), self.posted)

    def add(self, out: Posted) -> None:
        """Have another one under way."""
        self[self.posted] = out
        self.posted += 1

    def of(self, name: str) -> Iterator[int]:
        """Yield the numbers of those that a party is asked something in."""
        return (number for number, out in self.items() if name in out.data)

    def first(self, name: str) -> int:
        """Return the number of the oldest one for a party, or of the next one: what is below it, it must handle."""
        return next(self.of(name), self.posted) if self.asynchronous else self.number

    def after(self, name: str) -> int:
        """Return how many requests a party has handled once it has replied to all that is under way for it."""
        return max(self.of(name), default=self.posted - 1) + 1 if self.asynchronous else self.posted

    def requests(self) -> list[Request]:
        """Return what is under way; with asynchronous parties all of it is one request."""
        found = [out.request for out in self.values()]
        if self.asynchronous and found:
            names = frozenset(name for out in self.values() for name in out.messages)
            return [Request(names, any(request.hold for request in found))]
        return found

    def syncing(self, name: str) -> bool:
        """Whether a party is being brought up to date after it was away."""
        return any(self[number].messages[name].kind == Kind.SYNC for number in self.of(name))

    def close(self, name: str) -> Posted:
        """Take a party's part out of the one request that is open for it, and return it."""
        number = next(n for n, out in self.items() if name in out.messages)
        out = self[number]
        rest = out.only([other for other in out.messages if other != name])
        if rest.messages:
            self[number] = rest
        else:
            del self[number]
        return out

    def state_dict(self) -> dict[str, Any]:
        """Return which are under way; the log has what they say."""
        state: dict[str, Any] = {"number": self.number, "under_way": self.posted - self.number}
        return state | ({"open": [[n, *out.messages] for n, out in self.items()]} if self.asynchronous else {})

    def load_state_dict(self, state: Mapping[str, Any], log: MessageLog, local: Mapping[str, LocalParty]) -> None:
        """Go on from a saved state."""
        self.clear()
        start = int(state["number"])
        self.posted = start + int(state["under_way"])
        numbers = [[number] for number in range(start, self.posted)]
        for number, *names in state.get("open", numbers):
            out = Posted.of(unpack(log.read(int(number))), local)
            self[int(number)] = out.only(names) if names else out
