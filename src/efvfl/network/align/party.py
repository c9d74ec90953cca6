"""A party's side of an alignment, without any wire: a frame comes in, a frame goes out.

The party decides: it answers only what its own file's `align` asks for, and its limits count the ids it lets be tested.
Every question stands for itself, so whoever is killed starts over, and a question that comes twice does no harm.
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
from efvfl.network.align import messages, psi, terms
from efvfl.network.align.aligned_rows import SPLITS, Aligned
from efvfl.network.align.messages import DIGESTS, POINT, SALT, Part, Reason, Word
from efvfl.network.links.frame import Frame, FrameKind, words
from efvfl.util.files import write_atomically
from efvfl.wire.packet import Reader

COUNT: Final = "align.json"  # how many ids have been tested so far

_OF_MODE: Final[dict[str, set[Word]]] = {
    "psi": {Word.SIZE, Word.BLINDED},
    "hash": {Word.DIGESTS},
    "none": {Word.ORDER},
}


class AlignMember:
    """Answers the label holder's questions about ids."""

    def __init__(
        self, config: RunConfig, name: str, ids: list[str], folder: Path, processes: int | None = None
    ) -> None:
        """Hold these ids, all different."""
        self.name = name
        self.ids = ids
        self.folder = folder
        self.about = terms.about(config, name)
        self.mode = config.data.align
        self.limit = config.of(name).limits.rows  # ids that may be tested in all; 0: any number
        self.wanted = psi.shards_for(len(ids))
        self.processes = psi.cores() if processes is None else processes
        self.aligned: Aligned | None = None
        self.void: Reason | None = None
        self.shards_done = 0
        self.shards = 0  # how many there are, once the label holder has said it
        self.tested = self._load_count() if self.limit else 0
        self._own = frozenset(ids)
        self._workers: Executor | None = None
        self._parts: tuple[bytes, list[list[str]]] = (b"", [])  # the ids cut into shards, and under which salt
        self._digests: tuple[bytes, list[bytes]] = (b"", [])
        self._held: tuple[bytes, list[str], bytearray] = (b"", [], bytearray())  # of the list, so far
        self._last: tuple[bytes | None, bytes] = (None, b"")  # question and answer

    def close(self) -> None:
        """End the workers."""
        if self._workers:
            self._workers.shutdown(cancel_futures=True)

    def save(self) -> None:
        """Nothing is left to save: an alignment starts over."""

    def save_if_due(self) -> None:
        """Nothing is ever due."""

    def hello(self) -> Frame:
        """Return the first frame of a connection."""
        return words(FrameKind.HELLO, self.about)

    def respond(self, frame: Frame) -> Frame:
        """Answer an ASK or STOP."""
        if frame.kind == FrameKind.ASK:
            if self._last[0] != frame.body:
                self._last = (frame.body, self._answer(frame.body))
            return Frame(FrameKind.ANSWER, frame.number, 0, self._last[1])
        if frame.kind == FrameKind.STOP:
            if self.aligned is None and self.void is None:  # it was killed after it had written the list
                self.aligned = self._written()
            return Frame(FrameKind.BYE)
        raise ProtocolError(f"a server that aligns does not send {frame.kind.name}: does it train already?")

    def _written(self) -> Aligned:
        try:
            found = Aligned.load(self.folder)
        except DataError as error:
            raise ProtocolError(
                "the server says that all is done, but it sent no list of rows: start again."
            ) from error
        if not set(found.ids) <= self._own:
            raise ProtocolError("the server says that all is done, but the list here is of another table: start again.")
        return found

    def _answer(self, question: bytes) -> bytes:
        answers: dict[Word, Callable[[Reader], bytes]] = {
            Word.SIZE: self._size,
            Word.BLINDED: self._blinded,
            Word.DIGESTS: self._give_digests,
            Word.ORDER: self._order,
            Word.ROWS: self._rows,
            Word.VOID: self._voided,
        }
        try:
            word, reader = messages.begin(question)
            if word not in _OF_MODE[self.mode] | {Word.ROWS, Word.VOID}:
                raise ProtocolError(f"{word.name} is asked for, but here align = {self.mode!r}: agree on one.")
            return answers[word](reader)
        except WireError as error:  # not the link's fault: to dial again would bring the same
            raise ProtocolError(f"a question cannot be read: {error}") from error

    # Which ids are shared.

    def _size(self, reader: Reader) -> bytes:
        reader.end("question")
        return messages.write(Word.SIZE, self.wanted, self.processes)

    def _blinded(self, reader: Reader) -> bytes:
        salt, shards, asked = messages.read_blinded(reader)
        if shards < self.wanted:
            raise ProtocolError(f"{shards} shards came, {self.name} needs {self.wanted} or more.")
        self._count(sum(map(len, asked.values())) // POINT)
        if self._parts[0] != salt or len(self._parts[1]) != shards:
            self._parts, self.shards_done = (salt, psi.cut(self.ids, salt, shards)), 0
        with psi.unbroken():
            found = self._compute(self._crew(shards), asked)
        self.shards, self.shards_done = shards, self.shards_done + len(asked)
        return messages.answered(found)

    def _compute(self, workers: Executor, asked: dict[int, bytes]) -> dict[int, tuple[bytes, bytes]]:
        """Return the own points of every shard asked about, and those that came under both keys."""
        work = {}
        for shard, points in asked.items():
            key = psi.new_key()
            own = workers.submit(psi.encrypt, key, self._parts[1][shard])
            work[shard] = (own, workers.submit(psi.reply, key, points))
        return {shard: (own.result(), both.result()) for shard, (own, both) in work.items()}

    def _crew(self, shards: int) -> Executor:
        if self._workers is None:
            self._workers = psi.workers(self.processes if shards > 1 else 1)
        return self._workers

    def _give_digests(self, reader: Reader) -> bytes:
        salt = reader.take(SALT, "a salt")
        start = messages.bounded(reader, 0, len(self.ids) - 1, "the place of the first digest")
        reader.end("question")
        if self._digests[0] != salt:
            self._digests = (salt, sorted(map(psi.keyed(salt), self.ids)))
        given = self._digests[1][start : start + DIGESTS]
        self._count(len(given))
        return messages.write(Word.DIGESTS, len(self.ids), b"".join(given))

    def _order(self, reader: Reader) -> bytes:
        salt = reader.take(SALT, "a salt")
        reader.end("question")
        return messages.write(Word.ORDER, len(self.ids), terms.order_digest(self.ids, salt))

    # How many ids were tested.

    def _load_count(self) -> int:
        path = self.folder / COUNT
        try:
            return int(json.loads(path.read_text(encoding="utf-8"))["tested"]) if path.exists() else 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"cannot read {path}: {error}. It holds how many ids were tested so far.") from error

    def _count(self, more: int) -> None:
        if not self.limit:
            return
        tested = self.tested + more
        if tested > self.limit:
            raise LimitError(
                f"the label holder tests {tested:,} ids in all, and limits.rows of {self.name} allows {self.limit:,}."
            )
        self.tested = tested  # on disk before the answer leaves: a crash must not make it forget
        write_atomically(self.folder / COUNT, json.dumps({"tested": tested}).encode())

    # The list.

    def _rows(self, reader: Reader) -> bytes:
        part = Part.read(reader)
        if self._held[0] != part.digest:  # a first part, or that of a label holder that started over
            self._held, self.aligned, self.void = (part.digest, [], bytearray()), None, None
        _, ids, splits = self._held
        if part.start == len(splits):
            ids += self._checked(part, ids[-1:])
            splits += part.splits
            if len(splits) == part.total:
                self._keep(part.digest, ids, bytes(splits))
        return messages.write(Word.ROWS, len(splits))

    def _checked(self, part: Part, before: list[str]) -> list[str]:
        """Return the ids of a part, or refuse it."""
        if max(part.splits) >= len(SPLITS):
            raise ProtocolError(f"split {max(part.splits)} came, 0 to {len(SPLITS) - 1} are expected.")
        if self.mode == "none":
            if part.ids or part.total != len(self.ids):
                raise ProtocolError(
                    f"a list of {part.total:,} rows came, the splits of {len(self.ids):,} are expected."
                )
            return self.ids[part.start : part.start + len(part.splits)]
        if len(part.ids) != len(part.splits):
            raise ProtocolError("splits came without ids.")
        if not self._own.issuperset(part.ids):  # how many is not said: a label holder that guesses hears this
            raise ProtocolError(f"the list of shared rows has ids that {self.name} does not hold.")
        if any(a >= b for a, b in pairwise(before + part.ids)):
            raise ProtocolError("the list of shared rows is not in the order of its ids, each once.")
        return part.ids

    def _keep(self, digest: bytes, ids: list[str], splits: bytes) -> None:
        found = Aligned(ids, splits)
        if found.digest() != digest:
            raise ProtocolError("the list of shared rows is not the one that was announced.")
        found.save(self.folder)
        self.aligned = found

    def _voided(self, reader: Reader) -> bytes:
        code = messages.bounded(reader, min(Reason), max(Reason), "a reason")
        reader.end("question")
        self.aligned, self.void = None, Reason(code)
        return messages.write(Word.VOID)
