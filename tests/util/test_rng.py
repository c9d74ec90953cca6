"""Randomness that two organisations agree on: fixed values, written a second time in plain Python, and fair."""

from __future__ import annotations

import hashlib
from collections import Counter
from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from efvfl.core.batches import ALL, Batches, take
from efvfl.errors import ConfigError
from efvfl.util.rng import at_step, derive, mix, permutation, seeded, uniform

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
steady = settings(deadline=None, derandomize=True, max_examples=200)
keys = st.integers(0, MASK)


def plain_mix(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def plain_uniform(key: int, position: int) -> float:
    return float((plain_mix((plain_mix(key) + position * GOLDEN) & MASK) >> 11) / (1 << 53))


def plain_place(key: int, size: int, place: int) -> int:
    half = 1
    while 1 << 2 * half < size:
        half += 1
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for turn in range(6):
            left, right = right, left ^ plain_mix((key + (turn << 58) + right) & MASK) & mask
        place = left << half | right
        if place < size:
            return place


def draw(key: int, position: int) -> float:
    return float(uniform(np.uint64(key), np.uint64(position)))


# Keys.


def test_derived_keys_never_change() -> None:
    assert derive(0) == 8493733112532773764
    assert derive(0, "batch", 7) == 18406131742804482725
    assert derive(42, "party", "x", 3) == 11571432472404578076
    assert derive(-1, "a") == 11739413021943141813


def test_a_key_is_a_hash_of_the_seed_and_the_names() -> None:
    digest = hashlib.blake2b(b"3\x1fepoch\x1f12", digest_size=8).digest()
    assert derive(3, "epoch", 12) == int.from_bytes(digest, "little")
    found = {derive(seed, name, step) for seed in range(10) for name in ("batch", "epoch") for step in range(100)}
    assert len(found) == 2000
    assert derive(1, "23") != derive(12, "3")
    assert derive(0, "a", "b") != derive(0, "ab")


def test_the_key_of_a_step_never_changes() -> None:
    key = derive(0)
    assert [at_step(key, step) for step in (0, 1, 10**9)] == [
        1447703858146420633,
        12848418677469619118,
        15280822204218096025,
    ]
    assert len({at_step(key, step) for step in range(5000)}) == 5000
    assert all(0 <= at_step(MASK, step) <= MASK for step in range(100))


@steady
@given(keys)
def test_mix_is_the_finaliser_of_splitmix(value: int) -> None:
    assert int(mix(np.uint64(value))) == plain_mix(value)


def test_mix_never_changes() -> None:
    """The second number is SplitMix64's first draw from seed 0, as its authors publish it."""
    assert int(mix(np.uint64(1))) == 6238072747940578789
    assert int(mix(np.uint64(GOLDEN))) == 0xE220A8397B1DCDAF


# Draws.


def test_draws_never_change() -> None:
    assert [draw(0, 0), draw(0, 1), draw(MASK, 5), draw(12345, 10**12)] == [
        0.0,
        0.8833108082136426,
        0.8304596416451043,
        0.42370987138383187,
    ]


@steady
@given(keys, keys)
def test_draws_are_the_plain_ones(key: int, position: int) -> None:
    value = draw(key, position)
    assert value == plain_uniform(key, position)
    assert 0 <= value < 1


@pytest.mark.parametrize("along", ["positions", "keys", "steps"])
def test_draws_are_uniform(along: str) -> None:
    count = 20_000
    pairs = {
        "positions": [(derive(1), i) for i in range(count)],
        "keys": [(i, 3) for i in range(count)],
        "steps": [(at_step(derive(2), i), 3) for i in range(count)],
    }
    values = np.array([draw(key, position) for key, position in pairs[along]])
    assert abs(values.mean() - 1 / 2) < 4 * sqrt(1 / 12 / count)
    assert abs(values.var() - 1 / 12) < 4 * sqrt(1 / 180 / count)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / sqrt(count)
    bins = np.histogram(values, bins=20, range=(0, 1))[0]
    assert np.abs(bins - count / 20).max() < 4.5 * sqrt(count / 20)


# Permutations.


def test_permutations_never_change() -> None:
    assert permutation(0, 10, 0, 10).tolist() == [1, 0, 9, 5, 2, 8, 7, 3, 4, 6]
    assert permutation(MASK, 13, 0, 13).tolist() == [6, 8, 12, 0, 11, 9, 3, 4, 7, 2, 5, 10, 1]
    assert permutation(123456789, 10**6, 0, 5).tolist() == [542173, 605521, 482969, 766640, 396829]
    assert permutation(7, 1 << 40, 5, 8).tolist() == [734433247800, 338912703887, 355504809438]


@pytest.mark.parametrize("size", [*range(70), 255, 256, 257, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 60_000])
def test_a_permutation_holds_every_number_once(size: int) -> None:
    for key in (0, derive(1, size), MASK):
        order = permutation(key, size, 0, size)
        assert order.dtype == np.int64
        assert np.array_equal(np.sort(order), np.arange(size))


@steady
@given(keys, st.integers(1, 5000), st.data())
def test_pieces_agree_with_the_whole(key: int, size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    assert np.array_equal(permutation(key, size, start, stop), permutation(key, size, 0, size)[start:stop])


@steady
@given(keys, st.integers(1, 1 << 40), st.data())
def test_permutations_are_the_plain_ones(key: int, size: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, size - 1))
    assert permutation(key, size, place, place + 1).tolist() == [plain_place(key, size, place)]


def test_every_order_of_three_is_equally_likely() -> None:
    draws = 6000
    orders = Counter(tuple(permutation(derive(0, i), 3, 0, 3).tolist()) for i in range(draws))
    assert len(orders) == 6
    assert max(abs(count - draws / 6) for count in orders.values()) < 4 * sqrt(draws / 6)


@pytest.mark.parametrize("size", [7, 16, 50])
def test_every_number_stands_everywhere_equally_often(size: int) -> None:
    draws = 4000
    table = np.zeros((size, size))
    for i in range(draws):
        table[np.arange(size), permutation(at_step(derive(3), i), size, 0, size)] += 1
    chi_squared = float(np.square(table - draws / size).sum() / (draws / size))
    freedom = (size - 1) ** 2
    assert abs(chi_squared - freedom) < 4.5 * sqrt(2 * freedom)


# torch's generator.


def test_seeded_puts_the_generator_back() -> None:
    torch.manual_seed(5)
    undisturbed = torch.rand(3)
    torch.manual_seed(5)
    with seeded(derive(1)):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), undisturbed)
    with seeded(derive(1)):
        assert torch.equal(torch.rand(3), inside)
    with seeded(derive(2)):
        assert not torch.equal(torch.rand(3), inside)


