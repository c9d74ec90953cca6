"""The list of shared rows as a party receives it: places among its own ids, then splits.

No id is ever sent. The party finds the ids by their places, puts them in order and tests whether the label holder holds
the same list: neither a label holder that invents places nor one that learnt of them by chance gets past that.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from efvfl.errors import ProtocolError
from efvfl.network.align.aligned_rows import SPLITS, Aligned
from efvfl.network.align.messages import Place, PlacesPart, SplitsPart
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
        if self._response is None or not self._response.confirms(part.confirmation):
            raise ProtocolError(
                "expected the splits of the list that is held here, got those of another: the label holder sent places "
                "whose ids it does not know, or a table was changed. Start all participants again."
            )
        if max(part.splits) >= len(SPLITS):
            raise ProtocolError(f"expected splits from 0 to {len(SPLITS) - 1}, got {max(part.splits)}.")
        if part.number != (self.number or part.number):
            raise ProtocolError(f"expected splits of alignment {self.number} as before, got some of {part.number}.")
        self.number = part.number
        if part.start == len(self.splits):
            self.splits += part.splits
        if len(self.splits) > self.total:
            raise ProtocolError(f"expected {self.total:,} splits, one for each row, got {len(self.splits):,}.")

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
