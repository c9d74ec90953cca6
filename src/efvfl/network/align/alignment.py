"""The label holder's side of an alignment: find the rows that all share, cut them into splits and tell everybody.

The label holder learns, for each party, which of its own ids that party has; a party learns the final list. Nothing is
saved before the end, so whoever is killed starts over.
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
from efvfl.network.align import messages, psi, terms
from efvfl.network.align.aligned_rows import SPLITS, Aligned, shapes
from efvfl.network.align.messages import DIGESTS, MOST_SHARDS, SALT, Reason, Word, parts_of
from efvfl.network.align.terms import order_digest
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


class AlignServer:
    """The label holder and its links."""

    def __init__(
        self,
        config: RunConfig,
        ids: list[str],
        labels: NDArray[Any] | None,
        folder: Path,
        patience: ServerTimeouts | None = None,
        hooks: Hooks | None = None,
        processes: int | None = None,
    ) -> None:
        """Align these ids, all different, with those of the parties; labels are needed to stratify."""
        self.config = config
        self.ids = ids
        self.labels = labels
        self.folder = folder
        self.about = terms.about(config, "")
        self.processes = psi.cores() if processes is None else processes
        self.done = 0  # shards, or parts of digests, that were answered
        self.total = 0  # of how many; 0: not known yet
        self.untold: set[str] = set()  # who did not hear that all is done
        self._mark = folder / "align.done"  # all have the list of this table, but may not know that all is done
        self.requests = Requests(
            Presence(
                [party.name for party in config.party if party.name != config.label_holder],
                "stop" if config.network.on_missing == "stop" else "wait",
            ),
            MessageLog(folder / "log"),  # nothing is put in it: questions change nothing
            Ledger(),
            Checks(lambda name, table, position: terms.compare(self.about, table), self._no_reply),
            patience,
            hooks,
        )

    def _no_reply(self, name: str, reply: Message, asked: Message) -> None:
        raise ProtocolError(f"{name} sent a message of training: nobody asked for it.")

    def run(self) -> Aligned:
        """Find the shared rows, hand out the list, write it down and tell everybody that all is done."""
        found = self._handed_out() or self._align()
        self.untold = self.requests.finish()
        self._mark.unlink(missing_ok=True)
        return found

    def _align(self) -> Aligned:
        by = {"psi": self._by_psi, "hash": self._by_hashes, "none": self._by_order}
        shared = by[self.config.data.align]()
        if not shared:
            self._call_off(Reason.EMPTY)
            raise nothing_shared(self.ids)
        try:
            found = Aligned(shared, self._splits(shared))
        except DataError:
            self._call_off(Reason.UNCUT)
            raise
        self._hand_out(found)
        found.save(self.folder)
        write_atomically(self._mark, self._marked(found))
        return found

    def _handed_out(self) -> Aligned | None:
        """Return the list if it was killed when all had it: some may have gone since, and would not come again."""
        try:
            found = Aligned.load(self.folder) if self._mark.exists() else None
        except DataError:
            return None
        if found is None or self._mark.read_bytes() != self._marked(found):
            return None
        log.warning("all had the list when this was killed, and are told that all is done; start again to align anew")
        return found

    def _marked(self, found: Aligned) -> bytes:
        return order_digest([self.about["digest"], found.digest().hex(), *self.ids], bytes(SALT)).hex().encode()

    def _splits(self, shared: list[str]) -> bytes:
        """Return the code of every shared row's split."""
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

    # Who has what.

    def _by_psi(self) -> list[str]:
        """Return the ids that all have by private set intersection with each party."""
        shards, together = self._sizes()
        self.total = shards
        with psi.unbroken(), psi.Intersection(self.ids, shards, together, self.processes, self._wait) as work:
            for group in work.groups:
                self._ask_about(work, shards, work.points(group))
                self.done += len(group)
            return work.common()

    def _ask_about(self, work: psi.Intersection, shards: int, points: dict[int, bytes]) -> None:
        """Ask all parties about some shards."""
        question = messages.blinded(work.salt, shards, points)
        answers = self._ask_all(question, lambda _, answer: messages.read_answered(answer, points))
        for name, parts in answers.items():
            for shard, (theirs, both) in parts.items():
                work.compare(name, shard, theirs, both)

    def _sizes(self) -> tuple[int, int]:
        """Return how many shards there must be for the longest list, and how many keep the parties busy."""

        def read(name: str, answer: bytes) -> tuple[int, int]:
            reader = messages.answer(answer, Word.SIZE)
            shards = messages.bounded(reader, 1, MOST_SHARDS, "the number of shards")
            processes = messages.bounded(reader, 1, MOST_PROCESSES, "the number of processes")
            reader.end("answer")
            return shards, processes

        sizes = self._ask_all(messages.write(Word.SIZE), read).values()
        shards = max(psi.shards_for(len(self.ids)), *(shards for shards, _ in sizes))
        if shards == MOST_SHARDS:  # there may be any number of ids in one
            return shards, 1
        return shards, -(-max(processes for _, processes in sizes) // 2)  # a shard is two pieces of work for a party

    def _by_hashes(self) -> list[str]:
        """Return the ids whose salted digests all have sent, ordered by their bytes."""
        salt = secrets.token_bytes(SALT)
        own = dict(zip(map(psi.keyed(salt), self.ids), self.ids, strict=True))
        starts, totals = dict.fromkeys(self.requests.names, 0), dict.fromkeys(self.requests.names, 1)
        found: dict[str, set[bytes]] = {name: set() for name in self.requests.names}

        def read(name: str, answer: bytes) -> list[bytes]:
            total, digests = messages.read_digests(answer, starts[name])
            if starts[name] and totals[name] != total:
                raise ProtocolError(f"{name} had {totals[name]:,} ids and now has {total:,}: start all again.")
            totals[name] = total
            return digests

        while open_ := [name for name in self.requests.names if starts[name] < totals[name]]:
            asked = {name: messages.write(Word.DIGESTS, salt, starts[name]) for name in open_}
            for name, digests in self._ask(asked, read).items():
                found[name] |= own.keys() & digests
                starts[name] += DIGESTS
            self.done, self.total = sum(starts.values()) // DIGESTS, sum(-(-n // DIGESTS) for n in totals.values())
        return sorted(own[digest] for digest in set(own).intersection(*found.values()))

    def _by_order(self) -> list[str]:
        """Return all ids, in the table's order, once all parties have shown that they hold the same."""
        salt = secrets.token_bytes(SALT)
        expected = messages.write(Word.ORDER, len(self.ids), order_digest(self.ids, salt))

        def read(name: str, answer: bytes) -> None:
            count = messages.answer(answer, Word.ORDER).number("the number of ids")
            if answer != expected:
                raise ProtocolError(
                    f"the server holds {len(self.ids):,} rows and {name} {count:,}, not the same ids in the same "
                    "order, which align = 'none' needs: sort the tables alike, or set data.align = 'psi' at all."
                )

        self._ask_all(messages.write(Word.ORDER, salt), read)
        return list(self.ids)

    # What comes of it.

    def _hand_out(self, found: Aligned) -> None:
        """Send every party the list, part by part; one that was restarted meanwhile gets it from the start."""
        parts = {
            p.start: p for p in parts_of(found.digest(), found.ids, found.splits, self.config.data.align != "none")
        }
        total, held = len(found.ids), dict.fromkeys(self.requests.names, 0)

        def read(name: str, answer: bytes) -> int:
            reader = messages.answer(answer, Word.ROWS)
            rows = reader.number("the number of rows")
            reader.end("answer")
            if rows not in parts and rows != total:
                raise ProtocolError(f"{name} says that {rows:,} rows of the list have come, which cannot be.")
            return rows

        while open_ := [name for name, rows in held.items() if rows < total]:
            held |= self._ask({name: parts[held[name]].to_bytes() for name in open_}, read)

    def _call_off(self, reason: Reason) -> None:
        """Tell the parties that there is no list."""
        self._ask_all(messages.write(Word.VOID, reason), lambda _, answer: messages.answer(answer, Word.VOID))
        self.untold = self.requests.finish()

    def _ask_all(self, question: bytes, read: Callable[[str, bytes], Read]) -> dict[str, Read]:
        return self._ask(dict.fromkeys(self.requests.names, question), read)

    def _ask(self, questions: Mapping[str, bytes], read: Callable[[str, bytes], Read]) -> dict[str, Read]:
        """Ask parties and return their answers as `read` finds them; a party whose answer it refuses is refused."""
        found: dict[str, Read] = {}

        def check(name: str, answer: bytes) -> None:
            found[name] = read(name, answer)

        self.requests.ask(questions, check)
        return found

    def _wait(self, work: Future[Any]) -> None:
        """Hear parties that come and go until a worker is done."""
        work.add_done_callback(lambda _: self.requests.wake())
        self.requests.idle(work.done)


def nothing_shared(ids: Sequence[str]) -> DataError:
    """Return the error of a list without rows, as one participant may see it."""
    return DataError(
        f"no row is shared by all. The ids here have {shapes(ids)}. Compare that with the others: is it the right "
        "column, and does data.id_format leave out what differs ('strip' spaces, 'case', leading 'zeros')?"
    )
