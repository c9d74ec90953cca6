"""The questions and answers of an alignment as bytes. Layout: docs/alignment.md.

Numbers are LEB128. Bytes come from another organisation, so every length is checked before it is used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from efvfl.data.tables.splits import SPLITS
from efvfl.errors import ProtocolError, WireError
from efvfl.wire.packet import Reader, number

VERSION: Final = 3  # of what the point of an id is, and of the sizes of shards: the same at all participants
POINT: Final = 32  # bytes of a point of the curve
TAG: Final = 16  # bytes
SALT: Final = 16  # bytes
DIGEST: Final = 16  # bytes
MOST_SHARDS: Final = 1_024
FRAME: Final = 64 << 20  # bytes that no frame of an alignment exceeds
MOST_POINTS: Final = FRAME // POINT // 2  # of a shard on either side: an answer has both
MOST_IDS: Final = 1 << 30
DIGESTS: Final = 1 << 18  # of one answer
ROWS: Final = 1 << 16  # of one part of the list
MOST_LISTS: Final = 1 << 20  # the highest number of a list

Place = tuple[int, int]  # a shard, and the place among the receiver's own points or digests there
Places = NDArray[np.int64]  # a row for each of somebody's ids: a place of another one, or -1 twice where it has none


class AlignmentKind(IntEnum):
    """The kinds of questions: the first byte of a question and of its answer, distinct from those of training."""

    SIZE = 2  # how many ids each side brings
    BLINDED = 3  # points of the label holder's ids; and back: the party's points, and those under both keys
    DIGESTS = 4  # the salted digests of the party's ids
    ROWS = 5  # a part of the list of shared rows: where the party has them
    SPLITS = 6  # a part of their splits
    VOID = 7  # there is no list, and why
    NUMBERS = 8  # align = "outer", in place of splits: a part of the row numbers on the label holder's list
    EVERYBODY = 9  # align = "outer" with shared labels: a part of who has which rows, and of the labels


class VoidReason(IntEnum):
    """Why there is no list of shared rows."""

    EMPTY = 1  # no id is shared by all; with align = "outer" none with the label holder
    UNCUT = 2  # the rows cannot be cut into splits, or another party shares none


def read_kind(data: bytes) -> tuple[AlignmentKind, Reader]:
    """Return the kind of a question or an answer, and a reader of the rest."""
    reader = Reader(data)
    code = reader.byte("a question's kind")
    if code not in set(AlignmentKind):
        raise ProtocolError(
            f"expected a kind of question that belongs to an alignment, got {code}: does the other side align?"
        )
    return AlignmentKind(code), reader


def read_answer(data: bytes, kind: AlignmentKind) -> Reader:
    """Return a reader of the rest of an answer, which must be of this kind."""
    got, reader = read_kind(data)
    if got != kind:
        raise ProtocolError(f"expected an answer to {kind.name}, got {got.name}.")
    return reader


def bounded(reader: Reader, least: int, most: int, what: str) -> int:
    """Read a number; refuse one out of bounds."""
    value = reader.number(what)
    if not least <= value <= most:
        raise WireError(f"expected {what} from {least:,} to {most:,}, got {value:,}.")
    return value


def write(kind: AlignmentKind, *fields: int | bytes) -> bytes:
    """Return a question or an answer as bytes."""
    return b"".join((bytes((kind,)), *(number(f) if isinstance(f, int) else f for f in fields)))


@dataclass(frozen=True)
class ShardQuestion:
    """A question about the ids in one shard."""

    salt: bytes  # of all shards of one alignment with one party
    count: int  # ids that the label holder brings to all shards
    shards: int
    shard: int
    points: bytes

    @property
    def size(self) -> int:
        """The number of points."""
        return len(self.points) // POINT

    def to_bytes(self) -> bytes:
        """Return the question as bytes."""
        numbers = (self.count, self.shards, self.shard, self.size)
        return write(AlignmentKind.BLINDED, self.salt, *numbers, self.points)

    @classmethod
    def read(cls, reader: Reader) -> ShardQuestion:
        """Read what takes up the rest of a question."""
        salt = reader.take(SALT, "a salt")
        count = bounded(reader, 1, MOST_IDS, "the number of ids")
        shards = bounded(reader, 1, MOST_SHARDS, "the number of shards")
        shard = bounded(reader, 0, shards - 1, "a shard's index")
        points = _points(reader, bounded(reader, 1, MOST_POINTS, "the number of a shard's points"))
        reader.end("question")
        return cls(salt, count, shards, shard, points)


def write_points(own: bytes, both: bytes) -> bytes:
    """Return an answer about a shard: the party's points, and the label holder's points under both keys."""
    return write(AlignmentKind.BLINDED, len(own) // POINT, own, both)


def read_points(data: bytes, theirs: int, asked: int) -> tuple[bytes, bytes]:
    """Return so many points of the party, and so many of ours under both keys."""
    reader = read_answer(data, AlignmentKind.BLINDED)
    count = reader.number("the number of a shard's points")
    if count != theirs:
        raise WireError(f"expected {theirs:,} points, which the number of ids determines, got {count:,}.")
    found = _points(reader, theirs), _points(reader, asked)
    reader.end("answer")
    return found


def _points(reader: Reader, count: int) -> bytes:
    return reader.take(count * POINT, "a shard's points")


def read_count(data: bytes, kind: AlignmentKind) -> int:
    """Return the number that is all of an answer."""
    reader = read_answer(data, kind)
    count = bounded(reader, 0, MOST_IDS, "the number in an answer")
    reader.end("answer")
    return count


def read_digests(data: bytes, start: int) -> tuple[int, list[bytes]]:
    """Return the number of all the party's digests, and those from `start` on in this answer."""
    reader = read_answer(data, AlignmentKind.DIGESTS)
    total = bounded(reader, 1, MOST_IDS, "the number of digests")
    digests = reader.take(min(DIGESTS, max(0, total - start)) * DIGEST, "the digests")
    reader.end("answer")
    return total, [digests[i : i + DIGEST] for i in range(0, len(digests), DIGEST)]


