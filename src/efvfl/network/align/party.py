"""A party's side of an alignment, without its wire: it responds to one frame at a time.

The party decides: it answers only what its own file's `align` allows, and its limits count the ids that are tested.
Every question is independent, so a participant that is killed starts again, and a repeated question does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import pairwise
from pathlib import Path
from typing import Final

from efvfl.config.run_file import RunConfig
from efvfl.errors import CheckpointError, DataError, LimitError, ProtocolError, WireError
from efvfl.network.align import handshake, messages, psi
from efvfl.network.align.aligned_rows import SPLITS, Aligned
from efvfl.network.align.messages import DIGESTS, POINT, SALT, AlignmentKind, ListPart, VoidReason
from efvfl.network.links.frame import Frame, FrameKind, json_frame
from efvfl.util.files import write_atomically
from efvfl.wire.packet import Reader

COUNT: Final = "align.json"  # how many ids have been tested so far

_KINDS_OF_MODE: Final[dict[str, set[AlignmentKind]]] = {
    "psi": {AlignmentKind.SIZE, AlignmentKind.BLINDED},
    "hash": {AlignmentKind.DIGESTS},
    "none": {AlignmentKind.ORDER},
}


class AlignmentParty:
    """Answers the label holder's questions about ids."""

    def __init__(
        self, config: RunConfig, name: str, ids: list[str], folder: Path, processes: int | None = None
    ) -> None:
        """Answer for these ids, which must be distinct; `config` is the party's own file."""
        self.name = name
        self.ids = ids
        self.folder = folder
        self.about = handshake.about(config, name)
        self.mode = config.data.align
        self.limit = config.of(name).limits.rows  # ids that may be tested in total; 0: no limit
        self.min_shards = psi.shards_for(len(ids))
        self.processes = psi.cores() if processes is None else processes
        self.aligned: Aligned | None = None
        self.void: VoidReason | None = None
        self.shards_done = 0
        self.shards = 0  # their number, once the label holder has sent it
        self.tested = self._load_count() if self.limit else 0
        self._id_set = frozenset(ids)
        self._workers: Executor | None = None
        self._shards: tuple[bytes, list[list[str]]] = (b"", [])  # a salt, and the ids in shards under it
        self._digests: tuple[bytes, list[bytes]] = (b"", [])
        # Of the list of shared rows: its digest, and the ids and splits received so far.
        self._received: tuple[bytes, list[str], bytearray] = (b"", [], bytearray())
        self._last: tuple[bytes | None, bytes] = (None, b"")  # the last question and its answer

    def close(self) -> None:
        """Stop the workers."""
        if self._workers:
            self._workers.shutdown(cancel_futures=True)

    def save(self) -> None:
        """Do nothing: an interrupted alignment starts again."""

    def save_if_due(self) -> None:
        """Do nothing: there is nothing to save."""

    def hello(self) -> Frame:
        """Return the first frame of a connection."""
        return json_frame(FrameKind.HELLO, self.about)

    def respond(self, frame: Frame) -> Frame:
        """Return the response to an ASK or STOP."""
        if frame.kind == FrameKind.ASK:
            if self._last[0] != frame.body:
                self._last = (frame.body, self._answer(frame.body))
            return Frame(FrameKind.ANSWER, frame.number, 0, self._last[1])
        if frame.kind == FrameKind.STOP:
            if self.aligned is None and self.void is None:  # this party was killed after it had written the list
                self.aligned = self._load_list()
            return Frame(FrameKind.BYE)
        raise ProtocolError(f"a server that aligns does not send {frame.kind.name}: does it train already?")

    def _load_list(self) -> Aligned:
        try:
            aligned = Aligned.load(self.folder)
        except DataError as error:
            raise ProtocolError(
                "the server says that the alignment has ended, but it sent no list of rows: start again."
            ) from error
        if not set(aligned.ids) <= self._id_set:
            raise ProtocolError(
                "the server says that the alignment has ended, but the list here is of another table: start again."
            )
        return aligned

    def _answer(self, question: bytes) -> bytes:
        answers: dict[AlignmentKind, Callable[[Reader], bytes]] = {
            AlignmentKind.SIZE: self._size,
            AlignmentKind.BLINDED: self._blinded,
            AlignmentKind.DIGESTS: self._digests_from,
            AlignmentKind.ORDER: self._order,
            AlignmentKind.ROWS: self._rows,
            AlignmentKind.VOID: self._void,
        }
        try:
            kind, reader = messages.read_kind(question)
            if kind not in _KINDS_OF_MODE[self.mode] | {AlignmentKind.ROWS, AlignmentKind.VOID}:
                raise ProtocolError(
                    f"expected a question for align = {self.mode!r}, got {kind.name}: agree on one `align`."
                )
            return answers[kind](reader)
        except WireError as error:  # not a fault of the connection: dialling again would not help
            raise ProtocolError(f"a question cannot be read: {error}") from error

    # Questions about ids.

    def _size(self, reader: Reader) -> bytes:
        reader.end("question")
        return messages.write(AlignmentKind.SIZE, self.min_shards, self.processes)

    def _blinded(self, reader: Reader) -> bytes:
        salt, shards, asked = messages.read_blinded(reader)
        if shards < self.min_shards:
            raise ProtocolError(f"expected at least {self.min_shards} shards for the ids of {self.name}, got {shards}.")
        self._count(sum(map(len, asked.values())) // POINT)
        if self._shards[0] != salt or len(self._shards[1]) != shards:
            self._shards, self.shards_done = (salt, psi.split_into_shards(self.ids, salt, shards)), 0
        with psi.check_workers():
            answers = self._encrypt(self._pool(shards), asked)
        self.shards, self.shards_done = shards, self.shards_done + len(asked)
        return messages.write_blinded_answer(answers)

    def _encrypt(self, workers: Executor, asked: dict[int, bytes]) -> dict[int, tuple[bytes, bytes]]:
        """Return, for every shard asked about, this party's points and the received ones under both keys."""
        work = {}
        for shard, points in asked.items():
            key = psi.new_key()
            local = workers.submit(psi.encrypt, key, self._shards[1][shard])
            work[shard] = (local, workers.submit(psi.encrypt_again, key, points))
        return {shard: (local.result(), both.result()) for shard, (local, both) in work.items()}

    def _pool(self, shards: int) -> Executor:
        if self._workers is None:
            self._workers = psi.workers(self.processes if shards > 1 else 1)
        return self._workers

    def _digests_from(self, reader: Reader) -> bytes:
        salt = reader.take(SALT, "a salt")
        start = messages.bounded(reader, 0, len(self.ids) - 1, "the index of the first digest")
        reader.end("question")
        if self._digests[0] != salt:
            self._digests = (salt, sorted(map(psi.keyed(salt), self.ids)))
        digests = self._digests[1][start : start + DIGESTS]
        self._count(len(digests))
        return messages.write(AlignmentKind.DIGESTS, len(self.ids), b"".join(digests))

    def _order(self, reader: Reader) -> bytes:
        salt = reader.take(SALT, "a salt")
        reader.end("question")
        return messages.write(AlignmentKind.ORDER, len(self.ids), handshake.order_digest(self.ids, salt))

    # The limit on tested ids.

    def _load_count(self) -> int:
        path = self.folder / COUNT
        try:
            return int(json.loads(path.read_text(encoding="utf-8"))["tested"]) if path.exists() else 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"cannot read {path}: {error}. It counts the ids that were tested so far.") from error

    def _count(self, more: int) -> None:
        if not self.limit:
            return
        tested = self.tested + more
        if tested > self.limit:
            raise LimitError(
                f"the label holder tests {tested:,} ids in total, but limits.rows of {self.name} allows {self.limit:,}."
            )
        self.tested = tested  # on disk before the answer is sent: a crash must not lose it
        write_atomically(self.folder / COUNT, json.dumps({"tested": tested}).encode())

    # The list.

    def _rows(self, reader: Reader) -> bytes:
        part = ListPart.read(reader)
        if self._received[0] != part.digest:  # a first part, or one of a label holder that started again
            self._received, self.aligned, self.void = (part.digest, [], bytearray()), None, None
        _, ids, splits = self._received
        if part.start == len(splits):
            ids += self._checked(part, ids[-1:])
            splits += part.splits
            if len(splits) == part.total:
                self._save_list(part.digest, ids, bytes(splits))
        return messages.write(AlignmentKind.ROWS, len(splits))

    def _checked(self, part: ListPart, before: list[str]) -> list[str]:
        """Return the ids of a part after checking it; `before` is the id before them."""
        if max(part.splits) >= len(SPLITS):
            raise ProtocolError(f"expected splits from 0 to {len(SPLITS) - 1}, got {max(part.splits)}.")
        if self.mode == "none":
            if part.ids or part.total != len(self.ids):
                raise ProtocolError(
                    f"expected the splits of {len(self.ids):,} rows without ids, got a list of {part.total:,} rows."
                )
            return self.ids[part.start : part.start + len(part.splits)]
        if len(part.ids) != len(part.splits):
            raise ProtocolError(
                f"expected an id for every split, got {len(part.ids):,} ids and {len(part.splits):,} splits."
            )
        if not self._id_set.issuperset(part.ids):  # not how many: the error also goes to a label holder that guesses
            raise ProtocolError(f"the list of shared rows has ids that {self.name} does not hold.")
        if any(a >= b for a, b in pairwise(before + part.ids)):
            raise ProtocolError(
                "expected the list of shared rows in the order of its ids, each once, got another order."
            )
        return part.ids

    def _save_list(self, digest: bytes, ids: list[str], splits: bytes) -> None:
        aligned = Aligned(ids, splits)
        if aligned.digest() != digest:
            raise ProtocolError("the list of shared rows does not match its digest.")
        aligned.save(self.folder)
        self.aligned = aligned

    def _void(self, reader: Reader) -> bytes:
        code = messages.bounded(reader, min(VoidReason), max(VoidReason), "a reason")
        reader.end("question")
        self.aligned, self.void = None, VoidReason(code)
        return messages.write(AlignmentKind.VOID)
