"""How messages travel: a transport is an exchange, one message to every party and one back from each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from efvfl.wire.ledger import Ledger
from efvfl.wire.message import Message


class Handler(Protocol):
    """Whatever answers a message: a party."""

    def handle(self, message: Message) -> Message:
        """Answer."""


class Transport(Protocol):
    """Carries messages between the server and its parties. In one process, over a network, or faulty on purpose."""

    def exchange(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Deliver a message to each named party and return their answers."""

    def close(self) -> None:
        """Let go of whatever is held."""


class LocalTransport:
    """Hands messages over as they are, and counts the bytes of every one of them.

    A message is immutable and its bytes decode to the same message, so delivering the object and delivering its bytes
    are the same; `wire=True` really goes through the bytes, for tests that show it.
    """

    def __init__(
        self, parties: Mapping[str, Handler], ledger: Ledger, here: Collection[str] = (), wire: bool = False
    ) -> None:
        """Connect these parties; those in `here` sit next to the server and cost no bytes."""
        self.parties = parties
        self.ledger = ledger
        self.here = frozenset(here)
        self.wire = wire

    def exchange(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Let every party answer, in order."""
        return {name: self._ask(name, message) for name, message in messages.items()}

    def _ask(self, name: str, message: Message) -> Message:
        if name in self.here:
            return self.parties[name].handle(message)
        self.ledger.record("down", name, message)
        reply = self.parties[name].handle(self._deliver(message))
        self.ledger.record("up", name, reply)
        return self._deliver(reply)

    def _deliver(self, message: Message) -> Message:
        return Message.from_bytes(message.to_bytes()) if self.wire else message

    def close(self) -> None:
        """Nothing is held."""
