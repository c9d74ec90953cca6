"""Counter-based randomness: every draw is a pure function of a key and a position.

There is no generator state, so no result depends on what ran before, a run can resume anywhere, and two organisations
agree on a batch without communicating. The derivations never change (docs/wire.md): the random streams of torch and
numpy may change between versions, and then two organisations would train on different rows.
"""

from __future__ import annotations

import hashlib
import threading

import numpy as np
import torch
from numpy.typing import NDArray

from efvfl.util.jit import kernel

_MASK = (1 << 64) - 1
_ROUNDS = 6


def derive(seed: int, *names: str | int) -> int:
    """Return a 64-bit key for a named purpose: the first 8 bytes of BLAKE2b over the seed and the names.

    >>> derive(0, "batches") == derive(0, "batches"), derive(0, "batches") == derive(0, "split")
    (True, False)
    """
    text = "\x1f".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def at_step(key: int, step: int) -> int:
    """Return the key of one step; different steps have different keys."""
    return (key + (step + 1) * 0x9E3779B97F4A7C15) & _MASK


@kernel
def mix(value: np.uint64) -> np.uint64:
    """Return the finaliser of SplitMix64 of 64 bits."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel
def uniform(key: np.uint64, position: np.uint64) -> float:
    """Return a uniform draw from [0, 1) as a function of key and position, with 53 random bits."""
    bits = mix(mix(key) + position * np.uint64(0x9E3779B97F4A7C15))
    return float(bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def _uniforms(key: np.uint64, out: NDArray[np.float64]) -> None:
    for i in range(out.size):
        out[i] = uniform(key, np.uint64(i))


def uniforms(key: int, count: int) -> NDArray[np.float64]:
    """Return the uniform draws at positions 0 to `count` - 1."""
    out = np.empty(count, dtype=np.float64)
    _uniforms(np.uint64(key), out)
    return out


@kernel
def permute(key: np.uint64, size: int, start: int, out: NDArray[np.int64]) -> None:
    """Write entries `start` to `start + out.size - 1` of the keyed permutation of 0..size-1: for kernels."""
    half = np.uint64(1)
    while (np.int64(1) << np.int64(np.uint64(2) * half)) < size:
        half += np.uint64(1)
    mask = (np.uint64(1) << half) - np.uint64(1)
    for i in range(out.size):
        value = np.uint64(start + i)
        while True:  # walk the cycle until it returns to [0, size): at most four tries on average
            left, right = value >> half, value & mask
            for turn in range(_ROUNDS):
                left, right = right, left ^ (mix(key + (np.uint64(turn) << np.uint64(58)) + right) & mask)
            value = (left << half) | right
            if value < np.uint64(size):
                break
        out[i] = np.int64(value)


def permutation(key: int, size: int, start: int, stop: int) -> NDArray[np.int64]:
    """Return entries `start` to `stop` of the keyed permutation of 0..size-1, at a cost of O(stop - start).

    The permutation is a Feistel network of six rounds over the smallest even number of bits that holds `size`, with
    cycle walking. The other entries are never computed, so the cost of a batch does not grow with the data.

    >>> sorted(permutation(7, 5, 0, 5).tolist())
    [0, 1, 2, 3, 4]
    """
    out = np.empty(stop - start, dtype=np.int64)
    permute(np.uint64(key), size, start, out)
    return out


_LOCK = threading.RLock()


class seeded:
    """Seed torch's default generator with `key` inside this context, and restore its state afterwards.

    A process has one such generator, so threads take turns: parties may run in threads of one process.
    """

    __slots__ = ("key", "state")

    def __init__(self, key: int) -> None:
        self.key = key & (_MASK >> 1)

    def __enter__(self) -> None:
        _LOCK.acquire()
        self.state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(self.key)

    def __exit__(self, *error: object) -> None:
        torch.default_generator.set_state(self.state)
        _LOCK.release()
