"""Uniform quantisation: every entry is rounded to one of 2 L + 1 equally spaced values; L = 1 is ternary.

Unlike QSGD, whose damping 1/tau grows with the square root of the block, and unlike top-k, which leaves most entries
as they are, rounding to the nearest value moves every entry by at most half a step, and contracts without damping. What
remains to choose is the scale: the largest magnitude of the block, of each row, or of a few root mean squares of the
block, so that single large entries do not decide about all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ldexp, sqrt
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from efvfl.compress import symbols
from efvfl.compress.base import Compressor, Shape, checked, entries, finite_values, largest_float, register
from efvfl.compress.symbols import Symbols
from efvfl.errors import ConfigError, WireError, describe
from efvfl.util.jit import kernel
from efvfl.util.rng import uniform
from efvfl.wire.packet import FloatArray, Packet, Reader, number

Scale = Literal["block", "row", "clip"]
Rounding = Literal["nearest", "random"]
Floats = NDArray[np.float64]
Exponents = NDArray[np.int32]

LARGEST: Final = 1 << 15  # levels
# A row's scale is the block's times 2^(-e/4): a few bits after entropy coding, where a float would take 32.
QUARTERS: Final = (1.0, 0.8408964152537145, 0.7071067811865476, 0.5946035575013605)  # 2^0, 2^(-1/4), ...
NONE: Final = 255  # the exponent of a row of zeros, or of one that is too small to matter
# By exponent; made from literals, so that every machine has the same ones.
SCALES: Final = np.array([ldexp(QUARTERS[e % 4], -(e // 4)) for e in range(NONE)] + [0.0])

_ROWS, _RANDOM = 1, 2  # bits of the form


@kernel
def _round(flat: FloatArray, tops: Floats, width: int, levels: int, key: np.uint64, random: bool, out: Symbols) -> None:
    """Write the symbols of a flat block; `tops` has the scale of each `width` entries, 0: only zeros."""
    for row in range(tops.size):
        top = tops[row]
        if top == 0:
            out[row * width : (row + 1) * width] = 0
            continue
        factor = levels / top
        for i in range(row * width, (row + 1) * width):
            # In two steps if the factor overflows.
            ratio = abs(flat[i]) * factor if factor < 1e300 else abs(flat[i]) / top * levels
            level = min(levels, int(np.floor(ratio + (uniform(key, np.uint64(i)) if random else 0.5))))
            out[i] = -level if flat[i] < 0 else level


def _row_exponents(table: FloatArray, top: float) -> Exponents:
    """Return the exponent of every row's scale: the smallest scale that is not below the row's largest magnitude."""
    tops = np.abs(table).max(axis=1, initial=0).astype(np.float64) / top
    out = np.full(tops.size, NONE, dtype=np.int32)
    some = tops > SCALES[NONE - 1]
    out[some] = np.searchsorted(-SCALES, -tops[some], side="right") - 1
    return out


def _write_exponents(exponents: Exponents) -> bytes:
    """Return exponents as bytes: the middle one, and the differences to it, which are small."""
    middle = int(np.sort(exponents)[exponents.size // 2])
    return number(middle) + symbols.encode(exponents - middle, NONE)


def _read_exponents(reader: Reader, count: int) -> Exponents:
    """Read the exponents of so many rows."""
    middle = reader.number("the middle of the rows' scales")
    if middle > NONE:
        raise WireError(f"expected a middle of the rows' scales of at most {NONE}, got {middle:,}.")
    out: Exponents = symbols.decode(reader, count, NONE) + np.int32(middle)
    if int(out.min()) != 0 or int(out.max()) > NONE:
        raise WireError(f"expected scales of rows from 0 to {NONE}, the first of them included, got others.")
    if int(np.sort(out)[count // 2]) != middle:
        raise WireError("expected the rows' scales relative to the middle one: the coding is not canonical.")
    return out


def tau(count: int, levels: float) -> float:
    """Return 1 + omega, where omega bounds the variance of random rounding relative to the block's energy.

    An entry's variance is at most a quarter of a squared step, and at most the step times its magnitude; the step is at
    most the block's norm divided by the levels.
    """
    return 1 + min(count / (4 * levels**2), sqrt(count) / levels)


@register("uniform", 7)
@dataclass(frozen=True)
class Uniform(Compressor):
    """Round every entry to one of `levels` equally spaced values on either side of zero.

    Body: the number of levels, a byte for scale and rounding, the size of a level, for rows their scales, the symbols.

    >>> from efvfl.compress import decode
    >>> decode(Uniform(levels=2).encode(np.float32([0.9, -4, 2.9, 0]))).tolist()
    [0.0, -4.0, 2.0, 0.0]
    """

    levels: int = 7  # on either side of zero; 1: ternary. Fewer => fewer bytes, more error
    scale: Scale = "block"  # the largest level: the largest magnitude of the block, of each row, or `clip`
    clip: float = 3.0  # with scale = "clip": so many root mean squares of the block; larger entries are cut off
    rounding: Rounding = "nearest"  # random: without bias before it is damped by 1/tau, as in QSGD

    def __post_init__(self) -> None:
        """Check the parameters."""
        if not isinstance(self.levels, int) or isinstance(self.levels, bool) or not 1 <= self.levels <= LARGEST:
            raise ConfigError(f"expected uniform's levels from 1 to {LARGEST:,}, got {describe(self.levels)}.")
        if self.scale not in get_args(Scale):
            raise ConfigError(f"expected uniform's scale 'block', 'row' or 'clip', got {describe(self.scale)}.")
        if self.rounding not in get_args(Rounding):
            raise ConfigError(f"expected uniform's rounding 'nearest' or 'random', got {describe(self.rounding)}.")
        if not isinstance(self.clip, int | float) or not 1 <= self.clip <= 1e6:
            raise ConfigError(f"expected uniform's clip from 1 to 1,000,000, got {describe(self.clip)}.")
        if self.rounding == "random" and self.scale == "clip":
            raise ConfigError("uniform's random rounding has no bias, but clipping has: scale by block or row.")

    def _tau(self, width: int, per_row: bool) -> float:
        """Return the damping of random rounding; a row's scale may exceed its largest magnitude."""
        return tau(width, self.levels * (QUARTERS[1] if per_row else 1.0))

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Return the rounded block; `key` determines random rounding."""
        flat = checked(block)
        random, per_row = self.rounding == "random", self.scale == "row" and block.ndim > 1
        top = self._top(flat)
        width = block.shape[-1] if per_row else flat.size
        size = flat.dtype.type(top / (self.levels * (self._tau(width, per_row) if random else 1.0)))
        start = number(self.levels) + bytes((_ROWS * per_row | _RANDOM * random,)) + size.tobytes()
        if size == 0:
            return Packet(self.code, block.dtype, block.shape, start)
        tops, scales = np.array([top]), b""
        if per_row:
            exponents = _row_exponents(flat.reshape(-1, width), top)
            tops, scales = top * SCALES[exponents], _write_exponents(exponents)
        out = np.empty(flat.size, dtype=np.int32)
        _round(flat, tops, width, self.levels, np.uint64(key), random, out)
        return Packet(self.code, block.dtype, block.shape, start + scales + symbols.encode(out, self.levels))

    def _top(self, flat: FloatArray) -> float:
        """Return the magnitude of the largest level."""
        top = max(abs(float(flat.max())), abs(float(flat.min()))) if flat.size else 0.0
        if self.scale != "clip" or top == 0:
            return top
        # Divided by the largest magnitude first, so that squares do not overflow.
        return top * min(1.0, self.clip * sqrt(float(np.square(flat / top, dtype=np.float64).mean())))

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        """Return the block of the symbols times the level sizes."""
        reader, dtype = Reader(packet.body), packet.dtype
        levels = reader.number("uniform's levels")
        if not 1 <= levels <= LARGEST:
            raise WireError(f"expected 1 to {LARGEST:,} levels, got {levels:,}.")
        form = reader.byte("uniform's form")
        if form > _ROWS | _RANDOM or (form & _ROWS and len(packet.shape) < 2):
            raise WireError(f"expected a form of uniform that fits shape {packet.shape}, got {form}.")
        size = finite_values(reader.take(dtype.itemsize, "uniform's level size"), dtype)[0]
        if size < 0 or np.signbit(size):
            raise WireError(f"expected a positive level size or 0, got {size}.")
        if size == 0:
            reader.end("uniform body")
            return np.zeros(packet.shape, dtype=dtype)
        if packet.entries == 0:
            raise WireError(f"expected level size 0 for an empty block, got {size}.")
        rows = packet.entries // packet.shape[-1] if form & _ROWS else 1
        exponents = _read_exponents(reader, rows) if form & _ROWS else np.zeros(1, dtype=np.int32)
        found = symbols.decode(reader, packet.entries, levels).reshape(rows, -1)
        reader.end("uniform body")
        _check(found, exponents, 0 if form & _RANDOM else levels, bool(form & _ROWS))
        sizes = (float(size) * SCALES[exponents]).astype(dtype)
        with np.errstate(over="ignore"):
            out: FloatArray = found.astype(dtype) * sizes[:, None]
        if float(size) * levels >= largest_float(dtype):  # near the end of the range a level can exceed it
            np.clip(out, -largest_float(dtype), largest_float(dtype), out=out)
        return out.reshape(packet.shape)

    def alpha(self, shape: Shape) -> float:
        """Return the contraction of one scale's entries: see docs/theory.md for the three cases."""
        rows = self.scale == "row" and len(shape) > 1
        count = shape[-1] if rows else entries(shape)
        if not count:
            return 1.0
        if self.rounding == "random":
            return 1 / self._tau(count, rows)
        rest = (count - 1) / (4 * self.levels**2)  # what all other entries can lose at most, if the largest is 1
        # The largest entry is kept exactly; with scales in quarter powers of two it may be off by a share of 0.16.
        kept = QUARTERS[1] ** 2 - min(1 - QUARTERS[1], 0.5 / self.levels) ** 2 if rows else 1.0
        alpha = kept / (kept + rest)
        return min(alpha, _alpha_clipped(count, self.levels, self.clip)) if self.scale == "clip" else alpha

    def paper_bits(self, shape: Shape) -> int:
        """Return 32 bits for each scale, plus the bits of 2 L + 1 values for each entry."""
        scales = entries(shape) // shape[-1] if self.scale == "row" and len(shape) > 1 and shape[-1] else 1
        return 32 * scales + (2 * self.levels).bit_length() * entries(shape)