def test_seeded_puts_the_generator_back_after_an_error() -> None:
    before = torch.default_generator.get_state()
    with pytest.raises(RuntimeError, match="shape"), seeded(MASK):
        torch.rand(3).reshape(2)
    assert torch.equal(torch.default_generator.get_state(), before)


def test_seeded_inside_seeded() -> None:
    with seeded(1):
        first, second = torch.rand(1), torch.rand(1)
    with seeded(1):
        assert torch.equal(torch.rand(1), first)
        with seeded(2):
            torch.rand(7)
        assert torch.equal(torch.rand(1), second)


# Batches.


def rows_of(batches: Batches, step: int) -> list[int]:
    rows = batches.rows(step)
    return list(range(batches.samples))[rows] if isinstance(rows, slice) else [int(row) for row in rows]


def test_batches_never_change() -> None:
    assert rows_of(Batches(10, 4, seed=3), 0) == [4, 6, 0, 3]
    assert rows_of(Batches(10, 4, seed=3), 5) == [0, 7]
    assert rows_of(Batches(10, 4, seed=3, order="independent"), 5) == [7, 8, 2, 0]


@pytest.mark.parametrize(("samples", "size"), [(10, 4), (12, 4), (1, 1), (7, 6), (100, 1), (1000, 128), (5, 0), (5, 9)])
def test_every_row_comes_once_an_epoch(samples: int, size: int) -> None:
    batches = Batches(samples, size, seed=2)
    orders = []
    for epoch in range(5):
        steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        order = [row for step in steps for row in rows_of(batches, step)]
        assert sorted(order) == list(range(samples))
        orders.append(order)
    assert batches.full or samples == 1 or orders[0] != orders[1]


