"""A message: the packets that one participant sends to another in one step. Layout: docs/wire.md."""

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
    """The kinds of messages, with their codes on the wire."""

    BEGIN = 0  # server to party: report on this step
    REPORT = 1  # party to server: the compressed change of its representation
    COTANGENT = 2  # server to party, private labels: the gradient of the loss with respect to its representation
    RELAY = 3  # server to party, shared labels: the other parties' reports, and the fusion model if it is sent
    AGGREGATE = 4  # server to party, shared labels: the combined representations, and the fusion model if it is sent
    READY = 5  # party to server: the step is done, and the party waits as requested
    SYNC = 6  # server to a party that was absent: the step to continue at, and the server's copy of its surrogate
    EVALUATE = 7  # server to party, between two steps: report on the validation rows
    FINAL = 8  # server to party, at the end of training: represent the held-out rows finely
    EVALUATION = 9  # party to server: what EVALUATE and FINAL ask for
    DECIDE = 10  # server to party, between two steps: keep this model, go back to the kept one, change the rate
    LATE = 11  # server to a party whose report came late: the answer to it, and the step to continue at


_LAST: Final = max(Kind)
KIND_NAMES: Final[Mapping[int, str]] = {kind: kind.name.lower() for kind in Kind}  # as ledgers and logs write them


@dataclass(frozen=True, slots=True)
class Message:
    """The packets that one participant sends to another in one step, by block number.

    A block has one packet, or two if some rows are reported for the first time and therefore exactly.

    >>> message = Message(Kind.BEGIN, step=3)
    >>> Message.from_bytes(message.to_bytes()) == message, message.size
    (True, 6)
    """

    kind: Kind
    step: int
    packets: Mapping[int, tuple[Packet, ...]] = field(default_factory=dict)
    hold: bool = False  # update the model, then wait: do not report on the next step yet

    @property
    def size(self) -> int:
        """The length of `to_bytes()`, computed without encoding: messages within a process are counted, not copied."""
        size, count = len(MAGIC) + 2 + length(self.step), 0
        for block, group in self.packets.items():
            for packet in group:
                size += length(block) + packet.size
                count += 1
        return size + length(count)

    def to_bytes(self) -> bytes:
        """Return the canonical encoding: blocks in increasing order."""
        entries = [(block, packet) for block in sorted(self.packets) for packet in self.packets[block]]
        parts = [MAGIC, bytes((VERSION, self.kind << 1 | self.hold)), number(self.step), number(len(entries))]
        for block, packet in entries:
            parts += (number(block), packet.header(), packet.body)
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """Return the message encoded in `data`, which must contain nothing else."""
        reader = Reader(data)
        magic = reader.take(2, "a message's first two bytes")
        if magic != MAGIC:
            raise WireError(
                f"expected a message to start with {MAGIC!r}, got {magic!r}: is the peer an efvfl participant?"
            )
        version = reader.byte("a message's version")
        if version != VERSION:
            raise WireError(
                f"expected wire version {VERSION}, got {version}: install the same release of efvfl on both sides."
            )
        code = reader.byte("a message's kind")
        if code >> 1 > _LAST:
            raise WireError(f"expected a message kind from 0 to {_LAST}, got {code >> 1}.")
        step = reader.number("a message's step")
        count = reader.number("a message's number of packets")
        if count > MAX_PACKETS:
            raise WireError(f"expected at most {MAX_PACKETS:,} packets in one message, got {count:,}.")
        packets: dict[int, list[Packet]] = {}
        last = 0
        for _ in range(count):
            block = reader.number("a packet's block")
            if block < last:
                raise WireError(f"expected blocks in increasing order, got block {block} after block {last}.")
            packets.setdefault(block, []).append(Packet.read(reader))
            last = block
        reader.end("message")
        return cls(Kind(code >> 1), step, {block: tuple(group) for block, group in packets.items()}, bool(code & 1))
