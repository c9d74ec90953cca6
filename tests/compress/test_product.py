"""Product quantisation: never worse than its start, as plain numpy finds it, and decoded as the wire says."""

from __future__ import annotations

import numpy as np
import pytest
from contraction import Float, assert_contracts, compressed, error, gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from efvfl import Columns, Product, TopK
from efvfl.compress import decode, symbols
from efvfl.compress.product import KEPT
from efvfl.wire.packet import FloatArray, Packet, Reader


def vectors_of(block: FloatArray, part: int) -> FloatArray:
    """Cut rows into parts that are as even as can be; the last one of a row is filled with zeros."""
    table = block.reshape(1, -1) if block.ndim == 1 else block.reshape(len(block), -1)
    pieces = -(-table.shape[1] // part)
    size = -(-table.shape[1] // pieces)
    out = np.zeros((len(table), pieces * size))
    out[:, : table.shape[1]] = table
    return out.reshape(-1, size)


def nearest(vectors: FloatArray, codes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the number of the nearest code, 0 for zero, and the squared distance to it."""
    every = np.concatenate([np.zeros((1, codes.shape[1])), codes])
    distances = np.square(vectors[:, None] - every[None]).sum(axis=2)
    return distances.argmin(axis=1), distances.min(axis=1)


def start_of(vectors: FloatArray, count: int) -> FloatArray:
    """Take in the vector that is farthest from all before it."""
    codes = np.empty((0, vectors.shape[1]))
    while len(codes) < min(count, len(vectors)) and nearest(vectors, codes)[1].max() > 0:
        codes = np.concatenate([codes, vectors[[nearest(vectors, codes)[1].argmax()]]])
    return codes


def reference(block: FloatArray, part: int, count: int, iterations: int) -> FloatArray:
    """Return the vectors of the image."""
    vectors = vectors_of(block.astype(np.float64), part)
    codes = start_of(vectors, count)
    for _turn in range(iterations):
        chosen = nearest(vectors, codes)[0]
        for k in set(chosen.tolist()) - {0}:
            codes[k - 1] = vectors[chosen == k].mean(axis=0)
    size = block.dtype.type(np.abs(codes).max() / 127)
    codes = np.rint(codes / size) * size
    image: FloatArray = np.concatenate([np.zeros((1, codes.shape[1])), codes])[nearest(vectors, codes)[0]]
    return image


def form(compressor: Product, block: FloatArray) -> int:
    reader = Reader(compressor.encode(block).body)
    assert reader.number("codes") > 0
    assert reader.number("part") > 0
    return reader.byte("form")


@pytest.mark.parametrize("shape", [(40, 12), (30, 7), (9, 4, 5), (101,)])
@pytest.mark.parametrize(("part", "codes", "iterations"), [(4, 6, 8), (3, 9, 2), (1, 5, 4), (100, 3, 1), (2, 4, 0)])
def test_it_is_the_plain_one(shape: tuple[int, ...], part: int, codes: int, iterations: int) -> None:
    for dtype in (np.float32, np.float64):
        block = gaussian(shape, dtype)
        expected = reference(block, part, codes, iterations)
        image = compressed(Product(part, codes, iterations), block)
        cut = expected.shape[1] * -(-(block[0].size if block.ndim > 1 else block.size) // expected.shape[1])
        expected = expected.reshape(-1, cut)[:, : block[0].size if block.ndim > 1 else block.size]
        np.testing.assert_allclose(image.reshape(expected.shape), expected, rtol=1e-6, atol=0)


def read_plainly(packet: Packet) -> FloatArray:
    """Decode as docs/wire.md says it."""
    reader, shape = Reader(packet.body), packet.shape
    count, part, exact = reader.number("codes"), reader.number("part"), reader.byte("form")
    book = [[0.0] * part]
    if exact:
        values = np.frombuffer(reader.take(count * part * packet.dtype.itemsize, "codebook"), packet.dtype).tolist()
    else:
        size = float(np.frombuffer(reader.take(packet.dtype.itemsize, "size"), packet.dtype)[0])
        values = [symbol * size for symbol in symbols.decode(reader, count * part, 127).tolist()]
    book += [values[k * part : (k + 1) * part] for k in range(count)]
    rows, width = (shape[0], int(np.prod(shape[1:]))) if len(shape) > 1 else (1, shape[0])
    per_row = -(-width // part)
    told = symbols.decode(reader, rows * per_row, (count + 1) // 2).tolist()
    reader.end("body")
    chosen = [2 * i - 1 if i > 0 else -2 * i for i in told]
    lines = [[x for k in chosen[r * per_row : (r + 1) * per_row] for x in book[k]][:width] for r in range(rows)]
    return np.array(lines, dtype=packet.dtype).reshape(shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_bit_follows_from_the_description_of_the_wire(dtype: Float) -> None:
    for compressor in (Product(), Product(3, 5), Product(1, 300), Product(50, 1)):
        for block in (gaussian((20, 7), dtype), gaussian((6, 2, 4), dtype), gaussian((23,), dtype), odd(dtype)):
            packet = compressor.encode(block)
            assert np.asarray(decode(packet)).tobytes() == read_plainly(packet).tobytes()


def odd(dtype: Float) -> FloatArray:
    """Return vectors of which no level is a number: they are sent as they are."""
    return np.full((3, 4), np.finfo(dtype).smallest_subnormal, dtype) * np.arange(1, 4, dtype=dtype)[:, None]


def test_the_start_loses_no_more_than_the_smallest_vectors_have() -> None:
    """So m of N codes keep m/N at least."""
    rng = np.random.default_rng(1)
    for block in (rng.standard_normal((25, 4)), rng.standard_t(1.5, (50, 2)), np.tile(rng.standard_normal((5, 4)), 2)):
        vectors = vectors_of(block, 2)
        energies = np.sort(np.square(vectors).sum(axis=1))
        for codes in (1, 2, 5, 20, len(energies)):
            lost = nearest(vectors, start_of(vectors, codes))[1].sum()
            assert lost <= energies[: len(energies) - codes].sum() + 1e-12
            assert lost <= (1 - codes / len(energies)) * energies.sum() + 1e-12
            alpha = Product(2, codes).alpha(block.shape)
            assert alpha == pytest.approx(KEPT * codes / len(energies))
            for iterations in (0, 8):
                assert error(block, compressed(Product(2, codes, iterations), block)) <= 1 - alpha


@pytest.mark.parametrize("codes", [1, 5, 11])
def test_the_guarantee_is_reached_where_no_two_vectors_are_alike(codes: int) -> None:
    """Orthogonal ones of equal norm: a mean of two keeps of each a quarter, as much as one of them alone."""
    block = np.eye(12)
    for iterations in (0, 3):
        assert error(block, compressed(Product(12, codes, iterations), block)) == pytest.approx(1 - codes / 12)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.integers(1, 5),
    st.lists(st.one_of(st.integers(-2, 2), st.sampled_from([1e-3, 300.0])), min_size=1, max_size=20),
    st.integers(1, 4),
    st.sampled_from([1, 2, 30]),
    st.integers(0, 2),
)
def test_it_contracts_on_odd_blocks(columns: int, values: list[float], part: int, codes: int, iterations: int) -> None:
    block = np.resize(np.array(values, dtype=np.float64), (-(-len(values) // columns), columns))
    if block.any():
        assert_contracts(Product(part, codes, iterations), block)


def test_what_rounding_would_spoil_is_sent_as_it_is() -> None:
    """One number of 300 x 300 is large, and all others, below half a level, hold more than half of the energy."""
    block = np.random.default_rng(0).uniform(0.003, 0.0039, (300, 300))
    block[7, 5] = 1.0
    compressor = Product(part=300, codes=290, iterations=1)
    assert form(compressor, block) == 1
    assert error(block, compressed(compressor, block)) <= 1 - 290 / 300
    assert form(Product(part=300, codes=100, iterations=1), block) == 0  # less is promised
    assert form(Product(), gaussian((128, 16))) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_smallest_numbers_come_back(dtype: Float) -> None:
    assert form(Product(), odd(dtype)) == 1
    assert np.array_equal(compressed(Product(), odd(dtype)), odd(dtype))


def test_few_different_vectors_come_back() -> None:
    """Up to half a level of 127; columns that a part cuts otherwise are other vectors."""
    rng = np.random.default_rng(3)
    block = rng.standard_normal((5, 4))[rng.integers(0, 5, (60, 3))].reshape(60, 12)
    assert np.abs(compressed(Product(4, 5), block) - block).max() <= np.abs(block).max() / 254 * (1 + 1e-9)
    assert error(block, compressed(Product(3, 5), block)) > 0.05
    assert Product(4, 5).encode(block).size < 150


def test_more_codes_and_more_iterations_lose_less() -> None:
    block = gaussian((128, 16))
    for found in (
        [error(block, compressed(Product(codes=codes), block)) for codes in (2, 6, 14, 30, 126, 512)],
        [error(block, compressed(Product(part=part), block)) for part in (16, 8, 4, 2, 1)],
        [error(block, compressed(Product(iterations=n), block)) for n in (0, 1, 2, 8)],
    ):
        assert found == sorted(found, reverse=True)


def test_parts_are_even() -> None:
    """Rows of 16 in parts of at most 5 are four of four, and of 7 in parts of at most 4 a four and a three."""
    block = gaussian((40, 16))
    assert Product(5, 6).encode(block) == Product(4, 6).encode(block)
    assert Product(100, 6).encode(block) == Product(16, 6).encode(block)
    last = compressed(Product(4, 60), gaussian((10, 7)))
    assert error(gaussian((10, 7)), last) < 1e-3  # as many codes as vectors


def test_trailing_dimensions_are_columns_and_a_vector_is_a_row() -> None:
    block = gaussian((40, 12))
    flat, deep = compressed(Product(), block), compressed(Product(), block.reshape(40, 3, 4))
    assert np.array_equal(flat, deep.reshape(40, 12))
    vector = gaussian((60,))
    assert np.array_equal(compressed(Product(4, 3), vector), compressed(Product(4, 3), vector[None])[0])


MAPS = (Product(), Product(codes=14), Product(2, 6), Columns(2), TopK(0.1))


def test_bytes_on_the_wire() -> None:
    block = gaussian((128, 16))
    found = {c: (c.encode(block).size, error(block, compressed(c, block))) for c in MAPS}
    assert [found[c][0] for c in MAPS[:3]] == [456, 328, 397]
    assert found[Product()][1] < 0.25
    assert found[Product(2, 6)][1] < 0.75 * found[Columns(2)][1]  # at about the same bytes
    assert found[Product(codes=14)][0] < 0.4 * found[TopK(0.1)][0]
    assert found[Product(codes=14)][1] < 0.6 * found[TopK(0.1)][1]