@dataclass(frozen=True)
class PlacesPart:
    """A part of the list of shared rows: where their receiver has them, which says nothing of their order."""

    salt: bytes  # of the list
    challenge: bytes  # a point: does the receiver hold the same list?
    total: int  # rows of the whole list
    start: int  # index of the first row here
    places: list[Place]  # increasing; empty where all hold the same ids anyway

    def to_bytes(self) -> bytes:
        """Return the part as a question."""
        places = b"".join([number(shard) + number(place) for shard, place in self.places])
        return write(AlignmentKind.ROWS, self.salt, self.challenge, self.total, self.start, len(self.places), places)

    @classmethod
    def read(cls, reader: Reader) -> PlacesPart:
        """Read a part that takes up the rest of a question."""
        salt, challenge = reader.take(SALT, "a salt"), reader.take(POINT, "a point")
        total = bounded(reader, 1, MOST_IDS, "the list's length")
        start = bounded(reader, 0, total - 1, "a part's start")
        places = []
        for _ in range(bounded(reader, 0, min(ROWS, total - start), "a part's length")):
            shard = bounded(reader, 0, MOST_SHARDS - 1, "a shard's index")
            places.append((shard, bounded(reader, 0, MOST_IDS, "a place")))
        reader.end("part of the list")
        return cls(salt, challenge, total, start, places)


def write_place_answer(count: int, response: tuple[bytes, bytes] | None) -> bytes:
    """Return how many places a party has, and with the last of them its response to the challenge."""
    return write(AlignmentKind.ROWS, count, *(response or ()))


def read_place_answer(data: bytes, total: int) -> tuple[int, tuple[bytes, bytes] | None]:
    """Return how many places a party has, and if it has all of them its response: a point and a tag."""
    reader = read_answer(data, AlignmentKind.ROWS)
    count = bounded(reader, 0, total, "the number of rows")
    response = (reader.take(POINT, "a point"), reader.take(TAG, "a tag")) if count == total else None
    reader.end("answer")
    return count, response


@dataclass(frozen=True)
class SplitsPart:
    """A part of the splits, in the order of the ids."""

    salt: bytes  # of the list
    confirmation: bytes  # that the label holder holds the same list
    number: int  # of the list, the same at all participants
    start: int
    splits: bytes  # a code for each row here

    def to_bytes(self) -> bytes:
        """Return the part as a question."""
        numbers = (self.number, self.start, len(self.splits))
        return write(AlignmentKind.SPLITS, self.salt, self.confirmation, *numbers, self.splits)

    @classmethod
    def read(cls, reader: Reader) -> SplitsPart:
        """Read a part that takes up the rest of a question."""
        salt, confirmation = reader.take(SALT, "a salt"), reader.take(TAG, "a confirmation")
        number = bounded(reader, 1, MOST_LISTS, "the number of a list")
        start = bounded(reader, 0, MOST_IDS, "a part's start")
        splits = reader.take(bounded(reader, 1, ROWS, "a part's length"), "the splits")
        reader.end("part of the splits")
        return cls(salt, confirmation, number, start, splits)


