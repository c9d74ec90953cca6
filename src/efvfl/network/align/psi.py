"""Private set intersection of two lists of ids, in shards so that all cores can work on it.

Diffie-Hellman on the curve P-256: the label holder turns its ids into points and multiplies them by a secret key; a
party multiplies these by a key of its own, and its own ids' points by that key alone; the label holder removes its key
again and compares. Without the keys points look random, so only ids that both hold can be recognised.

Every shard has its own keys, which are made for one question and discarded after it. Shards are padded to the size of
the largest one with random entries that match nothing, so their sizes reveal nothing about the ids in them.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final

from efvfl.errors import EfvflError, ProtocolError
from efvfl.network.align.messages import DIGEST, MOST_PARTS, MOST_POINTS, MOST_SHARDS, POINT, SALT
from efvfl.util.extras import optional

with optional("network", "private set intersection"):
    import private_set_intersection.python as library  # type: ignore[import-untyped]

SHARD: Final = 10_000  # ids in a shard, roughly: two seconds of work
SMALL: Final = 20_000  # ids: with fewer, starting processes would take longer than it saves


def shards_for(count: int) -> int:
    """Return the number of shards for so many ids."""
    return 1 if count < SMALL else min(MOST_SHARDS, -(-count // SHARD))


def keyed(salt: bytes, size: int = DIGEST) -> Callable[[str], bytes]:
    """Return a function that computes the BLAKE2b digest of an id under a salt."""
    empty = hashlib.blake2b(key=salt, digest_size=size)

    def digest(name: str) -> bytes:
        one = empty.copy()
        one.update(name.encode())
        return one.digest()

    return digest


def split_into_shards(ids: Iterable[str], salt: bytes, shards: int) -> list[list[str]]:
    """Return the entries of every shard: ids with a '+' before them, padding with a '-'."""
    digest = keyed(salt, 8)
    parts: list[list[str]] = [[] for _ in range(shards)]
    for name in ids:
        parts[int.from_bytes(digest(name), "little") % shards].append("+" + name)
    fullest = max(map(len, parts))
    for part in parts:
        part += ["-" + secrets.token_hex(16) for _ in range(fullest - len(part))]
    return parts


def blind(entries: list[str]) -> tuple[bytes, bytes]:
    """Label holder: return a new key, and the points of a shard's entries under it."""
    client = library.client.CreateWithNewKey(True)
    return client.GetPrivateKeyBytes(), b"".join(client.CreateRequest(entries).encrypted_elements)


def new_key() -> bytes:
    """Party: return a key for one shard."""
    key: bytes = library.server.CreateWithNewKey(True).GetPrivateKeyBytes()
    return key


def encrypt(key: bytes, entries: list[str]) -> bytes:
    """Party: return the points of its own entries under its key, ordered by value so that their order says nothing."""
    server = library.server.CreateFromKey(key, True)
    # The rate of false positives and the other side's size count for approximate structures only; this one is exact.
    message = server.CreateSetupMessage(0.5, 1, entries, library.DataStructure.RAW)
    return b"".join(sorted(message.raw.encrypted_elements))


def encrypt_again(key: bytes, points: bytes) -> bytes:
    """Party: return the label holder's points under both keys, in their order."""
    request = library.Request(reveal_intersection=True, encrypted_elements=_each(points))
    try:
        response = library.server.CreateFromKey(key, True).ProcessRequest(request)
    except RuntimeError as error:
        raise ProtocolError("expected points of the curve, got other bytes.") from error
    return b"".join(response.encrypted_elements)


def match(key: bytes, theirs: bytes, both: bytes) -> list[int]:
    """Label holder: return the indices of the entries that the party has too."""
    setup = library.ServerSetup()
    setup.raw.encrypted_elements.extend(_each(theirs))
    try:
        client = library.client.CreateFromKey(key, True)
        places: list[int] = client.GetIntersection(setup, library.Response(encrypted_elements=_each(both)))
    except RuntimeError as error:
        raise ProtocolError("expected points of the curve, got other bytes.") from error
    return places


def _each(points: bytes) -> list[bytes]:
    return [points[i : i + POINT] for i in range(0, len(points), POINT)]


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers(processes: int) -> Executor:
    """Return a pool of so many processes, or for one process a thread of this one."""
    if processes == 1:
        return ThreadPoolExecutor(1, thread_name_prefix="efvfl-align")
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _prepare)


def _prepare() -> None:
    """Leave Ctrl-C to the parent, and exit when it exits, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def check_workers() -> Iterator[None]:
    """Turn the death of a worker process into an error with a remedy."""
    try:
        yield
    except BrokenProcessPool as error:
        raise EfvflError("a worker process was ended from outside (out of memory?): start again.") from error


class Intersection:
    """The label holder's computation: blind shards, a few ahead of the questions, and match the parties' answers."""

    def __init__(
        self, ids: Iterable[str], shards: int, together: int, processes: int, wait: Callable[[Future[Any]], None]
    ) -> None:
        """Ask about at most `together` shards at a time; `wait` returns when a worker is done."""
        self.salt = secrets.token_bytes(SALT)
        self.entries = split_into_shards(ids, self.salt, shards)
        together = max(1, min(together, MOST_PARTS, MOST_POINTS // len(self.entries[0])))
        self.groups = [range(start, min(start + together, shards)) for start in range(0, shards, together)]
        self._wait = wait
        self._workers = workers(processes if shards > 1 else 1)
        self._ahead = together + processes  # shards, so that no worker waits for a party
        self._blinding: dict[int, Future[tuple[bytes, bytes]]] = {}
        self._keys: dict[int, bytes] = {}
        self._matching: list[tuple[int, str, Future[list[int]]]] = []

    def __enter__(self) -> Intersection:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.shutdown(cancel_futures=True)

    def points(self, group: range) -> dict[int, bytes]:
        """Return the points of a group of shards; call it with the groups in order."""
        for shard in range(group.start, min(group.stop + self._ahead, len(self.entries))):
            if shard not in self._blinding:
                self._blinding[shard] = self._workers.submit(blind, self.entries[shard])
        points = {}
        for shard in group:
            work = self._blinding.pop(shard)
            self._wait(work)
            self._keys[shard], points[shard] = work.result()
        return points

    def compare(self, name: str, shard: int, theirs: bytes, both: bytes) -> None:
        """Start matching a party's answer about a shard in a worker."""
        work = self._workers.submit(match, self._keys[shard], theirs, both)
        self._matching.append((shard, name, work))

    def common(self) -> list[str]:
        """Return the ids that all parties have, ordered by their bytes in UTF-8, which is how strings compare."""
        places = [set(range(len(entries))) for entries in self.entries]
        for shard, name, work in self._matching:
            self._wait(work)
            try:
                matched = work.result()
            except ProtocolError as error:
                raise ProtocolError(f"{name} sent an answer that cannot be matched: {error}") from error
            places[shard] &= set(matched)
        found = (self.entries[shard][place] for shard, chosen in enumerate(places) for place in chosen)
        return sorted(entry[1:] for entry in found if entry[0] == "+")
