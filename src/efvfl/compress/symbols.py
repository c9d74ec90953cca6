"""Small signed integers as bits, close to their entropy: the output of QSGD.

Magnitudes are coded in binary layers: is a symbol nonzero, is it above 1, above 2, ... Each layer covers only the
symbols that passed the previous one, and is coded as a set of positions (positions.py). By the chain rule the layers
together cost the entropy of the magnitudes; a sign costs one bit and cannot cost less. No table is sent, and the time
for a block of mostly zeros depends on the nonzero symbols only. The low bits of large magnitudes are nearly random, so
they are written verbatim first. If none of this pays off (a short block of large symbols), every symbol takes a fixed
number of bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from efvfl.compress import positions
from efvfl.errors import WireError
from efvfl.util.jit import kernel
from efvfl.wire.packet import Reader

Symbols = NDArray[np.int32]

_FIXED = 255  # the first byte: this for a fixed width, else the number of low bits written verbatim
_MEAN = 4  # the mean of what is coded in layers is below this
_LAYERS = 16  # the excess above this many layers is written in a fixed width


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
    """Return each value in `width` bits, at most 40, lowest bit first."""
    out = np.zeros((values.size * width + 7) // 8, dtype=np.uint8)
    _pack(values.astype(np.int64), width, out)
    return out.tobytes()


def unpack(reader: Reader, width: int, count: int, what: str) -> NDArray[np.int64]:
    """Read `count` values of `width` bits; padding bits in the last byte must be zero."""
    data = np.frombuffer(reader.take((count * width + 7) // 8, what), dtype=np.uint8)
    out = np.empty(count, dtype=np.int64)
    if _unpack(data, width, out) != 0:
        raise WireError(f"padding bits after {what} are not zero.")
    return out


def _nonzero(symbols: Symbols) -> positions.Positions:
    """Return the positions of nonzero symbols; numpy finds them five times faster in booleans than in integers."""
    return np.flatnonzero(symbols != 0)


def _low_bits(magnitudes: NDArray[np.int32], count: int) -> int:
    """Return the number of low bits to write verbatim, so that a few layers suffice for the mean magnitude.

    `magnitudes` are those of the nonzero symbols, `count` is the number of all symbols.
    """
    mean = int(magnitudes.sum(dtype=np.int64)) // max(1, count)
    return max(0, mean.bit_length() - 2)


def _layered(symbols: Symbols) -> bytes:
    nonzero = _nonzero(symbols)
    signed = symbols[nonzero]
    magnitudes = np.abs(signed)
    low = _low_bits(magnitudes, symbols.size)
    parts = [bytes((low,))]
    if low:
        parts.append(pack(np.abs(symbols) & ((1 << low) - 1), low))
    limit, left = symbols.size, magnitudes >> low
    for layer in range(1, _LAYERS + 1):
        places = np.flatnonzero(left >= layer)
        parts.append(positions.encode(nonzero[places] if layer == 1 else places, limit))
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
    """Return symbols from -largest to largest as bytes, in layers or in a fixed width, whichever is shorter."""
    layered = _layered(symbols)
    size = 1 + (symbols.size * (2 * largest).bit_length() + 7) // 8
    return layered if len(layered) <= size else _fixed(symbols, largest)


def _read_layers(reader: Reader, count: int) -> Symbols:
    high = np.zeros(count, dtype=np.int32)
    where: positions.Positions | None = None  # the positions that passed the layers so far; None: all
    left, total = count, 0
    for layer in range(1, _LAYERS + 1):
        places = positions.read(reader, left)
        where, left = (places if where is None else where[places]), places.size
        if not left:
            return high
        high[where] = layer
        total += left
        if total >= _MEAN * count:  # refused here, because a few bytes can mean that everything passes every layer
            raise WireError("expected more low bits for symbols as large as these: the coding is not canonical.")
    width = reader.byte("the width of large symbols")
    if width > 24:
        raise WireError(f"expected large symbols of at most 24 bits, got {width}.")
    excess = unpack(reader, width, left, "large symbols")
    if width != (shortest := int(excess.max()).bit_length()):
        raise WireError(f"expected large symbols in {shortest} bits, got {width}: the coding is not canonical.")
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
            raise WireError(f"expected symbols of at most {largest}, got {int(raw.max())}.")
        symbols = raw.astype(np.int32)
        if len(_layered(symbols)) <= size:
            raise WireError(
                "expected symbols in layers, which are shorter, got a fixed width: the coding is not canonical."
            )
        return symbols
    if first > 16:
        raise WireError(f"expected at most 16 low bits, got {first}.")
    low_bits = unpack(reader, first, count, "low bits") if first else None
    symbols = _read_layers(reader, count)
    if int(symbols.max(initial=0)) > largest >> first:
        raise WireError(f"expected symbols of at most {largest}, got {int(symbols.max()) << first}.")
    if low_bits is not None:
        symbols = ((symbols << first) | low_bits).astype(np.int32)
        if int(symbols.max(initial=0)) > largest:
            raise WireError(f"expected symbols of at most {largest}, got {int(symbols.max())}.")
    places = _nonzero(symbols)
    if (low := _low_bits(symbols[places], count)) != first:
        raise WireError(f"expected {low} low bits, got {first}: the coding is not canonical.")
    bits = np.frombuffer(reader.take((places.size + 7) // 8, "signs"), dtype=np.uint8)
    signs = np.unpackbits(bits, bitorder="little")
    if signs[places.size :].any():
        raise WireError("padding bits after signs are not zero.")
    symbols[places[signs[: places.size] == 1]] *= -1
    if reader.place - start > size:
        raise WireError("expected symbols in a fixed width, which is shorter, got layers: the coding is not canonical.")
    return symbols
