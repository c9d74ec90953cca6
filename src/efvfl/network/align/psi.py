"""Private set intersection of the label holder's ids with those of one party, in shards so that frames stay small.

Diffie-Hellman: the label holder sends the points of its ids under a secret key a; the party returns them under its own
key b too, and the points of its own ids under b alone, ordered by their bytes. The label holder brings these under a as
well, and points that are equal now are of the same id: it learns which of its own ids the party has, and at which place
among the party's points, so that it can tell the party which ones are shared without naming any.

Every shard has new keys and a fixed number of points, which follows from the numbers of ids that both sides have told:
random entries fill it up, so that it says nothing about the ids in it. The label holder's shards have more of them than
needed. Such a decoy matches nothing, unless the party answers for one entry with the point of another.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from efvfl.errors import EfvflError, ProtocolError
from efvfl.network.align import points
from efvfl.network.align.messages import DIGEST, MOST_SHARDS, POINT, SALT, Places

SHARD: Final = 50_000  # ids in a shard of the larger set, roughly
LEAST: Final = 1_000  # ids in a shard of the smaller set: with fewer, most of its points would be random entries
LARGEST: Final = 900_000  # ids in a shard: its points must fit in a frame
NO_ID: Final = 0xFFFF_FFFF  # in an order of points: a random entry

Order = NDArray[np.uint32]  # for each point of a shard the index of its id, or NO_ID


def shards_for(one: int, other: int) -> int:
    """Return the number of shards for sets of these sizes."""
    small, large = sorted((one, other))
    return min(MOST_SHARDS, max(1, min(large // SHARD, small // LEAST), -(-large // LARGEST)))


def party_points(count: int, shards: int) -> int:
    """Return how many points a party with so many ids has in every shard: seven standard deviations above the mean."""
    mean = count / shards
    return count if shards == 1 else math.ceil(mean + 7 * math.sqrt(mean) + 10)


def holder_points(count: int, shards: int) -> int:
    """Return how many the label holder has: decoys are a twentieth more, and at least 8."""
    size = party_points(count, shards)
    return size + max(8, -(-size // 20))


def keyed(salt: bytes, size: int = DIGEST) -> Callable[[str], bytes]:
    """Return a function that computes the BLAKE2b digest of an id under a salt."""
    empty = hashlib.blake2b(key=salt, digest_size=size)

    def digest(name: str) -> bytes:
        one = empty.copy()
        one.update(name.encode())
        return one.digest()

    return digest


def split_into_shards(ids: Iterable[str], salt: bytes, shards: int) -> list[Order]:
    """Return the indices of the ids in every shard."""
    digests = np.frombuffer(b"".join(map(keyed(salt, 8), ids)), dtype="<u8")
    shard_of = (digests % shards).astype(np.uint16)
    order = np.argsort(shard_of, kind="stable").astype(np.uint32)
    return np.split(order, np.searchsorted(shard_of[order], np.arange(1, shards)))


def filled(part: Order, size: int) -> Order:
    """Return a shard's indices with `NO_ID` for every random entry that fills it up to its size."""
    if len(part) > size:  # seven standard deviations: never, but it must not go unnoticed
        raise EfvflError(f"expected at most {size:,} ids in a shard, got {len(part):,}: start the alignment again.")
    return np.concatenate([part, np.full(size - len(part), NO_ID, dtype=np.uint32)])


def shuffled(entries: Order) -> Order:
    """Return entries in a random order that nobody can predict: that of random numbers beside them."""
    return entries[np.argsort(np.frombuffer(secrets.token_bytes(8 * len(entries)), dtype=np.uint64))]


def texts_of(ids: Sequence[str], entries: Order) -> list[bytes]:
    """Return what becomes points: ids with a '+' before them, random texts with a '-'."""
    return [b"-" + secrets.token_bytes(32) if i == NO_ID else b"+" + ids[i].encode() for i in entries.tolist()]


def _rows(data: bytes) -> NDArray[np.bytes_]:
    """Return points to compare; numpy ignores zeros at their end, which changes neither order nor equality."""
    return np.frombuffer(data, dtype=f"S{POINT}")


@dataclass(frozen=True)
class _Blinding:
    """A shard of ours, the key that is its own, and its points."""

    key: bytes
    entries: Order
    work: points.Work


