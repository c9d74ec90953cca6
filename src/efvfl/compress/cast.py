"""Low precision: 16 bits per entry, after scaling the block by a power of two so that the map always contracts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from efvfl.compress.base import Compressor, Shape, checked, entries, largest_float, register
from efvfl.errors import ConfigError, WireError
from efvfl.util.jit import kernel
from efvfl.wire.packet import FloatArray, Packet, Reader

# The largest magnitude is scaled to just below 2^15 (fp16, whose range ends at 2^16) or 1 (bf16).
_TOP = {"fp16": 15, "bf16": 0}
_CODES = ("fp16", "bf16")
# The range of exponents of the largest magnitude of a float32 or float64 block, by the bytes of an entry.
_EXPONENTS = {4: (-148, 128), 8: (-1073, 1024)}


# A table of all halves: converting them with numpy takes five times as long as looking them up.
_HALVES: Final = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
_INFINITE: Final = {"fp16": 0x7C00, "bf16": 0x7F80}  # magnitudes with these bits or more are not finite


@kernel
def _round_to_half(bits: NDArray[np.uint32], out: NDArray[np.uint16]) -> None:
    """Round float32 magnitudes of at most 2^15 to the nearest half, ties to even, as numpy does."""
    for i in range(len(bits)):
        magnitude = bits[i] & 0x7FFFFFFF
        exponent = magnitude >> 23
        if exponent >= 113:  # a normal half
            rounded = (magnitude + 0xFFF + ((magnitude >> 13) & 1) - (112 << 23)) >> 13
        elif exponent >= 102:  # a subnormal half, in units of 2^-24
            unit = 126 - exponent
            significand = (magnitude & 0x7FFFFF) | 0x800000
            rounded = (significand + (1 << (unit - 1)) - 1 + ((significand >> unit) & 1)) >> unit
        else:
            rounded = 0
        out[i] = rounded | ((bits[i] >> 16) & 0x8000)


def _to_half(values: FloatArray) -> NDArray[np.uint16]:
    if values.dtype != np.float32:  # not via float32, which would round twice
        return values.astype(np.float16).view(np.uint16)
    out = np.empty(values.shape, np.uint16)
    _round_to_half(values.view(np.uint32), out)
    return out


def _to_bfloat16(values: FloatArray) -> NDArray[np.uint16]:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # to nearest, ties to even


def _from_bfloat16(halves: NDArray[np.uint16]) -> FloatArray:
    return (halves.astype(np.uint32) << 16).view(np.float32)


@register("cast", 5)
@dataclass(frozen=True)
class Cast(Compressor):
    """Round every entry to fp16 or bf16.

    Body: format, exponent of the scale (two bytes), two bytes per entry.

    >>> from efvfl.compress import decode
    >>> decode(Cast("fp16").encode(np.float32([1, 1 / 3]))).tolist()
    [1.0, 0.333251953125]
    """

    to: Literal["fp16", "bf16"] = "fp16"  # bf16: a wider range within a block, eight times the rounding error

    def __post_init__(self) -> None:
        """Check the format."""
        if self.to not in _CODES:
            raise ConfigError(f"expected cast's to 'fp16' or 'bf16', got {self.to!r}.")

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Return the scaled and rounded block."""
        flat = checked(block)
        top = np.abs(flat).max(initial=0)
        shift = int(np.frexp(top)[1]) - _TOP[self.to] if top > 0 else 0
        scaled = np.ldexp(flat, -shift)
        halves = _to_half(scaled) if self.to == "fp16" else _to_bfloat16(scaled)
        start = bytes((_CODES.index(self.to),)) + shift.to_bytes(2, "little", signed=True)
        return Packet(self.code, block.dtype, block.shape, start + halves.astype("<u2").tobytes())

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        """Return the block, widened and scaled back."""
        reader = Reader(packet.body)
        code = reader.byte("cast's format")
        if code >= len(_CODES):
            raise WireError(f"expected cast format 0 or 1, got {code}.")
        shift = int.from_bytes(reader.take(2, "cast's exponent"), "little", signed=True)
        halves = np.frombuffer(reader.take(2 * packet.entries, "cast's values"), dtype="<u2")
        reader.end("cast body")
        widen = _HALVES.take if _CODES[code] == "fp16" else _from_bfloat16
        largest = (halves & 0x7FFF).max(initial=0)  # magnitudes are ordered like their bits
        if largest >= _INFINITE[_CODES[code]]:
            raise WireError("a value in a packet is not finite.")
        scaled, top = widen(halves), widen(np.array([largest], np.uint16))[0]
        bound = 2.0 ** _TOP[_CODES[code]]
        if top > 0 and not bound / 2 <= top <= bound:
            raise WireError(f"expected the largest scaled value between {bound / 2:g} and {bound:g}, got {top}.")
        lowest, highest = (exponent - _TOP[_CODES[code]] for exponent in _EXPONENTS[packet.dtype.itemsize])
        if not (lowest <= shift <= highest if top > 0 else shift == 0):
            raise WireError(f"expected an exponent from {lowest} to {highest}, or 0 for a zero block, got {shift}.")
        limit = largest_float(packet.dtype)
        with np.errstate(over="ignore"):
            out: FloatArray = np.ldexp(scaled.astype(packet.dtype), shift)
        return np.clip(out, -limit, limit).reshape(packet.shape)  # rounding up may exceed the range of the dtype

    def alpha(self, shape: Shape) -> float:
        """Return 1 minus the squared rounding errors of normal numbers and of entries far below the largest one."""
        unit, tiny = (2.0**-11, 2.0**-39) if self.to == "fp16" else (2.0**-8 + 2.0**-23, 2.0**-133)
        return 1 - (unit**2 + entries(shape) * tiny**2)

    def paper_bits(self, shape: Shape) -> int:
        """Return 16 bits per entry."""
        return 16 * entries(shape)
