"""The list of shared rows on its way to one party: its places, the test that both hold the same list, the splits."""

from __future__ import annotations

from typing import Final

from efvfl.errors import ProtocolError
from efvfl.network.align import messages
from efvfl.network.align.aligned_rows import Aligned
from efvfl.network.align.messages import AlignmentKind, Place, PlacesPart, SplitsPart
from efvfl.network.align.same_list import ListChallenge


class Delivery:
    """Which question comes next for a party, whatever it has forgotten since the last one."""

    def __init__(self, name: str, aligned: Aligned, number: int, salt: bytes, places: list[Place] | None) -> None:
        """Deliver the list of this number; a party that holds the same ids in the same order needs no places."""
        self.name: Final = name
        self.same: bool | None = None  # whether the party holds the same list; None: not known yet
        self.done = False
        self.wrong = 0  # lists of the party that were not the same
        self._aligned = aligned
        self._number = number
        self._salt = salt
        self._places = None if places is None else sorted(places)  # not in the list's order, which is nobody's business
        self._challenge = ListChallenge(aligned.ids, salt)
        self._received = 0  # places, and then splits

    @property
    def _total(self) -> int:
        return len(self._aligned.ids)

    def question(self) -> bytes:
        """Return the next question."""
        stop = self._received + messages.ROWS
        if self.same:
            splits = self._aligned.splits[self._received : stop]
            return SplitsPart(self._salt, self._challenge.confirmation, self._number, self._received, splits).to_bytes()
        places = [] if self._places is None else self._places[self._received : stop]
        return PlacesPart(self._salt, self._challenge.point, self._total, self._received, places).to_bytes()

    def take(self, answer: bytes) -> None:
        """Take its answer."""
        if self.same:
            self._received = self._checked(messages.read_count(answer, AlignmentKind.SPLITS))
            self.done = self._received == self._total
            if not self._received:  # it was started again and knows nothing of the list
                self.same = None
            return
        count, response = messages.read_place_answer(answer, self._total)
        self._checked(count)
        same = self._challenge.check(*response) if response else None  # may refuse it: then nothing has changed
        self.same, self._received = same, 0 if response else count

    def try_again(self) -> None:
        """Count a wrong list and ask anew, with another challenge: a response must not be of use for a second guess."""
        self.wrong += 1
        self.same, self._challenge = None, ListChallenge(self._aligned.ids, self._salt)

    def _checked(self, count: int) -> int:
        if count > self._total or (count != self._total and count % messages.ROWS):
            raise ProtocolError(f"expected {self.name} to confirm rows that were sent, got {count:,} rows.")
        return count
