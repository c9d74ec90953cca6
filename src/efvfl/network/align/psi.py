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
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from efvfl.errors import EfvflError, ProtocolError
from efvfl.network.align import points
from efvfl.network.align.messages import DIGEST, MOST_SHARDS, SALT, Place

SHARD: Final = 10_000  # ids in a shard of the larger set, roughly
LEAST: Final = 1_000  # ids in a shard of the smaller set: with fewer, most of its points would be random entries
LARGEST: Final = 900_000  # ids in a shard: its points must fit in a frame
NO_ID: Final = 0xFFFF_FFFF  # in an order of points: a random entry

Order = NDArray[np.uint32]  # for each of a party's points in a shard the index of its id


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


def split_into_shards(ids: Iterable[str], salt: bytes, shards: int) -> list[list[int]]:
    """Return the indices of the ids in every shard."""
    digest = keyed(salt, 8)
    parts: list[list[int]] = [[] for _ in range(shards)]
    for index, name in enumerate(ids):
        parts[int.from_bytes(digest(name), "little") % shards].append(index)
    return parts


def filled(part: Sequence[int], size: int) -> list[int]:
    """Return a shard's indices with `NO_ID` for every random entry that fills it up to its size."""
    if len(part) > size:  # seven standard deviations: never, but it must not go unnoticed
        raise EfvflError(f"expected at most {size:,} ids in a shard, got {len(part):,}: start the alignment again.")
    return [*part, *[NO_ID] * (size - len(part))]


def texts_of(ids: Sequence[str], entries: Iterable[int]) -> list[bytes]:
    """Return what becomes points: ids with a '+' before them, random texts with a '-'."""
    return [b"-" + secrets.token_bytes(32) if i == NO_ID else b"+" + ids[i].encode() for i in entries]


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

    def answer(self, shard: int, asked: Sequence[bytes]) -> tuple[Order, bytes, bytes]:
        """Return the order of this party's own points, these, and the label holder's points under both keys."""
        key, entries = points.new_key(), filled(self._parts[shard], party_points(len(self._ids), self.shards))
        ours = points.start(self._workers, points.blinded, key, texts_of(self._ids, entries))
        both = points.start(self._workers, points.multiply, key, asked)
        found = sorted(zip(points.result(ours), entries, strict=True))  # by value: the table's order stays here
        order = np.array([index for _, index in found], dtype=np.uint32)
        return order, b"".join(point for point, _ in found), b"".join(points.result(both))


@dataclass(frozen=True)
class _Asked:
    """A shard that the label holder asks about."""

    key: bytes
    entries: list[int]
    work: points.Work  # its points


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
        self._asked: list[_Asked] = []
        self._answers: list[tuple[points.Work, list[bytes]]] = []

    def blind(self) -> list[bytes]:
        """Return the points of the next shard's entries."""
        for shard in range(len(self._asked), min(self.next + 2, self.shards)):
            size = party_points(len(self._ids), self.shards)
            decoys = holder_points(len(self._ids), self.shards) - size
            entries = [*filled(self._parts[shard], size), *[NO_ID] * decoys]
            secrets.SystemRandom().shuffle(entries)
            key = points.new_key()
            work = points.start(self._workers, points.blinded, key, texts_of(self._ids, entries))
            self._asked.append(_Asked(key, entries, work))
        return self._result(self._asked[self.next].work)

    def take(self, theirs: list[bytes], both: list[bytes]) -> None:
        """Take the answer about that shard: the party's points, and ours under both keys."""
        for what in (theirs, both):
            if len(set(what)) != len(what):
                raise ProtocolError(f"expected every point once in an answer of {self.name}, got one twice.")
        self._answers.append((points.start(self._workers, points.multiply, self._asked[self.next].key, theirs), both))
        self.next += 1

    def _result(self, work: points.Work) -> list[bytes]:
        for part in work:
            self._wait(part)
        return points.result(work)

    def matches(self) -> dict[int, Place]:
        """Return where the party has each of our ids that it has, by index; every shard must have been answered."""
        found: dict[int, Place] = {}
        for shard, (asked, (work, both)) in enumerate(zip(self._asked, self._answers, strict=True)):
            try:
                theirs = self._result(work)
            except ProtocolError as error:
                raise ProtocolError(f"{self.name} sent an answer that cannot be matched: {error}") from error
            places = {point: place for place, point in enumerate(theirs)}
            if len(places) != len(theirs):  # one point can be written in several ways
                raise ProtocolError(f"expected every point once in an answer of {self.name}, got one twice.")
            for index, point in zip(asked.entries, both, strict=True):
                if (place := places.get(point)) is None:
                    continue
                if index == NO_ID:
                    raise ProtocolError(
                        f"{self.name} claims to hold an id that was made up here at random: it does not follow the "
                        "protocol. Nothing was sent to anybody; ask its people before you start again."
                    )
                found[index] = (shard, place)
        return found


@dataclass(frozen=True)
class Shared:
    """The ids that all hold, and where every party has them: in the same order, and nothing where all hold the same."""

    ids: list[str]
    places: dict[str, list[Place]]

    @classmethod
    def of(cls, ids: Sequence[str], matches: Mapping[str, Mapping[int, Place]]) -> Shared:
        """Return what all parties matched, ordered by the ids' bytes in UTF-8, which is how strings compare."""
        common = set.intersection(*(set(found) for found in matches.values()))
        chosen = sorted(common, key=lambda index: ids[index])
        return cls([ids[i] for i in chosen], {name: [found[i] for i in chosen] for name, found in matches.items()})
