"""Sets of positions: every set comes back, has one encoding, and takes the room that is promised."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efvfl.compress import positions
from efvfl.compress.positions import Positions
from efvfl.errors import WireError
from efvfl.wire.packet import Reader, number

LAST = (1 << 48) - 2  # a block has fewer than 2^48 entries
steady = settings(deadline=None, derandomize=True, max_examples=100)


@st.composite
def sets(draw: st.DrawFn) -> tuple[Positions, int]:
    """Return positions and their limit: few to many, spread evenly, in clusters, or given one by one."""
    limit = draw(st.integers(0, 40) | st.integers(0, 4000))
    kind = draw(st.sampled_from(("even", "clustered", "single")))
    if kind == "single":
        chosen = draw(st.sets(st.integers(0, limit - 1), max_size=30)) if limit else set()
        places = np.array(sorted(chosen), dtype=np.int64)
        return (positions.complement(places, limit) if draw(st.booleans()) else places), limit
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    density = draw(st.sampled_from((0.0, 0.001, 0.01, 0.1, 0.3, 0.49, 0.5, 0.51, 0.7, 0.9, 0.99, 0.999, 1.0)))
    if kind == "clustered":
        centre = rng.integers(0, limit + 1)
        density = density * np.exp(-np.abs(np.arange(limit) - centre) / (1 + limit / 10))
    return np.flatnonzero(rng.random(limit) < density).astype(np.int64), limit


def read(data: bytes, limit: int) -> list[int]:
    reader = Reader(data)
    places = positions.read(reader, limit)
    reader.end("positions")
    return [int(place) for place in places]


def coded(places: Positions, limit: int) -> Positions:
    """Return what is written: the set, or what it leaves out where that is smaller."""
    return places if 2 * places.size <= limit else positions.complement(places, limit)


@steady
@given(sets())
def test_sets_come_back(case: tuple[Positions, int]) -> None:
    places, limit = case
    untouched = places.copy()
    data = positions.encode(places, limit)
    assert read(data, limit) == untouched.tolist() == places.tolist()
    assert positions.encode(np.array(read(data, limit), dtype=np.int64), limit) == data


@steady
@given(sets())
def test_what_follows_is_left_alone(case: tuple[Positions, int]) -> None:
    places, limit = case
    reader = Reader(b"ab" + positions.encode(places, limit) + b"\xff\x00\xff")
    reader.take(2, "what comes before")
    assert positions.read(reader, limit).tolist() == places.tolist()
    assert reader.take(3, "what follows") == b"\xff\x00\xff"


@steady
@given(sets())
def test_the_complement_is_what_is_left_out(case: tuple[Positions, int]) -> None:
    places, limit = case
    rest = positions.complement(places, limit)
    assert rest.tolist() == sorted(set(range(limit)) - set(places.tolist()))
    assert positions.complement(rest, limit).tolist() == places.tolist()


@steady
@given(sets())
def test_a_set_and_its_complement_take_the_same_bits(case: tuple[Positions, int]) -> None:
    places, limit = case
    rest = positions.complement(places, limit)
    if places.size != rest.size:  # at exactly half each is written itself
        bits, other = (positions.encode(chosen, limit)[len(number(chosen.size)) :] for chosen in (places, rest))
        assert bits == other


@steady
@given(sets())
def test_the_size_is_that_of_the_best_code_near_the_mean_gap(case: tuple[Positions, int]) -> None:
    """The bits counted before writing are those of a Rice code, and no neighbouring parameter takes fewer."""
    places = coded(*case)
    data = positions.encode(*case)[len(number(case[0].size)) :]
    if places.size == 0:
        assert data == b""
        return
    gaps = np.diff(places, prepend=-1) - 1
    sizes = [places.size * (1 + rice) + int((gaps >> rice).sum()) for rice in range(49)]
    rice = data[0]
    assert len(data) == 1 + (sizes[rice] + 7) // 8
    assert sizes[rice] == min(sizes[max(0, rice - 1) : rice + 2])


@steady
@given(sets())
def test_never_larger_than_the_bitmap_or_elias_fano(case: tuple[Positions, int]) -> None:
    places = coded(*case)
    if places.size == 0:
        return
    data = positions.encode(*case)[len(number(case[0].size)) :]
    rice, bits, last = data[0], data[1:], int(places[-1])
    bitmap = np.zeros(last + 1, dtype=bool)
    bitmap[places] = True
    assert len(bits) <= (bitmap.size + 7) // 8
    assert len(bits) <= (places.size * (1 + rice) + (last >> rice) + 7) // 8  # low bits, ones, and zeros between them
    if rice == 0:
        assert bits == np.packbits(bitmap, bitorder="little").tobytes()


def test_a_dense_set_is_its_bitmap() -> None:
    bitmap = np.random.default_rng(0).random(5000) < 0.45
    data = positions.encode(np.flatnonzero(bitmap).astype(np.int64), 5000)
    last = int(np.flatnonzero(bitmap)[-1])
    assert data == number(int(bitmap.sum())) + b"\x00" + np.packbits(bitmap[: last + 1], bitorder="little").tobytes()


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 8])
def test_sets_and_their_bytes_are_one_to_one(limit: int) -> None:
    """Of all byte strings that are long enough, exactly one is accepted for each of the 2^limit sets."""
    expected = {}
    for chosen in product((False, True), repeat=limit):
        places = np.flatnonzero(np.array(chosen, dtype=bool)).astype(np.int64)
        expected[positions.encode(places, limit)] = places.tolist()
    assert len(expected) == 2**limit
    assert max(map(len, expected)) <= 3
    accepted = {}
    counts, rices = range(limit + 2), range(50)
    for text in (*product(counts), *product(counts, rices), *product(counts, rices, range(256))):
        try:
            accepted[bytes(text)] = read(bytes(text), limit)
        except WireError:
            continue
    assert accepted == expected


@pytest.mark.parametrize("density", [0.0005, 0.1, 0.5, 0.93])
def test_a_large_set_comes_back(density: float) -> None:
    limit = 1_000_003
    places = np.flatnonzero(np.random.default_rng(1).random(limit) < density).astype(np.int64)
    data = positions.encode(places, limit)
    assert np.array_equal(positions.read(Reader(data), limit), places)
    entropy = -limit * (density * np.log2(density) + (1 - density) * np.log2(1 - density))
    assert 8 * len(data) <= 1.05 * entropy


@pytest.mark.parametrize("places", [[], [0], [LAST], [0, LAST], [LAST - 1, LAST], [5, 1 << 40, (1 << 40) + 1]])
def test_far_positions_come_back(places: list[int]) -> None:
    data = positions.encode(np.array(places, dtype=np.int64), LAST + 1)
    assert read(data, LAST + 1) == places
    assert len(data) <= 2 + 7 * len(places)


@pytest.mark.parametrize(
    ("data", "limit", "expected"),
    [
        (b"", 4, "expected 1 bytes for the number of positions, got 0"),
        (b"\x80\x00", 4, "uses more bytes than it needs"),
        (b"\x05", 4, "expected at most 4 positions, got 5: the packet's count or shape is wrong"),
        (b"\x01", 4, "expected 1 bytes for the Rice parameter, got 0"),
        (b"\x01\x31\x01", 4, "expected a Rice parameter of at most 48, got 49"),
        (b"\x01\x00", 4, "0 bytes are too few for 1 positions: the packet was cut short"),
        (b"\x03\x02\x00", 9, "1 bytes are too few for 3 positions"),
        (b"\x01\x00\x00", 4, "expected 1 positions below 4, but the bits end too early"),
        (b"\x01\x00\x10", 4, "expected 1 positions below 4, but a position is not below 4"),
        (b"\x02\x00\x11", 4, "expected 2 positions below 4, but a position is not below 4"),
        (b"\x01\x00\x06", 4, "expected 1 positions below 4, but padding bits are not zero"),
        (b"\x01\x01\x03", 4, "expected the shortest Rice parameter 0, got 1: the coding is not canonical"),
        (b"\x01\x00" + bytes(7) + b"\x80", 64, "expected the shortest Rice parameter 5, got 0"),
    ],
)
def test_refused_bytes(data: bytes, limit: int, expected: str) -> None:
    with pytest.raises(WireError, match=expected):
        read(data, limit)


def test_positions_without_room_for_their_values_are_refused() -> None:
    data = positions.encode(np.arange(6, dtype=np.int64), 6)
    assert positions.read(Reader(data + bytes(24)), 6, each=4).tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(WireError, match="expected at least 24 bytes for the values of 6 positions, got 23"):
        positions.read(Reader(data + bytes(23)), 6, each=4)
