"""Stochastic quantisation (QSGD, the paper's Section 5), scaled by 1/tau so that the map contracts."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np

from efvfl.compress import symbols
from efvfl.compress.base import Compressor, Shape, checked, entries, finite_values, largest_float, register
from efvfl.compress.ramp import Knob, Ramp
from efvfl.compress.symbols import Symbols
from efvfl.errors import ConfigError, WireError
from efvfl.util.jit import kernel
from efvfl.util.rng import uniform
from efvfl.wire.packet import FloatArray, Packet, Reader, number

_LARGEST = 1 << 16


@kernel
def _root(flat: FloatArray, top: float) -> float:
    """Return the Euclidean norm divided by the largest magnitude, so that neither squares nor norm overflow."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0  # four independent sums, so that additions can run in parallel
    aligned = flat.size // 4 * 4
    for i in range(0, aligned, 4):
        a += (flat[i] / top) ** 2
        b += (flat[i + 1] / top) ** 2
        c += (flat[i + 2] / top) ** 2
        d += (flat[i + 3] / top) ** 2
    for i in range(aligned, flat.size):
        a += (flat[i] / top) ** 2
    return sqrt((a + b) + (c + d))


@kernel
def _quantise(flat: FloatArray, top: float, root: float, levels: int, key: np.uint64, out: Symbols) -> None:
    factor = levels / (top * root)
    for i in range(flat.size):
        # In two steps if the factor overflows or underflows.
        ratio = abs(flat[i]) * factor if 0 < factor < 1e300 else abs(flat[i]) / top * (levels / root)
        level = min(levels, int(np.floor(ratio + uniform(key, np.uint64(i)))))
        out[i] = -level if flat[i] < 0 else level


def tau(count: int, levels: int) -> float:
    """Return 1 + min(d / s^2, sqrt(d) / s), the variance factor of QSGD."""
    return 1 + min(count / levels**2, sqrt(count) / levels)


def quantise(flat: FloatArray, levels: int, key: int) -> bytes:
    """Return the number of levels, the size of a level and the symbols as bytes; a zero block has no symbols."""
    top = max(abs(float(flat.max())), abs(float(flat.min()))) if flat.size else 0.0
    root = _root(flat, top) if top else 1.0
    size = flat.dtype.type(top * (root / (levels * tau(flat.size, levels))))
    start = number(levels) + size.tobytes()
    if size == 0:
        return start
    out = np.empty(flat.size, dtype=np.int32)
    _quantise(flat, top, root, levels, np.uint64(key), out)
    return start + symbols.encode(out, levels)


def dequantise(reader: Reader, count: int, dtype: np.dtype[np.generic]) -> FloatArray:
    """Return the `count` values that `quantise` wrote."""
    levels = reader.number("qsgd's levels")
    if not 1 <= levels <= _LARGEST:
        raise WireError(f"expected 1 to {_LARGEST:,} levels, got {levels:,}.")
    size = finite_values(reader.take(dtype.itemsize, "qsgd's level size"), dtype)
    if size[0] < 0 or np.signbit(size[0]):
        raise WireError(f"expected a positive level size or 0, got {size[0]}.")
    if size[0] == 0:
        return np.zeros(count, dtype=dtype)
    if count == 0:
        raise WireError(f"expected level size 0 for an empty block, got {size[0]}.")
    levels_of = symbols.decode(reader, count, levels).astype(dtype)
    with np.errstate(over="ignore"):
        out: FloatArray = np.multiply(levels_of, size[0], out=levels_of)
    top = largest_float(dtype)
    if float(size[0]) * levels >= top:  # near the end of the range a level can exceed it, an entry cannot
        np.clip(out, -top, top, out=out)
    return out


def level_count(bits: int, rule: str) -> int:
    """Return the number of levels s: 2^b - 1 as in the paper's runs, or 2^b as in its text."""
    return (1 << bits) - 1 if rule == "runs" else 1 << bits


def check_bits(bits: Knob, rule: str) -> None:
    """Raise an error if QSGD's parameters are out of range."""
    for value in (bits.start, bits.stop) if isinstance(bits, Ramp) else (bits,):
        if not isinstance(value, int | float) or not 1 <= value <= 16:
            raise ConfigError(f"expected qsgd's bits from 1 to 16, got {value!r}.")
    if not isinstance(bits, Ramp) and bits != int(bits):
        raise ConfigError(f"expected qsgd's bits to be a whole number from 1 to 16, got {bits!r}.")
    if rule not in ("runs", "text"):
        raise ConfigError(f"expected qsgd's levels 'runs' (2^b - 1) or 'text' (2^b), got {rule!r}.")


def whole_bits(bits: Knob) -> int:
    """Return the number of bits, for a ramp the rounded first value."""
    return round(bits.at(0) if isinstance(bits, Ramp) else bits)


@register("qsgd", 3)
@dataclass(frozen=True)
class QSGD(Compressor):
    """Round every entry at random to one of s levels of the block's norm, without bias before scaling by 1/tau.

    Body: s, the size of a level, the symbols.

    >>> from efvfl.compress import decode
    >>> block = np.float32([3, -4, 0, 0])
    >>> decode(QSGD(bits=8).encode(block, key=1)).round(1).tolist()
    [3.0, -4.0, 0.0, 0.0]
    """

    whole = frozenset({"bits"})

    bits: Knob = 4  # fewer => fewer bytes, more error
    levels: Literal["runs", "text"] = "runs"  # s = 2^b - 1, as in the paper's runs, or 2^b, as in its text

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_bits(self.bits, self.levels)

    @property
    def s(self) -> int:
        """The number of levels."""
        return level_count(whole_bits(self.bits), self.levels)

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Return the quantised block; `key` determines the rounding."""
        return Packet(self.code, block.dtype, block.shape, quantise(checked(block), self.s, key))

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        """Return the block of the symbols times the level size."""
        reader = Reader(packet.body)
        out = dequantise(reader, packet.entries, packet.dtype)
        reader.end("qsgd body")
        return out.reshape(packet.shape)

    def alpha(self, shape: Shape) -> float:
        """Return 1 / tau."""
        return 1 / tau(entries(shape), self.s)

    def paper_bits(self, shape: Shape) -> int:
        """Return 32 bits for the norm, plus a sign and b bits per entry."""
        return 32 + (1 + whole_bits(self.bits)) * entries(shape)