class PartySide:
    """What a party computes for one salt: the questions about all shards have the same one."""

    def __init__(self, ids: Sequence[str], salt: bytes, shards: int, workers: Executor) -> None:
        """Answer for these ids."""
        self.salt = salt
        self.shards = shards
        self.done: set[int] = set()
        self._ids = ids
        self._parts = split_into_shards(ids, salt, shards)
        self._workers = workers
        self._ahead: tuple[int, _Blinding] | None = None  # the shard that is expected next

    def answer(self, shard: int, asked: bytes) -> tuple[Order, bytes, bytes]:
        """Return the order of this party's own points, these, and the label holder's points under both keys."""
        ours = self._ahead[1] if self._ahead and self._ahead[0] == shard else self._start(shard)
        both = points.start(self._workers, points.multiply, ours.key, asked)
        # While this answer travels, threads go on with the next shard: its own points do not depend on the question.
        self._ahead = (shard + 1, self._start(shard + 1)) if shard + 1 < self.shards else None
        own = _rows(points.result(ours.work))
        order = np.argsort(own)  # by value: the table's order stays here
        return ours.entries[order], own[order].tobytes(), points.result(both)

    def _start(self, shard: int) -> _Blinding:
        key, entries = points.new_key(), filled(self._parts[shard], party_points(len(self._ids), self.shards))
        return _Blinding(key, entries, points.start(self._workers, points.blinded, key, texts_of(self._ids, entries)))


class HolderSide:
    """What the label holder computes for one party: blind a shard ahead of the questions, and match the answers."""

    def __init__(
        self, ids: Sequence[str], name: str, theirs: int, workers: Executor, wait: Callable[[Future[Any]], None]
    ) -> None:
        """Find which of these ids a party has that brings so many; `wait` returns when a thread is done."""
        self.name = name
        self.salt = secrets.token_bytes(SALT)
        self.shards = shards_for(len(ids), theirs)
        self.theirs = party_points(theirs, self.shards)  # in a shard
        self.next = 0  # the shard to ask about
        self._ids = ids
        self._parts = split_into_shards(ids, self.salt, self.shards)
        self._workers = workers
        self._wait = wait
        self._asked: deque[_Blinding] = deque()  # from `next` on
        self._answers: deque[tuple[Order, points.Work, bytes]] = deque()  # those that are not matched yet
        self._matched = 0  # shards
        self._found = np.full((len(ids), 2), -1, dtype=np.int64)

    def blind(self) -> bytes:
        """Return the points of the next shard's entries."""
        while len(self._answers) > 1:  # threads are done with all but the last, more or less
            self._match()
        for shard in range(self.next + len(self._asked), min(self.next + 2, self.shards)):
            size = party_points(len(self._ids), self.shards)
            decoys = holder_points(len(self._ids), self.shards) - size
            entries = shuffled(filled(filled(self._parts[shard], size), size + decoys))
            key = points.new_key()
            work = points.start(self._workers, points.blinded, key, texts_of(self._ids, entries))
            self._asked.append(_Blinding(key, entries, work))
        return self._result(self._asked[0].work)

    def take(self, theirs: bytes, both: bytes) -> None:
        """Take the answer about that shard: the party's points, and ours under both keys."""
        self._check_distinct(theirs)
        self._check_distinct(both)
        asked = self._asked.popleft()
        work = points.start(self._workers, points.multiply, asked.key, theirs)
        self._answers.append((asked.entries, work, both))
        self.next += 1

    def _check_distinct(self, data: bytes) -> NDArray[np.intp]:
        """Refuse a point that occurs twice; return the order of the points."""
        rows = _rows(data)
        order = np.argsort(rows)
        if (rows[order[1:]] == rows[order[:-1]]).any():
            raise ProtocolError(f"expected every point once in an answer of {self.name}, got one twice.")
        return order

    def _result(self, work: points.Work) -> bytes:
        for part in work:
            self._wait(part)
        return points.result(work)

    def _match(self) -> None:
        """Note which entries of the oldest answer are the party's too, and where it has them."""
        entries, work, both = self._answers.popleft()
        try:
            theirs = self._result(work)
        except ProtocolError as error:
            raise ProtocolError(f"{self.name} sent an answer that cannot be matched: {error}") from error
        order = self._check_distinct(theirs)  # again: one point can be written in several ways
        rows, wanted = _rows(theirs), _rows(both)
        places = order[np.minimum(np.searchsorted(rows, wanted, sorter=order), len(order) - 1)]
        same = rows[places] == wanted
        if (entries[same] == NO_ID).any():
            raise ProtocolError(
                f"{self.name} claims to hold an id that was made up here at random: it does not follow the "
                "protocol. Nothing was sent to anybody; ask its people before you start again."
            )
        self._found[entries[same]] = np.stack([np.full(same.sum(), self._matched), places[same]], axis=1)
        self._matched += 1

    def matches(self) -> Places:
        """Return where the party has each of our ids, −1 if it does not; every shard must have been answered."""
        while self._answers:
            self._match()
        return self._found
