"""Ids as points of Curve25519, and their multiplication by secret keys; many points are one string of bytes.

By hand on libsodium, because the libraries for set intersection tell only one side which of its ids are shared.

A text is hashed to the curve, and from there on all is X25519: a point is its u-coordinate. libsodium and kernels
release Python's lock, so threads compute in parallel.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Final, TypeVar

from efvfl.errors import ProtocolError
from efvfl.network.align.hash_to_curve import SUITE, hash_to_curve
from efvfl.network.align.messages import POINT, VERSION
from efvfl.util.extras import optional

with optional("network", "private set intersection"):
    from nacl.bindings import crypto_scalarmult
    from nacl.exceptions import CryptoError

CHUNK: Final = 2_000  # points that a thread computes at a time: about a tenth of a second

# So that no other use of the same curve has these points.
_TAG: Final = b"efvfl-alignment-V%02d-CS01-with-%b" % (VERSION, SUITE)

Work = list[Future[bytes]]
Items = TypeVar("Items", bytes, Sequence[bytes])  # points, or texts


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def new_key() -> bytes:
    """Return a secret key: any 32 bytes."""
    return secrets.token_bytes(32)


def multiply(key: bytes, points: bytes) -> bytes:
    """Return points under a key; refuse the few that would give the same result under every key."""
    try:
        return b"".join([crypto_scalarmult(key, points[i : i + POINT]) for i in range(0, len(points), POINT)])
    except CryptoError as error:
        raise ProtocolError("expected points of the curve's large subgroup, got others.") from error


def blinded(key: bytes, texts: Sequence[bytes]) -> bytes:
    """Return the points of texts under a key."""
    return multiply(key, hash_to_curve(texts, _TAG))


def start(workers: Executor, compute: Callable[[bytes, Items], bytes], key: bytes, items: Items) -> Work:
    """Have threads compute `multiply` or `blinded` of many items."""
    step = CHUNK * POINT if isinstance(items, bytes) else CHUNK
    chunks = (items[place : place + step] for place in range(0, len(items), step))
    return [workers.submit(partial(compute, key), chunk) for chunk in chunks]


def result(work: Work) -> bytes:
    """Return what threads computed, when they are done."""
    return b"".join([part.result() for part in work])
