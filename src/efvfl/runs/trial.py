"""One candidate, trained until it reaches a goal: how many rounds that takes, and what each of them costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from efvfl.config.run_file import RunConfig
from efvfl.data import Dataset
from efvfl.errors import CompressionError
from efvfl.runs.build import make_federation
from efvfl.runs.goal import Goal, ValidationMetrics
from efvfl.runs.line import Line, PartyRound, Round, run_seconds

EVERY = 5  # rounds between two looks at the validation rows

Ending = Literal["reached", "abandoned", "stopped", "failed", "not tried"]


@dataclass(frozen=True)
class Tried:
    """What a trial of one setting has shown."""

    method: str
    config: RunConfig
    ending: Ending  # abandoned: slower than the best so far; stopped: the time for the trial was over
    rounds: int = 0  # to the goal, or until the trial ended
    value: float = float("nan")  # the metric at the goal, or the best one until the trial ended
    seconds: float = float("nan")  # expected on the line for these rounds
    bytes_up: float = 0.0  # of these rounds, of all parties
    bytes_down: float = 0.0

    @property
    def window(self) -> int:
        """Steps under way at a time."""
        return self.config.agreement.build().window_here

    @property
    def reached(self) -> bool:
        """Whether the goal was reached."""
        return self.ending == "reached"


@dataclass
class _Timings:
    """Seconds of computing, round by round. The median counts: a first round may also compile."""

    server: list[float] = field(default_factory=list)
    parties: dict[str, list[float]] = field(default_factory=dict)


def _clock(config: RunConfig) -> Callable[[], float]:
    """Return what measures computing: this thread's own time where it computes all, whatever else the machine does."""
    models = [config.model, *(party.model for party in config.party if party.model)]
    alone = config.threads == 1 and all(model.device == "cpu" for model in models)
    return time.thread_time if alone else time.perf_counter


class Trial:
    """A federation in one process that is trained round by round and looked at now and then."""

    def __init__(self, config: RunConfig, data: Dataset, measured: ValidationMetrics, line: Line) -> None:
        """Build the federation of a candidate."""
        self.config = config
        self.federation = make_federation(config, data)
        self.measured = measured
        self.line = line
        self.curve: list[tuple[int, float]] = []  # rounds, and the metric after them
        self.failed = False
        self.federation.transport.clock = self.clock = _clock(config)
        self._timings = _Timings(parties={name: [] for name in self.federation.parties})

    @property
    def rounds(self) -> int:
        """Rounds that were trained."""
        return self.federation.server.step_number

    @property
    def window(self) -> int:
        """Steps under way at a time."""
        return self.federation.window

    def advance(self, metric: str) -> float:
        """Train for a few rounds, and return the metric after them; NaN if training has failed."""
        try:
            for _ in range(EVERY):
                self._round()
        except CompressionError:  # values that are not finite any more
            self.failed = True
            return float("nan")
        self.curve.append((self.rounds, self.measured.measure(self.federation, metric)))
        return self.curve[-1][1]

    def _round(self) -> None:
        """Train one round, and note how long the server and every party computed."""
        seconds = self.federation.transport.seconds
        before, started = dict(seconds), self.clock()
        self.federation.step()
        spent = {name: seconds[name] - before[name] for name in seconds}
        self._timings.server.append(self.clock() - started - sum(spent.values()))
        for name, times in self._timings.parties.items():
            times.append(spent[name])

    @property
    def cost(self) -> Round:
        """What a round costs: mean bytes, median computing."""
        ledger, rounds = self.federation.ledger, max(1, self.rounds)
        reports = rounds + self.federation.driver.reports  # some were made for rounds that follow
        parties = [
            PartyRound(ledger.total("up", name) / reports, ledger.total("down", name) / rounds, median(times or [0.0]))
            for name, times in self._timings.parties.items()
        ]
        return Round(parties, median(self._timings.server or [0.0]))

    def expected(self, rounds: int) -> float:
        """Return the seconds that so many rounds take on the line."""
        return run_seconds(self.line, self.cost, self.window, rounds)

    def summary(self, method: str, ending: Ending, goal: Goal) -> Tried:
        """Return what the trial has shown so far: up to the goal where it was reached."""
        rounds, value = self.rounds, goal.best([value for _, value in self.curve])
        if ending == "reached":
            rounds, value = next((at, found) for at, found in self.curve if goal.reached(found))
        cost = self.cost
        return Tried(
            method,
            self.config,
            ending,
            rounds,
            value,
            self.expected(rounds),
            rounds * sum(party.bytes_up for party in cost.parties),
            rounds * sum(party.bytes_down for party in cost.parties),
        )
