"""The contract of compressors, for the ones in this library and for yours: `check_compressor(YourCompressor(...))`."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any

import numpy as np

from efvfl.compress.base import REGISTRY, Compressor, Shape, decode
from efvfl.errors import CompressionError, WireError
from efvfl.util.rng import derive
from efvfl.wire.packet import Array, FloatArray, Packet

SHAPES: tuple[Shape, ...] = ((1,), (7,), (3, 5), (10, 10), (4, 3, 5), (2, 3, 2, 2), (40, 11), ())
FEW = {("float64", (7,)), ("float32", (10, 10))}  # for the contraction of random maps, which takes many draws
DRAWS = 60
GARBAGE = 100  # bodies of random bytes


def check_compressor(compressor: Compressor) -> None:
    """Raise AssertionError, and say why, unless a compressor does what the library relies on.

    >>> from efvfl import TopK
    >>> check_compressor(TopK(ratio=0.3))
    """
    name = type(compressor).__name__
    _require(
        REGISTRY.get(getattr(compressor, "name", "")) is type(compressor), f"{name} is not registered: use @register."
    )
    random = is_random(compressor)
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        for block in _blocks(dtype):
            _check_round_trip(compressor, block, (0, 2**64 - 1) if random else (0,))
            if (dtype.name, block.shape) in FEW or not random:
                _check_contraction(compressor, block, DRAWS if random else 1)
        _check_layouts(compressor, dtype)
        _check_edges(compressor, dtype)
        _check_refusals(compressor, dtype)
        _check_bodies(compressor, dtype)


def is_random(compressor: Compressor) -> bool:
    """Return whether what is sent depends on the key."""
    block = _gaussian((6, 8), np.dtype(np.float32))
    return len({compressor.encode(block, key).body for key in range(20)}) > 1


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def _gaussian(shape: Shape, dtype: np.dtype[np.floating], seed: int = 0) -> FloatArray:
    block: FloatArray = np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype=dtype)
    return block


def _blocks(dtype: np.dtype[np.floating]) -> Iterator[FloatArray]:
    """Yield blocks of many shapes: ordinary ones, and large, small, equal or few entries."""
    for shape in SHAPES:
        block = _gaussian(shape, dtype)
        yield block
        yield (block * 1e30).astype(dtype)
        yield (block * 1e-30).astype(dtype)
        yield np.full(shape, -0.3, dtype)
        single = np.zeros(shape, dtype)
        single.flat[-1] = 1.7
        yield single


def _check_round_trip(compressor: Compressor, block: FloatArray, keys: tuple[int, ...]) -> None:
    """C(x) is decode(encode(x)): the same for the same key, at the shape and dtype of x, and x is left as it is."""
    name, before = f"{type(compressor).__name__}, a block of shape {block.shape}", block.copy()
    for key in keys:
        packet = compressor.encode(block, key)
        data = packet.to_bytes()
        _require(compressor.encode(block, key).to_bytes() == data, f"{name}: the same key gives other bytes.")
        back = Packet.from_bytes(data)
        _require(back == packet and packet.codec == compressor.code, f"{name}: the packet is not that of its codec.")
        image = _decoded(compressor, back)
        again = _decoded(compressor, Packet.from_bytes(data))
        _require(image.shape == block.shape and image.dtype == block.dtype, f"{name}: it comes back as {image.shape}.")
        _require(image.tobytes() == again.tobytes(), f"{name}: the same bytes are decoded in two ways.")
        _require(bool(np.isfinite(image).all()), f"{name}: what is decoded is not finite.")
    _require(block.tobytes() == before.tobytes(), f"{name}: encode has changed it.")


def _decoded(compressor: Compressor, packet: Packet) -> Array:
    try:
        return decode(packet)
    except WireError as error:
        raise AssertionError(f"{type(compressor).__name__} refuses what it has encoded itself: {error}") from error


def _check_contraction(compressor: Compressor, block: FloatArray, draws: int) -> None:
    """Definition 1: E|C(x) - x|^2 <= (1 - alpha)|x|^2; of a random map in the mean less four standard errors."""
    name, alpha = type(compressor).__name__, compressor.alpha(block.shape)
    _require(0 < alpha <= 1, f"{name}.alpha{(block.shape,)} is {alpha}: expected a number above 0 and at most 1.")
    top = float(np.abs(block).max())  # scaled first, so that no square leaves the range
    x = block.astype(np.float64) / top
    keys = [derive(0, "contract", draw) for draw in range(draws)]
    images = (np.asarray(decode(compressor.encode(block, key)), np.float64) / top for key in keys)
    errors = np.array([np.square(image - x).sum() / np.square(x).sum() for image in images])
    sampling = 4 * float(errors.std(ddof=1)) / sqrt(len(keys)) if len(keys) > 1 else 0.0
    rounding = 1e-6 if block.dtype == np.float32 else 1e-12
    _require(
        float(errors.mean()) - sampling <= 1 - alpha + rounding,
        f"{name} loses {errors.mean():.6g} of a block of shape {block.shape}; its alpha of {alpha:.6g} allows "
        f"{1 - alpha:.6g}.",
    )


def _check_layouts(compressor: Compressor, dtype: np.dtype[np.floating]) -> None:
    block, cube = _gaussian((12, 10), dtype), _gaussian((4, 6, 5), dtype)
    views = (block.T, block[::2, ::3], block[::-1], block[:, 3:7], np.asfortranarray(block), cube.transpose(2, 0, 1))
    for view in views:
        same = compressor.encode(view, 5) == compressor.encode(np.array(view, order="C"), 5)
        _require(same, f"{type(compressor).__name__}: the layout of a block in memory changes its bytes.")


def _check_edges(compressor: Compressor, dtype: np.dtype[np.floating]) -> None:
    """Blocks of zeros stay so, and so do those without entries."""
    name = type(compressor).__name__
    for zeros in (np.zeros((5, 6), dtype), np.full((5, 6), -0.0, dtype), np.zeros(1, dtype)):
        _require(
            not _decoded(compressor, compressor.encode(zeros, 3)).any(), f"{name}: a block of zeros does not stay so."
        )
    for shape in ((0, 4), (0,), (2, 0, 3)):
        image = _decoded(compressor, Packet.from_bytes(compressor.encode(np.empty(shape, dtype), 3).to_bytes()))
        _require(
            image.shape == shape and image.dtype == dtype, f"{name}: a block of shape {shape} comes back otherwise."
        )
        _require(compressor.alpha(shape) > 0, f"{name}.alpha{(shape,)} is not above 0.")


def _check_refusals(compressor: Compressor, dtype: np.dtype[np.floating]) -> None:
    name = type(compressor).__name__
    odd = [_gaussian((3, 4), dtype) for _ in range(2)]
    odd[0][1, 2], odd[1][1, 2] = np.nan, -np.inf
    others: list[Any] = [np.zeros((2, 3), np.int64), np.zeros((2, 3), np.float16)]
    for block in (*odd, *others):
        what = f"{name}.encode takes {block.dtype} or what is not finite: expected CompressionError"
        try:
            compressor.encode(block)
        except CompressionError:
            continue
        except Exception as error:
            raise AssertionError(f"{what}, got {error!r}.") from error
        raise AssertionError(f"{what}, got none: use `checked`.")


def _check_bodies(compressor: Compressor, dtype: np.dtype[np.floating]) -> None:
    """Bytes may come from anyone: a body is decoded to finite numbers of its shape, or refused with WireError."""
    name, rng = type(compressor).__name__, np.random.default_rng(7)
    honest = compressor.encode(_gaussian((4, 6), dtype), 3).body
    bodies = [honest[:end] for end in range(len(honest))] + [honest + b"\0", honest + honest]
    bodies += [rng.bytes(int(rng.integers(0, 2 * len(honest) + 2))) for _ in range(GARBAGE)]
    for place in range(min(len(honest), GARBAGE)):
        bodies.append(honest[:place] + bytes([honest[place] ^ int(rng.integers(1, 256))]) + honest[place + 1 :])
    for body in bodies:
        try:
            image = decode(Packet(compressor.code, np.dtype(dtype), (4, 6), body))
        except WireError:
            continue
        except Exception as error:
            raise AssertionError(f"{name}.read: expected WireError for a wrong body, got {error!r}.") from error
        _require(image.shape == (4, 6) and image.dtype == dtype, f"{name}.read makes another shape or dtype of a body.")
        _require(bool(np.isfinite(image).all()), f"{name}.read makes what is not finite of a body.")
