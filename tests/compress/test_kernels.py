"""Compiled loops do what their Python source says: the same bytes, the same blocks and the same refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from efvfl.compress import (
    QSGD,
    Cast,
    Columns,
    Compressor,
    LowRank,
    Natural,
    Product,
    RandK,
    RandomTopK,
    Sign,
    TopK,
    TopKQSGD,
    Uniform,
    base,
    cast,
    columns,
    decode,
    low_rank,
    natural,
    positions,
    product,
    qsgd,
    random_topk,
    symbols,
    topk,
    uniform,
)
from efvfl.errors import WireError
from efvfl.wire.packet import FloatArray, Packet, Reader

MODULES: tuple[Any, ...] = (
    *(base, cast, columns, low_rank, natural, positions),
    *(product, qsgd, random_topk, symbols, topk, uniform),
)
KERNELS = [
    (module, name, kernel)
    for module in MODULES
    for name, kernel in vars(module).items()
    if hasattr(kernel, "py_func") and kernel.__module__ == module.__name__
]
COMPRESSORS: list[Compressor] = [
    TopK(0.1),
    TopK(0.7),
    TopK(k=3),
    TopK(0.3, per="row"),
    RandK(0.4),
    QSGD(1),
    QSGD(4),
    QSGD(16),
    Sign(),
    Cast("fp16"),
    Cast("bf16"),
    TopKQSGD(0.4, 8),
    Uniform(1),
    Uniform(7, "row"),
    Uniform(3, rounding="random"),
    Natural(),
    Natural("nearest"),
    Columns(2),
    Columns(5),
    LowRank(2),
    LowRank(1, iterations=1),
    Product(2, 3),
    Product(5, 100, iterations=1),
    RandomTopK(0.3, others=0.4),
    RandomTopK(0.3, per="row", others=0.4),
]


def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the source of every kernel in its place."""
    for module, name, kernel in KERNELS:
        monkeypatch.setattr(module, name, kernel.py_func)


def blocks() -> list[FloatArray]:
    """Ties, zeros, magnitudes far apart, blocks that fill no whole byte; numpy computes in float64 as numba does."""
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((6, 11)) * 10.0 ** rng.integers(-9, 4, (6, 11))
    return [
        wide,
        rng.standard_normal(37),
        rng.integers(-2, 3, (5, 7)).astype(np.float64),
        np.zeros(9),
        np.full(1, 1e-310),
    ]


def outcome(work: Callable[[], Any]) -> Any:
    """What comes of it, or what is said against it."""
    try:
        return work()
    except WireError as error:
        return str(error)


def test_the_kernels_are_found() -> None:
    assert len(KERNELS) >= 12
    assert {module for module, *_ in KERNELS} == set(MODULES)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_the_same_bytes_and_blocks(compressor: Compressor, monkeypatch: pytest.MonkeyPatch) -> None:
    given = blocks()
    if not isinstance(compressor, QSGD | TopKQSGD):
        given += [block.astype(np.float32) for block in given]
    data = [compressor.encode(block, 5).to_bytes() for block in given]
    images = [decode(Packet.from_bytes(each)) for each in data]
    interpreted(monkeypatch)
    with np.errstate(all="ignore"):
        assert [compressor.encode(block, 5).to_bytes() for block in given] == data
        for each, image in zip(data, images, strict=True):
            assert decode(Packet.from_bytes(each)).tobytes() == image.tobytes()


def test_the_same_positions_and_the_same_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    chance, cases = Random(0), []
    for _ in range(300):
        limit = chance.choice([1, 9, 60, 500])
        places = sorted(chance.sample(range(limit), chance.randint(0, limit)))
        data = bytearray(positions.encode(np.array(places, dtype=np.int64), limit))
        if chance.random() < 0.7:  # an accident
            data[chance.randrange(len(data))] ^= 1 << chance.randint(0, 7)
        cases.append((bytes(data), limit))

    def found() -> list[Any]:
        return [outcome(lambda: positions.read(Reader(data), limit).tolist()) for data, limit in cases]  # noqa: B023

    compiled = found()
    assert len([places for places in compiled if isinstance(places, list)]) > 50
    refusals = {re.sub(r"[\d,]+", "N", text) for text in compiled if isinstance(text, str)}
    assert len(refusals) > 5  # too short, out of range, padding, not canonical, ...
    interpreted(monkeypatch)
    with np.errstate(all="ignore"):
        assert found() == compiled


@pytest.mark.parametrize("width", [1, 7, 8, 13, 40])
def test_the_same_packed_numbers(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(width).integers(0, 1 << width, 21)
    data = symbols.pack(values, width)
    interpreted(monkeypatch)
    with np.errstate(all="ignore"):
        assert symbols.pack(values, width) == data
        assert np.array_equal(symbols.unpack(Reader(data), width, values.size, "numbers"), values)
