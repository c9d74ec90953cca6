"""Randomised top-k: how many picks go to other entries, to which, and that the guarantee follows from this."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from contraction import compressed, error, errors, gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from efvfl import RandomTopK, TopK
from efvfl.compress import decode
from efvfl.util.rng import derive
from efvfl.wire.packet import FloatArray


def share_of_others(k: int, d: int, others: float) -> float:
    """Return b = E[min(J, d - k)] / k for J from binomial(k, others)."""
    chances = [comb(k, j) * others**j * (1 - others) ** (k - j) for j in range(k + 1)]
    return sum(chance * min(j, d - k) for j, chance in enumerate(chances)) / k


def expected_error(block: FloatArray, k: int, others: float) -> float:
    """Return 1 minus the share of the energy that is kept in expectation, as the docstring derives it."""
    energies = np.sort(np.square(block.reshape(-1), dtype=np.float64))[::-1]
    d, t = block.size, energies[:k].sum() / energies.sum()
    b = share_of_others(k, d, others)
    return float(1 - ((1 - b) * t + (b * k / (d - k) * (1 - t) if k < d else 0.0)))


@pytest.mark.parametrize(("k", "others"), [(1, 0.3), (4, 0.1), (4, 0.9), (10, 0.5), (17, 0.6), (20, 0.5)])
def test_the_error_is_the_expected_one(k: int, others: float) -> None:
    for seed, block in enumerate((gaussian((4, 5)), np.exp(2 * gaussian((20,), np.float64)))):
        mean, standard = errors(RandomTopK(k=k, others=others), block, 200)
        assert abs(mean - expected_error(block, k, others)) <= 5 * standard + 1e-6, seed


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=30).filter(any),
    st.floats(0.01, 1),
    st.floats(0, 0.99),
)
def test_no_block_does_worse_than_alpha(values: list[int], ratio: float, others: float) -> None:
    block, compressor = np.array(values, dtype=np.float64), RandomTopK(ratio, others=others)
    k = max(1, int(len(values) * ratio))
    assert expected_error(block, k, others) <= 1 - compressor.alpha(block.shape) + 1e-9


def test_the_bound_is_reached_on_both_sides() -> None:
    """Equal entries: k/d, whichever are kept. Everything in the largest k: what the others take is lost."""
    assert error(np.ones(40), compressed(RandomTopK(k=4, others=0.3), np.ones(40), 5)) == pytest.approx(1 - 4 / 40)
    block = np.zeros(40)
    block[:8] = (3, -2, 1, 5, 2, 2, -4, 1)
    mean, standard = errors(RandomTopK(k=8, others=0.9), block, 400)
    assert RandomTopK(k=8, others=0.9).alpha((40,)) == pytest.approx(0.1)
    assert abs(mean - 0.9) <= 5 * standard


def test_the_guarantee_is_that_of_topk_unless_most_picks_are_others() -> None:
    for ratio in (0.001, 0.01, 0.1, 0.5, 0.7):
        assert RandomTopK(ratio, others=0.3).alpha((60_000, 16)) == TopK(ratio).alpha((60_000, 16))
    assert RandomTopK(0.8, others=0.9).alpha((100,)) == pytest.approx(1 - 20 / 80)


@pytest.mark.parametrize("per", ["block", "row"])
def test_without_others_it_is_topk(per: str) -> None:
    block = gaussian((12, 10))
    plain = TopK(0.3, per=per)  # type: ignore[arg-type]
    for key in range(3):
        packet = RandomTopK(0.3, per=per, others=0.0).encode(block, key)  # type: ignore[arg-type]
        assert packet.body == plain.encode(block).body


@pytest.mark.parametrize(("k", "others"), [(2, 0.3), (3, 0.3), (5, 0.2), (7, 0.9)])
def test_within_their_kind_all_are_kept_equally_often(k: int, others: float) -> None:
    block, draws = np.arange(1.0, 9.0), 2000
    times = np.zeros(8)
    for draw in range(draws):
        image = compressed(RandomTopK(k=k, others=others), block, derive(1, draw))
        assert np.count_nonzero(image) == k
        times += image != 0
    b = share_of_others(k, 8, others)
    expected = np.where(np.arange(8) < 8 - k, b * k / (8 - k), 1 - b)
    assert np.abs(times / draws - expected).max() < 5 * 0.5 / np.sqrt(draws)


def test_no_entry_is_left_out_for_ever() -> None:
    block = gaussian((128, 16))
    kept = sum(
        (compressed(RandomTopK(0.1, others=0.3), block, derive(2, draw)) != 0).astype(int) for draw in range(300)
    )
    assert np.asarray(kept).min() > 0
    assert np.count_nonzero(compressed(TopK(0.1), block)) == 204


def test_rows_are_ranked_by_themselves() -> None:
    block = gaussian((9, 4, 6))
    image = compressed(RandomTopK(k=2, per="row", others=0.4), block, 3)
    assert (np.count_nonzero(image, axis=-1) == 2).all()
    top = compressed(TopK(k=2, per="row"), block) != 0
    others = [int((~top[row] & (image[row] != 0)).sum()) for row in np.ndindex(9, 4)]
    assert {0, 1, 2} == set(others)  # of the 72 picks about 0.4
    assert 14 <= sum(others) <= 44


def test_bytes_on_the_wire() -> None:
    """Places that are not the largest cost no more than others: four bytes a value and about half a bit an entry."""
    sizes = {
        compressor: compressor.encode(gaussian((128, 16)), 1).size
        for compressor in (TopK(0.1), RandomTopK(0.1), RandomTopK(0.1, others=0.3), RandomTopK(0.1, per="row"))
    }
    assert list(sizes.values()) == [948, 948, 948, 610]


def test_the_key_decides_and_the_receiver_need_not_know_it() -> None:
    block = gaussian((30, 8))
    packets = [RandomTopK(0.2, others=0.5).encode(block, key) for key in (1, 1, 2)]
    assert packets[0] == packets[1] != packets[2]
    image = decode(packets[2])
    assert np.array_equal(image[image != 0], block[image != 0])
