"""A message: the packets that one participant sends another at one step. Layout: docs/wire.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from efvfl.errors import WireError
from efvfl.wire.packet import Packet, Reader, length, number

VERSION: Final = 1
MAGIC: Final = b"EF"
MAX_PACKETS: Final = 1 << 16

# Blocks are numbered as the paper counts them: 0 is the fusion model, 1 to K are the parties. Two more follow.
FUSION: Final = 0


def combined_block(parties: int) -> int:
    """Return the number of the block that is the combined representation of all parties."""
    return parties + 1


def rows_block(parties: int) -> int:
    """Return the number of the block that says which rows of the batch take part."""
    return parties + 2


class Kind(IntEnum):
    """Every kind of message there is, with its code on the wire."""

    BEGIN = 0  # server to party: report on this step
    REPORT = 1  # party to server: the compressed change of its representation
    COTANGENT = 2  # server to party, private labels: the derivative of the loss by its representation
    RELAY = 3  # server to party, shared labels: the other parties' reports, and the fusion model if it is sent
    AGGREGATE = 4  # server to party, shared labels: the combined representations, and the fusion model if it is sent
    READY = 5  # party to server: learnt, and holding as asked
    SYNC = 6  # server to party that was away: at which step to go on, and surrogates as the server has them


@dataclass(frozen=True, slots=True)
class Message:
    """What one participant sends another at one step: packets by block number.

    A block holds one packet, or two where some rows are reported for the first time and exactly.
    """

    kind: Kind
    step: int
    packets: Mapping[int, tuple[Packet, ...]] = field(default_factory=dict)
    hold: bool = False  # learn from this, then wait: do not report on the next step yet

    @property
    def size(self) -> int:
        """The length of `to_bytes()`, without making it: what travels within a process is counted, not copied."""
        packets = sum(length(block) + packet.size for block, held in self.packets.items() for packet in held)
        return len(MAGIC) + 2 + length(self.step) + length(sum(map(len, self.packets.values()))) + packets

    def to_bytes(self) -> bytes:
        """Return the canonical encoding: blocks in increasing order."""
        entries = [(block, packet) for block in sorted(self.packets) for packet in self.packets[block]]
        parts = [MAGIC, bytes((VERSION, self.kind << 1 | self.hold)), number(self.step), number(len(entries))]
        for block, packet in entries:
            parts += (number(block), packet.header(), packet.body)
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """Read a message that fills `data`."""
        reader = Reader(data)
        magic = reader.take(2, "a message's first two bytes")
        if magic != MAGIC:
            raise WireError(f"a message starts with {MAGIC!r}, but {magic!r} came: is the peer an efvfl participant?")
        version = reader.byte("a message's version")
        if version != VERSION:
            raise WireError(
                f"wire version {version} came, this efvfl speaks {VERSION}: install the same release at both."
            )
        code = reader.byte("a message's kind")
        if code >> 1 > max(Kind):
            raise WireError(f"message kind {code >> 1} came, but only 0 to {max(Kind)} exist.")
        step = reader.number("a message's step")
        count = reader.number("a message's number of packets")
        if count > MAX_PACKETS:
            raise WireError(f"{count:,} packets in one message, at most {MAX_PACKETS:,} are expected.")
        packets: dict[int, list[Packet]] = {}
        last = 0
        for _ in range(count):
            block = reader.number("a packet's block")
            if block < last:
                raise WireError(f"block {block} follows block {last}: blocks come in increasing order.")
            packets.setdefault(block, []).append(Packet.read(reader))
            last = block
        reader.end("message")
        return cls(Kind(code >> 1), step, {block: tuple(held) for block, held in packets.items()}, bool(code & 1))
