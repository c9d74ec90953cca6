"""Natural compression: powers of two, without bias, with an error that has the same bound for every entry."""

from __future__ import annotations

import numpy as np
import pytest
from contraction import Float, compressed, error, errors, gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from efvfl import QSGD, Natural
from efvfl.util.rng import derive, uniforms
from efvfl.wire.packet import FloatArray

both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
ENDS = (5e-324, 1.5e-323, 2.5e-310, 2.2250738585072014e-308, 1.0, 2.0**1000 * 1.5, 1.7976931348623157e308)


def reference(x: FloatArray, draws: FloatArray | None) -> FloatArray:
    """Return the powers of two in another way: by logarithms that `frexp` makes exact."""
    fraction, exponent = np.frexp(np.abs(x).astype(np.float64))  # |x| = fraction 2^exponent, fraction in [1/2, 1)
    up = 2 * fraction - 1 > (0.5 if draws is None else draws)
    with np.errstate(over="ignore"):
        powers = np.ldexp(1.0 if draws is None else 8 / 9, exponent - 1 + up)
    image: FloatArray = np.sign(x) * np.where(x == 0, 0.0, np.minimum(powers, np.finfo(x.dtype).max))
    return image.astype(x.dtype)


@both_dtypes
def test_it_is_the_plain_one(dtype: Float) -> None:
    rng = np.random.default_rng(0)
    wide = rng.choice([-1, 1], 3000) * 10.0 ** rng.uniform(-37, 37, 3000)
    tiny = np.array([0.0, -0.0, *ENDS, *(-x for x in ENDS)] if dtype == np.float64 else [1e-45, -7e-45], dtype)
    for block in (gaussian((40, 5), dtype), wide.astype(dtype), tiny, np.full(3, np.finfo(dtype).max, dtype)):
        draws = uniforms(77, block.size).reshape(block.shape)
        assert np.array_equal(compressed(Natural("nearest"), block), reference(block, None))
        assert np.array_equal(compressed(Natural(), block, 77), reference(block, draws))


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.floats(allow_nan=False, allow_infinity=False).filter(bool))
def test_the_nearer_power_is_at_most_a_third_away(x: float) -> None:
    assert error(np.array([x]), compressed(Natural("nearest"), np.array([x]))) <= 1 - Natural().alpha((1,)) + 1e-12


@pytest.mark.parametrize("x", [1.0, 1.1, 1.25, 4 / 3, 1.5, 1.9, 2.0])
def test_it_has_no_bias_before_it_is_scaled(x: float) -> None:
    """A block of one value takes its two powers in the shares that make the mean right, and the worst is at 4/3."""
    block = np.full(4096, x)
    images = np.concatenate([compressed(Natural(), block, derive(3, draw)) for draw in range(10)]) * 9 / 8
    assert set(np.round(images, 12)) <= {1.0, 2.0}
    assert abs(images.mean() - x) <= 5 * 0.5 / np.sqrt(images.size)
    variance = (2 - x) * (x - 1)
    assert variance <= x * x / 8 + 1e-12
    mean, standard = errors(Natural(), block, 10)
    expected = (1 - 8 / 9) ** 2 + (8 / 9) ** 2 * variance / x**2  # bias and variance after scaling
    assert abs(mean - expected) <= 5 * standard + 1e-12
    assert expected <= 1 - Natural().alpha((1,)) + 1e-12


def test_the_bounds_are_reached() -> None:
    """At 4/3, and at 3/2 for the nearer power: no larger alpha would be true."""
    assert error(np.full(5, 4 / 3), compressed(Natural(), np.full(5, 4 / 3))) == pytest.approx(1 / 9)  # either way
    assert error(np.full(5, 1.5), compressed(Natural("nearest"), np.full(5, 1.5))) == pytest.approx(1 / 9)


def test_the_guarantee_does_not_depend_on_the_size() -> None:
    shapes = ((1,), (128, 16), (60_000, 16))
    assert {Natural().alpha(shape) for shape in shapes} == {8 / 9}
    assert [QSGD(4).alpha(shape) for shape in shapes[1:]] == pytest.approx(
        [1 / (1 + 2048**0.5 / 15), 0.01508], rel=1e-3
    )
    outlier = gaussian((128, 16))
    outlier[0, 0] = 1e6  # a scale for the block would be that of one entry
    mean, _ = errors(Natural("nearest"), outlier.reshape(-1)[1:], 1)
    whole = compressed(Natural("nearest"), outlier).reshape(-1)[1:]
    assert np.array_equal(whole, compressed(Natural("nearest"), outlier.reshape(-1)[1:]))
    assert mean < 0.05


@pytest.mark.parametrize(
    ("compressor", "shape", "size"),
    [(Natural(), (128, 16), 972), (Natural("nearest"), (128, 16), 968), (Natural("nearest"), (1024, 16), 7346)],
    ids=repr,
)
def test_bytes_on_the_wire(compressor: Natural, shape: tuple[int, ...], size: int) -> None:
    """About 3.7 bits an entry, where the paper counts 9."""
    packet = compressor.encode(gaussian(shape), 1)
    assert packet.size == len(packet.to_bytes()) == size
    assert size < compressor.paper_bits(shape) / 8 / 2


@pytest.mark.parametrize("compressor", [Natural(), Natural("nearest")], ids=repr)
def test_its_symbols_cost_about_their_entropy(compressor: Natural) -> None:
    rng = np.random.default_rng(1)
    for block in (rng.standard_normal((1024, 16)), np.exp(2 * rng.standard_normal((1024, 16)))):
        signed: FloatArray = block * rng.choice([-1, 1], block.shape)
        counts = np.unique(np.asarray(compressed(compressor, signed, 1)), return_counts=True)[1]
        entropy = -float((counts * np.log2(counts / block.size)).sum())
        assert 8 * compressor.encode(signed, 1).size <= 1.1 * entropy
