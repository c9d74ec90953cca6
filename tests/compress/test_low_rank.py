"""Low rank: a projection on what the receiver has, no worse than its random start, close to the best of its rank."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from contraction import assert_contracts, compressed, error, errors, gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from efvfl import LowRank
from efvfl.compress import decode, symbols
from efvfl.compress.low_rank import KEPT, _basis, _start
from efvfl.util.rng import derive
from efvfl.wire.packet import FloatArray, Packet, Reader


def decaying(rows: int, columns: int, share: float = 0.7) -> FloatArray:
    """Return a block whose singular values fall by this factor."""
    rng = np.random.default_rng(2)
    left, right = (np.linalg.qr(rng.standard_normal((side, min(rows, columns))))[0] for side in (rows, columns))
    block: FloatArray = (left * share ** np.arange(min(rows, columns))) @ right.T
    return block


def best(block: FloatArray, rank: int) -> float:
    """Return the share of the energy that no matrix of this rank can keep."""
    energies = np.square(np.linalg.svd(block, compute_uv=False))
    return float(energies[rank:].sum() / energies.sum())


def form(compressor: LowRank, block: FloatArray, key: int = 1) -> int:
    reader = Reader(compressor.encode(block, key).body)
    assert (reader.number("rank"), reader.number("levels")) == (compressor.rank, compressor.levels)
    return reader.byte("form")


@pytest.mark.parametrize("shape", [(60, 12), (12, 60), (20, 20)])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_it_is_close_to_the_best_of_its_rank(shape: tuple[int, int], rank: int) -> None:
    block = decaying(*shape, share=0.5)
    image = compressed(LowRank(rank, levels=255, iterations=6), block, 3)
    assert np.linalg.matrix_rank(image, tol=1e-9) == rank
    assert best(block, rank) <= error(block, image) <= best(block, rank) + 0.002


@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (3, 5, 2), (11,)])
def test_a_block_of_its_rank_comes_back(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    columns = int(np.prod(shape[1:]))
    block = (rng.standard_normal((shape[0], 2)) @ rng.standard_normal((2, columns))).reshape(shape)
    assert error(block, compressed(LowRank(2, levels=1 << 15), block, 1)) < 1e-6


def test_more_iterations_keep_no_less() -> None:
    block = decaying(50, 20, 0.8)
    lost = [errors(LowRank(2, levels=1023, iterations=n), block, 30)[0] for n in (1, 2, 3, 5)]
    assert lost == sorted(lost, reverse=True)
    assert lost[0] > best(block, 2) + 0.05 > lost[3]


def test_the_error_is_that_of_the_projection_and_that_of_the_short_factor() -> None:
    """They are orthogonal, because the short factor is the projection on what the receiver has."""
    block = gaussian((40, 6), np.float64)
    fine, coarse = (compressed(LowRank(3, levels=n), block, 4) for n in (31, 1))
    for image in (fine, coarse):
        basis = np.linalg.svd(image)[0][:, :3]
        projected = basis @ (basis.T @ block)
        total = np.square(block - image).sum()
        assert np.square(block - projected).sum() + np.square(projected - image).sum() == pytest.approx(total)


@pytest.mark.parametrize("rank", [1, 3])
def test_it_contracts_where_no_direction_is_better_than_others(rank: int) -> None:
    """All singular values equal: exactly r/m of the energy is kept by any subspace, the least that the bound allows."""
    block = np.linalg.qr(gaussian((30, 10), np.float64))[0]
    for iterations in (1, 3):
        compressor = LowRank(rank, levels=1 << 12, iterations=iterations)
        mean, _ = errors(compressor, block, 20)
        assert mean == pytest.approx(1 - rank / 10, abs=1e-4)
        assert mean <= 1 - compressor.alpha(block.shape)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.integers(1, 5),
    st.lists(st.one_of(st.integers(-2, 2), st.sampled_from([1e-3, 300.0])), min_size=2, max_size=20),
    st.integers(1, 3),
    st.sampled_from([1, 2, 31]),
)
def test_it_contracts_on_odd_blocks(columns: int, values: list[float], rank: int, levels: int) -> None:
    block = np.resize(np.array(values, dtype=np.float64), (-(-len(values) // columns), columns))
    if block.any():
        assert_contracts(LowRank(rank, levels=levels, iterations=1), block, draws=20)


def test_a_basis_that_rounding_would_spoil_is_sent_as_floats() -> None:
    """One row of 10^4 is large, and the many others hold half of the energy: in one level they would be lost."""
    block = np.full((10_000, 1), 0.02)
    block[0] = 2.0
    assert form(LowRank(1, levels=31), block) == 1
    assert form(LowRank(1, levels=1023), block) == 0
    for levels in (31, 1023):
        assert error(block, compressed(LowRank(1, levels=levels), block)) <= 1 - KEPT
    assert form(LowRank(1), decaying(128, 16)) == 0


def test_a_basis_is_orthonormal_and_what_depends_is_left_out() -> None:
    told = np.array([[3, 0, 4, 0], [6, 0, 8, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    basis = _basis(told)
    assert np.allclose(basis @ basis.T, np.diag([1, 0, 1, 0]), atol=1e-15)
    assert basis[0].tolist() == [0.6000000000000001, 0, 0.8, 0]


def read_plainly(packet: Packet) -> FloatArray:
    """Decode as docs/wire.md says it, with lists of Python's floats."""
    reader, (n, m) = Reader(packet.body), packet.shape
    rank, levels = reader.number("rank"), reader.number("levels")
    assert reader.byte("form") == 0
    assert n >= m
    exponent = int.from_bytes(reader.take(2, "exponent"), "little", signed=True)
    size = float(np.frombuffer(reader.take(4, "size"), np.float32)[0])
    long, short = (symbols.decode(reader, rank * side, levels).reshape(rank, side).tolist() for side in (n, m))
    basis: list[list[float]] = []
    for column in ([float(value) for value in column] for column in long):
        for before in basis * 2:
            dot = 0.0
            for x, y in zip(column, before, strict=True):
                dot += x * y
            column[:] = [x - dot * y for x, y in zip(column, before, strict=True)]
        energy = 0.0
        for x in column:
            energy += x * x
        factor = 1 / sqrt(energy)
        basis.append([x * factor for x in column])
    image = np.zeros((n, m))
    for one, other in zip(basis, short, strict=True):
        for i in range(n):
            for j in range(m):
                image[i, j] += one[i] * (other[j] * size)
    return image * 2.0**exponent


