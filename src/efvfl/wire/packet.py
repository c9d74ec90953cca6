"""Packets: a `Packet` is one compressed block, a `Message` is the packets of one step. Layout: docs/wire.md.

Both are immutable and self-describing, and each value has exactly one encoding: accepted bytes encode to the same bytes
again. The bytes come from another organisation, so every length is checked before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from efvfl.errors import WireError

MAX_DIMENSIONS: Final = 4

# The dtypes of blocks, by their codes on the wire.
DTYPES: Final[tuple[np.dtype[np.generic], ...]] = (np.dtype("<f4"), np.dtype("<f8"), np.dtype("u1"))
_DTYPE_CODES: Final = {dtype: code for code, dtype in enumerate(DTYPES)}

FloatArray = NDArray[np.floating]
Array = NDArray[np.generic]


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
            raise WireError(f"expected {count:,} bytes for {what}, got {left:,}: the bytes were cut short or altered.")
        piece = self.data[self.place : end]
        self.place = end
        return piece

    def byte(self, what: str) -> int:
        """Return the next byte."""
        place = self.place
        if place >= len(self.data):
            self.take(1, what)  # raises the error
        self.place = place + 1
        return self.data[place]

    def number(self, what: str) -> int:
        """Return a LEB128 number below 2^63; only its shortest form is accepted."""
        place, left = self.place, len(self.data) - self.place
        if left and (value := self.data[place]) < 0x80:  # nearly all have one byte or two
            self.place = place + 1
            return value
        if left > 1 and 0 < (high := self.data[place + 1]) < 0x80:
            self.place = place + 2
            return value & 0x7F | high << 7
        value = self.byte(what) & 0x7F
        for shift in range(7, 63, 7):
            byte = self.byte(what)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0:
                    raise WireError(f"{what} uses more bytes than it needs: the encoding is not canonical.")
                return value
        raise WireError(f"{what} does not fit in 63 bits.")

    def end(self, what: str) -> None:
        """Raise an error if any bytes are left."""
        if self.place != len(self.data):
            raise WireError(f"expected the end of the {what}, got {len(self.data) - self.place:,} more bytes.")


def number(value: int) -> bytes:
    r"""Return a number below 2^63 as LEB128: seven bits per byte, lowest first.

    >>> number(300)
    b'\xac\x02'
    """
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:  # as nearly all are
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def length(value: int) -> int:
    """Return the length of `number(value)` in bytes."""
    return 1 if value < 0x80 else -(-value.bit_length() // 7)


@dataclass(frozen=True, slots=True)
class Packet:
    """One compressed block: everything that `decode(packet)` needs.

    >>> packet = Packet(codec=0, dtype=np.dtype("<f4"), shape=(2,), body=np.float32([1, 2]).tobytes())
    >>> Packet.from_bytes(packet.to_bytes()) == packet, packet.size
    (True, 12)
    """

    codec: int  # the code of the compressor that decodes the body
    dtype: np.dtype[np.generic]  # of the block, not of the body
    shape: tuple[int, ...]  # of the block
    body: bytes
    # Set by the first decode, because both ends and every relay within one process decode the same packet; or by an
    # encoder that has it at hand.
    decoded: Array | None = field(default=None, compare=False, repr=False)

    @property
    def entries(self) -> int:
        """The number of entries of the block."""
        return prod(self.shape)

    def header(self) -> bytes:
        """Return the bytes before the body: codec, dtype and number of dimensions, dimensions, length of the body."""
        start = bytes((self.codec, _DTYPE_CODES[self.dtype] << 4 | len(self.shape)))
        return start + b"".join(map(number, self.shape)) + number(len(self.body))

    @property
    def size(self) -> int:
        """The length of `to_bytes()`, computed without encoding."""
        return 2 + sum(map(length, self.shape)) + length(len(self.body)) + len(self.body)

    def to_bytes(self) -> bytes:
        """Return the canonical encoding."""
        return self.header() + self.body

    @classmethod
    def from_bytes(cls, data: bytes) -> Packet:
        """Return the packet encoded in `data`, which must contain nothing else."""
        reader = Reader(data)
        packet = cls.read(reader)
        reader.end("packet")
        return packet

    @classmethod
    def read(cls, reader: Reader) -> Packet:
        """Read one packet. The body is not checked until it is decoded."""
        codec = reader.byte("a packet's codec")
        layout = reader.byte("a packet's dtype and number of dimensions")
        code, dimensions = layout >> 4, layout & 15
        if code >= len(DTYPES):
            raise WireError(f"expected a dtype code from 0 to {len(DTYPES) - 1}, got {code}.")
        if dimensions > MAX_DIMENSIONS:
            raise WireError(f"expected a block of at most {MAX_DIMENSIONS} dimensions, got {dimensions}.")
        shape = tuple(reader.number("a packet's shape") for _ in range(dimensions))
        if prod(max(side, 1) for side in shape) >= 1 << 48:  # also for an empty block, which becomes an array too
            raise WireError(f"expected a block of fewer than 2^48 entries, got shape {shape}.")
        size = reader.number("a packet's body length")
        return cls(codec, DTYPES[code], shape, reader.take(size, "a packet's body"))
