"""A request that was posted, and the parties that get their part of it without a wire."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, Self

from efvfl.training.transport import Handler, Request
from efvfl.wire.message import Message


class LocalParty(Handler, Protocol):
    """A party in the server's own process: what it exchanges with the server is not sent."""

    def answer(self, question: bytes) -> bytes:
        """Return the answer to a question."""


@dataclass(frozen=True)
class Posted:
    """A request that is under way: the message for every party, and its bytes for those that are not local."""

    request: Request
    messages: dict[str, Message]
    data: dict[str, bytes]

    def only(self, names: Collection[str]) -> Self:
        """Return what is under way for these parties alone."""
        messages = {name: message for name, message in self.messages.items() if name in names}
        return replace(self, messages=messages, data={name: self.data[name] for name in messages if name in self.data})

    @classmethod
    def of(cls, messages: Mapping[str, Message], local: Container[str]) -> Self:
        """Return the request that these messages make."""
        data = {name: message.to_bytes() for name, message in messages.items() if name not in local}
        return cls(Request.of(messages), dict(messages), data)
