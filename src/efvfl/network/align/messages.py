"""The questions and answers of an alignment as bytes. Layout: docs/alignment.md.

Numbers are LEB128. Bytes come from another organisation, so every length is checked before it is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from efvfl.errors import ProtocolError, WireError
from efvfl.wire.packet import Reader, number

POINT: Final = 33  # bytes of a point of the curve
SALT: Final = 16  # bytes
DIGEST: Final = 16  # bytes
MOST_SHARDS: Final = 1_024
FRAME: Final = 64 << 20  # bytes that no frame of an alignment exceeds
MOST_PARTS: Final = 64  # shards of one question
MOST_POINTS: Final = FRAME // POINT // 4  # of all shards of one question: the answer has these and the party's own
MOST_IDS: Final = 1 << 30
DIGESTS: Final = 1 << 18  # of one answer
ROWS: Final = 1 << 16  # of one part of the list
BYTES: Final = 4 << 20  # of their ids; a part ends with the id that reaches it


class Word(IntEnum):
    """The first byte of a question, and of its answer. Those of training and prediction begin with others."""

    SIZE = 2  # how many shards do you need?
    BLINDED = 3  # points of the label holder's ids; and back: the party's points, and those under both keys
    DIGESTS = 4  # the salted digests of the party's ids
    ORDER = 5  # one salted digest of all the party's ids in order
    ROWS = 6  # a part of the rows that all share
    VOID = 7  # there is no list, and why


class Reason(IntEnum):
    """Why there is no list."""

    EMPTY = 1  # no id is shared by all
    UNCUT = 2  # the shared rows cannot be cut into splits


def begin(data: bytes) -> tuple[Word, Reader]:
    """Return what kind of question or answer this is, and the rest of it."""
    reader = Reader(data)
    code = reader.byte("a question's kind")
    if code not in set(Word):
        raise ProtocolError(f"question kind {code} came, which is none of an alignment: does the other side align?")
    return Word(code), reader


def answer(data: bytes, word: Word) -> Reader:
    """Return the rest of an answer of this kind."""
    found, reader = begin(data)
    if found != word:
        raise ProtocolError(f"{found.name} came, an answer to {word.name} is expected.")
    return reader


def bounded(reader: Reader, least: int, most: int, what: str) -> int:
    """Return a number within bounds."""
    value = reader.number(what)
    if not least <= value <= most:
        raise WireError(f"{what} is {value:,}, {least:,} to {most:,} is expected.")
    return value


def write(word: Word, *fields: int | bytes) -> bytes:
    """Return a question or an answer."""
    return b"".join((bytes((word,)), *(number(f) if isinstance(f, int) else f for f in fields)))


def blinded(salt: bytes, shards: int, parts: Mapping[int, bytes]) -> bytes:
    """Ask about the ids in some shards, by their points."""
    fields = [f for shard, points in parts.items() for f in (shard, len(points) // POINT, points)]
    return write(Word.BLINDED, salt, shards, len(parts), *fields)


def read_blinded(reader: Reader) -> tuple[bytes, int, dict[int, bytes]]:
    """Return the salt, the number of shards, and the points in some of them."""
    salt = reader.take(SALT, "a salt")
    shards = bounded(reader, 1, MOST_SHARDS, "the number of shards")
    parts: dict[int, bytes] = {}
    for _ in range(bounded(reader, 1, MOST_PARTS, "the number of shards in a question")):
        shard = bounded(reader, 0, shards - 1, "a shard's place")
        if shard in parts:
            raise WireError(f"shard {shard} came twice.")
        parts[shard] = _points(reader, bounded(reader, 1, MOST_POINTS, "the number of a shard's points"))
    reader.end("question")
    return salt, shards, parts


def answered(parts: Mapping[int, tuple[bytes, bytes]]) -> bytes:
    """Answer with the party's own points and those under both keys, shard by shard."""
    fields = [f for own, both in parts.values() for f in (len(own) // POINT, own, both)]
    return write(Word.BLINDED, *fields)


def read_answered(data: bytes, asked: Mapping[int, bytes]) -> dict[int, tuple[bytes, bytes]]:
    """Return the same of an answer to a question with these points."""
    reader, parts = answer(data, Word.BLINDED), {}
    for shard, points in asked.items():
        own = _points(reader, bounded(reader, 1, FRAME // POINT, "the number of a shard's points"))
        parts[shard] = (own, _points(reader, len(points) // POINT))
    reader.end("answer")
    return parts


def _points(reader: Reader, count: int) -> bytes:
    return reader.take(count * POINT, "a shard's points")


def read_digests(data: bytes, start: int) -> tuple[int, list[bytes]]:
    """Return how many digests a party has in all, and those from `start` on that this answer holds."""
    reader = answer(data, Word.DIGESTS)
    total = bounded(reader, 1, MOST_IDS, "the number of digests")
    found = reader.take(min(DIGESTS, max(0, total - start)) * DIGEST, "the digests")
    reader.end("answer")
    return total, [found[i : i + DIGEST] for i in range(0, len(found), DIGEST)]


@dataclass(frozen=True)
class Part:
    """Some rows of the list that all share."""

    digest: bytes  # of the whole list
    total: int  # rows of the whole list
    start: int  # which of them is the first one here
    splits: bytes  # a code for each row here
    ids: list[str]  # for each row here; none where all hold the same ids anyway

    def to_bytes(self) -> bytes:
        """Return it as a question."""
        codes = [name.encode() for name in self.ids]
        fields = [f for code in codes for f in (len(code), code)]
        return write(Word.ROWS, self.digest, self.total, self.start, len(self.splits), self.splits, len(codes), *fields)

    @classmethod
    def read(cls, reader: Reader) -> Part:
        """Read one that is all that is left."""
        digest = reader.take(DIGEST, "the list's digest")
        total = bounded(reader, 1, MOST_IDS, "the list's length")
        start = bounded(reader, 0, total - 1, "a part's start")
        count = bounded(reader, 1, min(ROWS, total - start), "a part's length")
        splits = reader.take(count, "the splits")
        ids = []
        for _ in range(bounded(reader, 0, count, "the number of ids")):
            code = reader.take(reader.number("an id's length"), "an id")
            try:
                ids.append(code.decode())
            except UnicodeDecodeError as error:
                raise WireError("an id came that is not UTF-8.") from error
        reader.end("part of the list")
        if ids and len(ids) != count:
            raise WireError(f"{len(ids):,} ids and {count:,} splits came: one for each row is expected.")
        return cls(digest, total, start, splits, ids)


def parts_of(digest: bytes, ids: list[str], splits: bytes, named: bool) -> Iterator[Part]:
    """Cut the list into parts; without ids unless `named`."""
    start = stop = size = 0
    while start < len(ids):
        while stop < len(ids) and stop - start < ROWS and size < BYTES:
            size += len(ids[stop].encode()) if named else 0
            stop += 1
        yield Part(digest, len(ids), start, splits[start:stop], ids[start:stop] if named else [])
        start, size = stop, 0
