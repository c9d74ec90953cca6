"""The questions and answers of an alignment as bytes. Layout: docs/alignment.md.

Numbers are LEB128. Bytes come from another organisation, so every length is checked before it is used.
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


class AlignmentKind(IntEnum):
    """The kinds of questions: the first byte of a question and of its answer, distinct from those of training."""

    SIZE = 2  # how many shards do you need?
    BLINDED = 3  # points of the label holder's ids; and back: the party's points, and those under both keys
    DIGESTS = 4  # the salted digests of the party's ids
    ORDER = 5  # one salted digest of all the party's ids in order
    ROWS = 6  # a part of the list of shared rows
    VOID = 7  # there is no list, and why


class VoidReason(IntEnum):
    """Why there is no list of shared rows."""

    EMPTY = 1  # no id is shared by all
    UNCUT = 2  # the shared rows cannot be cut into splits


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


def write_blinded(salt: bytes, shards: int, parts: Mapping[int, bytes]) -> bytes:
    """Return a question about the ids in some shards, as points."""
    fields = [f for shard, points in parts.items() for f in (shard, len(points) // POINT, points)]
    return write(AlignmentKind.BLINDED, salt, shards, len(parts), *fields)


def read_blinded(reader: Reader) -> tuple[bytes, int, dict[int, bytes]]:
    """Return the salt, the number of shards, and the points in some of them."""
    salt = reader.take(SALT, "a salt")
    shards = bounded(reader, 1, MOST_SHARDS, "the number of shards")
    parts: dict[int, bytes] = {}
    for _ in range(bounded(reader, 1, MOST_PARTS, "the number of shards in a question")):
        shard = bounded(reader, 0, shards - 1, "a shard's index")
        if shard in parts:
            raise WireError(f"expected every shard once, got shard {shard} twice.")
        parts[shard] = _points(reader, bounded(reader, 1, MOST_POINTS, "the number of a shard's points"))
    reader.end("question")
    return salt, shards, parts


def write_blinded_answer(parts: Mapping[int, tuple[bytes, bytes]]) -> bytes:
    """Return an answer: for every shard, the party's points and the label holder's points under both keys."""
    fields = [f for points, both in parts.values() for f in (len(points) // POINT, points, both)]
    return write(AlignmentKind.BLINDED, *fields)


def read_blinded_answer(data: bytes, asked: Mapping[int, bytes]) -> dict[int, tuple[bytes, bytes]]:
    """Return, for every shard asked about, the party's points and ours under both keys."""
    reader, parts = read_answer(data, AlignmentKind.BLINDED), {}
    for shard, points in asked.items():
        theirs = _points(reader, bounded(reader, 1, FRAME // POINT, "the number of a shard's points"))
        parts[shard] = (theirs, _points(reader, len(points) // POINT))
    reader.end("answer")
    return parts


def _points(reader: Reader, count: int) -> bytes:
    return reader.take(count * POINT, "a shard's points")


def read_digests(data: bytes, start: int) -> tuple[int, list[bytes]]:
    """Return the number of all the party's digests, and those from `start` on in this answer."""
    reader = read_answer(data, AlignmentKind.DIGESTS)
    total = bounded(reader, 1, MOST_IDS, "the number of digests")
    digests = reader.take(min(DIGESTS, max(0, total - start)) * DIGEST, "the digests")
    reader.end("answer")
    return total, [digests[i : i + DIGEST] for i in range(0, len(digests), DIGEST)]


@dataclass(frozen=True)
class ListPart:
    """A part of the list of shared rows."""

    digest: bytes  # of the whole list
    total: int  # rows of the whole list
    start: int  # index of the first row here
    splits: bytes  # a code for each row here
    ids: list[str]  # for each row here; empty where all hold the same ids anyway

    def to_bytes(self) -> bytes:
        """Return the part as a question."""
        codes = [name.encode() for name in self.ids]
        fields = [f for code in codes for f in (len(code), code)]
        return write(
            AlignmentKind.ROWS, self.digest, self.total, self.start, len(self.splits), self.splits, len(codes), *fields
        )

    @classmethod
    def read(cls, reader: Reader) -> ListPart:
        """Read a part that takes up the rest of a question."""
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
                raise WireError("expected ids in UTF-8, got other bytes.") from error
        reader.end("part of the list")
        if ids and len(ids) != count:
            raise WireError(f"expected one id for each of {count:,} splits, got {len(ids):,}.")
        return cls(digest, total, start, splits, ids)


def parts_of(digest: bytes, ids: list[str], splits: bytes, named: bool) -> Iterator[ListPart]:
    """Yield the list in parts; without ids unless `named`."""
    start = stop = size = 0
    while start < len(ids):
        while stop < len(ids) and stop - start < ROWS and size < BYTES:
            size += len(ids[stop].encode()) if named else 0
            stop += 1
        yield ListPart(digest, len(ids), start, splits[start:stop], ids[start:stop] if named else [])
        start, size = stop, 0
