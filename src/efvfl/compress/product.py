"""Product quantisation: rows are cut into short vectors, and each becomes the nearest one of a small codebook.

FedLite (Wang et al. 2022, arXiv 2201.11865) compresses what split learning sends in this way. Here the codebook is
learnt for every block anew, so that a packet stands for itself, and is part of it, in small whole numbers. The zero
vector is always a code and costs nothing; the codes that are used most have the smallest symbols.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from efvfl.compress import symbols
from efvfl.compress.base import Compressor, Shape, as_table, checked, entries, finite_values, largest_float, register
from efvfl.compress.symbols import Symbols
from efvfl.errors import ConfigError, WireError, whole_number
from efvfl.util.jit import kernel
from efvfl.wire.packet import FloatArray, Packet, Reader, number

Floats = NDArray[np.float64]

LEVELS: Final = 127  # on either side of zero, of the numbers in a codebook
LARGEST: Final = 1 << 15  # codes
KEPT: Final = (
    0.9  # of what the start keeps at least, a codebook that was learnt and rounded keeps this; else: the start
)


@kernel
def _farthest(vectors: Floats, left: Floats, out: Symbols) -> int:
    """Write the place of the vector that is farthest from zero and all before it, again and again; return how many."""
    for k in range(out.size):
        place = 0
        for i in range(left.size):
            if left[i] > left[place]:
                place = i
        if left[place] == 0:
            return k
        out[k] = place
        for i in range(left.size):
            distance = 0.0
            for j in range(vectors.shape[1]):
                distance += (vectors[i, j] - vectors[place, j]) ** 2
            left[i] = min(left[i], distance)
    return int(out.size)


@kernel
def _assign(vectors: Floats, codes: Floats, out: Symbols) -> float:
    """Write the number of the nearest code, of equals the first, and return what is lost."""
    total = 0.0
    for i in range(vectors.shape[0]):
        least, out[i] = np.inf, 0
        for k in range(codes.shape[0]):
            distance = 0.0
            for j in range(vectors.shape[1]):
                distance += (vectors[i, j] - codes[k, j]) ** 2
            if distance < least:
                least, out[i] = distance, k
        total += least
    return total


@kernel
def _average(vectors: Floats, chosen: Symbols, codes: Floats) -> None:
    """Move every code but the first, zero, to the mean of the vectors that chose it, if any did."""
    sums, counts = np.zeros(codes.shape), np.zeros(codes.shape[0])
    for i in range(vectors.shape[0]):
        counts[chosen[i]] += 1
        for j in range(vectors.shape[1]):
            sums[chosen[i], j] += vectors[i, j]
    for k in range(1, codes.shape[0]):
        if counts[k] > 0:
            for j in range(vectors.shape[1]):
                codes[k, j] = sums[k, j] / counts[k]


def _cut(shape: Shape, part: int) -> tuple[int, int, int, int]:
    """Return rows, their width, the vectors in a row and the entries of one: as even as parts of at most `part` are."""
    rows, width = as_table(shape) if len(shape) > 1 else (1, entries(shape))
    pieces = -(-width // part)
    return rows, width, pieces, -(-width // pieces) if pieces else 0


def _vectors(flat: Floats, shape: Shape, part: int) -> Floats:
    """Return a vector a row; the last one of every row of the block is filled with zeros."""
    rows, width, pieces, size = _cut(shape, part)
    table = np.zeros((rows, pieces * size))
    table[:, :width] = flat.reshape(rows, width)
    return table.reshape(-1, size)


@kernel
def _tally(chosen: Symbols, first: Symbols, times: Symbols) -> None:
    """Write where each code occurs first, and add how often it does."""
    for i in range(chosen.size):
        if times[chosen[i]] == 0:
            first[chosen[i]] = i
        times[chosen[i]] += 1


def _order(chosen: Symbols, count: int) -> Symbols:
    """Return the codes beside zero that are used, the most frequent one first, equals as they occur."""
    first, times = np.zeros((2, count + 1), dtype=np.int32)
    _tally(chosen, first, times)
    used = np.flatnonzero(times[1:]) + 1
    found: Symbols = used[np.lexsort((first[used], -times[used]))].astype(np.int32)
    return found


@register("product", 12)
@dataclass(frozen=True)
class Product(Compressor):
    """Replace every vector of a few neighbouring entries of a row by the nearest one of a codebook, or by zero.

    The first dimension of a block is rows, all others together are columns; here a vector is one row. The codebook
    starts with the vector of the largest norm, then takes in again and again the one that is farthest from zero and all
    taken before, up to m of N. Lloyd's iterations follow, and rounding. With the start, E_j being lost after j vectors,

        E_j+1  <=  E_j - max  <=  E_j (1 - 1/(N - j)),    so    E_m  <=  (1 - m/N) |x|^2,

    because the j vectors taken lose nothing, and the largest loss of the N - j others is at least their mean. If after
    the iterations and rounding 0.9 m/N is not kept, which is checked, the start is sent exactly: alpha = 0.9 m/N.

    >>> from efvfl.compress import decode
    >>> block = np.array([[1, 2, -3, 0], [0, 0, 1, 2], [1, 2, 0.5, 0]])
    >>> decode(Product(part=2, codes=2).encode(block)).round(1).tolist()
    [[1.0, 2.0, -3.0, 0.0], [0.0, 0.0, 1.0, 2.0], [1.0, 2.0, 0.0, 0.0]]
    """

    part: int = 4  # entries of a vector, at most: more => fewer bytes, more error
    codes: int = 30  # beside zero: fewer => fewer bytes, more error
    iterations: int = 8  # more: closer to the best codebook, and slower

    def __post_init__(self) -> None:
        """Check the parameters."""
        whole_number("product's part", self.part, least=1)
        whole_number("product's iterations", self.iterations, least=0)
        if whole_number("product's codes", self.codes, least=1) > LARGEST:
            raise ConfigError(f"product's codes: expected at most {LARGEST:,}, got {self.codes:,}.")

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        """Return the codebook and which code each vector has."""
        flat = checked(block)
        top = np.abs(flat).max(initial=0)
        if top == 0:
            return Packet(self.code, block.dtype, block.shape, number(0))
        exponent = int(np.frexp(top)[1])
        # Scaled first, so that squares stay in the range.
        vectors = _vectors(np.ldexp(flat.astype(np.float64), -exponent), block.shape, self.part)
        energies = np.square(vectors).sum(axis=1)
        most = (1 - self._share(len(vectors))) * float(energies.sum())
        places = np.empty(min(self.codes, len(vectors)), dtype=np.int32)
        start = np.zeros((_farthest(vectors, energies, places) + 1, vectors.shape[1]))
        start[1:] = vectors[places[: len(start) - 1]]
        chosen, learnt = np.empty(len(vectors), dtype=np.int32), start.copy()
        for _turn in range(self.iterations):
            _assign(vectors, learnt, chosen)
            _average(vectors, chosen, learnt)
        size, told = _rounded(learnt, exponent, flat.dtype)
        lost = _assign(vectors, np.ldexp(_codebook(told, size, flat.dtype).astype(np.float64), -exponent), chosen)
        order = _order(chosen, len(places))
        # Of the codes that are left, one must have the magnitude that the size was made for.
        if lost <= most and (np.abs(told[order]) == LEVELS).any():
            book = b"\0" + size.tobytes() + symbols.encode(told[order].reshape(-1), LEVELS)
        else:
            _assign(vectors, start, chosen)
            order = _order(chosen, len(places))
            book = b"\1" + np.ldexp(start[order], exponent).astype(flat.dtype).tobytes()
        parts = [number(order.size), number(vectors.shape[1]), book, _write(chosen, order)]
        return Packet(self.code, block.dtype, block.shape, b"".join(parts))

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        """Return the block of the codes."""
        reader, dtype = Reader(packet.body), packet.dtype
        count = reader.number("product's codes")
        if count == 0:
            reader.end("product body")
            return np.zeros(packet.shape, dtype=dtype)
        part = reader.number("product's part")
        rows, width, pieces, size = _cut(packet.shape, max(1, part))
        if size != part:
            raise WireError(f"expected parts that cut rows of {width:,} evenly, got {part:,}.")
        if count > min(rows * pieces, LARGEST):
            raise WireError(f"expected at most {min(rows * pieces, LARGEST):,} codes, got {count:,}.")
        book = _read_codebook(reader, count, part, dtype)
        ranks = _read(reader, rows * pieces, count)
        reader.end("product body")
        return np.ascontiguousarray(book[ranks].reshape(rows, -1)[:, :width]).reshape(packet.shape)

    def _share(self, count: int) -> float:
        """Return what is kept at least of so many vectors."""
        return KEPT * min(self.codes, count) / count

    def _count(self, shape: Shape) -> int:
        rows, _, pieces, _ = _cut(shape, self.part)
        return rows * pieces

    def alpha(self, shape: Shape) -> float:
        """Return 0.9 m/N: always."""
        return self._share(self._count(shape)) if entries(shape) else 1.0

    def paper_bits(self, shape: Shape) -> int:
        """Return 32 bits for each number of the codebook, and those of m + 1 values for each vector."""
        count = self._count(shape)
        codes = min(self.codes, count)
        return 32 * codes * _cut(shape, self.part)[3] + codes.bit_length() * count


def _rounded(codes: Floats, exponent: int, dtype: np.dtype[np.floating]) -> tuple[np.floating, Symbols]:
    """Return the size of a level and the codes times 2^exponent in levels; size 0: they are too small for that."""
    size = dtype.type(np.ldexp(np.abs(codes).max() / LEVELS, exponent))
    if size == 0:
        return size, np.zeros(codes.shape, dtype=np.int32)
    told = np.rint(np.ldexp(codes, exponent) / np.float64(size))
    return size, np.clip(told, -LEVELS, LEVELS).astype(np.int32)


def _codebook(told: Symbols, size: np.floating, dtype: np.dtype[np.generic]) -> FloatArray:
    """Return the codes that these levels stand for."""
    limit = largest_float(dtype)
    with np.errstate(over="ignore"):
        found: FloatArray = np.clip(told * np.float64(size), -limit, limit).astype(dtype)
    return found


def _read_codebook(reader: Reader, count: int, part: int, dtype: np.dtype[np.generic]) -> FloatArray:
    """Read so many codes; zero comes before them."""
    form = reader.byte("product's form")
    if form > 1:
        raise WireError(f"expected product's form 0 or 1, got {form}.")
    book: FloatArray = np.zeros((count + 1, part), dtype=dtype)
    if form == 1:
        exact = finite_values(reader.take(count * part * dtype.itemsize, "product's codebook"), dtype)
        book[1:] = exact.reshape(count, part)
    else:
        size = finite_values(reader.take(dtype.itemsize, "product's level size"), dtype)[0]
        if size <= 0:
            raise WireError(f"expected a positive level size, got {size}.")
        told = symbols.decode(reader, count * part, LEVELS).reshape(count, part)
        if int(np.abs(told).max()) != LEVELS:
            raise WireError(f"expected a symbol of magnitude {LEVELS} in the codebook: its size is wrong.")
        book[1:] = _codebook(told, size, dtype)
    if len(np.unique(book, axis=0)) < len(book):
        raise WireError("expected codes that differ from zero and from each other.")
    return book


def _write(chosen: Symbols, order: Symbols) -> bytes:
    """Return the ranks of the codes as symbols 0, 1, -1, 2, -2, ...: small ones are short, and signs cost a bit."""
    ranks = np.zeros(int(order.max()) + 1, dtype=np.int32)
    ranks[order] = np.arange(1, order.size + 1)
    signed = np.where(ranks % 2, (ranks + 1) // 2, -(ranks // 2))
    return symbols.encode(signed[chosen], (order.size + 1) // 2)


def _read(reader: Reader, vectors: int, count: int) -> Symbols:
    """Read the ranks of so many codes, from 1; 0 is the zero vector."""
    told = symbols.decode(reader, vectors, (count + 1) // 2)
    ranks: Symbols = np.where(told > 0, 2 * told - 1, -2 * told)
    if int(ranks.max()) > count:
        raise WireError(f"expected at most {count:,} codes, got {int(ranks.max()):,}.")
    if not np.array_equal(_order(ranks, count), np.arange(1, count + 1)):
        raise WireError("expected all codes to be used, the most frequent one first: the coding is not canonical.")
    return ranks
