"""The contract of a compressor, over every registered one, and then what each map does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import lgamma, log, sqrt
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from contraction import Float, assert_contracts, compressed, gaussian, is_random

from efvfl.compress import (
    QSGD,
    REGISTRY,
    Cast,
    Columns,
    Compressor,
    Identity,
    LowRank,
    Natural,
    Product,
    RandK,
    RandomTopK,
    Sign,
    TopK,
    TopKQSGD,
    Uniform,
    decode,
    lookup,
    positions,
    register,
    symbols,
)
from efvfl.compress import base as compressors
from efvfl.compress.cast import _to_half
from efvfl.compress.ramp import Ramp
from efvfl.compress.testing import check_compressor
from efvfl.errors import CompressionError, ConfigError, WireError
from efvfl.util.rng import derive, permutation, uniform
from efvfl.wire.packet import FloatArray, Packet, Reader

# Knobs to try each compressor with: a new compressor needs a line here.
VARIANTS: dict[str, tuple[Compressor, ...]] = {
    "identity": (Identity(),),
    "topk": (
        TopK(),
        TopK(ratio=0.3),
        TopK(ratio=1.0),
        TopK(k=3),
        TopK(ratio=0.25, per="row"),
        TopK(k=2, per="row"),
    ),
    "randk": (RandK(), RandK(ratio=0.5), RandK(k=3)),
    "qsgd": (QSGD(), QSGD(bits=1), QSGD(bits=1, levels="text"), QSGD(bits=2), QSGD(bits=8, levels="text"), QSGD(16)),
    "sign": (Sign(),),
    "cast": (Cast("fp16"), Cast("bf16")),
    "topk_qsgd": (
        TopKQSGD(),
        TopKQSGD(ratio=0.3, bits=2),
        TopKQSGD(k=4, levels="text"),
        TopKQSGD(ratio=1.0, bits=1),
    ),
    "uniform": (
        Uniform(),
        Uniform(levels=1),
        Uniform(levels=1, scale="row"),
        Uniform(levels=15, scale="row"),
        Uniform(levels=7, scale="clip", clip=2.0),
        Uniform(levels=1, scale="clip", clip=1),
        Uniform(levels=3, rounding="random"),
        Uniform(levels=2, scale="row", rounding="random"),
    ),
    "columns": (Columns(), Columns(2), Columns(4.5), Columns(14)),
    "low_rank": (LowRank(), LowRank(1, levels=1, iterations=1), LowRank(3, levels=127), LowRank(100)),
    "random_topk": (
        RandomTopK(),
        RandomTopK(ratio=0.3, others=0.3),
        RandomTopK(ratio=0.8, others=0.5),
        RandomTopK(k=3, others=0.95),
        RandomTopK(ratio=0.25, per="row", others=0.2),
    ),
    "natural": (Natural(), Natural("nearest")),
    "product": (
        Product(),
        Product(part=1, codes=1),
        Product(part=3, codes=2, iterations=0),
        Product(part=2, codes=100),
        Product(part=100, codes=3),
    ),
}
# Knobs that each must refuse.
WRONG: dict[str, tuple[dict[str, Any], ...]] = {
    "identity": (),
    "topk": (
        {"ratio": 0.0},
        {"ratio": -0.1},
        {"ratio": 1.01},
        {"ratio": float("nan")},
        {"ratio": "0.1"},
        {"ratio": None},
        {"ratio": Ramp(0.0, 1.0, 5)},
        {"ratio": Ramp(0.5, 1.5, 5)},
        {"k": -1},
        {"k": 2.5},
        {"k": "3"},
        {"k": None},
        {"per": "column"},
    ),
    "randk": ({"ratio": 0.0}, {"ratio": 2}, {"ratio": Ramp(0.1, 2.0, 5)}, {"k": -1}, {"k": 1.0}),
    "qsgd": (
        {"bits": 0},
        {"bits": 17},
        {"bits": float("nan")},
        {"bits": "4"},
        {"bits": None},
        {"bits": Ramp(0, 8, 5)},
        {"bits": Ramp(4, 17, 5)},
        {"levels": "code"},
    ),
    "sign": (),
    "cast": ({"to": "fp8"}, {"to": 16}),
    "topk_qsgd": ({"ratio": 0.0}, {"bits": 0}, {"bits": 17}, {"k": -1}, {"k": 0.5}, {"levels": "code"}),
    "uniform": (
        {"levels": 0},
        {"levels": 1 << 16},
        {"levels": 1.0},
        {"levels": True},
        {"levels": None},
        {"scale": "column"},
        {"clip": 0.5},
        {"clip": float("nan")},
        {"clip": "3"},
        {"rounding": "up"},
        {"rounding": "random", "scale": "clip"},
    ),
    "random_topk": (
        {"ratio": 0.0},
        {"k": -1},
        {"per": "column"},
        *({"others": x} for x in (-0.1, 1.0, None, float("nan"))),
    ),
    "columns": tuple({"bits": x} for x in (1.9, 15, "3", None, float("nan"), Ramp(1, 3, 5))),
    "low_rank": (
        *({"rank": x} for x in (0, 1.5, None, True)),
        *({"levels": x} for x in (0, 1 << 16, "3")),
        *({"iterations": x} for x in (0, 2.0)),
    ),
    "natural": ({"rounding": "up"}, {"rounding": None}),
    "product": (
        *({"part": x} for x in (0, 1.5, None, True)),
        *({"codes": x} for x in (0, 1 << 16, "3")),
        *({"iterations": x} for x in (-1, 2.0)),
    ),
}


EVERY = [pytest.param(variant, id=repr(variant)) for name in REGISTRY for variant in VARIANTS.get(name, ())]
every = pytest.mark.parametrize("compressor", EVERY)
DTYPES: tuple[Float, Float] = (np.float32, np.float64)
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])

SHAPES: tuple[tuple[int, ...], ...] = ((1,), (7,), (3, 5), (10, 10), (4, 3, 5))


def _one_entry(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    block = np.zeros(shape)
    block.flat[rng.integers(block.size)] = -1.7
    return block


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], FloatArray]] = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "heavy-tailed": lambda rng, shape: rng.standard_t(1.2, shape),
    "one entry": _one_entry,
    "constant": lambda rng, shape: np.full(shape, -0.3),
    "sparse": lambda rng, shape: np.where(rng.random(shape) < 0.2, rng.standard_normal(shape), 0.0),
}


# The registry.


def test_every_registered_compressor_is_under_contract() -> None:
    assert set(VARIANTS) == set(REGISTRY) == set(WRONG)
    for name, variants in VARIANTS.items():
        assert variants, name
        assert all(type(variant) is REGISTRY[name] and variant.name == name for variant in variants)


def test_wire_codes_never_change() -> None:
    codes = {"identity": 0, "topk": 1, "randk": 2, "qsgd": 3, "sign": 4, "cast": 5, "topk_qsgd": 6, "uniform": 7}
    codes |= {"natural": 8, "random_topk": 9, "columns": 10, "low_rank": 11, "product": 12}
    assert codes.items() <= {name: cls.code for name, cls in REGISTRY.items()}.items()


@pytest.mark.parametrize(("name", "code"), [("topk", 200), ("another", 1), ("another", 256), ("another", -1)])
def test_register_refuses_a_taken_name_or_code(name: str, code: int) -> None:
    before = dict(REGISTRY)
    with pytest.raises(ConfigError, match="expected a name and a code from 0 to 255 that are not in use"):
        register(name, code)(Identity)
    assert before == REGISTRY
    assert (Identity.name, Identity.code) == ("identity", 0)


def test_registering_the_same_class_again_replaces_it() -> None:
    def define() -> type[Identity]:  # as a notebook's cell that runs twice
        class Again(Identity):
            pass

        return register("again", 201)(Again)

    try:
        first, second = define(), define()
        assert first is not second
        assert REGISTRY["again"] is compressors._BY_CODE[201] is second
        for name, code in (("again", 202), ("again2", 201)):
            with pytest.raises(ConfigError, match="expected a name and a code from 0 to 255 that are not in use"):
                register(name, code)(second)
        other = type("Other", (Identity,), {})
        with pytest.raises(ConfigError, match="expected a name and a code from 0 to 255 that are not in use"):
            register("again", 201)(other)
    finally:
        REGISTRY.pop("again", None)
        compressors._BY_CODE.pop(201, None)


def test_lookup_finds_or_suggests() -> None:
    assert lookup("topk") is TopK
    with pytest.raises(
        ConfigError, match=r"no compressor 'topK'\. Did you mean 'topk'\? Known: cast, columns, identity"
    ):
        lookup("topK")


# The contract.


@every
def test_contract(compressor: Compressor) -> None:
    check_compressor(compressor)


@every
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_contracts(compressor: Compressor, distribution: str) -> None:
    """Every two of distribution, shape and precision meet."""
    rng = np.random.default_rng(5)
    for number, shape in enumerate(SHAPES):
        dtype = DTYPES[(number + list(DISTRIBUTIONS).index(distribution)) % 2]
        block = DISTRIBUTIONS[distribution](rng, shape).astype(dtype)
        if block.any():
            assert_contracts(compressor, block, draws=100 if distribution == "one entry" else 40)  # rarely hit


@every
def test_contracts_on_a_batch(compressor: Compressor) -> None:
    assert_contracts(compressor, gaussian((128, 16)), draws=40)


@every
@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [(np.float32, (1e38, 3.4028235e38, 1e-36)), (np.float64, (1e300, 1.7976931348623157e308, 1e-300))],
    ids=["float32", "float64"],
)
def test_contracts_at_the_ends_of_the_range(compressor: Compressor, dtype: Float, sizes: tuple[float, ...]) -> None:
    for size in sizes:
        block = np.random.default_rng(1).uniform(-1, 1, (8, 8)).astype(dtype) * dtype(size)
        block[3, 4] = dtype(-size)
        image = compressed(compressor, block, 3)
        assert np.isfinite(image).all()
        assert_contracts(compressor, block, draws=30)


@every
def test_one_entry_blocks_contract(compressor: Compressor) -> None:
    """Every value and every shape in both precisions."""
    values, shapes = (1.0, -0.3, 1e30, -1e-30), ((1,), (1, 1), (1, 1, 1), ())
    for turn, dtype in enumerate(DTYPES):
        for number, value in enumerate(values):
            assert_contracts(compressor, np.full(shapes[number - turn], value, dtype=dtype), draws=30)


@every
def test_the_key_decides_random_maps_only(compressor: Compressor) -> None:
    bodies = {compressor.encode(gaussian((6, 8)), key).body for key in range(20)}
    assert len(bodies) > 1 if is_random(compressor) else len(bodies) == 1


@every
def test_decoding_twice_gives_the_same_array(compressor: Compressor) -> None:
    packet = compressor.encode(gaussian((6, 8)), 3)
    assert decode(packet) is decode(packet)


@every
@both_dtypes
def test_an_empty_block_stays_empty(compressor: Compressor, dtype: Float) -> None:
    for shape in ((0, 4), (0,), (4, 0), (2, 0, 3)):
        packet = compressor.encode(np.empty(shape, dtype), 3)
        image = decode(Packet.from_bytes(packet.to_bytes()))
        assert (image.shape, image.dtype) == (shape, np.dtype(dtype))
        assert len(packet.body) <= 12
        assert compressor.alpha(shape) > 0
        assert compressor.paper_bits(shape) in (0, 32)


@every
@both_dtypes
def test_what_is_not_finite_is_refused(compressor: Compressor, dtype: Float) -> None:
    for value in (np.nan, np.inf, -np.inf):
        block = gaussian((3, 4), dtype)
        block[1, 2] = block[2, 0] = value
        expected = rf"^entry 6 of a block of shape \(3, 4\) is {value}: only finite numbers can be sent"
        with pytest.raises(CompressionError, match=expected):
            compressor.encode(block)
        with pytest.raises(CompressionError, match=rf"^entry 2 of a block of shape \(4, 3\) is {value}"):
            compressor.encode(block.T)


@every
def test_other_dtypes_are_refused(compressor: Compressor) -> None:
    for dtype in ("int64", "int32", "uint8", "bool", "float16", "complex64", ">f4", ">f8"):
        with pytest.raises(CompressionError, match=f"expected a block of float32 or float64, got {np.dtype(dtype)}"):
            compressor.encode(np.zeros((2, 3), dtype=dtype))


@every
def test_alpha_is_a_share(compressor: Compressor) -> None:
    for shape in (*SHAPES, (0, 4), (60000, 16)):
        assert 0 < compressor.alpha(shape) <= 1


@pytest.mark.parametrize(("name", "knobs"), [(name, knobs) for name, wrong in WRONG.items() for knobs in wrong])
def test_wrong_knobs_are_refused(name: str, knobs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(knobs))):
        REGISTRY[name](**knobs)


@every
def test_without_ramps_every_step_has_the_same_knobs(compressor: Compressor) -> None:
    assert compressor.at(0) is compressor.at(1000) is compressor


# Knobs over steps.


def test_ramped_knobs_have_a_value_at_every_step() -> None:
    topk = TopK(ratio=Ramp(0.1, 1.0, 9))
    assert [topk.at(step).ratio for step in (0, 3, 9, 1000)] == [0.1, pytest.approx(0.4), 1.0, 1.0]
    assert TopK(ratio=Ramp(0.25, 1.0, 2, "geometric"), per="row").at(1) == TopK(ratio=0.5, per="row")
    assert [QSGD(bits=Ramp(2, 8, 6)).at(step).s for step in (-1, 0, 1, 6)] == [3, 3, 7, 255]
    assert QSGD(bits=Ramp(2, 3, 10)).at(4).s == 3  # 2.4 bits: rounded
    both = TopKQSGD(ratio=Ramp(0.75, 0.25, 4), bits=Ramp(8, 4, 4), levels="text").at(2)
    assert both == TopKQSGD(ratio=0.5, bits=6.0, levels="text")
    assert RandK(ratio=Ramp(1.0, 0.5, 1)).at(1) == RandK(ratio=0.5)


def test_a_ramp_that_was_not_stepped_stands_at_its_start() -> None:
    block = gaussian((8, 8))
    for ramped, start in (
        (TopK(ratio=Ramp(0.2, 1.0, 9)), TopK(ratio=0.2)),
        (RandK(ratio=Ramp(0.2, 1.0, 9)), RandK(ratio=0.2)),
        (QSGD(bits=Ramp(3, 8, 9)), QSGD(bits=3)),
        (TopKQSGD(ratio=Ramp(0.2, 1.0, 9), bits=Ramp(3, 8, 9)), TopKQSGD(ratio=0.2, bits=3)),
    ):
        assert ramped.encode(block, 1) == start.encode(block, 1)
        assert ramped.alpha(block.shape) == start.alpha(block.shape)
        assert ramped.paper_bits(block.shape) == start.paper_bits(block.shape)


@pytest.mark.parametrize("shape", ["linear", "geometric"])
def test_a_ramp_ends_exactly_where_it_says(shape: Any) -> None:
    for tenths in range(10, 160):  # 1.9 * (1 / 1.9) is below 1, which QSGD would refuse at the last step
        assert QSGD(bits=Ramp(tenths / 10, 1, 7, shape)).at(7).bits == 1
        ramp = Ramp(tenths / 1000, 1.0, 7, shape)
        values = [ramp.at(step) for step in range(9)]
        assert values == sorted(values)
        assert (values[0], values[7], values[8]) == (tenths / 1000, 1.0, 1.0)


def test_ramps_without_a_value_are_refused() -> None:
    with pytest.raises(ConfigError, match="a ramp's steps: expected a whole number of at least 1, got 0"):
        Ramp(0.1, 1.0, 0)
    with pytest.raises(ConfigError, match=r"expected a ramp's shape 'linear', .* or a function, got 'cosine'"):
        Ramp(0.1, 1.0, 5, "cosine")
    with pytest.raises(ConfigError, match=r"expected positive ends of a geometric ramp, got 0\.0 and 1\.0"):
        Ramp(0.0, 1.0, 5, "geometric")


# What is promised about size and error.


@pytest.mark.parametrize(
    ("compressor", "shape", "bits"),
    [
        (Identity(), (128, 16), 32 * 2048),
        (TopK(ratio=0.1), (128, 16), 32 * 204),
        (TopK(ratio=0.001), (10,), 32),
        (TopK(k=5), (128, 16), 32 * 5),
        (TopK(k=50), (3, 3), 32 * 9),
        (TopK(ratio=0.1, per="row"), (128, 16), 32 * 128),
        (TopK(k=3, per="row"), (4, 2, 5), 32 * 24),
        (RandK(ratio=0.1), (128, 16), 32 * 204),
        (RandK(k=7), (128, 16), 32 * 7),
        (QSGD(bits=4), (128, 16), 32 + 5 * 2048),
        (QSGD(bits=1, levels="text"), (3,), 32 + 2 * 3),
        (Sign(), (128, 16), 32 + 2048),
        (Cast("fp16"), (128, 16), 16 * 2048),
        (Cast("bf16"), (128, 16), 16 * 2048),
        (TopKQSGD(ratio=0.1, bits=4), (128, 16), 32 + 5 * 204),
        (TopKQSGD(k=10, bits=2), (128, 16), 32 + 3 * 10),
        (Natural(), (128, 16), 9 * 2048),
        (LowRank(2), (128, 4, 4), 32 + 6 * 2 * 144),
        (LowRank(2, levels=1), (128,), 32 + 2 * 129),
        (Product(), (128, 16), 32 * 120 + 5 * 512),
        (Product(part=5, codes=2), (4, 2, 8), 32 * 2 * 4 + 2 * 16),
        (Product(part=5, codes=50), (12,), 32 * 3 * 4 + 2 * 3),
        (Columns(3), (128, 16), 3 * 2048 + 16 * 64),
        (Columns(2.5), (128, 4, 4), 2.5 * 2048 + 16 * 64),
        (Columns(2), (128,), 2 * 128 + 64),
        (RandomTopK(ratio=0.1), (128, 16), 32 * 204),
        (RandomTopK(k=3, per="row"), (4, 2, 5), 32 * 24),
    ],
    ids=repr,
)
def test_paper_bits(compressor: Compressor, shape: tuple[int, ...], bits: int) -> None:
    assert compressor.paper_bits(shape) == bits


@pytest.mark.parametrize(
    ("compressor", "shape", "alpha"),
    [
        (Identity(), (128, 16), 1.0),
        (TopK(ratio=0.1), (128, 16), 204 / 2048),
        (TopK(ratio=0.25, per="row"), (8, 5), 1 / 5),
        (RandK(k=3), (4, 4), 3 / 16),
        (QSGD(bits=4), (5, 5), 1 / (1 + 25 / 225)),
        (QSGD(bits=4), (128, 16), 1 / (1 + sqrt(2048) / 15)),
        (QSGD(bits=4, levels="text"), (128, 16), 1 / (1 + sqrt(2048) / 16)),
        (Sign(), (8, 4), 1 / 32),
        (Cast("fp16"), (8, 4), 1 - 2.0**-22),
        (Cast("bf16"), (8, 4), 1 - 2.0**-16),
        (TopKQSGD(k=9, bits=2), (9, 2), 0.5 / (1 + 9 / 9)),
        (Natural(), (60_000, 16), 8 / 9),
        (LowRank(2), (128, 16), 0.9 * 3844 / (3844 + 31) / 8),
        (LowRank(2), (4, 16), 0.9 * 3844 / (3844 + 7) / 2),
        (LowRank(100), (128, 16), 0.9 * 3844 / (3844 + 255)),
        (Product(), (128, 16), 0.9 * 30 / 512),
        (Product(part=5, codes=2), (4, 2, 8), 0.9 * 2 / 16),
        (Product(part=5, codes=50), (12,), 0.9),
        (Columns(2), (8, 4), 4 / (4 + 31)),
        (Columns(3), (8, 4), 36 / (36 + 31)),
        (RandomTopK(ratio=0.1, others=0.3), (128, 16), 204 / 2048),
        (RandomTopK(k=6, others=0.9), (4, 4), 0.1),
        (RandomTopK(k=12, others=0.9), (4, 4), 1 - 4 / 12),
        (RandomTopK(k=2, per="row"), (8, 8), 0.25),
    ],
    ids=repr,
)
def test_alpha(compressor: Compressor, shape: tuple[int, ...], alpha: float) -> None:
    assert compressor.alpha(shape) == pytest.approx(alpha, rel=1e-7)


def test_bytes_of_qsgd_on_a_batch_and_on_all_rows() -> None:
    batch, rows = gaussian((128, 16)), gaussian((60_000, 16))
    assert 8 * len(QSGD(4).encode(batch, 1).to_bytes()) / batch.size <= 1.3
    assert 8 * len(QSGD(4).encode(rows, 1).to_bytes()) / rows.size <= 0.12


def test_bytes_of_topk_on_a_batch() -> None:
    assert len(TopK(0.1).encode(gaussian((128, 64))).to_bytes()) <= 3900


@pytest.mark.parametrize("entries", [2048, 8192, 60_000, 960_000])
def test_places_cost_what_they_must(entries: int) -> None:
    """log2 C(d, k) bits are the least that tells k places of d on average: ours take at most 8 % more."""
    measured = 0
    for ratio in (0.001, 0.01, 0.03, 0.1, 0.2, 0.3, 0.38, 0.5, 0.62, 0.7, 0.9, 0.99, 0.999):
        packet = TopK(ratio).encode(gaussian((entries,)))
        k = int(entries * ratio)
        least = (lgamma(entries + 1) - lgamma(k + 1) - lgamma(entries - k + 1)) / log(2)
        if least >= 2000:
            assert 8 * (len(packet.body) - 4 * k) <= 1.08 * least, f"ratio {ratio}"
            measured += 1
    assert measured >= (1 if entries < 8192 else 7)


@pytest.mark.parametrize("shape", [(128, 16), (128, 64), (60_000, 16)])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8, 10])
def test_symbols_cost_about_their_entropy(shape: tuple[int, int], bits: int) -> None:
    rng = np.random.default_rng(bits)
    measured = 0
    for name, block, allowance in (
        ("gaussian", rng.standard_normal(shape), 0),
        ("uniform", rng.uniform(-1, 1, shape), 0),
        ("heavy-tailed", rng.standard_t(2, shape), 320),  # up to 17 layers, each with some 20 bits of its own
    ):
        reader = Reader(QSGD(bits).encode(block.astype(np.float32), 1).body)
        levels = reader.number("levels")
        reader.take(4, "level size")
        told = symbols.decode(reader, block.size, levels)
        counts = np.unique(told, return_counts=True)[1]
        entropy = -float((counts * np.log2(counts / block.size)).sum())
        if entropy >= 2000:
            assert 8 * len(symbols.encode(told, levels)) <= 1.08 * entropy + allowance, f"{name}: {entropy}"
            measured += 1
    assert measured == 3 or bits < 5


# What each map does.


def reference_topk(flat: FloatArray, k: int) -> FloatArray:
    places = np.argsort(-np.abs(flat), kind="stable")[:k]
    out: FloatArray = np.zeros_like(flat)
    out[places] = flat[places]
    return out


@both_dtypes
@pytest.mark.parametrize("kind", ["gaussian", "ties", "constant", "signed zeros", "near", "wide"])
def test_topk_is_the_plain_one(dtype: Float, kind: str) -> None:
    rng = np.random.default_rng(3)
    make: dict[str, Callable[[int], FloatArray]] = {
        "gaussian": lambda d: rng.standard_normal(d),
        "ties": lambda d: rng.integers(-3, 4, d).astype(np.float64),
        "constant": lambda d: np.where(rng.random(d) < 0.5, 2.0, -2.0),
        "signed zeros": lambda d: np.where(rng.random(d) < 0.5, 0.0, -0.0),
        "near": lambda d: 1 + rng.integers(0, 6, d) * float(np.finfo(dtype).eps),  # told apart by the last bits only
        "wide": lambda d: rng.choice([-1, 1], d) * 10.0 ** rng.uniform(-40, 38, d),
    }
    for d in (1, 2, 3, 10, 31, 257, 3000):
        flat = make[kind](d).astype(dtype)
        for ratio in (0.001, 0.1, 0.37, 0.5, 0.9, 1.0):
            image = compressed(TopK(ratio), flat)
            assert image.tobytes() == reference_topk(flat, max(1, int(d * ratio))).tobytes(), (d, ratio)


def test_topk_keeps_the_first_of_equals() -> None:
    block = np.array([[1.0, -2.0, 2.0], [2.0, -2.0, 0.5]])
    assert compressed(TopK(k=3), block).tolist() == [[0, -2, 2], [2, 0, 0]]


@pytest.mark.parametrize(
    ("shape", "knobs", "count"),
    [
        ((10,), {"ratio": 0.05}, 1),
        ((10,), {"ratio": 0.19}, 1),
        ((10,), {"ratio": 0.3}, 3),
        ((128, 16), {"ratio": 0.1}, 204),
        ((128, 16), {"ratio": 0.1, "k": 5}, 5),
        ((3,), {"k": 7}, 3),
        ((6, 5), {"ratio": 0.5, "per": "row"}, 12),
        ((2, 3, 5), {"ratio": 0.1, "per": "row"}, 6),
        ((5,), {"ratio": 0.5, "per": "row"}, 2),
    ],
)
def test_how_many_topk_keeps(shape: tuple[int, ...], knobs: dict[str, Any], count: int) -> None:
    assert np.count_nonzero(compressed(TopK(**knobs), gaussian(shape))) == count


@both_dtypes
def test_topk_per_row_ranks_every_row_by_itself(dtype: Float) -> None:
    rng = np.random.default_rng(9)
    for block in (gaussian((7, 9), dtype), rng.integers(-2, 3, (7, 9)).astype(dtype), gaussian((2, 3, 9), dtype)):
        expected = np.stack([reference_topk(row, 4) for row in block.reshape(-1, 9)]).reshape(block.shape)
        assert compressed(TopK(k=4, per="row"), block).tobytes() == expected.tobytes()


@both_dtypes
def test_randk_keeps_the_places_its_seed_tells(dtype: Float) -> None:
    block = gaussian((6, 7), dtype)
    for key in (0, 12345, 2**64 - 1):
        packet = RandK(k=9).encode(block, key)
        places = permutation(key, 42, 0, 9)
        expected = np.zeros(42, dtype)
        expected[places] = block.reshape(-1)[places]
        assert decode(packet).tobytes() == expected.tobytes()
        assert packet.body[:9] == b"\x09" + key.to_bytes(8, "little")
        assert len(packet.body) == 9 + 9 * block.itemsize


def test_randk_keeps_every_place_equally_often() -> None:
    block = np.ones(20, dtype=np.float32)
    times = np.sum([compressed(RandK(k=5), block, derive(1, draw)) for draw in range(4000)], axis=0)
    assert np.abs(times - 1000).max() < 5 * sqrt(4000 * 0.25 * 0.75)


@both_dtypes
def test_sign_is_the_mean_magnitude_with_the_sign(dtype: Float) -> None:
    block = np.array([[1.0, -2.0, 0.0], [-0.0, 3.0, -6.0]], dtype=dtype)
    assert compressed(Sign(), block).tolist() == [[2, -2, 2], [2, 2, -2]]
    packet = Sign().encode(gaussian((128, 16), dtype))
    assert len(packet.body) == packet.dtype.itemsize + 256


@both_dtypes
@pytest.mark.parametrize(
    ("to", "unit", "tiny"), [("fp16", 2.0**-11, 2.0**-39), ("bf16", 2.0**-8 + 2.0**-23, 2.0**-133)]
)
def test_cast_stays_within_its_rounding(dtype: Float, to: Any, unit: float, tiny: float) -> None:
    rng = np.random.default_rng(2)
    for scale in (1.0, 1e-30, 1e30):
        wide = rng.standard_normal(4000) * 10.0 ** rng.uniform(-7, 0, 4000)
        block = (wide * scale).astype(dtype)
        image = compressed(Cast(to), block).astype(np.float64)
        x = block.astype(np.float64)
        assert (np.abs(image - x) <= np.maximum(unit * np.abs(x), tiny * np.abs(x).max())).all()
        assert not np.array_equal(image, x)


@pytest.mark.parametrize(("to", "half"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
@pytest.mark.parametrize("scale", [1.0, 2.0**90, 2.0**-90])
def test_cast_rounds_as_torch_does(to: Any, half: torch.dtype, scale: float) -> None:
    block = gaussian((300, 20))
    block[np.abs(block) < 2.0**-10] = 0.5  # where fp16 itself would be subnormal, ours, which is scaled, is finer
    block[0, :4] = (1 + 2.0**-8, -(1 + 3 * 2.0**-8), 1 + 2.0**-11, -(1 + 3 * 2.0**-11))  # ties go to even
    expected = torch.from_numpy(block).to(half).float().numpy()
    image = compressed(Cast(to), block * np.float32(scale))
    assert np.array_equal(image, expected * np.float32(scale))


def test_cast_spends_two_bytes_an_entry() -> None:
    for to in ("fp16", "bf16"):
        assert len(Cast(to).encode(gaussian((128, 16))).body) == 3 + 2 * 2048


def reference_qsgd(flat: FloatArray, s: int, key: int) -> FloatArray:
    """Return sign(x) |x|_2 / (s tau) floor(s |x| / |x|_2 + u), as the paper writes it."""
    x = flat.astype(np.float64)
    norm, d = float(np.linalg.norm(x)), x.size
    draws = np.array([uniform(np.uint64(key), np.uint64(i)) for i in range(d)])
    tau = 1 + min(d / s**2, sqrt(d) / s)
    image: FloatArray = np.sign(x) * norm / (s * tau) * np.floor(s * np.abs(x) / norm + draws)
    return image


@both_dtypes
@pytest.mark.parametrize(("levels", "less"), [("runs", 1), ("text", 0)])
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 12])
def test_qsgd_is_the_plain_one(dtype: Float, levels: Any, less: int, bits: int) -> None:
    for shape, key in (((40, 5), 0), ((3,), 77), ((1,), 2**64 - 1)):
        block = gaussian(shape, dtype)
        compressor = QSGD(bits=bits, levels=levels)
        assert compressor.s == 2**bits - less
        image = compressed(compressor, block, key).reshape(-1)
        expected = reference_qsgd(block.reshape(-1), compressor.s, key)
        np.testing.assert_allclose(image, expected, rtol=1e-6 if dtype == np.float32 else 1e-13, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("compressor", [QSGD(2), QSGD(4), QSGD(1, "text"), QSGD(3, "text")], ids=repr)
def test_qsgd_is_unbiased_up_to_tau(compressor: QSGD) -> None:
    block = gaussian((6, 5), np.float64)
    block[0, 0] = 0.0
    tau = 1 / compressor.alpha(block.shape)
    draws = 1000
    mean = tau * np.mean([compressed(compressor, block, derive(2, draw)) for draw in range(draws)], axis=0)
    level = np.linalg.norm(block) / compressor.s  # a Bernoulli draw between two levels: deviation at most half of it
    assert np.abs(mean - block).max() <= 5 * level / 2 / sqrt(draws)
    assert mean[0, 0] == 0


def test_qsgd_of_a_zero_block_is_a_level_of_size_zero() -> None:
    assert QSGD(4).encode(np.zeros((128, 16), np.float32), 3).body == b"\x0f\x00\x00\x00\x00"
    assert QSGD(4, "text").encode(np.zeros((128, 16)), 3).body == b"\x10" + bytes(8)


@both_dtypes
def test_topk_qsgd_keeps_the_places_of_topk(dtype: Float) -> None:
    for key in range(10):
        block = gaussian((12, 10), dtype, seed=key)
        kept = np.flatnonzero(compressed(TopK(0.3), block))
        packet = TopKQSGD(ratio=0.3, bits=6).encode(block, key)
        assert positions.read(Reader(packet.body), 120).tolist() == kept.tolist()
        image = decode(packet).reshape(-1).astype(np.float64)
        expected = np.zeros(120)
        expected[kept] = reference_qsgd(block.reshape(-1)[kept], 63, key)
        np.testing.assert_allclose(image, expected, rtol=1e-6 if dtype == np.float32 else 1e-13, atol=0)


def test_halves_are_rounded_and_widened_as_numpy_does() -> None:
    """At every half, at every middle between two, and one float32 to either side of these."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[halves <= 2.0**15]
    places = np.concatenate([halves, (halves[:-1] + halves[1:]) / 2]).view(np.uint32)
    bits = np.unique(np.concatenate([places, places + 1, np.maximum(places, 1) - 1]))
    bits = bits[bits.view(np.float32) <= 2.0**15]
    values = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    assert np.array_equal(_to_half(values), values.astype(np.float16).view(np.uint16))
    for dtype in (np.float32, np.float64):
        block: FloatArray = values[np.abs(values) < 2.0**15].astype(dtype)  # just so large that nothing is scaled
        assert np.array_equal(decode(Cast("fp16").encode(block)), block.astype(np.float16).astype(dtype))


