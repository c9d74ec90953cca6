"""A quantiser that gives every column of a representation the levels that it needs, after SplitFC (arXiv 2307.10805).

SplitFC shares a budget of bits out among columns by their ranges, and replaces columns of small range by their mean.
With n log2(range / step) bits for a column of n entries, least is lost in all if every column has the same step: then a
column has as many levels as its range holds steps. So one step is all that is chosen here, the smallest that keeps to
the budget; and columns of about as many levels are coded together, so that each group costs its own entropy, not that
of the mixture.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from efvfl.compress import symbols
from efvfl.compress.base import Compressor, Shape, as_table, checked, entries, finite_values, largest_float, register
from efvfl.compress.ramp import Knob, Ramp
from efvfl.compress.symbols import Symbols
from efvfl.errors import ConfigError, WireError, describe
from efvfl.util.jit import kernel
from efvfl.wire.packet import FloatArray, Packet, Reader

LARGEST: Final = 1 << 14  # steps on either side of zero
PARTS: Final = 8  # the mean of a column that is sent as nothing else is in eighths of a step
_CLASSES: Final = 16  # the bits of the largest distance from a column's middle; class 0: a constant column


@kernel
def _round(columns: FloatArray, top: float, levels: int, out: Symbols) -> None:
    """Write every entry in steps of top / levels, rounded to the nearest."""
    for j in range(columns.shape[0]):
        for i in range(columns.shape[1]):
            level = min(levels, int(np.floor(abs(columns[j, i]) / top * levels + 0.5)))
            out[j, i] = -level if columns[j, i] < 0 else level


@kernel
def _constants(columns: FloatArray, top: float, levels: int, rounded: Symbols, out: Symbols) -> None:
    """Write every column's mean in parts of a step, and to `out[1]` whether it loses no more than rounding does."""
    for j in range(columns.shape[0]):
        total = 0.0
        for i in range(columns.shape[1]):
            total += columns[j, i] / top * levels
        out[0, j] = int(np.floor(total / columns.shape[1] * PARTS + 0.5))
        gain = 0.0
        for i in range(columns.shape[1]):
            value = columns[j, i] / top * levels
            gain += (value - rounded[j, i]) ** 2 - (value - out[0, j] / PARTS) ** 2
        out[1, j] = gain >= 0


@kernel
def _middles(columns: Symbols, out: Symbols) -> None:
    """Write the middle one of every column's numbers (of two, the upper), found by counting."""
    for j in range(columns.shape[0]):
        low, high = columns[j, 0], columns[j, 0]
        for i in range(columns.shape[1]):
            low, high = min(low, columns[j, i]), max(high, columns[j, i])
        counts = np.zeros(high - low + 1, dtype=np.int64)
        for i in range(columns.shape[1]):
            counts[columns[j, i] - low] += 1
        left = columns.shape[1] // 2
        middle = 0
        while counts[middle] <= left:
            left -= counts[middle]
            middle += 1
        out[j] = low + middle


def _classes(columns: Symbols) -> Symbols:
    """Return the bits of the largest magnitude of every column."""
    found: Symbols = np.frexp(np.abs(columns).max(axis=1, initial=0).astype(np.float64))[1].astype(np.int32)
    return found


def _levels(columns: FloatArray, top: float, bits: float) -> int:
    """Return the largest number of steps from 0 to the largest magnitude for which the ranges keep to the budget."""
    low, high = columns.min(axis=1) / top, columns.max(axis=1) / top

    def cost(levels: int) -> float:
        return float(np.log2(np.rint(high * levels) - np.rint(low * levels) + 1).mean())

    fits, too_many = least_levels(bits), LARGEST + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if cost(middle) <= bits else (fits, middle)
    return fits


def least_levels(bits: float) -> int:
    """Return the steps that columns of full range have, 2 L + 1 levels in `bits` bits: no block has fewer."""
    return floor((2**bits - 1) / 2)