def test_every_bit_follows_from_the_description_of_the_wire() -> None:
    """So no library of linear algebra has a say in what both ends remember."""
    for rank, key in ((1, 1), (2, 9), (5, 4)):
        packet = LowRank(rank).encode(gaussian((9, 5), np.float64), key)
        assert np.asarray(decode(packet)).tobytes() == read_plainly(packet).tobytes()


def test_bytes_on_the_wire() -> None:
    block = decaying(1024, 64).astype(np.float32)
    found = [(LowRank(rank).encode(block, 1).size, errors(LowRank(rank), block, 3)[0]) for rank in (1, 2, 4, 8)]
    assert [size for size, _ in found] == [781, 1523, 2994, 5845]
    assert [errors(LowRank(rank), block, 3)[0] - best(block, rank) < 0.1 for rank in (2, 4, 8)] == [True] * 3
    assert found[3][1] < 0.02
    assert LowRank(4).paper_bits((1024, 64)) == 32 + 6 * 4 * 1088


def test_every_key_gives_another_start() -> None:
    block = gaussian((30, 10))
    images = {compressed(LowRank(1, iterations=1), block, derive(1, n)).tobytes() for n in range(10)}
    assert len(images) == 10


def test_no_key_starts_at_zero() -> None:
    """Key 0 begins with a draw of exactly 0."""
    for key in (0, 1, 2**64 - 1):
        assert np.abs(_start(1, 1, key)).min() > 0
        assert error(np.ones((1, 1)), compressed(LowRank(), np.ones((1, 1)), key)) < 1e-12
