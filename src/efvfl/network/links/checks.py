"""What a server checks of what its parties say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from efvfl.wire.message import Message


@dataclass(frozen=True)
class Checks:
    """What refuses a party, by raising, and what the party can check of the server in return."""

    hello: Callable[[str, dict[str, Any], int], None]  # a party, its HELLO, and how many requests it has handled
    reply: Callable[[str, Message, Message], None]  # a party, its reply, and what it was asked
    bye: Callable[[str, bytes], None] = lambda name, digest: None  # a party, and a digest of what it remembers
    stop: Callable[[str], bytes] = lambda name: b""  # returns that digest as it is here; empty: nothing to compare


def behind(name: str, theirs: int, start: int) -> str:
    """Say why a party cannot take part: the log here no longer has what it needs next."""
    return (
        f"{name} has handled {theirs} requests, but the log here begins at {start}: its folder is older than it was "
        "when it last spoke. Was it restored from a backup? Put its newest folder back, or start all anew in empty "
        "folders."
    )


def ahead(name: str, theirs: int, ours: int) -> str:
    """Say why a party cannot be asked about rows: its model has learnt more than the server knows of."""
    return (
        f"expected {name} to have handled {ours} requests when rows are evaluated, got {theirs}: the server's folder "
        "is an old copy, or its last checkpoint was damaged. Put the newest one back, or start all anew in empty ones."
    )
