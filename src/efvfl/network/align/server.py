"""The label holder's side of an alignment: find the rows that take part, cut them into splits and send out the list.

The label holder learns, for each party, which of its own ids that party has; a party learns the final list. Nothing is
saved before the end, so a participant that is killed starts again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from efvfl.config.run_file import RunConfig
from efvfl.data.tables.outer_rows import check_min_parties
from efvfl.errors import DataError, ProtocolError
from efvfl.network.align import handshake, messages, points, psi, sizes
from efvfl.network.align.aligned_rows import Aligned, shapes
from efvfl.network.align.alignments import Alignments
from efvfl.network.align.delivery import Delivery
from efvfl.network.align.listing import Listing, Matches, TargetsOf, found_in, list_outer, list_same, list_shared
from efvfl.network.align.messages import DIGESTS, POINT, SALT, AlignmentKind, ShardQuestion, VoidReason
from efvfl.network.align.same_list import order_digest
from efvfl.network.links.checks import Checks
from efvfl.network.links.connections import Hooks, ServerTimeouts
from efvfl.network.links.message_log import MessageLog
from efvfl.network.links.presence import Presence
from efvfl.network.links.requests import Requests
from efvfl.util.files import write_atomically
from efvfl.wire.ledger import Ledger
from efvfl.wire.message import Message

log = logging.getLogger("efvfl")

WRONG_LISTS: Final = 3  # of one party with align = "none", and the run ends: each is a guess

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
        threads: int | None = None,
    ) -> None:
        """Align these ids, which must be distinct, with those of the parties; labels are needed to stratify."""
        check_min_parties(config)
        self.config = config
        self.ids = ids
        self.labels = labels
        self.targets_of: TargetsOf | None = None  # finds what parties are told where labels are shared and rows missing
        self.alignments = Alignments(folder)
        self.number = 0  # of the list, once it is known
        self.added = True  # it is a new one
        self.about = handshake.about(config, "")
        self.threads = threads or points.cores()
        self.done = 0  # shards, or parts of digests, that were answered
        self.total = 0  # their number; 0: not known yet
        self.uninformed: set[str] = set()  # parties that were not told that the alignment has ended
        self._newest: dict[str, int] = {}  # numbers of the parties' newest lists
        self._mark = folder / "align.done"  # exists when all parties have the list but may not know that it is complete
        self.requests = Requests(
            Presence(
                [party.name for party in config.party if party.name != config.label_holder],
                "stop" if config.network.on_missing == "stop" else "wait",
            ),
            MessageLog(folder / "log"),  # stays empty: questions change nothing
            Ledger(),
            Checks(self._check_hello, self._no_reply),
            timeouts,
            hooks,
        )

    def _check_hello(self, name: str, table: dict[str, Any], position: int) -> None:
        handshake.compare(self.about, table)
        self._newest[name] = handshake.newest(table)

    def _no_reply(self, name: str, reply: Message, asked: Message) -> None:
        raise ProtocolError(f"expected an answer about ids from {name}, got a training message.")

    def run(self) -> Aligned:
        """Find the shared rows, send out and save the list, end the alignment and return the list."""
        aligned = self._completed() or self._align()
        self.uninformed = self.requests.finish()
        self._mark.unlink(missing_ok=True)
        return aligned

    def _align(self) -> Aligned:
        by = {"psi": self._by_psi, "outer": self._by_psi, "hash": self._by_hashes, "none": self._by_order}
        matches, salts = by[self.config.data.align](self._sizes())
        listing = self._listing(matches)
        aligned = listing.aligned
        self.number = self._number_of(aligned)
        self._deliver([Delivery(n, of, self.number, salts[n]) for n, of in listing.of_parties.items()])
        self.added = self.alignments.save(self.number, aligned)
        write_atomically(self._mark, self._mark_of(aligned))
        return aligned

    def _listing(self, matches: Matches) -> Listing:
        """Return the list of rows; if there is none, tell the parties."""
        config, names = self.config, self.requests.names
        try:
            if config.data.align == "outer":
                return list_outer(config, self.ids, self.labels, matches, self.targets_of)
            if config.data.align == "none":
                return list_same(config, self.ids, self.labels, list(names))
            found = list_shared(config, self.ids, self.labels, matches)
        except DataError:
            alone = {name for name in names if config.data.align == "outer" and not found_in(matches[name]).any()}
            self._void({name: VoidReason.EMPTY if name in alone else VoidReason.UNCUT for name in names})
            raise
        if found is None:
            self._void(dict.fromkeys(names, VoidReason.EMPTY))
            raise nothing_shared(self.ids)
        return found

    def _number_of(self, aligned: Aligned) -> int:
        """Return the number of a list: the newest one's if that is the same list, or one that nobody has used."""
        own, theirs = self.alignments.newest, max(self._newest.values(), default=0)
        return own if own >= theirs and self.alignments.holds(own, aligned) else max(own, theirs) + 1

    def _completed(self) -> Aligned | None:
        """Return the list if all parties had it before a crash: some may have left since, and will not come back."""
        try:
            self.number = self.alignments.newest
            aligned = self.alignments.load(self.number) if self._mark.exists() else None
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

    # The ways to match ids. Each returns what every party has, and the salt that the list has for it.

    def _sizes(self) -> dict[str, int]:
        """Tell every party how many ids are here, and return how many each brings."""

        def read(name: str, answer: bytes) -> int:
            count = messages.read_count(answer, AlignmentKind.SIZE)
            if not count:
                raise ProtocolError(f"expected {name} to bring ids, got none.")
            sizes.check(self.config, name, count)
            if self.config.data.align == "none" and count != len(self.ids):
                raise self._not_the_same(name, count)
            return count

        counts = self._ask_all(messages.write(AlignmentKind.SIZE, len(self.ids)), read)
        for name, count in counts.items():
            sizes.describe(name, count, len(self.ids))
        return counts

    def _by_psi(self, counts: Mapping[str, int]) -> tuple[Matches, dict[str, bytes]]:
        """Find the ids by private set intersection with each party."""
        with ThreadPoolExecutor(self.threads, thread_name_prefix="efvfl-align") as workers:
            try:
                sides = {n: psi.HolderSide(self.ids, n, counts[n], workers, self._wait) for n in self.requests.names}
                self.total = sum(side.shards for side in sides.values())
                while open_ := [side for side in sides.values() if side.next < side.shards]:
                    self._ask_about({side.name: side for side in open_})
                    self.done += len(open_)
                matches = {name: side.matches() for name, side in sides.items()}
            finally:
                workers.shutdown(wait=False, cancel_futures=True)
        return matches, {name: side.salt for name, side in sides.items()}

    def _ask_about(self, sides: Mapping[str, psi.HolderSide]) -> None:
        """Ask parties about the next shard of each, and start matching their answers."""
        asked = {name: side.blind() for name, side in sides.items()}

        def read(name: str, answer: bytes) -> None:
            side = sides[name]
            side.take(*messages.read_points(answer, side.theirs, len(asked[name]) // POINT))

        questions = {
            name: ShardQuestion(side.salt, len(self.ids), side.shards, side.next, asked[name]).to_bytes()
            for name, side in sides.items()
        }
        self._ask(questions, read)

    def _by_hashes(self, counts: Mapping[str, int]) -> tuple[Matches, dict[str, bytes]]:
        """Find the ids whose salted digests all parties sent."""
        salt = secrets.token_bytes(SALT)
        index_of = {digest: index for index, digest in enumerate(map(psi.keyed(salt), self.ids))}
        received = dict.fromkeys(self.requests.names, 0)
        last = dict.fromkeys(self.requests.names, b"")
        matches = {name: np.full((len(self.ids), 2), -1, dtype=np.int64) for name in self.requests.names}
        self.total = sum(-(-count // DIGESTS) for count in counts.values())

        def read(name: str, answer: bytes) -> list[bytes]:
            total, digests = messages.read_digests(answer, received[name])
            if total != counts[name]:
                raise ProtocolError(
                    f"expected {counts[name]:,} ids of {name} as before, got {total:,}: start all participants again."
                )
            if any(a >= b for a, b in zip([last[name], *digests], digests, strict=False)):
                raise ProtocolError(f"expected digests of {name} in increasing order, each once, got another order.")
            return digests

        while open_ := [name for name in self.requests.names if received[name] < counts[name]]:
            asked = {name: messages.write(AlignmentKind.DIGESTS, salt, received[name]) for name in open_}
            for name, digests in self._ask(asked, read).items():
                for place, digest in enumerate(digests, received[name]):
                    if (index := index_of.get(digest)) is not None:
                        matches[name][index] = (0, place)
                received[name], last[name] = received[name] + len(digests), digests[-1]
                self.done += 1
        return matches, dict.fromkeys(self.requests.names, salt)

    def _by_order(self, counts: Mapping[str, int]) -> tuple[Matches, dict[str, bytes]]:
        """Match nothing: whether the parties hold the same table is tested when the list is sent."""
        return {}, {name: secrets.token_bytes(SALT) for name in counts}

    def _not_the_same(self, name: str, count: int) -> ProtocolError:
        return ProtocolError(
            f"the server holds {len(self.ids):,} rows and {name} {count:,}, not the same ids in the same "
            "order, which align = 'none' needs: sort the tables alike, or set data.align = 'psi' at all."
        )

    # The result.

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Send every party where it has rows, and when all hold the same as is known here, what it is told of them."""
        by_name = {delivery.name: delivery for delivery in deliveries}
        again: list[Delivery] = []  # whose party was refused, but may come back with another table

        def read(name: str, answer: bytes) -> None:
            delivery = by_name[name]
            delivery.take(answer)
            if delivery.same is False and self.config.data.align == "none":
                delivery.try_again()
                again.append(delivery)
                raise self._not_the_same(name, len(self.ids))

        while open_ := [d for d in deliveries if not d.done]:
            chosen = [d for d in open_ if not d.same] or open_
            again.clear()
            self._ask({d.name: d.question() for d in chosen}, read, lambda: bool(again))
            if guessing := [d.name for d in again if d.wrong >= WRONG_LISTS]:
                raise ProtocolError(
                    f"expected the same ids in the same order from {', '.join(guessing)}, got {WRONG_LISTS} lists that "
                    "differ: it may be guessing ids. No splits were sent to it. Ask its people before you start again."
                )
            if wrong := [d.name for d in chosen if d.same is False]:
                raise ProtocolError(
                    f"expected {', '.join(wrong)} to hold the shared rows that its answers point to, got another list: "
                    "it does not follow the protocol, or its table was changed meanwhile. No splits were sent. Ask its "
                    "people before you start again."
                )

    def _void(self, reasons: Mapping[str, VoidReason]) -> None:
        """Tell the parties why there is no list, and end the alignment."""
        self._ask(
            {name: messages.write(AlignmentKind.VOID, reason) for name, reason in reasons.items()},
            lambda _, answer: messages.read_answer(answer, AlignmentKind.VOID),
        )
        self.uninformed = self.requests.finish()

    def _ask_all(self, question: bytes, read: Callable[[str, bytes], Read]) -> dict[str, Read]:
        return self._ask(dict.fromkeys(self.requests.names, question), read)

    def _ask(
        self,
        questions: Mapping[str, bytes],
        read: Callable[[str, bytes], Read],
        over: Callable[[], bool] = lambda: False,
    ) -> dict[str, Read]:
        """Ask parties and return what `read` makes of their answers; a party whose answer it refuses is refused.

        Once `over`, answers that are still to come are not waited for.
        """
        results: dict[str, Read] = {}

        def check(name: str, answer: bytes) -> None:
            results[name] = read(name, answer)

        self.requests.ask(questions, check, over)
        return results

    def _wait(self, work: Future[Any]) -> None:
        """Serve parties that connect and leave until a worker is done."""
        work.add_done_callback(lambda _: self.requests.wake())
        self.requests.idle(work.done)


def nothing_shared(ids: Sequence[str], mode: str = "psi") -> DataError:
    """Return the error about an empty list, without what other participants hold."""
    what = "no row is shared with the label holder" if mode == "outer" else "no row is shared by all"
    return DataError(
        f"{what}. The ids here have {shapes(ids)}. Compare that with the others: is it the right "
        "column, and does data.id_format leave out what differs ('strip' spaces, 'case', leading 'zeros')?"
    )
