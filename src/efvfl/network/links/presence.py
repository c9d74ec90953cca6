"""Who is connected: since when a party is missing, whether it has ever been here, and what it was last asked."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

OnMissing = Literal["wait", "stop", "stale"]


class Presence:
    """The one place that knows which parties a server can reach, and which of them training goes on without."""

    def __init__(self, names: Sequence[str], on_missing: OnMissing = "wait") -> None:
        """Expect these parties. `on_missing`: wait for one, stop after a while, or go on without it ('stale')."""
        self.names = list(names)
        self.on_missing = on_missing
        self.missing: dict[str, float] = dict.fromkeys(names, time.monotonic())  # since when, on the monotonic clock
        self.known: set[str] = set()  # parties that have been here
        self.left: dict[str, int] = {}  # parties that steps go without, and the last request that was meant for them

    def arrive(self, name: str) -> None:
        """Note that a party is here."""
        self.known.add(name)
        self.missing.pop(name, None)

    def depart(self, name: str) -> None:
        """Note that a party's connection is gone."""
        self.missing[name] = time.monotonic()

    def missing_for(self) -> dict[str, float]:
        """Return for how many seconds each missing party has been missing."""
        now = time.monotonic()
        return {name: now - since for name, since in self.missing.items()}

    def given_up(self, names: Iterable[str], seconds: float) -> bool:
        """Whether steps go on without these: each has been here, and has been missing for longer than `seconds`."""
        if self.on_missing != "stale":
            return False
        missing = self.missing_for()
        return all(name in self.known and missing.get(name, 0.0) > seconds for name in names)

    def leave(self, name: str, number: int) -> None:
        """Note that a step goes without a party, which did not reply to this request."""
        self.left[name] = number

    def rejoin(self, name: str) -> int | None:
        """Note that a party takes part again; return the request it left at, or None if it had not left."""
        return self.left.pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        """Return what outlives the process; who is connected does not."""
        return {"left": dict(self.left), "known": sorted(self.known)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; everybody is missing from now on."""
        self.left = {name: int(number) for name, number in state["left"].items()}
        self.known = set(state["known"])