@dataclass(frozen=True)
class NumbersPart:
    """A part of the numbers that a party's rows have on the label holder's list, in the order of the ids."""

    salt: bytes  # of the list
    confirmation: bytes  # that the label holder holds the same list
    number: int  # of the list, the same at all participants
    totals: tuple[int, ...]  # rows of the whole list, by split: a row's number tells its split
    start: int
    rows: list[int]

    def to_bytes(self) -> bytes:
        """Return the part as a question."""
        numbers = (self.number, *self.totals, self.start, len(self.rows), *self.rows)
        return write(AlignmentKind.NUMBERS, self.salt, self.confirmation, *numbers)

    @classmethod
    def read(cls, reader: Reader, most: int) -> NumbersPart:
        """Read a part that takes up the rest of a question; the list has at most so many rows."""
        salt, confirmation = reader.take(SALT, "a salt"), reader.take(TAG, "a confirmation")
        number = bounded(reader, 1, MOST_LISTS, "the number of a list")
        totals = tuple(bounded(reader, 0, most, "the rows of a split") for _ in SPLITS)
        if not 0 < sum(totals) <= most:
            raise WireError(f"expected a list of at most {most:,} rows, got one of {sum(totals):,}.")
        start = bounded(reader, 0, MOST_IDS, "a part's start")
        count = bounded(reader, 1, ROWS, "a part's length")
        rows = [bounded(reader, 0, sum(totals) - 1, "a row's number") for _ in range(count)]
        reader.end("part of the numbers")
        return cls(salt, confirmation, number, totals, start, rows)


@dataclass(frozen=True)
class EverybodyPart:
    """A part of what all know of the label holder's list where labels are shared: who has which rows, and more."""

    salt: bytes  # of the list
    confirmation: bytes  # that the label holder holds the same list
    number: int  # of the list, the same at all participants
    start: int
    count: int  # rows here
    table: dict[str, Any]  # `has`: by party a bit for each row, in hex; and labels, weights, names of classes and loss

    def to_bytes(self) -> bytes:
        """Return the part as a question."""
        text = json.dumps(self.table).encode()
        numbers = (self.number, self.start, self.count, len(text))
        return write(AlignmentKind.EVERYBODY, self.salt, self.confirmation, *numbers, text)

    @classmethod
    def read(cls, reader: Reader) -> EverybodyPart:
        """Read a part that takes up the rest of a question."""
        salt, confirmation = reader.take(SALT, "a salt"), reader.take(TAG, "a confirmation")
        number = bounded(reader, 1, MOST_LISTS, "the number of a list")
        start = bounded(reader, 0, MOST_IDS, "a part's start")
        count = bounded(reader, 1, ROWS, "a part's length")
        text = reader.take(bounded(reader, 2, FRAME, "the length of a table"), "a table")
        reader.end("part of a list")
        try:
            table = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise WireError(f"expected a table in JSON, got something else: {error}") from error
        if not isinstance(table, dict):
            raise WireError(f"expected a table in JSON, got {type(table).__name__}.")
        return cls(salt, confirmation, number, start, count, table)

    def masks(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return who of these parties has which rows, a byte for each."""
        has, size = self.table.get("has"), -(-self.count // 8)
        if not isinstance(has, dict) or list(has) != list(names):
            raise WireError(f"expected the rows of {', '.join(names)}, got those of others.")
        found = {}
        for name, text in has.items():
            if not isinstance(text, str) or len(text) != 2 * size or set(text) - set("0123456789abcdef"):
                raise WireError(f"expected a bit for each of {self.count:,} rows of {name}, got something else.")
            bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8))
            if bits[self.count :].any():
                raise WireError(f"expected a bit for each of {self.count:,} rows of {name}, got more.")
            found[name] = bits[: self.count].tobytes()
        return found


def packed(mask: bytes) -> str:
    """Return a byte for each row, 0 or 1, as bits in hex."""
    return np.packbits(np.frombuffer(mask, dtype=np.uint8)).tobytes().hex()
