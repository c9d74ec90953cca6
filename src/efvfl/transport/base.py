"""A transport is an exchange: one message to every party, one back from each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from efvfl.packet import Message


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
