"""Low precision: 16 bits an entry, after the block is scaled by a power of two so that it always contracts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from efvfl.compress.base import Compressor, Shape, checked, entries, largest_float, register
from efvfl.errors import ConfigError, WireError
from efvfl.util.jit import kernel
from efvfl.wire.packet import FloatArray, Packet, Reader

# The largest magnitude is brought just below 2^15 (fp16, whose range ends at 2^16) or 1 (bf16).
_TOP = {"fp16": 15, "bf16": 0}
_CODES = ("fp16", "bf16")
# Exponents that the largest magnitude of a float32 or float64 block can have, by the bytes of an entry.
_EXPONENTS = {4: (-148, 128), 8: (-1073, 1024)}


# All halves there are: numpy converts them one by one, at five times the cost of looking them up.
_HALVES: Final = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
_INFINITE: Final = {"fp16": 0x7C00, "bf16": 0x7F80}  # bits from which on a magnitude is no finite number


@kernel
def _round_to_half(bits: NDArray[np.uint32], out: NDArray[np.uint16]) -> None:
    """Round float32 magnitudes of at most 2^15 to the nearest half, ties to even, as numpy does."""
    for i in range(len(bits)):
        magnitude = bits[i] & 0x7FFFFFFF
        exponent = magnitude >> 23
        if exponent >= 113:  # a normal half
            rounded = (magnitude + 0xFFF + ((magnitude >> 13) & 1) - (112 << 23)) >> 13
        elif exponent >= 102:  # counted in units of 2^-24
            unit = 126 - exponent
            whole = (magnitude & 0x7FFFFF) | 0x800000
            rounded = (whole + (1 << (unit - 1)) - 1 + ((whole >> unit) & 1)) >> unit
        else:
            rounded = 0
        out[i] = rounded | ((bits[i] >> 16) & 0x8000)


def _to_half(values: FloatArray) -> NDArray[np.uint16]:
    if values.dtype != np.float32:  # not through float32, which would round twice
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
    """Round to fp16 or bf16. Body: format, exponent of the scale (two bytes), two bytes an entry."""

    to: Literal["fp16", "bf16"] = "fp16"  # bf16: wider range inside a block, eight times the rounding error

    def __post_init__(self) -> None:
        """Refuse other formats."""
        if self.to not in _CODES:
            raise ConfigError(f"cast goes to 'fp16' or 'bf16', but {self.to!r} came.")

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Scale and round."""
        flat = checked(block)
        top = np.abs(flat).max(initial=0)
        shift = int(np.frexp(top)[1]) - _TOP[self.to] if top > 0 else 0
        scaled = np.ldexp(flat, -shift)
        halves = _to_half(scaled) if self.to == "fp16" else _to_bfloat16(scaled)
        start = bytes((_CODES.index(self.to),)) + shift.to_bytes(2, "little", signed=True)
        return Packet(self.code, block.dtype, block.shape, start + halves.astype("<u2").tobytes())

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        """Widen and scale back."""
        reader = Reader(packet.body)
        code = reader.byte("cast's format")
        if code >= len(_CODES):
            raise WireError(f"cast format {code} came, 0 or 1 is expected.")
        shift = int.from_bytes(reader.take(2, "cast's exponent"), "little", signed=True)
        halves = np.frombuffer(reader.take(2 * packet.entries, "cast's values"), dtype="<u2")
        reader.end("cast body")
        widen = _HALVES.take if _CODES[code] == "fp16" else _from_bfloat16
        largest = (halves & 0x7FFF).max(initial=0)  # magnitudes are in the order of their bits
        if largest >= _INFINITE[_CODES[code]]:
            raise WireError("a value in a packet is not finite.")
        scaled, top = widen(halves), widen(np.array([largest], np.uint16))[0]
        bound = 2.0 ** _TOP[_CODES[code]]
        if top > 0 and not bound / 2 <= top <= bound:
            raise WireError(f"the largest of the scaled values is {top}, {bound / 2:g} to {bound:g} is expected.")
        lowest, highest = (exponent - _TOP[_CODES[code]] for exponent in _EXPONENTS[packet.dtype.itemsize])
        if not (lowest <= shift <= highest if top > 0 else shift == 0):
            raise WireError(f"exponent {shift} came, {lowest} to {highest}, or 0 for a zero block, is expected.")
        limit = largest_float(packet.dtype)
        with np.errstate(over="ignore"):
            out: FloatArray = np.ldexp(scaled.astype(packet.dtype), shift)
        return np.clip(out, -limit, limit).reshape(packet.shape)  # rounding up may leave the range; the entry does not

    def alpha(self, shape: Shape) -> float:
        """Rounding of normal numbers, plus that of entries too small beside the largest one."""
        unit, tiny = (2.0**-11, 2.0**-39) if self.to == "fp16" else (2.0**-8 + 2.0**-23, 2.0**-133)
        return 1 - (unit**2 + entries(shape) * tiny**2)

    def paper_bits(self, shape: Shape) -> int:
        """16 bits an entry."""
        return 16 * entries(shape)
