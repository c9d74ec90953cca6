"""A party's side of an alignment, without its wire: it responds to one frame at a time.

The party decides: it answers only what its own file's `align` allows, and its limits count the ids that are tested.
A participant that is killed starts again, and a repeated question does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Final

from efvfl.config.run_file import RunConfig
from efvfl.errors import DataError, ProtocolError, WireError
from efvfl.network.align import handshake, messages, points, psi, sizes
from efvfl.network.align.aligned_rows import Aligned
from efvfl.network.align.alignments import Alignments
from efvfl.network.align.asked_ids import AskedIds
from efvfl.network.align.messages import (
    DIGESTS,
    MOST_IDS,
    SALT,
    AlignmentKind,
    EverybodyPart,
    NumbersPart,
    Place,
    PlacesPart,
    ShardQuestion,
    SplitsPart,
    VoidReason,
)
from efvfl.network.align.received_list import ReceivedList, ids_at
from efvfl.network.align.saved_orders import SavedOrders
from efvfl.network.links.frame import Frame, FrameKind, json_frame
from efvfl.wire.packet import Reader

_KINDS_OF_MODE: Final[dict[str, set[AlignmentKind]]] = {
    "psi": {AlignmentKind.BLINDED, AlignmentKind.SPLITS},
    "hash": {AlignmentKind.DIGESTS, AlignmentKind.SPLITS},
    "outer": {AlignmentKind.BLINDED, AlignmentKind.NUMBERS, AlignmentKind.EVERYBODY},
    "none": {AlignmentKind.SPLITS},
}
_KINDS_OF_ALL: Final = {AlignmentKind.SIZE, AlignmentKind.ROWS, AlignmentKind.VOID}


class AlignmentParty:
    """Answers the label holder's questions about ids."""

    def __init__(self, config: RunConfig, name: str, ids: list[str], folder: Path, threads: int | None = None) -> None:
        """Answer for these ids, which must be distinct; `config` is the party's own file."""
        self.config = config
        self.name = name
        self.ids = ids
        self.alignments = Alignments(folder)
        self.about = handshake.about(config, name)
        self.mode = config.data.align
        self.asked = AskedIds(config, name, len(ids), folder)
        self.aligned: Aligned | None = None
        self.number = 0  # of this list
        self.added = True  # it is a new one
        self.void: VoidReason | None = None
        self.shards_done = 0
        self.shards = 0  # their number, once the label holder has sent it
        self._workers = ThreadPoolExecutor(threads or points.cores(), thread_name_prefix="efvfl-align")
        self._orders = SavedOrders(folder)
        self._side: psi.PartySide | None = None
        self._digests: tuple[bytes, list[tuple[bytes, int]]] = (
            b"",
            [],
        )  # a salt; digests in order, with their ids' index
        self._list: ReceivedList | None = None
        self._responded: set[bytes] = set()  # salts of lists that were tested
        self._others = 0  # ids of the label holder
        self._last: tuple[bytes | None, bytes] = (None, b"")  # the last question and its answer

    def close(self) -> None:
        """Stop the threads."""
        self._workers.shutdown(cancel_futures=True)

    def save(self) -> None:
        """Do nothing: an interrupted alignment starts again."""

    def save_if_due(self) -> None:
        """Do nothing: there is nothing to save."""

    def hello(self) -> Frame:
        """Return the first frame of a connection."""
        return json_frame(FrameKind.HELLO, self.about | {"newest": self.alignments.newest})

    def respond(self, frame: Frame) -> Frame:
        """Return the response to an ASK or STOP."""
        if frame.kind == FrameKind.ASK:
            if self._last[0] != frame.body:
                self._last = (frame.body, self._answer(frame.body))
            return Frame(FrameKind.ANSWER, frame.number, 0, self._last[1])
        if frame.kind == FrameKind.STOP:
            if self.aligned is None and self.void is None:  # this party was killed after it had written the list
                self.number = self.alignments.newest
                self.aligned = self._load_list()
            self._orders.clear()
            return Frame(FrameKind.BYE)
        raise ProtocolError(f"a server that aligns does not send {frame.kind.name}: does it train already?")

    @cached_property
    def _id_set(self) -> frozenset[str]:
        return frozenset(self.ids)

    def _load_list(self) -> Aligned:
        try:
            aligned = self.alignments.load(self.number)
        except DataError as error:
            raise ProtocolError(
                "the server says that the alignment has ended, but it sent no list of rows: start again."
            ) from error
        if not self._id_set.issuperset(aligned.ids):
            raise ProtocolError(
                "the server says that the alignment has ended, but the list here is of another table: start again."
            )
        return aligned

    def _answer(self, question: bytes) -> bytes:
        answers: dict[AlignmentKind, Callable[[Reader], bytes]] = {
            AlignmentKind.SIZE: self._size,
            AlignmentKind.BLINDED: self._blinded,
            AlignmentKind.DIGESTS: self._digests_from,
            AlignmentKind.ROWS: self._rows,
            AlignmentKind.SPLITS: self._splits,
            AlignmentKind.NUMBERS: self._numbers,
            AlignmentKind.EVERYBODY: self._everybody,
            AlignmentKind.VOID: self._void,
        }
        try:
            kind, reader = messages.read_kind(question)
            if kind not in _KINDS_OF_MODE[self.mode] | _KINDS_OF_ALL:
                raise ProtocolError(
                    f"expected a question for align = {self.mode!r}, got {kind.name}: agree on one `align`."
                )
            return answers[kind](reader)
        except WireError as error:  # not a fault of the connection: dialling again would not help
            raise ProtocolError(f"a question cannot be read: {error}") from error

    # Questions about ids.

    def _size(self, reader: Reader) -> bytes:
        self._meet(messages.bounded(reader, 1, MOST_IDS, "the number of ids"))
        reader.end("question")
        return messages.write(AlignmentKind.SIZE, len(self.ids))

    def _meet(self, others: int) -> None:
        """Look at how many ids the label holder brings, before anything is revealed."""
        if self._others != others:
            sizes.check(self.config, "", others)
            sizes.describe("the label holder", others, len(self.ids))
            self._others = others

    def _blinded(self, reader: Reader) -> bytes:
        asked = ShardQuestion.read(reader)
        self._meet(asked.count)  # asked anew, because this process may have been started after SIZE
        shards = psi.shards_for(asked.count, len(self.ids))
        size = psi.holder_points(asked.count, shards)
        if (asked.shards, asked.size) != (shards, size):
            raise ProtocolError(
                f"expected {size:,} points in each of {shards:,} shards, which {asked.count:,} ids of the label holder "
                f"and {len(self.ids):,} of {self.name} need, got {asked.size:,} in one of {asked.shards:,}."
            )
        if self._side is None or self._side.salt != asked.salt:
            self._orders.clear(keep=asked.salt)
            self._side = psi.PartySide(self.ids, asked.salt, shards, self._workers)
        if asked.shard in self._side.done:
            raise ProtocolError(f"expected every shard once, got shard {asked.shard} twice.")
        self.asked.add(asked.salt, size, asked.count)
        order, own, both = self._side.answer(asked.shard, asked.points)
        self._orders.save(asked.salt, asked.shard, order)
        self._side.done.add(asked.shard)
        self.shards, self.shards_done = shards, len(self._side.done)
        return messages.write_points(own, both)

    def _digests_from(self, reader: Reader) -> bytes:
        salt = reader.take(SALT, "a salt")
        start = messages.bounded(reader, 0, len(self.ids) - 1, "the index of the first digest")
        reader.end("question")
        digests = [digest for digest, _ in self._digests_under(salt)[start : start + DIGESTS]]
        self.asked.add(salt, len(digests))
        return messages.write(AlignmentKind.DIGESTS, len(self.ids), b"".join(digests))

    def _digests_under(self, salt: bytes) -> list[tuple[bytes, int]]:
        if self._digests[0] != salt:
            digest = psi.keyed(salt)
            self._digests = (salt, sorted((digest(name), index) for index, name in enumerate(self.ids)))
        return self._digests[1]

    # The list.

    def _rows(self, reader: Reader) -> bytes:
        part = PlacesPart.read(reader)
        if part.total > len(self.ids) or (self.mode == "none" and (part.places or part.total != len(self.ids))):
            raise ProtocolError(
                f"expected a list that fits the {len(self.ids):,} rows of {self.name}, got one of {part.total:,} rows."
            )
        if self._list is None or self._list.salt != part.salt:  # the first part, or a label holder that started again
            if part.salt in self._responded:  # each test is a guess: one list, one guess
                raise ProtocolError("expected one list for each salt, got a second one: start the label holder again.")
            self._list, self.aligned, self.void = ReceivedList(part.salt, part.total), None, None
        self._list.add_places(part)
        if self._list.response is None:
            if self.mode == "none":
                self._respond(self._list, self.ids, part.challenge)
            elif len(self._list.places) == part.total:
                found = ids_at(self.ids, self._list.places, self._index_at(part.salt), self.name)
                self._respond(self._list, found, part.challenge)
        count = part.total if self._list.response else len(self._list.places)
        return messages.write_place_answer(count, self._list.response)

    def _respond(self, received: ReceivedList, ids: list[str], challenge: bytes) -> None:
        self.asked.add(received.salt, 1)  # the response tests a guess of the whole list, and so of any one id of it
        received.complete(ids, challenge)
        self._responded.add(received.salt)

    def _index_at(self, salt: bytes) -> Callable[[Place], int | None]:
        """Return what finds the index of an id by the place of its point, or of its digest."""
        if self.mode != "hash":
            return lambda place: self._orders.index(salt, *place)
        digests = self._digests_under(salt)
        return lambda place: digests[place[1]][1] if place[0] == 0 and place[1] < len(digests) else None

    def _splits(self, reader: Reader) -> bytes:
        part = SplitsPart.read(reader)
        if self._list is None or self._list.salt != part.salt:  # this process has not seen the list
            return messages.write(AlignmentKind.SPLITS, 0)
        self._list.add_splits(part)
        self._keep(self._list, self._list.aligned())
        return messages.write(AlignmentKind.SPLITS, len(self._list.splits))

    def _numbers(self, reader: Reader) -> bytes:
        part = NumbersPart.read(reader, self.asked.newest_size)
        if self._list is None or self._list.salt != part.salt:  # this process has not seen the list
            return messages.write(AlignmentKind.NUMBERS, 0)
        self._list.add_numbers(part)
        self._keep(self._list, self._list.outer(self.name, self._shares))
        return messages.write(AlignmentKind.NUMBERS, len(self._list.rows))

    @property
    def _shares(self) -> bool:
        return self.config.agreement.labels == "shared"

    def _everybody(self, reader: Reader) -> bytes:
        part = EverybodyPart.read(reader)
        if not self._shares:
            raise ProtocolError(f"expected nothing of other parties with private labels, got {part.count:,} rows.")
        if self._list is None or self._list.salt != part.salt:  # this process has not seen the list
            return messages.write(AlignmentKind.EVERYBODY, 0)
        self._list.add_everybody(part, [party.name for party in self.config.party])
        self._keep(self._list, self._list.outer(self.name, shared=True))
        return messages.write(AlignmentKind.EVERYBODY, self._list.told)

    def _keep(self, received: ReceivedList, aligned: Aligned | None) -> None:
        """Save the list, if it is complete and is not here yet."""
        if aligned and not self.aligned:
            self.added = self.alignments.save(received.number, aligned)
            self.aligned, self.number = aligned, received.number

    def _void(self, reader: Reader) -> bytes:
        code = messages.bounded(reader, min(VoidReason), max(VoidReason), "a reason")
        reader.end("question")
        self.aligned, self.void = None, VoidReason(code)
        return messages.write(AlignmentKind.VOID)