# What check_compressor finds.


@dataclass(frozen=True)
class Careless(Compressor):
    """Sends values as they are, and makes one mistake."""

    mistake: str = ""

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        flat = block.reshape(-1) if self.mistake == "checks nothing" else compressors.checked(block)
        flat = flat * flat.dtype.type(0.5 if self.mistake == "loses" else 1)
        if self.mistake == "draws":
            flat = flat + np.random.default_rng().normal(size=flat.shape).astype(flat.dtype)
        return Packet(self.code, block.dtype, block.shape, flat.tobytes())

    @classmethod
    def read(cls, packet: Packet) -> FloatArray:
        if len(packet.body) != packet.entries * packet.dtype.itemsize and not cls.trusting:
            raise WireError("a body of another length.")
        values: FloatArray = np.frombuffer(packet.body, packet.dtype)
        if not np.isfinite(values).all() and not cls.trusting:
            raise WireError("not finite.")
        return values.reshape(packet.shape)

    trusting: ClassVar[bool] = False

    def alpha(self, shape: tuple[int, ...]) -> float:
        return 1.0

    def paper_bits(self, shape: tuple[int, ...]) -> int:
        return 32


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("", None),
        ("loses", "loses 0.25 of a block"),
        ("draws", "the same key gives other bytes"),
        ("checks nothing", "or what is not finite: expected CompressionError, got none"),
        ("trusts", "read: expected WireError for a wrong body, got ValueError"),
    ],
)
def test_what_breaks_the_contract_is_found(mistake: str, message: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="is not registered"):
        check_compressor(Careless())
    try:
        register("careless", 201)(Careless)
        monkeypatch.setattr(Careless, "trusting", mistake == "trusts")
        if message is None:
            check_compressor(Careless(mistake))
        else:
            with pytest.raises(AssertionError, match=message):
                check_compressor(Careless(mistake))
    finally:
        REGISTRY.pop("careless", None)
        compressors._BY_CODE.pop(201, None)
        del Careless.name, Careless.code