@register("columns", 10)
@dataclass(frozen=True)
class Columns(Compressor):
    """Round to steps of one size, as small as a budget of bits allows, with the levels that each column needs.

    The first dimension of a block is rows, all others together are columns; a vector is one column. The step is the
    largest magnitude divided by a whole number L, so the largest entry is kept exactly, and any other loses at most
    itself and at most half a step; a column is replaced by its mean only where that loses no more. So alpha is that of
    uniform rounding with L levels (docs/theory.md), and L is at least what columns of full range can have.

    Body: the size of a step, the columns' classes, means and middles, and the symbols of each class.

    >>> from efvfl.compress import decode
    >>> block = np.array([[8, 0.1, 3], [-8, 0.1, 3], [5, 0.1, 2]])
    >>> decode(Columns(bits=2).encode(block)).round(2).tolist()
    [[8.0, 0.08, 3.33], [-8.0, 0.08, 3.33], [5.33, 0.08, 2.0]]
    """

    bits: Knob = 3.0  # an entry, on average, before entropy coding: fewer => fewer bytes, more error

    def __post_init__(self) -> None:
        """Check the budget."""
        for bits in (self.bits.start, self.bits.stop) if isinstance(self.bits, Ramp) else (self.bits,):
            if not isinstance(bits, int | float) or not 2 <= bits <= 14:
                raise ConfigError(f"columns' bits: expected a number from 2 to 14, got {describe(bits)}.")

    @property
    def _budget(self) -> float:
        return self.bits.at(0) if isinstance(self.bits, Ramp) else self.bits

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Return the rounded block."""
        flat = checked(block)
        rows, _ = as_table(block.shape)
        top = max(abs(float(flat.max())), abs(float(flat.min()))) if flat.size else 0.0
        columns = np.ascontiguousarray(flat.reshape(rows, -1).T) if flat.size else flat
        levels = _levels(columns, top, self._budget) if top else 1
        size = flat.dtype.type(top / levels)
        body = size.tobytes() + (_write(*_quantise(columns, top, levels)) if size else b"")
        return Packet(self.code, block.dtype, block.shape, body)

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        """Return the block of the symbols times the step."""
        reader, dtype = Reader(packet.body), packet.dtype
        size = finite_values(reader.take(dtype.itemsize, "the size of a step"), dtype)[0]
        if size < 0 or np.signbit(size):
            raise WireError(f"expected a positive size of a step or 0, got {size}.")
        if size == 0:
            reader.end("columns body")
            return np.zeros(packet.shape, dtype=dtype)
        if packet.entries == 0:
            raise WireError(f"expected size 0 for an empty block, got {size}.")
        with np.errstate(over="ignore"):  # near the end of the range a level can exceed it
            out = _read(reader, *as_table(packet.shape)).T * np.float64(size)
        reader.end("columns body")
        limit = largest_float(dtype)
        found: FloatArray = np.ascontiguousarray(np.clip(out, -limit, limit)).astype(dtype)
        return found.reshape(packet.shape)

    def alpha(self, shape: Shape) -> float:
        """Return 4 L^2 / (4 L^2 + d - 1), where L is the number of steps that every block has at least."""
        steps = 4 * least_levels(self._budget) ** 2
        return steps / (steps + max(1, entries(shape)) - 1)

    def paper_bits(self, shape: Shape) -> int:
        """Return the budget, and 64 bits a column for the ends of its range, as SplitFC sends them."""
        rows, columns = as_table(shape)
        return round(self._budget * rows * columns) + 64 * columns


def _quantise(columns: FloatArray, top: float, levels: int) -> tuple[Symbols, Symbols, Symbols, Symbols]:
    """Return the columns' classes, their means in parts of a step, their middles, and the distances from these."""
    rounded = np.empty(columns.shape, dtype=np.int32)
    top = np.float64(top)  # so that the loops compute in float64 without being compiled, too
    _round(columns, top, levels, rounded)
    means, middles = np.empty((2, len(columns)), dtype=np.int32), np.empty(len(columns), dtype=np.int32)
    _constants(columns, top, levels, rounded, means)
    _middles(rounded, middles)
    rounded -= middles[:, None]
    classes = np.where(means[1] == 1, np.int32(0), _classes(rounded))
    return classes, means[0], middles, rounded


def _write(classes: Symbols, means: Symbols, middles: Symbols, distances: Symbols) -> bytes:
    parts = [symbols.encode(classes, _CLASSES)]
    if (classes == 0).any():
        parts.append(symbols.encode(means[classes == 0], PARTS * LARGEST))
    if (classes > 0).any():
        parts.append(symbols.encode(middles[classes > 0], LARGEST))
    for each in np.unique(classes[classes > 0]):
        parts.append(symbols.encode(distances[classes == each].reshape(-1), (1 << int(each)) - 1))
    return b"".join(parts)


def _read(reader: Reader, rows: int, count: int) -> NDArray[np.float64]:
    """Read so many columns, in steps."""
    classes = symbols.decode(reader, count, _CLASSES)
    if (classes < 0).any():
        raise WireError(f"expected classes of columns from 0 to {_CLASSES}, got {int(classes.min())}.")
    out = np.empty((count, rows))
    constant = classes == 0
    if constant.any():
        out[constant] = symbols.decode(reader, int(constant.sum()), PARTS * LARGEST)[:, None] / PARTS
    if constant.all():
        return out
    middles = np.zeros(count, dtype=np.int32)
    middles[~constant] = symbols.decode(reader, int((~constant).sum()), LARGEST)
    for each in np.unique(classes[~constant]):
        where = classes == each
        found = symbols.decode(reader, int(where.sum()) * rows, (1 << int(each)) - 1).reshape(-1, rows)
        zeros = np.empty(len(found), dtype=np.int32)
        _middles(found, zeros)
        if zeros.any() or (_classes(found) != each).any():
            raise WireError("expected distances from the middle of every column, of its class: not canonical.")
        levels = found + middles[where, None]
        if int(np.abs(levels).max()) > LARGEST:
            raise WireError(f"expected at most {LARGEST:,} steps from zero, got {int(np.abs(levels).max()):,}.")
        out[where] = levels
    return out
