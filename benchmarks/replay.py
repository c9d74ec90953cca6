"""Parties with machines of their own, on a machine with few cores.

A run in one process records what every party replies, and how long it computes for a reply. Over a line, a party then
sleeps for as long and sends the same bytes: as many parties as there are compute at the same time, as they would on
machines of their own. Everything else is real: the server and its computing, TLS, logs, frames and the line.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from efvfl.core.party import Party
from efvfl.training.federation import Federation
from efvfl.wire.message import Message


@dataclass(frozen=True)
class Replies:
    """What one party replies, in order."""

    messages: list[bytes]
    seconds: float  # of computing for each


def record(made: Federation, rounds: int) -> dict[str, Replies]:
    """Train for so many rounds; return the replies of every party."""
    said: dict[str, list[bytes]] = {name: [] for name in made.parties}
    exchange = made.transport.exchange

    def listening(messages: Mapping[str, Message]) -> dict[str, Message]:
        replies = exchange(messages)
        for name, reply in replies.items():
            said[name].append(reply.to_bytes())
        return replies

    made.transport.exchange = listening  # type: ignore[method-assign]
    made.transport.clock = time.thread_time  # a busy machine does not slow it down
    made.step()  # kernels are compiled
    before, first = dict(made.transport.seconds), {name: len(replies) for name, replies in said.items()}
    for _ in range(rounds):
        made.step()
    return {
        name: Replies(replies, (made.transport.seconds[name] - before[name]) / (len(replies) - first[name]))
        for name, replies in said.items()
    }


def replay(party: Party, replies: Replies) -> None:
    """Have a party reply as it did then, after as long."""
    messages = iter(replies.messages)

    def handle(message: Message) -> Message:
        time.sleep(replies.seconds)
        return Message.from_bytes(next(messages))

    party.handle = handle  # type: ignore[method-assign]
