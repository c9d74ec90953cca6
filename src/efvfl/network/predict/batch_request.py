"""One request for predictions while it is answered: which of its ids are still wanted, and how many may be guesses."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from efvfl.network.predict.prediction import Declined, Prediction

GUESSES = 256  # ids that may not exist, of one request, that parties are asked for at first; doubled every time


@dataclass
class BatchRequest:
    """A request that waits for the parties."""

    ids: list[str]
    deadline: float
    future: Future[Prediction] = field(default_factory=Future)
    guesses: int = GUESSES  # how many ids that may not exist are asked for next
    not_asked: set[str] = field(default_factory=set)  # left out, because too many others do not exist

    def wanted(self, gone: Collection[str]) -> list[str]:
        """Return the ids that may be predicted, once each; `gone` are those that are lacking where it matters."""
        return [i for i in dict.fromkeys(self.ids) if i not in gone and i not in self.not_asked]

    def take_guesses(self, unsure: list[str], asked_in_vain: Collection[str]) -> list[str]:
        """Return those of the unsure ids to ask for next; `asked_in_vain` are ids that parties were asked for and lack.

        As long as all exist, there are more every time. Once one does not, a request finds out about no more unknown
        ids than it was paid for in advance: the rest of the unsure ones is not asked for.
        """
        lost = sum(i in asked_in_vain for i in set(self.ids))
        room = max(0, GUESSES - lost) if lost else self.guesses
        if not room:
            self.not_asked.update(unsure)
        part = unsure[:room]
        self.guesses *= 2 if part else 1
        return part

    def decline(self, error: Declined) -> None:
        """End without a prediction, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(error)


def decline_all(batch: Iterable[BatchRequest]) -> None:
    """Tell those who wait that the service ends."""
    for request in batch:
        request.decline(Declined(503, "the service is stopping. Try again when it is back."))
