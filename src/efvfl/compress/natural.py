"""Natural compression (Horvath et al. 2019, arXiv 1905.10988): every entry becomes a power of two.

Of a float its sign and its exponent are left, nine bits; and because most magnitudes of a block lie within a few powers
of two of each other, entropy coding takes about three. The relative error of an entry has a bound of its own, so the
guarantee does not depend on the size of the block, as it does for all maps with one scale for many entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from efvfl.compress import symbols
from efvfl.compress.base import Compressor, Shape, checked, entries, largest_float, register
from efvfl.compress.symbols import Symbols
from efvfl.errors import ConfigError, WireError, describe
from efvfl.util.jit import kernel
from efvfl.util.rng import uniform
from efvfl.wire.packet import FloatArray, Packet, Reader, number

Rounding = Literal["random", "nearest"]

OMEGA: Final = 1 / 8  # the variance of random rounding to powers of two, relative to the square of an entry
# The exponents that the powers of two of a block may have, by the bytes of an entry.
_EXPONENTS: Final = {4: (-149, 128), 8: (-1074, 1024)}
_ZERO: Final = -(1 << 12)  # in place of the exponent of 0


@kernel
def _exponents(bits: NDArray[np.int64], key: np.uint64, random: bool, out: Symbols) -> int:
    """Write the exponent of the power of two that each float64 becomes, and return the largest one."""
    hidden, top = 1 << 52, _ZERO
    for i in range(bits.size):
        exponent, fraction = (bits[i] >> 52) & 2047, bits[i] & (hidden - 1)
        if exponent == 0:  # zero, or subnormal: the leading bit of the fraction takes the place of the hidden one
            if fraction == 0:
                out[i] = _ZERO
                continue
            exponent = 1
            while fraction < hidden:
                fraction <<= 1
                exponent -= 1
            fraction -= hidden
        threshold = uniform(key, np.uint64(i)) if random else 0.5
        out[i] = exponent - 1023 + (fraction > threshold * hidden)
        top = max(top, out[i])
    return top


def _powers(top: int, span: int, random: bool, dtype: np.dtype[np.generic]) -> FloatArray:
    """Return what the symbols from -span to span stand for; 1 is the largest magnitude, `span` the smallest."""
    scale = 1 / (1 + OMEGA) if random else 1.0
    with np.errstate(over="ignore"):
        magnitudes = np.ldexp(scale, top - np.arange(span))
        some = np.minimum(magnitudes, largest_float(dtype)).astype(dtype)  # 2^128 is no float32, nor 2^1024 a float64
    return np.concatenate([-some[::-1], np.zeros(1, dtype), some])


@register("natural", 8)
@dataclass(frozen=True)
class Natural(Compressor):
    """Round every entry to one of the two powers of two around it, at random without bias, or to the nearer one.

    Random rounding moves x in [2^a, 2^(a+1)] with variance (2^(a+1) - x)(x - 2^a), which is largest relative to x^2 at
    x = 2^(a+1) 2/3: omega = 1/8. Scaled by 1/(1 + omega) = 8/9 it contracts with alpha = 8/9. The nearer power is at
    most x/3 away (at x = 2^a 3/2), so that one contracts with alpha = 8/9 as well, always and without a scale.

    Body: a byte for the rounding, the largest exponent (signed, 2 bytes), the span of exponents, the symbols.

    >>> from efvfl.compress import decode
    >>> decode(Natural("nearest").encode(np.float32([0.9, -4, 2.9, 0]))).tolist()
    [1.0, -4.0, 2.0, 0.0]
    """

    rounding: Rounding = "random"  # nearest: less error; random: without bias before it is damped by 8/9

    def __post_init__(self) -> None:
        """Check the rounding."""
        if self.rounding not in get_args(Rounding):
            raise ConfigError(f"expected natural's rounding 'random' or 'nearest', got {describe(self.rounding)}.")

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Return the signs and exponents; `key` determines random rounding."""
        flat, random = checked(block), self.rounding == "random"
        out = np.empty(flat.size, dtype=np.int32)
        top = int(_exponents(flat.astype(np.float64, copy=False).view(np.int64), np.uint64(key), random, out))
        if top == _ZERO:
            return Packet(self.code, block.dtype, block.shape, bytes((random, 0, 0, 0)))
        some = out != _ZERO
        out = np.where(some, top + 1 - out, 0).astype(np.int32, copy=False)
        span = int(out.max())
        np.negative(out, out=out, where=flat < 0)
        start = bytes((random,)) + top.to_bytes(2, "little", signed=True) + number(span)
        return Packet(self.code, block.dtype, block.shape, start + symbols.encode(out, span))

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        """Return the powers of two that the symbols stand for."""
        reader = Reader(packet.body)
        random = reader.byte("natural's rounding")
        if random > 1:
            raise WireError(f"expected natural's rounding 0 or 1, got {random}.")
        top = int.from_bytes(reader.take(2, "natural's largest exponent"), "little", signed=True)
        span = reader.number("natural's span of exponents")
        if span == 0:
            if top != 0:
                raise WireError(f"expected exponent 0 for a zero block, got {top}.")
            reader.end("natural body")
            return np.zeros(packet.shape, dtype=packet.dtype)
        lowest, highest = _EXPONENTS[packet.dtype.itemsize]
        if not lowest <= top <= highest or span > top - lowest + 1:
            raise WireError(f"expected exponents from {lowest} to {highest}, got {span:,} of them up to {top}.")
        found = symbols.decode(reader, packet.entries, span)
        reader.end("natural body")
        magnitudes = np.abs(found)
        if int(magnitudes.max(initial=0)) != span or not (magnitudes == 1).any():
            raise WireError(f"expected symbols of magnitude 1 and {span:,}: the largest exponent or the span is wrong.")
        return _powers(top, span, bool(random), packet.dtype)[found + span].reshape(packet.shape)

    def alpha(self, shape: Shape) -> float:
        """Return 1 / (1 + omega) = 8/9, whatever the block: in expectation for random rounding, else always."""
        return 1 / (1 + OMEGA)

    def paper_bits(self, shape: Shape) -> int:
        """Return nine bits per entry: a sign and the exponent of a float32."""
        return 9 * entries(shape)
