"""The column-wise quantiser: one step, levels by the range of each column, never worse than plain rounding."""

from __future__ import annotations

import numpy as np
import pytest
from contraction import compressed, error, gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from efvfl import Columns, Natural, Uniform
from efvfl.compress.columns import LARGEST, least_levels
from efvfl.wire.packet import FloatArray


def relu(rows: int, columns: int, seed: int = 0) -> FloatArray:
    """Return what a layer with ReLU makes: columns of different scales, some of them mostly zero."""
    rng = np.random.default_rng(seed)
    shift, scale = rng.standard_normal(columns) * 1.5, np.exp(rng.standard_normal(columns) / 2)
    block: FloatArray = np.maximum(scale * (rng.standard_normal((rows, columns)) + shift), 0).astype(np.float32)
    return block


def step_of(compressor: Columns, block: FloatArray) -> float:
    return float(np.frombuffer(compressor.encode(block).body, block.dtype, 1)[0])


def reference(table: FloatArray, step: float) -> FloatArray:
    """Return every column rounded to the nearest step, or its mean in eighths of one if that is no worse."""
    x = table.astype(np.float64) / step
    rounded = np.sign(x) * np.floor(np.abs(x) + 0.5)
    means = np.broadcast_to(np.floor(x.mean(axis=0) * 8 + 0.5) / 8, x.shape)
    better = ((x - means) ** 2).sum(axis=0) <= ((x - rounded) ** 2).sum(axis=0)
    image: FloatArray = np.where(better, means, rounded) * step
    return image


@pytest.mark.parametrize("bits", [2, 3, 3.7, 6, 14])
def test_it_is_the_plain_one(bits: float) -> None:
    constant = np.full((30, 3), (0.01, -2.0, 0.0)) + 1e-3 * gaussian((30, 3), np.float64)
    for block in (
        gaussian((40, 6), np.float64),
        relu(50, 8).astype(np.float64),
        np.hstack([constant, gaussian((30, 2))]),
    ):
        image = compressed(Columns(bits), block)
        np.testing.assert_allclose(image, reference(block, step_of(Columns(bits), block)), rtol=1e-12, atol=0)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    st.integers(1, 6),
    st.lists(st.one_of(st.floats(-1, 1), st.sampled_from([0.0, 1.0, -1.0, 0.166, 0.49])), min_size=1, max_size=24),
    st.sampled_from([2.0, 3.0, 5.5]),
)
def test_no_block_does_worse_than_alpha(columns: int, values: list[float], bits: float) -> None:
    rows = -(-len(values) // columns)
    block = np.resize(values, (rows, columns))
    if np.abs(block).max() > 1e-100:
        assert error(block, compressed(Columns(bits), block)) <= 1 - Columns(bits).alpha(block.shape) + 1e-9


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_near_the_worst_case(bits: int) -> None:
    """Full range in every column, so that no more levels fit, and else entries just below half a step."""
    levels = least_levels(bits)
    block = np.where(np.arange(64) % 2, 0.4999, -0.4999).repeat(8).reshape(64, 8) / levels
    block[0], block[1] = 1.0, -1.0
    assert step_of(Columns(bits), block) == 1 / levels
    lost, alpha = error(block, compressed(Columns(bits), block)), Columns(bits).alpha(block.shape)
    energy = 4 * levels**2 * 16  # in squares of half a step: 16 entries are as large as can be where the bound has one
    assert lost == pytest.approx(496 / (496 + energy), rel=1e-3)
    assert lost <= 1 - alpha


@pytest.mark.parametrize("bits", [2, 2.5, 3, 4, 8])
def test_the_budget_is_kept_and_used(bits: float) -> None:
    for block in (gaussian((128, 16)), relu(128, 16), 1 / (1 + np.exp(-relu(128, 16)))):
        top = float(np.abs(block).max())
        levels = round(top / step_of(Columns(bits), block))
        assert least_levels(bits) <= levels <= LARGEST

        def cost(levels: int, block: FloatArray = block, top: float = top) -> float:
            low, high = (np.rint(end / top * levels) for end in (block.min(axis=0), block.max(axis=0)))
            return float(np.log2(high - low + 1).mean())

        assert cost(levels) <= bits < cost(levels + 1)


def test_columns_that_need_no_levels_leave_theirs_to_the_others() -> None:
    block = relu(128, 16)
    more = np.hstack([block, np.zeros((128, 48), np.float32), np.full((128, 16), 0.2, np.float32)])
    assert Columns(3).encode(more).size < 3 / 8 * more.size
    image = compressed(Columns(3), more)
    assert not image[:, 16:64].any()
    assert np.abs(image[:, 64:] - 0.2).max() <= step_of(Columns(3), more) / 16 + 1e-7
    assert error(block, image[:, :16]) < 1e-3 * error(block, compressed(Columns(3), block))


def test_dimensions_after_the_first_are_columns() -> None:
    block = relu(40, 12)
    flat, deep = compressed(Columns(3), block), compressed(Columns(3), block.reshape(40, 3, 4))
    assert np.array_equal(flat, deep.reshape(40, 12))
    assert Columns(2).alpha((40, 3, 4)) == Columns(2).alpha((40, 12)) == Columns(2).alpha((480,))
    vector = gaussian((50,))
    assert np.array_equal(compressed(Columns(4), vector), compressed(Columns(4), vector[:, None])[:, 0])


def test_the_largest_entry_is_exact() -> None:
    for seed in range(20):
        block = gaussian((9, 7), np.float64, seed)
        place = np.argmax(np.abs(block))
        assert compressed(Columns(2), block).flat[place] == pytest.approx(block.flat[place], rel=1e-15)


def test_bytes_on_the_wire() -> None:
    """Where columns differ, the map that knows them loses half as much with fewer bytes."""
    block = relu(128, 16)
    found = {c: (c.encode(block).size, error(block, compressed(c, block))) for c in MAPS}
    assert [size for size, _ in found.values()] == [479, 747, 485, 664, 816, 699]
    assert found[Columns(2)][1] < 0.5 * found[Uniform(7)][1]
    lost = [found[c][1] for c in (Uniform(15), Columns(3), Uniform(31))]
    assert lost == sorted(lost, reverse=True)  # in this order in bytes, too
    assert [Columns(bits).encode(gaussian((128, 16))).size for bits in (2, 3, 4)] == [370, 682, 1002]


MAPS = (Columns(2), Columns(3), Uniform(7), Uniform(15), Uniform(31), Natural("nearest"))