def _alpha_clipped(count: int, levels: int, clip: float) -> float:
    """Return the contraction where entries are cut off at t = clip root mean squares of the block.

    In units of t the block's energy is d / clip^2. One entry that holds a share a of it loses (sqrt(a d) / clip - 1)^2,
    and all others at most what they hold and a quarter step each: most is lost at the share where the two are equal.
    """
    energy = count / clip**2
    if energy <= 1:
        return 1.0  # no entry can be that large
    rest = (count - 1) / (4 * levels**2)
    share = max(1 / energy, 1 - rest / energy)
    return 1 - ((sqrt(share * energy) - 1) ** 2 + min((1 - share) * energy, rest)) / energy


def _check(found: Symbols, exponents: Exponents, levels: int, per_row: bool) -> None:
    """Refuse symbols that rounding to the nearest level cannot give: a scale is that of the largest entry."""
    tops = np.abs(found).max(axis=1)
    if tops[exponents == NONE].any():
        raise WireError("expected zeros in a row without a scale, got other symbols.")
    least = int(np.floor(levels * QUARTERS[1] + 0.5 - 1e-6)) if per_row else levels
    if (tops[exponents < NONE] < least).any():
        raise WireError(f"expected a symbol of at least {least} for every scale, got less: the scale is too large.")
