"""Who is here: since when a party is missing or owes an answer, whether it has ever been here, what it was last asked.

A party that is connected and does not answer is as good as missing: after a time it counts as such.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from efvfl.errors import AbsentError

OnMissing = Literal["wait", "stop", "stale"]

RETURN = 10.0  # seconds: longer than any pause of a party that is refused and dials again at once


class Presence:
    """The one place that knows which parties a server can reach, and which of them training goes on without."""

    def __init__(self, names: Sequence[str], on_missing: OnMissing = "wait", asynchronous: bool = False) -> None:
        """Expect these parties. `on_missing`: wait for one, stop after a while, or go on without it ('stale').

        `asynchronous`: steps are taken without waiting for all of them.
        """
        self.names = list(names)
        self.on_missing = on_missing
        self.asynchronous = asynchronous
        self.missing: dict[str, float] = dict.fromkeys(names, time.monotonic())  # since when, on the monotonic clock
        self.unanswered: dict[str, float] = {}  # for how many seconds parties have owed an answer
        self.silent: set[str] = set()  # parties that have owed one for too long
        self.known: set[str] = set()  # parties that have been here
        self.patience = math.inf  # seconds for a missing party that is asked something, or told that all is done
        self.left: dict[str, int] = {}  # parties that steps go without, and the last request that was meant for them

    @property
    def time_decides(self) -> bool:
        """Whether what is sent depends on who was there when: only the log can say it again."""
        return self.on_missing == "stale" or self.asynchronous

    def arrive(self, name: str) -> None:
        """Note that a party is here."""
        self.known.add(name)
        gone = time.monotonic() - self.missing.pop(name, time.monotonic())
        if gone > RETURN and name in self.unanswered:  # it was away, and could not answer; now it has its time again
            self.unanswered[name] = max(0.0, self.unanswered[name] - gone)
            self.silent.discard(name)

    def depart(self, name: str) -> None:
        """Note that a party's connection is gone."""
        self.missing[name] = time.monotonic()

    def ask(self, name: str) -> None:
        """Note that a party is asked something; if it owes an answer already, since when does not change."""
        self.unanswered.setdefault(name, 0.0)

    def wait(self, asked: Collection[str], seconds: float, longest: float) -> set[str]:
        """Note that those who were asked something have not answered for so many more seconds.

        One that is cut off meanwhile still owes its answer. Return those that have now owed one for too long.
        """
        for name in {*asked, *self.unanswered}:
            self.unanswered[name] = self.unanswered.get(name, 0.0) + seconds
        late = {name for name, waited in self.unanswered.items() if waited > longest} - self.silent
        self.silent |= late
        return late

    def answered(self, name: str) -> None:
        """Note that a party has answered as it should."""
        self.unanswered.pop(name, None)
        self.silent.discard(name)

    def missing_for(self) -> dict[str, float]:
        """Return for how many seconds each party has been missing, or has owed an answer if that is too long."""
        now = time.monotonic()
        found = {name: now - since for name, since in self.missing.items()}
        return found | {name: max(self.unanswered[name], found.get(name, 0.0)) for name in self.silent}

    def refuse_absence(self, seconds: float) -> None:
        """End the run, by raising, if somebody has been missing for longer than this."""
        for name, gone in self.missing_for().items():
            if gone > seconds:
                raise AbsentError(
                    f"{name} has been missing for {gone:,.0f} seconds, and on_missing is 'stop'. Everything is saved: "
                    "start again when it is back, or set on_missing = 'wait'."
                )

    def given_up(self, names: Iterable[str], seconds: float) -> bool:
        """Whether steps go on without these: each has been here, and has been missing for longer than `seconds`."""
        if self.on_missing != "stale":
            return False
        missing = self.missing_for()
        return all(name in self.known and missing.get(name, 0.0) > seconds for name in names)

    def gone(self, names: Iterable[str]) -> bool:
        """Whether all of these, if any, have been missing for longer than anybody is waited for."""
        missing = self.missing_for()
        return all(missing.get(name, 0.0) > self.patience for name in names)

    def leave(self, name: str, number: int) -> None:
        """Note that a step goes without a party, which did not reply to this request."""
        self.left[name] = number

    def rejoin(self, name: str) -> int | None:
        """Note that a party takes part again; return the request it left at, or None if it had not left."""
        if name in self.left:
            self.answered(name)  # what it did not answer then is not asked any more
        return self.left.pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        """Return what outlives the process; who is connected does not."""
        return {"left": dict(self.left), "known": sorted(self.known)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; everybody is missing from now on."""
        self.left = {name: int(number) for name, number in state["left"].items()}
        self.known = set(state["known"])
