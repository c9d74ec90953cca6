"""The label holder's side of an alignment: find the rows that all share, cut them into splits and send out the list.

The label holder learns, for each party, which of its own ids that party has; a party learns the final list. Nothing is
saved before the end, so a participant that is killed starts again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from efvfl.config.run_file import RunConfig
from efvfl.data.tables.splits import split_of, stratified
from efvfl.errors import DataError, ProtocolError
from efvfl.network.align import handshake, messages, psi
from efvfl.network.align.aligned_rows import SPLITS, Aligned, shapes
from efvfl.network.align.handshake import order_digest
from efvfl.network.align.messages import DIGESTS, MOST_SHARDS, SALT, AlignmentKind, VoidReason, parts_of
from efvfl.network.links.connections import Hooks, ServerTimeouts
from efvfl.network.links.message_log import MessageLog
from efvfl.network.links.presence import Presence
from efvfl.network.links.requests import Checks, Requests
from efvfl.util.files import write_atomically
from efvfl.wire.ledger import Ledger
from efvfl.wire.message import Message

log = logging.getLogger("efvfl")

MOST_PROCESSES: Final = 4_096  # that a party may claim to have

Read = TypeVar("Read")


class AlignmentServer:
    """The label holder and its connections to the parties."""

    def __init__(
        self,
        config: RunConfig,
        ids: list[str],
        labels: NDArray[Any] | None,
        folder: Path,
        timeouts: ServerTimeouts | None = None,
        hooks: Hooks | None = None,
        processes: int | None = None,
    ) -> None:
        """Align these ids, which must be distinct, with those of the parties; labels are needed to stratify."""
        self.config = config
        self.ids = ids
        self.labels = labels
        self.folder = folder
        self.about = handshake.about(config, "")
        self.processes = psi.cores() if processes is None else processes
        self.done = 0  # shards, or parts of digests, that were answered
        self.total = 0  # their number; 0: not known yet
        self.uninformed: set[str] = set()  # parties that were not told that the alignment has ended
        self._mark = folder / "align.done"  # exists when all parties have the list but may not know that it is complete
        self.requests = Requests(
            Presence(
                [party.name for party in config.party if party.name != config.label_holder],
                "stop" if config.network.on_missing == "stop" else "wait",
            ),
            MessageLog(folder / "log"),  # stays empty: questions change nothing
            Ledger(),
            Checks(lambda name, table, position: handshake.compare(self.about, table), self._no_reply),
            timeouts,
            hooks,
        )

    def _no_reply(self, name: str, reply: Message, asked: Message) -> None:
        raise ProtocolError(f"expected an answer about ids from {name}, got a training message.")

    def run(self) -> Aligned:
        """Find the shared rows, send out and save the list, end the alignment and return the list."""
        aligned = self._completed() or self._align()
        self.uninformed = self.requests.finish()
        self._mark.unlink(missing_ok=True)
        return aligned

    def _align(self) -> Aligned:
        by = {"psi": self._by_psi, "hash": self._by_hashes, "none": self._by_order}
        shared = by[self.config.data.align]()
        if not shared:
            self._void(VoidReason.EMPTY)
            raise nothing_shared(self.ids)
        try:
            aligned = Aligned(shared, self._splits(shared))
        except DataError:
            self._void(VoidReason.UNCUT)
            raise
        self._send_list(aligned)
        aligned.save(self.folder)
        write_atomically(self._mark, self._mark_of(aligned))
        return aligned

    def _completed(self) -> Aligned | None:
        """Return the list if all parties had it before a crash: some may have left since, and will not come back."""
        try:
            aligned = Aligned.load(self.folder) if self._mark.exists() else None
        except DataError:
            return None
        if aligned is None or self._mark.read_bytes() != self._mark_of(aligned):
            return None
        log.warning(
            "all parties had the list when this process was killed; ending that alignment. Start again for a new one"
        )
        return aligned

    def _mark_of(self, aligned: Aligned) -> bytes:
        return order_digest([self.about["digest"], aligned.digest().hex(), *self.ids], bytes(SALT)).hex().encode()

    def _splits(self, shared: list[str]) -> bytes:
        """Return the split code of every shared row."""
        data, seed = self.config.data, self.config.seed
        shares = (data.validation, data.test)
        if data.stratify and self.labels is not None:
            places = {name: place for place, name in enumerate(self.ids)}
            splits = stratified(shared, self.labels[[places[name] for name in shared]], seed, shares)
        else:
            splits = split_of(shared, seed, shares)
        codes = np.zeros(len(shared), dtype=np.uint8)
        for code, split in enumerate(SPLITS):
            codes[splits[split]] = code
        return codes.tobytes()

    # The three ways to find the shared ids.

    def _by_psi(self) -> list[str]:
        """Return the ids that all have, found by private set intersection with each party."""
        shards, together = self._sizes()
        self.total = shards
        with psi.check_workers(), psi.Intersection(self.ids, shards, together, self.processes, self._wait) as work:
            for group in work.groups:
                self._ask_about(work, shards, work.points(group))
                self.done += len(group)
            return work.common()

    def _ask_about(self, work: psi.Intersection, shards: int, points: dict[int, bytes]) -> None:
        """Ask all parties about some shards, and start matching their answers."""
        question = messages.write_blinded(work.salt, shards, points)
        answers = self._ask_all(question, lambda _, answer: messages.read_blinded_answer(answer, points))
        for name, parts in answers.items():
            for shard, (theirs, both) in parts.items():
                work.compare(name, shard, theirs, both)

    def _sizes(self) -> tuple[int, int]:
        """Return the number of shards that the longest list needs, and how many at a time keep the parties busy."""

        def read(name: str, answer: bytes) -> tuple[int, int]:
            reader = messages.read_answer(answer, AlignmentKind.SIZE)
            shards = messages.bounded(reader, 1, MOST_SHARDS, "the number of shards")
            processes = messages.bounded(reader, 1, MOST_PROCESSES, "the number of processes")
            reader.end("answer")
            return shards, processes

        sizes = self._ask_all(messages.write(AlignmentKind.SIZE), read).values()
        shards = max(psi.shards_for(len(self.ids)), *(shards for shards, _ in sizes))
        if shards == MOST_SHARDS:  # each may have any number of ids
            return shards, 1
        return shards, -(-max(processes for _, processes in sizes) // 2)  # a shard is two tasks for a party

    def _by_hashes(self) -> list[str]:
        """Return the ids whose salted digests all parties sent, ordered by their bytes."""
        salt = secrets.token_bytes(SALT)
        by_digest = dict(zip(map(psi.keyed(salt), self.ids), self.ids, strict=True))
        starts, totals = dict.fromkeys(self.requests.names, 0), dict.fromkeys(self.requests.names, 1)
        found: dict[str, set[bytes]] = {name: set() for name in self.requests.names}

        def read(name: str, answer: bytes) -> list[bytes]:
            total, digests = messages.read_digests(answer, starts[name])
            if starts[name] and totals[name] != total:
                raise ProtocolError(
                    f"expected {totals[name]:,} ids of {name} as before, got {total:,}: start all participants again."
                )
            totals[name] = total
            return digests

        while open_ := [name for name in self.requests.names if starts[name] < totals[name]]:
            asked = {name: messages.write(AlignmentKind.DIGESTS, salt, starts[name]) for name in open_}
            for name, digests in self._ask(asked, read).items():
                found[name] |= by_digest.keys() & digests
                starts[name] += DIGESTS
            self.done, self.total = sum(starts.values()) // DIGESTS, sum(-(-n // DIGESTS) for n in totals.values())
        return sorted(by_digest[digest] for digest in set(by_digest).intersection(*found.values()))

    def _by_order(self) -> list[str]:
        """Return all ids in the table's order, after checking that all parties hold the same."""
        salt = secrets.token_bytes(SALT)
        expected = messages.write(AlignmentKind.ORDER, len(self.ids), order_digest(self.ids, salt))

        def read(name: str, answer: bytes) -> None:
            count = messages.read_answer(answer, AlignmentKind.ORDER).number("the number of ids")
            if answer != expected:
                raise ProtocolError(
                    f"the server holds {len(self.ids):,} rows and {name} {count:,}, not the same ids in the same "
                    "order, which align = 'none' needs: sort the tables alike, or set data.align = 'psi' at all."
                )

        self._ask_all(messages.write(AlignmentKind.ORDER, salt), read)
        return list(self.ids)

    # The result.

    def _send_list(self, aligned: Aligned) -> None:
        """Send every party the list in parts; a party that restarts gets it from the beginning."""
        parts = {
            p.start: p
            for p in parts_of(aligned.digest(), aligned.ids, aligned.splits, self.config.data.align != "none")
        }
        total, received = len(aligned.ids), dict.fromkeys(self.requests.names, 0)

        def read(name: str, answer: bytes) -> int:
            reader = messages.read_answer(answer, AlignmentKind.ROWS)
            rows = reader.number("the number of rows")
            reader.end("answer")
            if rows not in parts and rows != total:
                raise ProtocolError(f"expected {name} to confirm rows of the list that were sent, got {rows:,} rows.")
            return rows

        while open_ := [name for name, rows in received.items() if rows < total]:
            received |= self._ask({name: parts[received[name]].to_bytes() for name in open_}, read)

    def _void(self, reason: VoidReason) -> None:
        """Tell the parties why there is no list, and end the alignment."""
        self._ask_all(
            messages.write(AlignmentKind.VOID, reason),
            lambda _, answer: messages.read_answer(answer, AlignmentKind.VOID),
        )
        self.uninformed = self.requests.finish()

    def _ask_all(self, question: bytes, read: Callable[[str, bytes], Read]) -> dict[str, Read]:
        return self._ask(dict.fromkeys(self.requests.names, question), read)

    def _ask(self, questions: Mapping[str, bytes], read: Callable[[str, bytes], Read]) -> dict[str, Read]:
        """Ask parties and return what `read` makes of their answers; a party whose answer it refuses is refused."""
        results: dict[str, Read] = {}

        def check(name: str, answer: bytes) -> None:
            results[name] = read(name, answer)

        self.requests.ask(questions, check)
        return results

    def _wait(self, work: Future[Any]) -> None:
        """Serve parties that connect and leave until a worker is done."""
        work.add_done_callback(lambda _: self.requests.wake())
        self.requests.idle(work.done)


def nothing_shared(ids: Sequence[str]) -> DataError:
    """Return the error about an empty list, without what other participants hold."""
    return DataError(
        f"no row is shared by all. The ids here have {shapes(ids)}. Compare that with the others: is it the right "
        "column, and does data.id_format leave out what differs ('strip' spaces, 'case', leading 'zeros')?"
    )
