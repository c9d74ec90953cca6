"""Small signed integers as bits: what QSGD leaves of a block, close to its entropy.

A symbol is told in yes-or-no layers: is it zero or not, is it above 1, above 2, ... each asked only of those that are
left, and each layer is a set of positions (positions.py). By the chain rule the layers together cost the entropy of the
magnitudes; a sign costs one bit and cannot cost less. No table is sent, and a block that is nearly all zeros costs time
only for what is not zero. Large magnitudes first give up their low bits, which are as good as random, as they are.
Where none of this pays (a short block of large symbols), every symbol takes a fixed number of bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from efvfl.compress import positions
from efvfl.errors import WireError
from efvfl.util.jit import kernel
from efvfl.wire.packet import Reader

Symbols = NDArray[np.int32]

_FIXED = 255  # the first byte says this, or how many low bits are set aside
_LAYERS = 16  # what is left above so many layers is told in a fixed width


@kernel
def _pack(values: NDArray[np.int64], width: int, out: NDArray[np.uint8]) -> None:
    window, filled, byte = np.uint64(0), 0, 0
    for i in range(values.size):
        window |= np.uint64(values[i]) << np.uint64(filled)
        filled += width
        while filled >= 8:
            out[byte] = np.uint8(window & np.uint64(255))
            window >>= np.uint64(8)
            filled -= 8
            byte += 1
    if filled > 0:
        out[byte] = np.uint8(window)


@kernel
def _unpack(data: NDArray[np.uint8], width: int, out: NDArray[np.int64]) -> int:
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    window, filled, byte = np.uint64(0), 0, 0
    for i in range(out.size):
        while filled < width:
            window |= np.uint64(data[byte]) << np.uint64(filled)
            filled += 8
            byte += 1
        out[i] = np.int64(window & mask)
        window >>= np.uint64(width)
        filled -= width
    return int(window)


def pack(values: NDArray[np.integer], width: int) -> bytes:
    """Write each value in `width` bits, at most 40, lowest first."""
    out = np.zeros((values.size * width + 7) // 8, dtype=np.uint8)
    _pack(values.astype(np.int64), width, out)
    return out.tobytes()


def unpack(reader: Reader, width: int, count: int, what: str) -> NDArray[np.int64]:
    """Read `count` values of `width` bits; the bits that fill the last byte must be zero."""
    data = np.frombuffer(reader.take((count * width + 7) // 8, what), dtype=np.uint8)
    out = np.empty(count, dtype=np.int64)
    if _unpack(data, width, out) != 0:
        raise WireError(f"padding bits after {what} are not zero.")
    return out


def _nonzero(symbols: Symbols) -> positions.Positions:
    """Return where symbols are not zero; of integers themselves numpy finds that out five times slower."""
    return np.flatnonzero(symbols != 0)


def _low_bits(magnitudes: NDArray[np.int32], count: int) -> int:
    """Return how many low bits are set aside, so that the layers tell about the mean magnitude in a few steps.

    The magnitudes are those that are not zero, of `count` in all.
    """
    mean = int(magnitudes.sum(dtype=np.int64)) // max(1, count)
    return max(0, mean.bit_length() - 2)


def _layered(symbols: Symbols) -> bytes:
    there = _nonzero(symbols)
    signed = symbols[there]
    magnitudes = np.abs(signed)
    low = _low_bits(magnitudes, symbols.size)
    parts = [bytes((low,))]
    if low:
        parts.append(pack(np.abs(symbols) & ((1 << low) - 1), low))
    limit, left = symbols.size, magnitudes >> low
    for layer in range(1, _LAYERS + 1):
        places = np.flatnonzero(left >= layer)
        parts.append(positions.encode(there[places] if layer == 1 else places, limit))
        limit, left = places.size, left[places]
        if not limit:
            break
    else:
        width = int(left.max() - _LAYERS).bit_length()
        parts += (bytes((width,)), pack(left - _LAYERS, width))
    parts.append(np.packbits(signed < 0, bitorder="little").tobytes())
    return b"".join(parts)


def _fixed(symbols: Symbols, largest: int) -> bytes:
    return bytes((_FIXED,)) + pack(symbols.astype(np.int64) + largest, (2 * largest).bit_length())


def encode(symbols: Symbols, largest: int) -> bytes:
    """Code symbols from -largest to largest, in layers or in a fixed width, whichever is shorter."""
    layered = _layered(symbols)
    size = 1 + (symbols.size * (2 * largest).bit_length() + 7) // 8
    return layered if len(layered) <= size else _fixed(symbols, largest)


def _read_layers(reader: Reader, count: int) -> Symbols:
    high = np.zeros(count, dtype=np.int32)
    where: positions.Positions | None = None  # the places still asked about; None: all
    left = count
    for layer in range(1, _LAYERS + 1):
        places = positions.read(reader, left)
        where, left = (places if where is None else where[places]), places.size
        if not left:
            return high
        high[where] = layer
    width = reader.byte("the width of large symbols")
    if width > 24:
        raise WireError(f"large symbols of {width} bits came, at most 24 are expected.")
    excess = unpack(reader, width, left, "large symbols")
    if width != int(excess.max()).bit_length():
        raise WireError(f"large symbols came in {width} bits, {int(excess.max()).bit_length()} are enough.")
    high[where] = excess + _LAYERS
    return high


def decode(reader: Reader, count: int, largest: int) -> Symbols:
    """Read `count` symbols from -largest to largest."""
    start = reader.place
    first = reader.byte("the form of symbols")
    size = 1 + (count * (2 * largest).bit_length() + 7) // 8
    if first == _FIXED:
        raw = unpack(reader, (2 * largest).bit_length(), count, "symbols") - largest
        if raw.size and int(raw.max()) > largest:
            raise WireError(f"symbol {int(raw.max())} came, at most {largest} is expected.")
        symbols = raw.astype(np.int32)
        if len(_layered(symbols)) <= size:
            raise WireError("symbols came in a fixed width where layers are shorter: the coding is not canonical.")
        return symbols
    if first > 16:
        raise WireError(f"symbols with {first} low bits came, at most 16 are expected.")
    aside = unpack(reader, first, count, "low bits") if first else None
    symbols = _read_layers(reader, count)
    if int(symbols.max(initial=0)) > largest >> first:
        raise WireError(f"symbol {int(symbols.max()) << first} came, at most {largest} is expected.")
    if aside is not None:
        symbols = ((symbols << first) | aside).astype(np.int32)
        if int(symbols.max(initial=0)) > largest:
            raise WireError(f"symbol {int(symbols.max())} came, at most {largest} is expected.")
    places = _nonzero(symbols)
    if (low := _low_bits(symbols[places], count)) != first:
        raise WireError(f"{first} low bits were set aside, {low} are expected: not canonical.")
    bits = np.frombuffer(reader.take((places.size + 7) // 8, "signs"), dtype=np.uint8)
    signs = np.unpackbits(bits, bitorder="little")
    if signs[places.size :].any():
        raise WireError("padding bits after signs are not zero.")
    symbols[places[signs[: places.size] == 1]] *= -1
    if reader.place - start > size:
        raise WireError("symbols came in layers where a fixed width is shorter: the coding is not canonical.")
    return symbols
