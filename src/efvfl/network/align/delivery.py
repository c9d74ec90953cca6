"""The list of rows on its way to one party: its places, the test that both hold the same list, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from efvfl.errors import ProtocolError
from efvfl.network.align import messages
from efvfl.network.align.list_targets import ListTargets
from efvfl.network.align.messages import AlignmentKind, EverybodyPart, NumbersPart, Places, PlacesPart, SplitsPart
from efvfl.network.align.same_list import ListChallenge


@dataclass(frozen=True)
class ListHead:
    """What every part of a list begins with, once both sides hold the same ids."""

    salt: bytes
    confirmation: bytes
    number: int  # of the list


class RowFacts(Protocol):
    """What a party is told of the rows of a list, in parts."""

    @property
    def kind(self) -> AlignmentKind:
        """The kind of the questions that tell it."""

    @property
    def total(self) -> int:
        """How many rows it is about."""

    def part(self, head: ListHead, start: int) -> bytes:
        """Return the question with the rows from `start` on."""


@dataclass(frozen=True)
class RowSplits:
    """The splits of the rows that all share, in the order of the list."""

    splits: bytes
    kind: AlignmentKind = AlignmentKind.SPLITS

    @property
    def total(self) -> int:
        """How many rows it is about."""
        return len(self.splits)

    def part(self, head: ListHead, start: int) -> bytes:
        """Return the question with the rows from `start` on."""
        splits = self.splits[start : start + messages.ROWS]
        return SplitsPart(head.salt, head.confirmation, head.number, start, splits).to_bytes()


@dataclass(frozen=True)
class RowNumbers:
    """The numbers of a party's rows on the label holder's list, in the order of the ids."""

    totals: tuple[int, ...]  # rows of the whole list, by split
    rows: Sequence[int]
    kind: AlignmentKind = AlignmentKind.NUMBERS

    @property
    def total(self) -> int:
        """How many rows it is about."""
        return len(self.rows)

    def part(self, head: ListHead, start: int) -> bytes:
        """Return the question with the rows from `start` on."""
        rows = [int(row) for row in self.rows[start : start + messages.ROWS]]
        return NumbersPart(head.salt, head.confirmation, head.number, self.totals, start, rows).to_bytes()


@dataclass(frozen=True)
class RowsOfAll:
    """Who has which rows of the label holder's list, and their labels, where labels are shared."""

    masks: Mapping[str, bytes]  # by party, a byte for each row
    targets: ListTargets
    kind: AlignmentKind = AlignmentKind.EVERYBODY

    @property
    def total(self) -> int:
        """How many rows it is about."""
        return len(self.targets.labels)

    def part(self, head: ListHead, start: int) -> bytes:
        """Return the question with the rows from `start` on."""
        rows = slice(start, min(start + messages.ROWS, self.total))
        has = {name: messages.packed(mask[rows]) for name, mask in self.masks.items()}
        table = {"has": has, **self.targets.part(rows).table()}
        count = rows.stop - rows.start
        return EverybodyPart(head.salt, head.confirmation, head.number, start, count, table).to_bytes()


@dataclass(frozen=True)
class PartyList:
    """What one party is told: the ids that it has of the list, where it has them, and facts about the rows."""

    ids: list[str]  # ordered by their bytes, unless all hold the same table
    places: Places | None  # a row for each id; None: it holds the same ids in the same order, and needs no places
    facts: Sequence[RowFacts]


class Delivery:
    """Which question comes next for a party, whatever it has forgotten since the last one."""

    def __init__(self, name: str, listed: PartyList, number: int, salt: bytes) -> None:
        """Deliver the list of this number."""
        self.name: Final = name
        self.same: bool | None = None  # whether the party holds the same list; None: not known yet
        self.done = False
        self.wrong = 0  # lists of the party that were not the same
        self._ids = listed.ids
        self._number = number
        self._salt = salt
        # Not in the list's order, which is nobody's business.
        self._places = None if listed.places is None else listed.places[np.lexsort(listed.places.T[::-1])]
        self._facts = listed.facts
        self._told = 0  # facts that are there in full
        self._challenge = ListChallenge(listed.ids, salt)
        self._received = 0  # rows of the places, and then of the facts that are told now

    def question(self) -> bytes:
        """Return the next question."""
        if self.same:
            head = ListHead(self._salt, self._challenge.confirmation, self._number)
            return self._facts[self._told].part(head, self._received)
        part = slice(self._received, self._received + messages.ROWS)
        places = [] if self._places is None else [(shard, place) for shard, place in self._places[part].tolist()]
        return PlacesPart(self._salt, self._challenge.point, len(self._ids), self._received, places).to_bytes()

    def take(self, answer: bytes) -> None:
        """Take its answer."""
        if self.same:
            self._take_facts(answer)
            return
        count, response = messages.read_place_answer(answer, len(self._ids))
        self._checked(count, len(self._ids))
        same = self._challenge.check(*response) if response else None  # may refuse it: then nothing has changed
        self.same, self._received = same, 0 if response else count

    def _take_facts(self, answer: bytes) -> None:
        facts = self._facts[self._told]
        self._received = self._checked(messages.read_count(answer, facts.kind), facts.total)
        if not self._received:  # it was started again and knows nothing of the list
            self.same, self._told = None, 0
        elif self._received == facts.total:
            self._told, self._received = self._told + 1, 0
            self.done = self._told == len(self._facts)

    def try_again(self) -> None:
        """Count a wrong list and ask anew, with another challenge: a response must not be of use for a second guess."""
        self.wrong += 1
        self.same, self._challenge = None, ListChallenge(self._ids, self._salt)

    def _checked(self, count: int, total: int) -> int:
        if count > total or (count != total and count % messages.ROWS):
            raise ProtocolError(f"expected {self.name} to confirm rows that were sent, got {count:,} rows.")
        return count
