"""Ids as points of Curve25519, and their multiplication by secret keys.

By hand on libsodium, because the libraries for set intersection tell only one side which of its ids are shared.

A text becomes a point of the prime-order subgroup (two halves of its SHA-512 digest, each mapped by Elligator 2, and
added, which is uniform), and from there on all is X25519: a point is its u-coordinate. libsodium releases Python's
lock, so threads compute in parallel.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from itertools import accumulate
from typing import Final

from efvfl.errors import ProtocolError
from efvfl.network.align.messages import POINT
from efvfl.util.extras import optional

with optional("network", "private set intersection"):
    from nacl.bindings import crypto_core_ed25519_add, crypto_core_ed25519_from_uniform, crypto_scalarmult
    from nacl.exceptions import CryptoError

CHUNK: Final = 2_000  # points that a thread computes at a time: about a fifth of a second

_TAG: Final = b"efvfl alignment 2: "  # so that no other use of the same curve has these points
_PRIME: Final = 2**255 - 19

Work = list[Future[list[bytes]]]


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def new_key() -> bytes:
    """Return a secret key: any 32 bytes."""
    return secrets.token_bytes(32)


def points_of(texts: Sequence[bytes]) -> list[bytes]:
    """Return the point of every text."""
    heights = [int.from_bytes(_edwards(text), "little") & (1 << 255) - 1 for text in texts]
    inverses = _inverses([(1 - y) % _PRIME for y in heights])
    return [
        ((1 + y) * inverse % _PRIME).to_bytes(POINT, "little") for y, inverse in zip(heights, inverses, strict=True)
    ]


def _edwards(text: bytes) -> bytes:
    digest = hashlib.sha512(_TAG + text).digest()
    halves = (crypto_core_ed25519_from_uniform(half) for half in (digest[:32], digest[32:]))
    return bytes(crypto_core_ed25519_add(*halves))


def _inverses(numbers: list[int]) -> list[int]:
    """Return the inverses modulo the prime, with one inversion for all of them (Montgomery's trick)."""
    products = list(accumulate(numbers, lambda a, b: a * b % _PRIME, initial=1))
    inverse = pow(products[-1], -1, _PRIME)
    found = []
    for number, before in zip(reversed(numbers), reversed(products[:-1]), strict=True):
        found.append(inverse * before % _PRIME)
        inverse = inverse * number % _PRIME
    return found[::-1]


def multiply(key: bytes, points: Sequence[bytes]) -> list[bytes]:
    """Return points under a key; refuse the few that would give the same result under every key."""
    try:
        return [crypto_scalarmult(key, point) for point in points]
    except CryptoError as error:
        raise ProtocolError("expected points of the curve's large subgroup, got others.") from error


def blinded(key: bytes, texts: Sequence[bytes]) -> list[bytes]:
    """Return the points of texts under a key."""
    return multiply(key, points_of(texts))


def start(
    workers: Executor, compute: Callable[[bytes, Sequence[bytes]], list[bytes]], key: bytes, items: Sequence[bytes]
) -> Work:
    """Have threads compute `multiply` or `blinded` of many items."""
    chunks = (items[place : place + CHUNK] for place in range(0, len(items), CHUNK))
    return [workers.submit(partial(compute, key), chunk) for chunk in chunks]


def result(work: Work) -> list[bytes]:
    """Return what threads computed, when they are done."""
    return [point for part in work for point in part.result()]
