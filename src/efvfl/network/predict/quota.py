"""How much each client may ask for: ids in a minute, and ids that a party does not hold in an hour."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from efvfl.network.predict.prediction import Declined

MINUTE, HOUR = 60.0, 3600.0


@dataclass
class _Bucket:
    """An amount that is spent and returns with time. A request larger than all of it is let through when it is full."""

    size: int
    seconds: float  # until an empty one is full
    level: float
    looked: float

    def wait(self, wanted: int, now: float) -> float:
        """Return the seconds until so many can be spent, or as many as there ever are."""
        self.level = min(self.size, self.level + (now - self.looked) * self.size / self.seconds)
        self.looked = now
        return max(0.0, (min(wanted, self.size) - self.level) * self.seconds / self.size)


class ClientQuota:
    """The quotas of all clients, by name."""

    def __init__(self, ids: int, unknown: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Allow every client so many ids a minute and so many unknown ones an hour; 0: no limit."""
        self.ids = ids
        self.unknown = unknown
        self._clock = clock
        self._asked: dict[str, _Bucket] = {}
        self._guessed: dict[str, _Bucket] = {}

    def spend(self, client: str, ids: int) -> None:
        """Count ids that a client asks for; Declined if it has to wait."""
        if not self.ids:
            return
        bucket = self._bucket(self._asked, client, self.ids, MINUTE)
        if wait := bucket.wait(ids, self._clock()):
            text = f"expected at most {self.ids:,} ids a minute of one client, got more. Ask again in {_full(wait)} s."
            raise Declined(429, text, retry=_full(wait))
        bucket.level -= ids

    def reserve(self, client: str, guesses: int) -> None:
        """Count ids that may not exist as if they did not; Declined if a client has asked for too many such ids."""
        if not self.unknown or not guesses:
            return
        bucket = self._bucket(self._guessed, client, self.unknown, HOUR)
        if wait := bucket.wait(1, self._clock()):
            text = (
                f"expected at most {self.unknown:,} unknown ids an hour of one client, got more: until there is room "
                f"again, in {_full(wait)} s, only rows of the training, validation and test are predicted, and those "
                "that were predicted before."
            )
            raise Declined(429, text, retry=_full(wait))
        bucket.level -= guesses

    def settle(self, client: str, guesses: int, unknown: int) -> None:
        """Count those that did not exist, in place of the guesses that were reserved."""
        if self.unknown:
            bucket = self._bucket(self._guessed, client, self.unknown, HOUR)
            bucket.wait(0, self._clock())
            bucket.level = min(self.unknown, bucket.level + guesses - unknown)

    def _bucket(self, of: dict[str, _Bucket], client: str, size: int, seconds: float) -> _Bucket:
        return of.setdefault(client, _Bucket(size, seconds, size, self._clock()))


def _full(seconds: float) -> int:
    return max(1, math.ceil(seconds))
