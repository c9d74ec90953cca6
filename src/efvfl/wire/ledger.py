"""Bytes sent, by direction, party and kind, counted as `len(message.to_bytes())` for every copy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Literal

from efvfl.wire.message import FUSION, KIND_NAMES, Message
from efvfl.wire.packet import length

Direction = Literal["up", "down"]  # up: from a party to the server


def copies(messages: Mapping[str, Message], here: Collection[str] = ()) -> int:
    """Return the bytes of packets in these messages beyond the first copy of each, as several parties get the same.

    The paper counts a broadcast once (Table 1); the ledger counts every copy. Those in `here` cost no bytes.
    """
    total, seen = 0, set()
    for name, message in messages.items():
        if name in here:
            continue
        for block, group in message.packets.items():
            for packet in group:
                if id(packet) in seen:
                    total += length(block) + packet.size
                seen.add(id(packet))
    return total


class Ledger:
    """Counts the bytes of messages. Fusion models in answers and digests in reports are counted separately."""

    def __init__(self) -> None:
        """Start with all counts at zero."""
        self.bytes: dict[tuple[Direction, str, str], int] = defaultdict(int)

    def record(self, direction: Direction, party: str, message: Message, size: int | None = None) -> None:
        """Count a message sent to or by `party`; pass `size` if it is already known."""
        size = message.size if size is None else size
        if FUSION in message.packets:
            separate = sum(length(FUSION) + packet.size for packet in message.packets[FUSION])
            self.bytes[direction, party, "digest" if direction == "up" else "fusion"] += separate
            size -= separate
        self.bytes[direction, party, KIND_NAMES[message.kind]] += size

    def total(self, direction: Direction, party: str | None = None) -> int:
        """Return the bytes in one direction, of one party or of all parties."""
        return sum(n for (d, p, _), n in self.bytes.items() if d == direction and party in (None, p))

    def table(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return the counts as {direction: {party: {kind: bytes}}}, sorted."""
        out: dict[str, dict[str, dict[str, int]]] = {}
        for (direction, party, kind), count in sorted(self.bytes.items()):
            out.setdefault(direction, {}).setdefault(party, {})[kind] = count
        return out

    def state_dict(self) -> dict[str, Any]:
        """Return the counts for a checkpoint."""
        return {"bytes": [[*key, count] for key, count in sorted(self.bytes.items())]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved counts."""
        self.bytes.clear()
        for direction, party, kind, count in state["bytes"]:
            self.bytes[direction, party, kind] = int(count)
