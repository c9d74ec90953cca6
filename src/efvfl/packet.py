"""What travels: a `Packet` is one compressed block, a `Message` is the packets of one step. Layout: docs/wire.md.

Both are immutable and self-describing, and each value has exactly one encoding: bytes that are accepted give the same
bytes again. Bytes come from another organisation, so every length is checked before it is believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from efvfl.errors import WireError

VERSION: Final = 1
MAGIC: Final = b"EF"
MAX_DIMENSIONS: Final = 4
MAX_PACKETS: Final = 1 << 16

# What a block may hold, by its code on the wire.
DTYPES: Final[tuple[np.dtype[np.generic], ...]] = (np.dtype("<f4"), np.dtype("<f8"), np.dtype("u1"))
_DTYPE_CODES: Final = {dtype: code for code, dtype in enumerate(DTYPES)}

FloatArray = NDArray[np.floating]
Array = NDArray[np.generic]


class Kind(IntEnum):
    """Every kind of message there is, with its code on the wire."""

    BEGIN = 0  # server to party: report on this step
    REPORT = 1  # party to server: the compressed change of its representation
    COTANGENT = 2  # server to party, private labels: the derivative of the loss by its representation
    RELAY = 3  # server to party, shared labels: the other parties' reports, and the fusion model if it is sent
    AGGREGATE = 4  # server to party, shared labels: the combined representations, and the fusion model if it is sent
    READY = 5  # party to server: learnt, and holding as asked
    SYNC = 6  # server to party that was away: at which step to go on, and surrogates as the server has them


class Reader:
    """A cursor over bytes that never reads past their end."""

    __slots__ = ("data", "place")

    def __init__(self, data: bytes) -> None:
        """Start at the first byte."""
        self.data = data
        self.place = 0

    def take(self, count: int, what: str) -> bytes:
        """Return the next `count` bytes."""
        end = self.place + count
        if end > len(self.data):
            left = len(self.data) - self.place
            raise WireError(f"{what} takes {count:,} bytes but {left:,} are left: the bytes were cut short or altered.")
        piece = self.data[self.place : end]
        self.place = end
        return piece

    def byte(self, what: str) -> int:
        """Return the next byte."""
        place = self.place
        if place >= len(self.data):
            self.take(1, what)  # which says what is missing
        self.place = place + 1
        return self.data[place]

    def number(self, what: str) -> int:
        """Return a LEB128 number below 2^63, refusing any but its shortest form."""
        value = self.byte(what)
        if value < 0x80:
            return value
        value &= 0x7F
        for shift in range(7, 63, 7):
            byte = self.byte(what)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0:
                    raise WireError(f"{what} is written in more bytes than it needs: the encoding is not canonical.")
                return value
        raise WireError(f"{what} does not fit in 63 bits.")

    def end(self, what: str) -> None:
        """Refuse bytes after the last field."""
        if self.place != len(self.data):
            raise WireError(f"{len(self.data) - self.place:,} bytes follow the end of the {what}.")


def number(value: int) -> bytes:
    """Write a number below 2^63 as LEB128: seven bits a byte, lowest first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def length(value: int) -> int:
    """Return how many bytes `number` writes."""
    return 1 if value < 0x80 else -(-value.bit_length() // 7)


@dataclass(frozen=True, slots=True)
class Packet:
    """One block as its compressor left it: `decode(packet)` needs nothing else."""

    codec: int  # which compressor's decoder reads the body
    dtype: np.dtype[np.generic]  # of the block, not of the body
    shape: tuple[int, ...]  # of the block
    body: bytes
    # The decoded block, kept by the first decode: both ends and every relay in one process read the same packet.
    decoded: Array | None = field(default=None, compare=False, repr=False)

    @property
    def entries(self) -> int:
        """Number of entries of the block."""
        return prod(self.shape)

    def header(self) -> bytes:
        """Bytes before the body: codec, dtype and number of dimensions in one byte, dimensions, body length."""
        start = bytes((self.codec, _DTYPE_CODES[self.dtype] << 4 | len(self.shape)))
        return start + b"".join(map(number, self.shape)) + number(len(self.body))

    @property
    def size(self) -> int:
        """The length of `to_bytes()`, without making it."""
        return 2 + sum(map(length, self.shape)) + length(len(self.body)) + len(self.body)

    def to_bytes(self) -> bytes:
        """Return the canonical encoding."""
        return self.header() + self.body

    @classmethod
    def from_bytes(cls, data: bytes) -> Packet:
        """Read one packet that fills `data`."""
        reader = Reader(data)
        packet = cls.read(reader)
        reader.end("packet")
        return packet

    @classmethod
    def read(cls, reader: Reader) -> Packet:
        """Read one packet. The body is looked at only when it is decoded."""
        codec = reader.byte("a packet's codec")
        layout = reader.byte("a packet's dtype and number of dimensions")
        code, dimensions = layout >> 4, layout & 15
        if code >= len(DTYPES):
            raise WireError(f"dtype code {code} came, but only 0 to {len(DTYPES) - 1} exist.")
        if dimensions > MAX_DIMENSIONS:
            raise WireError(f"a block of {dimensions} dimensions came, at most {MAX_DIMENSIONS} are expected.")
        shape = tuple(reader.number("a packet's shape") for _ in range(dimensions))
        if prod(max(side, 1) for side in shape) >= 1 << 48:  # an empty block too has to be an array
            raise WireError(f"a block of shape {shape} came, which no machine holds.")
        size = reader.number("a packet's body length")
        return cls(codec, DTYPES[code], shape, reader.take(size, "a packet's body"))


@dataclass(frozen=True, slots=True)
class Message:
    """What one participant tells another at one step: packets by block number, as the paper counts blocks.

    Block 0 is the fusion model, block k is party k, block K+1 is the combined representation, block K+2 which rows take
    part. A block holds one packet, or two where some rows are reported for the first time and exactly.
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


Reports = list[Message | None]  # of all parties, in their order; None: it is away
