"""Numbers modulo 2^255 − 19 in kernels: five words of 51 bits and a few more, lowest first.

What is below 2^54 in every word may be multiplied, and a product is below 2^52; sums and differences are not reduced.
For hashing ids alone: nothing here was made for secret keys, which only libsodium computes with.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from efvfl.util.jit import kernel, sum_of_products

PRIME: Final = 2**255 - 19

Word = np.uint64
Field = tuple[Word, Word, Word, Word, Word]


def field_of(value: int) -> Field:
    """Return a number as words."""
    a, b, c, d, e = (Word(value >> shift & (1 << 51) - 1) for shift in range(0, 255, 51))
    return a, b, c, d, e


ONE: Final = field_of(1)
ZERO: Final = field_of(0)
_NONE, _TWO, _NINETEEN = Word(0), Word(2), Word(19)
_MASK, _BITS, _REST = Word((1 << 51) - 1), Word(51), Word(64 - 51)
_LOW, _OTHERS = Word(4 * ((1 << 51) - 19)), Word(4 * ((1 << 51) - 1))  # four times the prime: keeps differences above 0


@kernel
def add(f: Field, g: Field) -> Field:
    """Return f + g."""
    return f[0] + g[0], f[1] + g[1], f[2] + g[2], f[3] + g[3], f[4] + g[4]


@kernel
def subtract(f: Field, g: Field) -> Field:
    """Return f − g."""
    return (
        f[0] + _LOW - g[0],
        f[1] + _OTHERS - g[1],
        f[2] + _OTHERS - g[2],
        f[3] + _OTHERS - g[3],
        f[4] + _OTHERS - g[4],
    )


@kernel
def multiply(f: Field, g: Field) -> Field:
    """Return f · g: what is beyond 255 bits comes back times 19."""
    g0, g1, g2, g3, g4 = g
    n1, n2, n3, n4 = g1 * _NINETEEN, g2 * _NINETEEN, g3 * _NINETEEN, g4 * _NINETEEN
    low, high = sum_of_products(f, (g0, n4, n3, n2, n1), _NONE)
    h0 = low & _MASK
    low, high = sum_of_products(f, (g1, g0, n4, n3, n2), high << _REST | low >> _BITS)
    h1 = low & _MASK
    low, high = sum_of_products(f, (g2, g1, g0, n4, n3), high << _REST | low >> _BITS)
    h2 = low & _MASK
    low, high = sum_of_products(f, (g3, g2, g1, g0, n4), high << _REST | low >> _BITS)
    h3 = low & _MASK
    low, high = sum_of_products(f, (g4, g3, g2, g1, g0), high << _REST | low >> _BITS)
    h0 += (high << _REST | low >> _BITS) * _NINETEEN
    return h0 & _MASK, h1 + (h0 >> _BITS), h2, h3, low & _MASK


@kernel
def square(f: Field) -> Field:
    """Return f · f, with products that occur twice computed once."""
    f0, f1, f2, f3, f4 = f
    d0, d1, d2, d3 = f0 * _TWO, f1 * _TWO, f2 * _TWO, f3 * _TWO
    n3, n4 = f3 * _NINETEEN, f4 * _NINETEEN
    low, high = sum_of_products((f0, d1, d2), (f0, n4, n3), _NONE)
    h0 = low & _MASK
    low, high = sum_of_products((d0, d2, f3), (f1, n4, n3), high << _REST | low >> _BITS)
    h1 = low & _MASK
    low, high = sum_of_products((d0, f1, d3), (f2, f1, n4), high << _REST | low >> _BITS)
    h2 = low & _MASK
    low, high = sum_of_products((d0, d1, f4), (f3, f2, n4), high << _REST | low >> _BITS)
    h3 = low & _MASK
    low, high = sum_of_products((d0, d1, f2), (f4, f3, f2), high << _REST | low >> _BITS)
    h0 += (high << _REST | low >> _BITS) * _NINETEEN
    return h0 & _MASK, h1 + (h0 >> _BITS), h2, h3, low & _MASK


@kernel
def squares(f: Field, g: Field, times: int) -> tuple[Field, Field]:
    """Return f and g squared so many times; two at a time keep the processor busy."""
    for _ in range(times):
        f, g = square(f), square(g)
    return f, g


@kernel
def products(f: Field, g: Field, a: Field, b: Field) -> tuple[Field, Field]:
    """Return f · a and g · b."""
    return multiply(f, a), multiply(g, b)


@kernel
def roots(f: Field, g: Field) -> tuple[Field, Field]:
    """Return f and g to the power (p − 5) / 8 = 2^252 − 3, from which square roots follow."""
    a, b = squares(f, g, 1)
    c, d = squares(a, b, 2)
    c, d = products(c, d, f, g)  # the power 9
    a, b = products(a, b, c, d)  # 11
    a, b = squares(a, b, 1)
    a, b = products(a, b, c, d)  # 2^5 - 1
    c, d = squares(a, b, 5)
    a, b = products(a, b, c, d)  # 2^10 - 1
    c, d = squares(a, b, 10)
    c, d = products(a, b, c, d)  # 2^20 - 1
    x, y = squares(c, d, 20)
    c, d = products(c, d, x, y)  # 2^40 - 1
    c, d = squares(c, d, 10)
    a, b = products(a, b, c, d)  # 2^50 - 1
    c, d = squares(a, b, 50)
    c, d = products(a, b, c, d)  # 2^100 - 1
    x, y = squares(c, d, 100)
    c, d = products(c, d, x, y)  # 2^200 - 1
    c, d = squares(c, d, 50)
    a, b = products(a, b, c, d)  # 2^250 - 1
    a, b = squares(a, b, 2)
    return products(a, b, f, g)


@kernel
def inverse(f: Field) -> Field:
    """Return 1 / f, or 0 for 0: the power p − 2 = 8 · (2^252 − 3) + 3."""
    root, _ = roots(f, ONE)
    root, _ = squares(root, ONE, 3)
    return multiply(root, multiply(f, square(f)))


@kernel
def reduced(f: Field) -> Field:
    """Return the one form of a number: below the prime, 51 bits in each word."""
    f0, f1, f2, f3, f4 = f
    for _ in range(2):
        f1, f0 = f1 + (f0 >> _BITS), f0 & _MASK
        f2, f1 = f2 + (f1 >> _BITS), f1 & _MASK
        f3, f2 = f3 + (f2 >> _BITS), f2 & _MASK
        f4, f3 = f4 + (f3 >> _BITS), f3 & _MASK
        f0, f4 = f0 + (f4 >> _BITS) * _NINETEEN, f4 & _MASK
    over = (f0 + _NINETEEN) >> _BITS  # 1 in the end if the number is the prime or above
    over = (f4 + ((f3 + ((f2 + ((f1 + over) >> _BITS)) >> _BITS)) >> _BITS)) >> _BITS
    f0 += over * _NINETEEN
    f1, f0 = f1 + (f0 >> _BITS), f0 & _MASK
    f2, f1 = f2 + (f1 >> _BITS), f1 & _MASK
    f3, f2 = f3 + (f2 >> _BITS), f2 & _MASK
    f4, f3 = f4 + (f3 >> _BITS), f3 & _MASK
    return f0, f1, f2, f3, f4 & _MASK


@kernel
def equal(f: Field, g: Field) -> bool:
    """Return whether f = g."""
    a, b = reduced(f), reduced(g)
    return bool((a[0] == b[0]) & (a[1] == b[1]) & (a[2] == b[2]) & (a[3] == b[3]) & (a[4] == b[4]))
