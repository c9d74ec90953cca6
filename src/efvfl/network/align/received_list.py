"""The list of rows as a party receives it: places among its own ids, then their splits or their numbers.

No id is ever sent. The party finds the ids by their places, puts them in order and tests whether the label holder holds
the same list: neither a label holder that invents places nor one that learnt of them by chance gets past that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from efvfl.errors import ProtocolError
from efvfl.network.align.aligned_rows import SPLITS, Aligned, OuterPlaces
from efvfl.network.align.list_targets import ListTargets
from efvfl.network.align.messages import EverybodyPart, NumbersPart, Place, PlacesPart, SplitsPart
from efvfl.network.align.same_list import ListResponse


class ReceivedList:
    """One list, until it is complete."""

    def __init__(self, salt: bytes, total: int) -> None:
        """Expect so many rows."""
        self.salt = salt
        self.total = total
        self.places: list[Place] = []
        self.ids: list[str] = []  # known once all places are
        self.splits = bytearray()
        self.totals: tuple[int, ...] = ()  # align = "outer": rows of the whole list, by split
        self.rows: list[int] = []  # and the numbers of the own ones
        self.masks: dict[str, bytes] = {}  # with shared labels: who has which rows of it,
        self.targets: ListTargets | None = None  # and their labels
        self.number = 0  # of the list, the same at all participants; known with the splits
        self._response: ListResponse | None = None

    @property
    def response(self) -> tuple[bytes, bytes] | None:
        """What the label holder is told to see whether both hold the same list, once all places are here."""
        return (self._response.point, self._response.tag) if self._response else None

    def add_places(self, part: PlacesPart) -> None:
        """Take a part that begins where the last one ended; leave out any other."""
        if part.total != self.total:
            raise ProtocolError(f"expected a list of {self.total:,} rows as before, got one of {part.total:,}.")
        if part.start != len(self.places):
            return
        if any(a >= b for a, b in pairwise(self.places[-1:] + part.places)):
            raise ProtocolError("expected the places of shared rows in increasing order, each once, got another order.")
        self.places += part.places

    def complete(self, ids: list[str], challenge: bytes) -> None:
        """Note the ids, in the list's order, and respond to the label holder's challenge."""
        self.ids = ids
        self._response = ListResponse(ids, self.salt, challenge)

    def add_splits(self, part: SplitsPart) -> None:
        """Take a part of the splits from a label holder that holds the same list."""
        self._check_confirmed(part)
        if max(part.splits) >= len(SPLITS):
            raise ProtocolError(f"expected splits from 0 to {len(SPLITS) - 1}, got {max(part.splits)}.")
        if part.start != len(self.splits):
            return
        count = part.start + len(part.splits)
        if count > self.total:
            raise ProtocolError(f"expected {self.total:,} splits, one for each row, got {count:,}.")
        self.splits += part.splits

    def add_numbers(self, part: NumbersPart) -> None:
        """Take a part of the rows' numbers from a label holder that holds the same list."""
        self._check_confirmed(part)
        if part.totals != (self.totals or part.totals):
            raise ProtocolError(f"expected a list of {self.totals} rows as before, got one of {part.totals}.")
        if part.start != len(self.rows):
            return
        rows = self.rows + part.rows
        if len(rows) > self.total or len(set(rows)) != len(rows):
            raise ProtocolError(f"expected {self.total:,} numbers of rows, each once, got others.")
        self.totals, self.rows = part.totals, rows

    @property
    def told(self) -> int:
        """Of how many rows of the whole list it is known who has them, where labels are shared."""
        return len(self.targets.labels) if self.targets else 0

    def add_everybody(self, part: EverybodyPart, names: Sequence[str]) -> None:
        """Take a part of who has which rows, and of the labels."""
        self._check_confirmed(part)
        if len(self.rows) != self.total:
            raise ProtocolError("expected the numbers of the own rows first, got those of all.")
        if part.start != self.told:
            return
        masks, targets = part.masks(names), ListTargets.read(part.table, part.count)
        if part.start + part.count > sum(self.totals):
            raise ProtocolError(f"expected a list of {sum(self.totals):,} rows as before, got a longer one.")
        self.targets = self.targets.joined(targets) if self.targets else targets
        self.masks = {name: self.masks.get(name, b"") + mask for name, mask in masks.items()}

    def _check_confirmed(self, part: SplitsPart | NumbersPart | EverybodyPart) -> None:
        """Refuse what is said of a list by somebody who has not shown to hold it, and a second number of it."""
        if self._response is None or not self._response.confirms(part.confirmation):
            raise ProtocolError(
                "expected the splits of the list that is held here, got those of another: the label holder sent places "
                "whose ids it does not know, or a table was changed. Start all participants again."
            )
        if part.number != (self.number or part.number):
            raise ProtocolError(f"expected splits of alignment {self.number} as before, got some of {part.number}.")
        self.number = part.number

    def outer(self, name: str, shared: bool) -> Aligned | None:
        """Return the rows of this party on the label holder's list, in its order, if all of it is here.

        With shared labels that is also what all know.
        """
        if len(self.rows) != self.total or (shared and self.told != sum(self.totals)):
            return None
        order = sorted(range(self.total), key=lambda place: self.rows[place])
        held = bytearray(sum(self.totals))
        for row in self.rows:
            held[row] = 1
        masks = self.masks or {name: bytes(held)}
        if masks[name] != held:
            raise ProtocolError("expected the own rows among those of all, got others: start all participants again.")
        places = OuterPlaces(self.totals, bytes(held), masks, self.targets)
        codes = places.codes()
        return Aligned([self.ids[i] for i in order], bytes(codes[self.rows[i]] for i in order), places)

    def aligned(self) -> Aligned | None:
        """Return the whole list, if it is here."""
        return Aligned(self.ids, bytes(self.splits)) if len(self.splits) == self.total else None


def ids_at(ids: list[str], places: list[Place], index_at: Callable[[Place], int | None], name: str) -> list[str]:
    """Return the ids at these places, ordered by their bytes; refuse a place that has none."""
    found = [index_at(place) for place in places]
    # A saved order may be of a larger table, or damaged: an index past the end is no id either.
    chosen = [ids[index] for index in found if index is not None and index < len(ids)]
    if len(chosen) != len(found):
        raise ProtocolError(f"the list of shared rows has places where {name} has no id.")
    return sorted(chosen)
