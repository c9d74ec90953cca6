"""Gaussian draws that nobody else can compute: a pure function of a secret key, so a run that goes on has the same."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def normal(key: int, shape: tuple[int, ...]) -> Tensor:
    """Return standard normal draws that are a pure function of the key: SHAKE-128, then Box and Muller, in float64.

    Not torch's generator: it takes 32 bits of a seed and no more, so a party could try all of them and subtract the
    noise. Nor any other generator whose next draws follow from the last: a row whose derivative is known would do.
    """
    count = int(np.prod(shape, dtype=np.int64))
    pairs = -(-count // 2)
    data = hashlib.shake_128(f"efvfl protect {key}".encode()).digest(16 * pairs)
    bits = np.frombuffer(data, dtype="<u8").reshape(2, pairs) >> np.uint64(11)
    radius = np.sqrt(-2 * np.log((bits[0] + np.uint64(1)) * 2.0**-53))  # of (0, 1]: the logarithm is finite
    angle = bits[1] * (2 * np.pi * 2.0**-53)
    draws = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return torch.from_numpy(draws[:count]).reshape(shape)


def digest_of(value: Tensor) -> str:
    """Return a text that differs for tensors that differ, for a key that is to be of one value alone."""
    return hashlib.blake2b(value.detach().contiguous().numpy().tobytes(), digest_size=16).hexdigest()