@steady
@given(st.integers(1, 300), st.integers(0, 320), st.integers(0, 1 << 20), st.sampled_from(("shuffle", "independent")))
def test_a_batch_is_a_function_of_seed_and_step(samples: int, size: int, step: int, order: str) -> None:
    def schedule() -> Batches:
        return Batches(samples, size, seed=7, order="independent" if order == "independent" else "shuffle")

    batches = schedule()
    later = rows_of(batches, step + 1)
    rows = rows_of(batches, step)
    assert rows == rows_of(schedule(), step)
    assert later == rows_of(schedule(), step + 1)
    assert batches.count(step) == len(rows)
    assert len(set(rows)) == len(rows)
    assert all(0 <= row < samples for row in rows)


def test_another_seed_is_another_order() -> None:
    for order in ("shuffle", "independent"):
        first = [Batches(1000, 100, seed, order) for seed in (0, 1)]
        assert rows_of(first[0], 4) != rows_of(first[1], 4)
        assert rows_of(first[0], 4) != rows_of(first[0], 5)


def test_the_last_batch_of_an_epoch_is_smaller() -> None:
    batches = Batches(10, 4)
    assert batches.per_epoch == 3
    assert [len(rows_of(batches, step)) for step in range(7)] == [4, 4, 2, 4, 4, 2, 4]
    assert [batches.count(step) for step in range(7)] == [4, 4, 2, 4, 4, 2, 4]


def test_independent_batches_are_always_whole() -> None:
    batches = Batches(10, 4, order="independent")
    assert [len(rows_of(batches, step)) for step in range(7)] == [4] * 7
    assert [batches.count(step) for step in range(7)] == [4] * 7


@pytest.mark.parametrize("order", ["shuffle", "independent"])
def test_rows_are_drawn_equally_often(order: str) -> None:
    """Rows of an independent batch are drawn anew; of a shuffled one, the first batch of every epoch is counted."""
    batches = Batches(40, 10, seed=1, order=order)  # type: ignore[arg-type]
    draws = 3000
    stride = batches.per_epoch if order == "shuffle" else 1
    times = Counter(row for draw in range(draws) for row in rows_of(batches, draw * stride))
    assert max(abs(times[row] - draws / 4) for row in range(40)) < 4.5 * sqrt(draws * 1 / 4 * 3 / 4)


def test_a_full_batch_is_a_view() -> None:
    values = torch.arange(12.0).reshape(6, 2)
    for batches in (Batches(6), Batches(6, 6), Batches(6, 100)):
        assert batches.full
        assert batches.rows(3) is ALL
        assert batches.count(3) == 6
        assert take(values, batches.rows(3)).data_ptr() == values.data_ptr()


def test_take_gives_the_rows_in_their_order() -> None:
    values = torch.arange(12.0).reshape(6, 2)
    assert take(values, torch.tensor([4, 0])).tolist() == [[8, 9], [0, 1]]


def test_schedules_without_rows_are_refused() -> None:
    for samples, size in ((0, 1), (-3, 1), (5, -1)):
        with pytest.raises(
            ConfigError, match=f"expected at least one sample in batches of 0 or more, got {samples} in {size}"
        ):
            Batches(samples, size)
    with pytest.raises(ConfigError, match="batch_order: expected 'shuffle' or 'independent', got 'sorted'"):
        Batches(5, 1, order="sorted")  # type: ignore[arg-type]
