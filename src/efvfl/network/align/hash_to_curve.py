"""Texts as points of Curve25519, so that nobody knows a discrete logarithm: RFC 9380, curve25519_XMD:SHA-512_ELL2_RO_.

A text gives two numbers of the field, Elligator 2 maps each to a point of y² = x³ + A x² + x, and the two are added,
which is uniform. The sum must still be multiplied by the cofactor, 8, and every key of X25519 is a multiple of that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from efvfl.network.align.field25519 import (
    ONE,
    PRIME,
    ZERO,
    Field,
    Word,
    add,
    equal,
    field_of,
    inverse,
    multiply,
    reduced,
    roots,
    square,
    subtract,
)
from efvfl.util.jit import kernel

SUITE: Final = b"curve25519_XMD:SHA-512_ELL2_RO_"
NUMBER: Final = 48  # bytes of which a number of the field is made: so many more than 32 that it is uniform

_A: Final = field_of(486662)
_MINUS_A: Final = field_of(PRIME - 486662)
_ROOT_OF_MINUS_1: Final = field_of(pow(2, (PRIME - 1) // 4, PRIME))
_POWER_OF_2: Final = field_of(pow(2, (PRIME + 3) // 8, PRIME))
_LOWEST: Final = Word(1)

Words = NDArray[np.uint64]


def expanded(text: bytes, tag: bytes) -> bytes:
    """Return two numbers as uniform bytes: expand_message_xmd with SHA-512."""
    end = tag + bytes((len(tag),))
    first = _BLOCK.copy()
    first.update(text + _LENGTH + end)
    zero = first.digest()
    one = hashlib.sha512(zero + b"\x01" + end).digest()
    mixed = int.from_bytes(zero, "little") ^ int.from_bytes(one, "little")
    two = hashlib.sha512(mixed.to_bytes(64, "little") + b"\x02" + end).digest()
    return one + two[: 2 * NUMBER - 64]


_BLOCK: Final = hashlib.sha512(bytes(128))
_LENGTH: Final = (2 * NUMBER).to_bytes(2, "big") + b"\x00"


def hash_to_curve(texts: Sequence[bytes], tag: bytes) -> bytes:
    """Return the x-coordinates of texts, 32 bytes each, under a tag that tells what they are for."""
    data = np.frombuffer(b"".join([expanded(text, tag) for text in texts]), dtype=np.uint8)
    numbers = np.ascontiguousarray(data.reshape(len(texts), 2, NUMBER)[:, :, ::-1]).view("<u8").astype(np.uint64)
    found = np.empty((len(texts), 4), dtype=np.uint64)
    sums_of_maps(numbers, found)
    return found.astype("<u8").tobytes()


@kernel
def sums_of_maps(numbers: Words, found: Words) -> None:
    """Map every pair of numbers to two points, and write the x-coordinate of their sum, each in words of 64 bits.

    A sum is a fraction, and one inversion serves all of them (Montgomery's trick).
    """
    count = len(numbers)
    kept = np.empty((count, 3, 5), dtype=np.uint64)  # top, bottom, and the product of the bottoms before
    product = ONE
    for place in range(count):
        top, bottom = _sum(_number(numbers[place, 0]), _number(numbers[place, 1]))
        if equal(bottom, ZERO):  # one of 2^254 sums: 0 is a point that nobody takes for an id's
            top, bottom = ZERO, ONE
        for i in range(5):
            kept[place, 0, i], kept[place, 1, i], kept[place, 2, i] = top[i], bottom[i], product[i]
        product = multiply(product, bottom)
    rest = inverse(product)
    for place in range(count - 1, -1, -1):
        x = reduced(multiply(_row(kept[place, 0]), multiply(rest, _row(kept[place, 2]))))
        rest = multiply(rest, _row(kept[place, 1]))
        found[place, 0] = x[0] | x[1] << Word(51)
        found[place, 1] = x[1] >> Word(13) | x[2] << Word(38)
        found[place, 2] = x[2] >> Word(26) | x[3] << Word(25)
        found[place, 3] = x[3] >> Word(39) | x[4] << Word(12)


@kernel
def _row(words: Words) -> Field:
    return words[0], words[1], words[2], words[3], words[4]


@kernel
def _number(words: Words) -> Field:
    """Return 384 bits modulo the prime: those beyond 255 come back times 19."""
    w0, w1, w2, w3, w4, w5 = words[0], words[1], words[2], words[3], words[4], words[5]
    mask, again = Word((1 << 51) - 1), Word(19)
    return reduced(
        (
            (w0 & mask) + again * ((w3 >> Word(63) | w4 << Word(1)) & mask),
            ((w0 >> Word(51) | w1 << Word(13)) & mask) + again * ((w4 >> Word(50) | w5 << Word(14)) & mask),
            ((w1 >> Word(38) | w2 << Word(26)) & mask) + again * (w5 >> Word(37)),
            (w2 >> Word(25) | w3 << Word(39)) & mask,
            w3 >> Word(12) & mask,
        )
    )


@kernel
def _sum(u: Field, v: Field) -> tuple[Field, Field]:
    """Return the x-coordinate of the sum of two mapped numbers, as a fraction.

    With points (a / b, y) and (c / d, z) it is ((z − y) / (c / d − a / b))² − A − a / b − c / d.
    """
    (a, b, y), (c, d, z) = maps(u, v)
    ad, cb, bottom = multiply(a, d), multiply(c, b), multiply(b, d)
    apart = square(subtract(cb, ad))
    steep = multiply(square(subtract(z, y)), multiply(square(bottom), bottom))
    less = multiply(add(add(ad, cb), multiply(_A, bottom)), apart)
    return subtract(steep, less), multiply(bottom, apart)


Mapped = tuple[Field, Field, Field]  # a point (a / b, y), as a, b and y


@kernel
def maps(u: Field, v: Field) -> tuple[Mapped, Mapped]:
    """Map two numbers by Elligator 2, as RFC 9380 does it for this curve (appendix G.2.1)."""
    first, second = _curve_at(u), _curve_at(v)
    one, other = roots(first[4], second[4])
    return _mapped(u, first, one), _mapped(v, second, other)


@kernel
def _curve_at(u: Field) -> tuple[Field, Field, Field, Field, Field]:
    """Return 2u², the denominator 1 + 2u² of x, y² as a fraction g / h, and what its root is computed from."""
    double = add(square(u), square(u))
    b = add(double, ONE)
    bb = square(b)
    h = multiply(bb, b)
    g = multiply(add(multiply(multiply(_A, double), _MINUS_A), bb), _MINUS_A)
    hh = square(h)
    return double, b, g, h, multiply(multiply(g, multiply(hh, h)), square(hh))


@kernel
def _mapped(u: Field, of: tuple[Field, Field, Field, Field, Field], root: Field) -> Mapped:
    """Return the point whose x is −A / (1 + 2u²) if that is on the curve, or else 2u² times as much."""
    double, b, g, h, _ = of
    y = multiply(root, multiply(g, multiply(square(h), h)))
    turned = multiply(y, _ROOT_OF_MINUS_1)
    y1 = y if equal(multiply(square(y), h), g) else turned
    on_curve = equal(multiply(square(y1), h), g)
    y = multiply(multiply(y, u), _POWER_OF_2)
    turned = multiply(y, _ROOT_OF_MINUS_1)
    y2 = y if equal(multiply(square(y), h), multiply(g, double)) else turned
    a = _MINUS_A if on_curve else multiply(_MINUS_A, double)
    y = reduced(y1 if on_curve else y2)
    return a, b, subtract(ZERO, y) if on_curve ^ (y[0] & _LOWEST == _LOWEST) else y
