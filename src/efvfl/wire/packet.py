"""What travels: a `Packet` is one compressed block, a `Message` is the packets of one step. Layout: docs/wire.md.

Both are immutable and self-describing, and each value has exactly one encoding: bytes that are accepted give the same
bytes again. Bytes come from another organisation, so every length is checked before it is believed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from efvfl.errors import WireError

MAX_DIMENSIONS: Final = 4

# What a block may hold, by its code on the wire.
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
