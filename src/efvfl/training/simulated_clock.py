"""Virtual time in one process: how long parties would take, without waiting for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from efvfl.errors import ConfigError
from efvfl.training.arrivals import Enough

# Seconds from a message to a party until its report is at the server: by name (1 if left out), or by name and step.
ReportSeconds = Mapping[str, float] | Callable[[str, int], float]


class SimulatedClock:
    """The server's clock, and when replies that are under way are there.

    >>> clock = SimulatedClock({"telco": 10.0})
    >>> arrivals = {name: clock.arrival(name, step=0) for name in ("bank", "telco")}
    >>> clock.wait_for(arrivals.values())
    >>> clock.now
    10.0
    """

    def __init__(self, seconds: ReportSeconds) -> None:
        """Let parties take so long for a report."""
        self.seconds = seconds
        self.now = 0.0
        self._busy: dict[str, float] = {}  # until when a party computes: it does one thing at a time

    def arrival(self, name: str, step: int) -> float:
        """Return when a party's report on a step is there, if it is asked for it now."""
        given = self.seconds
        taken = given(name, step) if callable(given) else given.get(name, 1.0)
        if not taken >= 0:
            raise ConfigError(f"report_seconds: expected 0 or more for {name!r} at step {step}, got {taken!r}.")
        self._busy[name] = max(self.now, self._busy.get(name, 0.0)) + taken
        return self._busy[name]

    def wait_for(self, arrivals: Iterable[float]) -> None:
        """Let time pass until all of these are there."""
        self.now = max([self.now, *arrivals])

    def wait_until(self, enough: Enough, arrivals: Mapping[str, float]) -> set[str]:
        """Let time pass until a step can be taken with the replies that are there; return whose these are."""
        deadline = self.now + enough.quorum.deadline_seconds
        began, moments = self.now, sorted({*arrivals.values(), deadline})
        for moment in moments:
            self.now = max(began, moment)
            here = {name for name, arrival in arrivals.items() if arrival <= self.now}
            if enough.met(here, arrivals, self.now - began):
                return enough.taken(here)
        raise AssertionError("when all are there a step can be taken")

    def state_dict(self) -> dict[str, Any]:
        """Return what time it is, and who computes until when."""
        return {"now": self.now, "busy": dict(self._busy)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.now = float(state["now"])
        self._busy = {name: float(until) for name, until in state["busy"].items()}
