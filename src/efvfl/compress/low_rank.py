"""Low rank: a block as a product of two thin matrices, found by power iterations (PowerSGD, arXiv 1905.13727).

PowerSGD starts from the last step's factor, which both ends keep. A packet here stands for itself, so the start is
random, and a second iteration makes up for it. Only the span of the long factor matters: it is sent in small whole
numbers, both ends make an orthonormal basis of these, bit for bit the same one, and the short factor is the projection
on what the receiver really has. So rounding the long factor costs next to nothing, and rounding the short one adds its
own error and no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import Final

import numpy as np
from numpy.typing import NDArray

from efvfl.compress import symbols
from efvfl.compress.base import (
    Compressor,
    Shape,
    as_table,
    checked,
    entries,
    finite_values,
    largest_float,
    register,
)
from efvfl.compress.symbols import Symbols
from efvfl.errors import ConfigError, WireError, whole_number
from efvfl.util.jit import kernel
from efvfl.util.rng import uniforms
from efvfl.wire.packet import FloatArray, Packet, Reader, number

Floats = NDArray[np.float64]

LARGEST: Final = 1 << 15  # levels
KEPT: Final = 0.9  # of what a basis keeps, at least this is kept after rounding it; else it is sent as floats
_EXPONENTS: Final = {4: (-148, 128), 8: (-1073, 1024)}  # of the largest magnitude, by the bytes of an entry


@kernel
def _times(block: Floats, short: Floats, out: Floats) -> None:
    """Write block x short, a column a row; sums have one order on every machine, as in all that both ends compute."""
    for k in range(short.shape[0]):
        for i in range(block.shape[0]):
            total = 0.0
            for j in range(block.shape[1]):
                total += block[i, j] * short[k, j]
            out[k, i] = total


@kernel
def _project(block: Floats, long: Floats, out: Floats) -> None:
    """Write the transposed block x long, a column a row."""
    out[:] = 0
    for k in range(long.shape[0]):
        for i in range(block.shape[0]):
            factor = long[k, i]
            for j in range(block.shape[1]):
                out[k, j] += block[i, j] * factor


@kernel
def _orthonormalise(long: Floats) -> None:
    """Make the rows orthonormal; those that depend on the ones before become 0."""
    for k in range(long.shape[0]):
        before, after = 0.0, 0.0
        for i in range(long.shape[1]):
            before += long[k, i] * long[k, i]
        for _turn in range(2):  # once more, because the first time leaves rounding errors
            for earlier in range(k):
                dot = 0.0
                for i in range(long.shape[1]):
                    dot += long[k, i] * long[earlier, i]
                for i in range(long.shape[1]):
                    long[k, i] -= dot * long[earlier, i]
        for i in range(long.shape[1]):
            after += long[k, i] * long[k, i]
        factor = 1 / np.sqrt(after) if after > 1e-20 * before else 0.0
        for i in range(long.shape[1]):
            long[k, i] *= factor


@kernel
def _product(long: Floats, short: Floats, out: Floats) -> None:
    """Write the product of both factors."""
    out[:] = 0
    for k in range(long.shape[0]):
        for i in range(out.shape[0]):
            factor = long[k, i]
            for j in range(out.shape[1]):
                out[i, j] += factor * short[k, j]


def _start(rank: int, width: int, key: int) -> Floats:
    """Return normally distributed numbers: their rows span a subspace that is equally likely to be any."""
    draws = uniforms(key, 2 * rank * width)
    # A draw may be 0, of which there is no logarithm; and key 0 begins with one, which must not be a start at zero.
    found: Floats = np.sqrt(-2 * np.log(draws[::2] + 2.0**-54)) * np.cos(2 * pi * draws[1::2])
    return found.reshape(rank, width)


def _rounded(rows: Floats, levels: int) -> Symbols:
    """Return every row times a number that makes its largest magnitude `levels`, rounded to the nearest."""
    tops = np.abs(rows).max(axis=1, keepdims=True)
    scaled = np.divide(rows, tops, out=np.zeros_like(rows), where=tops > 0) * levels
    found: Symbols = np.rint(scaled).astype(np.int32)
    return found


def _basis(rows: NDArray[np.generic]) -> Floats:
    """Return the orthonormal basis that both ends make of the long factor."""
    basis: Floats = rows.astype(np.float64)
    _orthonormalise(basis)
    return basis


def _sides(shape: Shape) -> tuple[int, int]:
    """Return the longer and the shorter side of a block as a matrix."""
    rows, columns = as_table(shape)
    return max(rows, columns), min(rows, columns)


@register("low_rank", 11)
@dataclass(frozen=True)
class LowRank(Compressor):
    """Project the block, as a matrix with one row for each of its first dimension, on a subspace of low dimension.

    Let A be the block, of n x m with m the shorter side, S a random subspace of r dimensions, and P the projection on
    A S. Of all matrices with columns in A S, P A is the closest to A, and A times the projection on S is one of them:

        |A - P A|^2  <=  |A - A P_S|^2  =  |A|^2 - |A P_S|^2,    E |A P_S|^2 = r/m |A|^2.

    So P A keeps r/m of the energy at least, in expectation; a further iteration replaces S by the rows of P A and keeps
    no less, by the same argument. Rounding the basis may lose a tenth of that, which is checked. P A is a basis, which
    is orthonormal, times numbers of which rounding to L levels loses at most the share 1 - a, with
    a = 4 L^2 / (4 L^2 + r m - 1), and this error is orthogonal to A - P A. Together alpha = 0.9 a r/m. A vector is a
    matrix of one column.

    >>> from efvfl.compress import decode
    >>> block = np.outer([1, 2, -1, 2], [3.0, 0, -3])
    >>> decode(LowRank(rank=1, levels=4).encode(block, key=1)).round(1).tolist()
    [[3.0, 0.0, -3.0], [6.0, 0.0, -6.0], [-3.0, 0.0, 3.0], [6.0, 0.0, -6.0]]
    """

    rank: int = 2  # of the product: smaller => fewer bytes, more error
    levels: int = 31  # on either side of zero, of the numbers in both factors
    iterations: int = 2  # more: closer to the best subspace of this rank, and slower

    def __post_init__(self) -> None:
        """Check the parameters."""
        whole_number("low_rank's rank", self.rank, least=1)
        whole_number("low_rank's iterations", self.iterations, least=1)
        if whole_number("low_rank's levels", self.levels, least=1) > LARGEST:
            raise ConfigError(f"low_rank's levels: expected at most {LARGEST:,}, got {self.levels:,}.")

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Return both factors; the key decides where the search begins."""
        flat = checked(block)
        rows, columns = as_table(block.shape)
        top = np.abs(flat).max(initial=0)
        if top == 0:
            return Packet(self.code, block.dtype, block.shape, number(0))
        exponent = int(np.frexp(top)[1])
        table = np.ldexp(flat.astype(np.float64), -exponent).reshape(rows, columns)
        table = np.ascontiguousarray(table if rows >= columns else table.T)
        parts = [number(self._rank(block.shape)), number(self.levels), self._factors(table, key, exponent)]
        return Packet(self.code, block.dtype, block.shape, b"".join(parts))

    def _rank(self, shape: Shape) -> int:
        return min(self.rank, *_sides(shape))

    def _factors(self, table: Floats, key: int, exponent: int) -> bytes:
        rank = min(self.rank, table.shape[1])
        long, short = np.empty((rank, len(table))), _start(rank, table.shape[1], key)
        for turn in range(self.iterations):
            if turn:
                _orthonormalise(short)  # so that no direction is lost beside a far larger one
            _times(table, short, long)
            _orthonormalise(long)
            _project(table, long, short)
        keeps, told = np.square(short).sum(), _rounded(long, self.levels)
        _project(table, _basis(told), short)
        exact = b""
        if np.square(short).sum() < KEPT * keeps:
            exact = long.astype("<f4").tobytes()
            _project(table, _basis(long.astype("<f4")), short)
        size = np.float32(np.abs(short).max() / self.levels)
        numbers = np.clip(np.rint(short / float(size)), -self.levels, self.levels).astype(np.int32)
        start = bytes((bool(exact),)) + exponent.to_bytes(2, "little", signed=True) + size.tobytes()
        long_part = exact or symbols.encode(told.reshape(-1), self.levels)
        return start + long_part + symbols.encode(numbers.reshape(-1), self.levels)

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        """Return the product of both factors."""
        reader, dtype = Reader(packet.body), packet.dtype
        rank, (length, width) = reader.number("low_rank's rank"), _sides(packet.shape)
        if rank > width:
            raise WireError(f"expected a rank of at most {width:,}, got {rank:,}.")
        if rank == 0:
            reader.end("low_rank body")
            return np.zeros(packet.shape, dtype=dtype)
        levels, form = reader.number("low_rank's levels"), reader.byte("low_rank's form")
        if not 1 <= levels <= LARGEST or form > 1:
            raise WireError(f"expected 1 to {LARGEST:,} levels and form 0 or 1, got {levels:,} and {form}.")
        exponent = int.from_bytes(reader.take(2, "low_rank's exponent"), "little", signed=True)
        lowest, highest = _EXPONENTS[dtype.itemsize]
        size = float(finite_values(reader.take(4, "low_rank's level size"), np.dtype("<f4"))[0])
        if size <= 0 or not lowest <= exponent <= highest:
            raise WireError(
                f"expected a positive level size and an exponent from {lowest} to {highest}, got {size}, {exponent}."
            )
        long = _read_long(reader, rank, length, levels, form)
        numbers = symbols.decode(reader, rank * width, levels).reshape(rank, width)
        reader.end("low_rank body")
        if int(np.abs(numbers).max()) != levels:
            raise WireError(f"expected a symbol of magnitude {levels:,} in the short factor: its size is wrong.")
        return _image(_basis(long), numbers * np.float64(size), exponent, packet)

    def alpha(self, shape: Shape) -> float:
        """Return 0.9 a r/m: in expectation over the key."""
        if not entries(shape):
            return 1.0
        rank, width = self._rank(shape), _sides(shape)[1]
        steps = 4 * self.levels**2
        return KEPT * steps / (steps + rank * width - 1) * rank / width

    def paper_bits(self, shape: Shape) -> int:
        """Return 32 bits for the size of a level, plus the bits of 2 L + 1 values for each number of both factors."""
        return 32 + (2 * self.levels).bit_length() * self._rank(shape) * sum(_sides(shape))


def _read_long(reader: Reader, rank: int, length: int, levels: int, form: int) -> NDArray[np.generic]:
    """Read the long factor, a column a row."""
    if form == 1:
        data = reader.take(4 * rank * length, "low_rank's long factor")
        return finite_values(data, np.dtype("<f4")).reshape(rank, length)
    told = symbols.decode(reader, rank * length, levels).reshape(rank, length)
    tops = np.abs(told).max(axis=1)
    if ((tops != levels) & (tops != 0)).any():
        raise WireError(f"expected a symbol of magnitude {levels:,} in every column of the long factor, or zeros.")
    return told


def _image(basis: Floats, short: Floats, exponent: int, packet: Packet) -> FloatArray:
    """Return the block with this basis and these numbers."""
    out = np.empty((basis.shape[1], short.shape[1]))
    _product(basis, short, out)
    rows, columns = as_table(packet.shape)
    limit = largest_float(packet.dtype)
    with np.errstate(over="ignore"):
        scaled = np.clip(np.ldexp(out if rows >= columns else out.T, exponent), -limit, limit)
    return np.ascontiguousarray(scaled).astype(packet.dtype).reshape(packet.shape)
