"""Is a map as close to the identity as it says? Definition 1, measured, for the tests of all compressors."""

from __future__ import annotations

from math import sqrt
from typing import Any, cast

import numpy as np

from efvfl.compress import Compressor, decode
from efvfl.util.rng import derive
from efvfl.wire.packet import FloatArray, Packet

Float = type[np.floating[Any]]


def is_random(compressor: Compressor) -> bool:
    """Whether the map depends on the key; of the others it must not."""
    return (
        compressor.name in {"randk", "random_topk", "low_rank", "qsgd", "topk_qsgd"}
        or getattr(compressor, "rounding", "") == "random"
    )


def gaussian(shape: tuple[int, ...], dtype: Float = np.float32, seed: int = 0) -> FloatArray:
    """Return normally distributed values."""
    block: FloatArray = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return block


def compressed(compressor: Compressor, block: FloatArray, key: int = 0) -> FloatArray:
    """Return C(x), which is what the receiver makes of the packet."""
    return cast(FloatArray, decode(Packet.from_bytes(compressor.encode(block, key).to_bytes())))


def error(block: FloatArray, image: FloatArray) -> float:
    """Return |C(x) - x|^2 / |x|^2, scaled first so that no square leaves the range."""
    top = float(np.abs(block).max())
    x, y = block.astype(np.float64) / top, image.astype(np.float64) / top
    return float(np.square(y - x).sum() / np.square(x).sum())


def errors(compressor: Compressor, block: FloatArray, draws: int) -> tuple[float, float]:
    """Return the mean error over keys, and its standard error; of a map without chance the error, and 0."""
    keys = [derive(0, "contract", draw) for draw in range(draws if is_random(compressor) else 1)]
    found = np.array([error(block, compressed(compressor, block, key)) for key in keys])
    return float(found.mean()), float(found.std(ddof=1)) / sqrt(len(keys)) if len(keys) > 1 else 0.0


def assert_contracts(compressor: Compressor, block: FloatArray, draws: int = 100) -> None:
    """Assert Definition 1 for this block: exactly, or in the mean over keys less four standard errors."""
    mean, standard = errors(compressor, block, draws)
    rounding = 1e-6 if block.dtype == np.float32 else 1e-12
    bound = 1 - compressor.alpha(block.shape)
    assert mean - 4 * standard <= bound + rounding, f"shape {block.shape}: mean error {mean}"
