"""A set of positions as bits: the entropy coder of the library, used by top-k and by quantised symbols.

Coding which k of d positions are kept takes at least log2 C(d, k) bits. The gaps between them are nearly geometric, and
a Rice code (the low b bits of a gap verbatim, the rest in unary) stays within about 4 % of that bound for every k/d. It
covers the two usual alternatives: with b = 0 it *is* the bitmap, and Elias-Fano with the same b is never smaller (its
unary part encodes floor(last / 2^b), this one the sum of floor(gap / 2^b), which is at most that). So there is one code
with one parameter, b. Sets that keep more than half of the positions are coded by their complement.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from efvfl.errors import WireError
from efvfl.util.jit import kernel
from efvfl.wire.packet import Reader, number

Positions = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_LARGEST_RICE = 48  # a block has fewer than 2^48 entries (packet.py)
# The number of trailing zeros of a byte: a table takes half the time of shifting bit by bit.
_ZEROS = np.array([8, *((byte & -byte).bit_length() - 1 for byte in range(1, 256))], dtype=np.int64)


@kernel
def _rice(places: Positions) -> tuple[int, int]:
    """Return the best of four Rice parameters around the mean gap, and the number of bits it takes."""
    count = places.size
    mean = (places[count - 1] + 1 - count) // count
    top = 0
    while mean >> (top + 1) > 0:
        top += 1
    first = max(0, top - 2)
    sums = np.zeros(4, dtype=np.int64)
    last = np.int64(-1)
    for i in range(count):
        gap = places[i] - last - 1
        last = places[i]
        for j in range(4):
            sums[j] += gap >> (first + j)
    best, size = first, count * (1 + first) + sums[0]
    for j in range(1, 4):
        bits = count * (1 + first + j) + sums[j]
        if bits < size:
            best, size = first + j, bits
    return best, size


@kernel
def _write(places: Positions, rice: int, out: Bytes) -> None:
    mask = (np.uint64(1) << np.uint64(rice)) - np.uint64(1)
    count = places.size
    last = np.int64(-1)
    window, filled, byte = np.uint64(0), 0, 0  # the low bits, in order of the gaps
    unary: Any = count * rice  # the unary parts follow
    for i in range(count):
        gap = np.uint64(places[i] - last - 1)
        last = places[i]
        unary += np.int64(gap >> np.uint64(rice))
        out[unary >> 3] |= np.uint8(1 << (unary & 7))
        unary += 1
        window |= (gap & mask) << np.uint64(filled)
        filled += rice
        while filled >= 8:
            out[byte] |= np.uint8(window & np.uint64(255))
            window >>= np.uint64(8)
            filled -= 8
            byte += 1
    if filled > 0:
        out[byte] |= np.uint8(window)


@kernel
def _read(data: Bytes, rice: int, limit: int, out: Positions) -> int:
    """Fill `out` and return the number of bytes read, or -1: too short, -2: out of range, -3: nonzero padding."""
    count = out.size
    mask = (np.uint64(1) << np.uint64(rice)) - np.uint64(1)
    unary = count * rice
    end = data.size
    byte = unary >> 3
    bits = np.int64(data[byte]) >> (unary & 7)
    base = unary & 7
    run = 0
    last = np.int64(-1)
    window, filled, low = np.uint64(0), 0, 0
    for i in range(count):
        while bits == 0:
            run += 8 - base
            base = 0
            byte += 1
            if byte >= end:
                return -1
            bits = np.int64(data[byte])
        zeros = _ZEROS[bits]
        run += zeros
        bits >>= zeros + 1
        base += zeros + 1
        while filled < rice:
            window |= np.uint64(data[low]) << np.uint64(filled)
            filled += 8
            low += 1
        if run > (limit >> rice):
            return -2
        last += 1 + ((run << rice) | np.int64(window & mask))
        window >>= np.uint64(rice)
        filled -= rice
        if last >= limit:
            return -2
        out[i] = last
        run = 0
    if bits != 0:
        return -3
    return byte + 1


@kernel
def _complement(places: Positions, limit: int, out: Positions) -> None:
    j, cursor = 0, 0
    for i in range(places.size):
        while cursor < places[i]:
            out[j] = cursor
            cursor += 1
            j += 1
        cursor += 1
    while cursor < limit:
        out[j] = cursor
        cursor += 1
        j += 1


def complement(places: Positions, limit: int) -> Positions:
    """Return the positions below `limit` that are not in `places`."""
    out = np.empty(limit - places.size, dtype=np.int64)
    _complement(places, limit, out)
    return out


def encode(places: Positions, limit: int) -> bytes:
    """Return strictly increasing positions below `limit` as bytes: their number, the Rice parameter, the bits."""
    count = number(places.size)
    coded = places if 2 * places.size <= limit else complement(places, limit)
    if coded.size == 0:
        return count
    rice, bits = _rice(coded)
    out = np.zeros((bits + 7) // 8, dtype=np.uint8)
    _write(coded, rice, out)
    return count + bytes((rice,)) + out.tobytes()


def read(reader: Reader, limit: int, each: int = 0) -> Positions:
    """Read positions below `limit`; at least `each` bytes per position must follow them."""
    count = reader.number("the number of positions")
    if count > limit:
        raise WireError(f"expected at most {limit:,} positions, got {count:,}: the packet's count or shape is wrong.")
    left = len(reader.data) - reader.place
    if count * each > left:  # checked before allocating: a few bytes can claim many positions
        raise WireError(
            f"expected at least {count * each:,} bytes for the values of {count:,} positions, got {left:,}: "
            "the packet was cut short."
        )
    coded = count if 2 * count <= limit else limit - count
    out = _read_coded(reader, coded, limit) if coded else np.empty(0, dtype=np.int64)
    return out if 2 * count <= limit else complement(out, limit)


def _read_coded(reader: Reader, count: int, limit: int) -> Positions:
    rice = reader.byte("the Rice parameter")
    if rice > _LARGEST_RICE:
        raise WireError(f"expected a Rice parameter of at most {_LARGEST_RICE}, got {rice}.")
    data = np.frombuffer(reader.data, dtype=np.uint8)[reader.place :]
    if 8 * data.size < count * (rice + 1):  # the least that the positions take, checked before allocating
        raise WireError(f"{data.size:,} bytes are too few for {count:,} positions: the packet was cut short.")
    out = np.empty(count, dtype=np.int64)
    used = _read(data, rice, limit, out)
    if used < 0:
        problems = {
            -1: "the bits end too early",
            -2: f"a position is not below {limit:,}",
            -3: "padding bits are not zero",
        }
        raise WireError(f"expected {count:,} positions below {limit:,}, but {problems[used]}.")
    best, _ = _rice(out)
    if rice != best:
        raise WireError(f"expected the shortest Rice parameter {best}, got {rice}: the coding is not canonical.")
    reader.take(used, "positions")
    return out
