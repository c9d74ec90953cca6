"""Points of ids: the vectors of RFC 9380 and RFC 7748, and curve arithmetic in plain integers."""

import secrets

import numpy as np
import pytest
from malicious_alignment import points_in

from efvfl.network.align import field25519 as field
from efvfl.network.align import hash_to_curve as curve
from efvfl.network.align import points

P = 2**255 - 19
A = 486662
TAG = b"QUUX-V01-CS02-with-curve25519_XMD:SHA-512_ELL2_RO_"

# RFC 9380, J.4.1: a message and the x-coordinate of its point, after multiplication by the cofactor.
HASHED = {
    b"": "2de3780abb67e861289f5749d16d3e217ffa722192d16bbd9d1bfb9d112b98c0",
    b"abc": "2b4419f1f2d48f5872de692b0aca72cc7b0a60915dd70bde432e826b6abc526d",
    b"abcdef0123456789": "68ca1ea5a6acf4e9956daa101709b1eee6c1bb0df1de3b90d4602382a104c036",
    b"q128_" + b"q" * 128: "096e9c8bae6c06b554c1ee69383bb0e82267e064236b3a30608d4ed20b73ac5a",
}
# Of the first of them: its two numbers, and the points that these are mapped to.
NUMBERS = (
    0x005FE8A7B8FEF0A16C105E6CADF5A6740B3365E18692A9C05BFBB4D97F645A6A,
    0x1347EDBEC6A2B5D8C02E058819819BEE177077C9D10A4CE165AAB0FD0252261A,
)
MAPPED = (
    (
        0x36B4DF0C864C64707CBF6CF36E9EE2C09A6CB93B28313C169BE29561BB904F98,
        0x6CD59D664FB58C66C892883CD0EB792E52055284DAC3907DD756B45D15C3983D,
    ),
    (
        0x3FA114783A505C0B2B2FBEEF0102853C0B494E7757F2A089D0DAAE7ED9A0DB2B,
        0x76C0FE7FEC932AAAFB8EEFB42D9CBB32EB931158F469FF3050AF15CFDBBEFF94,
    ),
)


# The same in integers, by the definitions.


def elligator(u: int) -> tuple[int, int]:
    """The point of a number: of two candidates for x the one that is on the curve, and y odd for the first of them."""
    x = -A * pow(1 + 2 * u * u, -1, P) % P
    odd = pow(height(x), (P - 1) // 2, P) in (0, 1)
    x = x if odd else (-x - A) % P
    y = pow(height(x), (P + 3) // 8, P)
    y = y if y * y % P == height(x) else y * pow(2, (P - 1) // 4, P) % P
    assert y * y % P == height(x)
    return x, y if y % 2 == odd else P - y


def height(x: int) -> int:
    return (x**3 + A * x * x + x) % P


def added(one: tuple[int, int], other: tuple[int, int]) -> int:
    slope = (other[1] - one[1]) * pow(other[0] - one[0], -1, P)
    return (slope * slope - A - one[0] - other[0]) % P


def times(scalar: int, x: int) -> int:
    """The x-coordinate of a multiple, by doubling and adding from the highest bit (Montgomery's ladder)."""
    a, b = (1, 0), (x, 1)
    for bit in bin(scalar)[2:]:
        total, a, b = _sum(a, b, x), _double(a), _double(b)
        a, b = (total, b) if bit == "1" else (a, total)
    return a[0] * pow(a[1], -1, P) % P


def _double(of: tuple[int, int]) -> tuple[int, int]:
    x, z = of
    return (x * x - z * z) ** 2 % P, 4 * x * z * (x * x + A * x * z + z * z) % P


def _sum(one: tuple[int, int], other: tuple[int, int], apart: int) -> tuple[int, int]:
    (x, z), (v, w) = one, other
    return (x * v - z * w) ** 2 % P, apart * (x * w - z * v) ** 2 % P


def numbers_of(text: bytes, tag: bytes) -> list[int]:
    data = curve.expanded(text, tag)
    return [int.from_bytes(data[start : start + 48], "big") % P for start in (0, 48)]


def value(words: field.Field) -> int:
    return sum(int(word) << 51 * place for place, word in enumerate(words))


# Vectors.


def test_points_are_those_of_rfc_9380() -> None:
    found = [int.from_bytes(point, "little") for point in points_in(curve.hash_to_curve(list(HASHED), TAG))]
    assert [f"{times(8, x):064x}" for x in found] == list(HASHED.values())


def test_the_steps_on_the_way_are_those_of_rfc_9380() -> None:
    assert tuple(numbers_of(b"", TAG)) == NUMBERS
    for (a, b, y), expected in zip(curve.maps(*map(field.field_of, NUMBERS)), MAPPED, strict=True):
        assert (value(a) * pow(value(b), -1, P) % P, value(field.reduced(y))) == expected
    assert tuple(map(elligator, NUMBERS)) == MAPPED


def test_multiplication_is_that_of_rfc_7748() -> None:
    key, point, expected = (
        bytes.fromhex(text)
        for text in (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        )
    )
    assert points.multiply(key, 2 * point) == 2 * expected


# Against integers.


@pytest.mark.parametrize("count", [1, 40])
def test_points_are_those_of_plain_integers(count: int) -> None:
    texts = [secrets.token_bytes(place) for place in range(count)]
    found = [int.from_bytes(point, "little") for point in points_in(curve.hash_to_curve(texts, b"some tag"))]
    assert found == [added(*map(elligator, numbers_of(text, b"some tag"))) for text in texts]
    assert all(pow(height(x), (P - 1) // 2, P) == 1 for x in found)  # on the curve, not on its twist


def test_an_id_under_a_key_is_what_plain_integers_find() -> None:
    key = bytearray(points.new_key())
    found = points.blinded(bytes(key), [b"+customer-7"])
    key[0], key[31] = key[0] & 248, key[31] & 127 | 64
    x = added(*map(elligator, numbers_of(b"+customer-7", points._TAG)))
    scalar = int.from_bytes(key, "little")
    assert int.from_bytes(found, "little") == times(scalar, x)
    assert scalar % 8 == 0  # no part of small order is left


def test_a_sum_that_is_no_point_spoils_no_other() -> None:
    """A pair of equal numbers would have to be doubled instead; no hash gives one."""
    numbers = np.zeros((3, 2, 6), dtype=np.uint64)
    for row, pair in enumerate([NUMBERS, (7, 7), NUMBERS[::-1]]):
        for column, number in enumerate(pair):
            numbers[row, column] = np.frombuffer(number.to_bytes(48, "little"), dtype="<u8")
    found = np.empty((3, 4), dtype=np.uint64)
    curve.sums_of_maps(numbers, found)
    expected = added(*MAPPED).to_bytes(32, "little")
    assert points_in(found.astype("<u8").tobytes()) == [expected, bytes(32), expected]


EDGES = [0, 1, 2, 18, 19, P - 1, P, P + 1, 2**255 - 1, 2**254, 486662, 0x7 << 204, (1 << 51) - 1]


def test_the_field_is_that_of_plain_integers() -> None:
    values = EDGES + [secrets.randbelow(2**255) for _ in range(20)]
    for a, b in zip(values, values[::-1], strict=True):
        f, g = field.field_of(a), field.field_of(b)
        assert value(field.reduced(field.add(f, g))) == (a + b) % P
        assert value(field.reduced(field.subtract(f, g))) == (a - b) % P
        assert value(field.reduced(field.multiply(f, g))) == a * b % P
        assert value(field.reduced(field.square(f))) == a * a % P
        # Words that are not reduced.
        large = field.subtract(field.add(f, f), g)
        assert value(field.reduced(field.multiply(large, large))) == (2 * a - b) ** 2 % P
        assert value(field.reduced(field.square(large))) == (2 * a - b) ** 2 % P
        assert value(field.reduced(field.inverse(f))) == pow(a, P - 2, P)
        one, other = field.roots(f, g)
        assert [value(field.reduced(root)) for root in (one, other)] == [pow(n, (P - 5) // 8, P) for n in (a, b)]
        assert field.equal(f, g) == (a % P == b % P)
    most = np.uint64(2**54 - 1)
    words = (most, most, most, most, most)
    assert value(field.reduced(field.multiply(words, words))) == value(words) ** 2 % P
    assert value(field.reduced(field.square(words))) == value(words) ** 2 % P
