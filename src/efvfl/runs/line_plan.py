"""Which setting reaches a goal soonest over a line of a given speed: a short trial of several on the real rows.

Rounds and bytes to the goal are counted in one process, where they are the same as over a network. What they take on
the line is arithmetic (`line.py`). Only validation rows decide, never test rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch

from efvfl.config import run_file, user_code
from efvfl.config.run_file import RunConfig
from efvfl.data import Dataset
from efvfl.errors import ConfigError, describe
from efvfl.runs.build import load_data
from efvfl.runs.candidates import Candidate, candidates, to_toml, yardstick
from efvfl.runs.goal import Goal, ValidationMetrics, parse_goal
from efvfl.runs.line import Line
from efvfl.runs.trial import Ending, Trial, Tried
from efvfl.training.record import finite_or_null

SECONDS = 120.0  # of the whole trial
YARDSTICK_SHARE = 1 / 3  # of them, at most
NEXT_SHARE = 1 / 2  # of what is left, at most, for each other candidate: most are abandoned long before

# Hears of progress: which candidate, its number from 0, how many there are, rounds so far, and the metric.
Watch = Callable[[str, int, int, int, float], None]


@dataclass(frozen=True)
class LinePlan:
    """What a trial has found."""

    line: Line
    goal: Goal
    given: bool  # whether the goal's value was given; else it follows from the yardstick
    tried: list[Tried]  # reached ones first, by expected time; the yardstick is among them

    @property
    def yardstick(self) -> Tried:
        """SVFL."""
        return next(tried for tried in self.tried if tried.config.method.name == "svfl")

    @property
    def best(self) -> Tried | None:
        """The one that reaches the goal soonest; None: nobody has reached it."""
        return self.tried[0] if self.tried and self.tried[0].reached else None

    def sooner(self, tried: Tried) -> float:
        """Return how many times sooner than the yardstick it reaches the goal; NaN if one of them does not."""
        both = tried.reached and self.yardstick.reached
        return self.yardstick.seconds / tried.seconds if both else float("nan")

    @property
    def unfinished(self) -> int:
        """How many settings there was not enough time for: one of them may be better."""
        return sum(tried.ending in ("stopped", "not tried") for tried in self.tried)

    @property
    def toml(self) -> str:
        """The lines for the file of the best one; empty if there is none."""
        return to_toml(self.best.config) if self.best else ""

    def to_table(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        found = {
            "line": {"round_trip": self.line.round_trip, "up": self.line.up, "down": self.line.down},
            "metric": self.goal.metric,
            "target": self.goal.value,
            "target_given": self.given,
            "settings": [_row(tried) | {"times_sooner": self.sooner(tried)} for tried in self.tried],
            "toml": self.toml,
        }
        return dict(finite_or_null(found))


def _row(tried: Tried) -> dict[str, Any]:
    config = tried.config
    return {
        "method": tried.method,
        "batch_size": config.batch_size,
        "window": tried.window,
        "cached": config.agreement.cached.steps,
        "ending": tried.ending,
        "rounds": tried.rounds,
        "seconds": tried.seconds,
        "bytes_up": tried.bytes_up,
        "bytes_down": tried.bytes_down,
        "value": tried.value,
    }


def plan_run(
    config: RunConfig | Path | str,
    line: Line | None = None,
    target: str = "",
    seconds: float = SECONDS,
    *,
    base: Path | str | None = None,
    watch: Watch = lambda *_: None,
    clock: Callable[[], float] = time.monotonic,
) -> LinePlan:
    """Try which setting of a run reaches a target soonest over a line.

    - `config`: the settings, or the path of a TOML file that has them; all rows must be here, as for `train`.
    - `line`: the line of every party (default: 20 ms, 10 Mbit/s both ways).
    - `target`: such as "0.9", "auc" or "auc=0.78". Without a value: the best that SVFL reaches in the trial, less 1 %.
    - `seconds`: how long the whole trial may take.
    - `base`: where relative paths in the settings start: beside the file, or here.
    - `watch`: hears of progress.

    >>> from efvfl.config.run_file import DataConfig
    >>> plan = plan_run(RunConfig(epochs=2, data=DataConfig(subset=200)), Line(0.1), target="0.1", seconds=5)
    >>> plan.best.reached, plan.goal
    (True, Goal(metric='accuracy', value=0.1))
    """
    if not isinstance(config, RunConfig):
        base = Path(config).parent if base is None else base
        config = run_file.load(Path(config))
    if not (isinstance(seconds, int | float) and seconds > 0):
        raise ConfigError(f"seconds: expected a number above 0, got {describe(seconds)}.")
    user_code.look_in(Path(base or "."))
    if config.threads:
        torch.set_num_threads(config.threads)
    data = load_data(config, Path(base or "."))
    return _Planner(config, data, line or Line(), watch, clock).plan(target, seconds)


class _Planner:
    """Tries candidates one after the other, until its time is up."""

    def __init__(self, config: RunConfig, data: Dataset, line: Line, watch: Watch, clock: Callable[[], float]) -> None:
        self.config = config
        self.data = data
        self.line = line
        self.watch = watch
        self.clock = clock
        self.measured = ValidationMetrics(data.validation)
        self.others = candidates(config, len(data.train.labels))

    def plan(self, target: str, seconds: float) -> LinePlan:
        plain = yardstick(self.config)
        trial = self._trial(plain)
        wanted = self._goal(target, trial)
        started = self.clock()
        first, goal = self._try_yardstick(plain, trial, wanted, started + YARDSTICK_SHARE * seconds)
        tried = [first]
        for number, candidate in enumerate(self.others, start=1):
            now, last = self.clock(), number == len(self.others)
            stops = now + (started + seconds - now) * (1 if last else NEXT_SHARE)
            best = min((other.seconds for other in tried if other.reached), default=inf)
            tried.append(self._try(candidate, number, goal, best, stops))
        ordered = sorted(tried, key=lambda one: one.seconds if one.reached else inf)
        return LinePlan(self.line, goal, wanted.value is not None, ordered)

    def _trial(self, candidate: Candidate) -> Trial:
        return Trial(candidate.config, self.data, self.measured, self.line)

    def _goal(self, target: str, trial: Trial) -> Goal:
        main = trial.federation.server.loss.metric_name
        return parse_goal(target, main, lambda: self.measured.names(trial.federation)) if target else Goal(main)

    def _try_yardstick(self, plain: Candidate, trial: Trial, goal: Goal, stops: float) -> tuple[Tried, Goal]:
        """Train without compression to the goal, or, where it has no value, for the file's epochs; return its goal."""
        last = inf if goal.value is not None else self.config.epochs * trial.federation.server.batches.per_epoch
        ending = self._run(trial, plain.method, 0, goal, inf, stops, last)
        if goal.value is None:
            if ending == "failed":
                raise ConfigError("training without compression ends in numbers that are not finite: lower its rate.")
            goal, ending = goal.near(goal.best([value for _, value in trial.curve])), "reached"
        return trial.summary(plain.method, ending, goal), goal

    def _try(self, candidate: Candidate, number: int, goal: Goal, best: float, stops: float) -> Tried:
        """Train a candidate until it reaches the goal, or it shows that it is slower than the best so far."""
        if self.clock() >= stops:
            return Tried(candidate.method, candidate.config, "not tried")
        trial = self._trial(candidate)
        ending = self._run(trial, candidate.method, number, goal, best, stops)
        return trial.summary(candidate.method, ending, goal)

    def _run(
        self, trial: Trial, method: str, number: int, goal: Goal, best: float, stops: float, last: float = inf
    ) -> Ending:
        while True:
            value = trial.advance(goal.metric)
            self.watch(method, number, len(self.others) + 1, trial.rounds, value)
            if trial.failed:
                return "failed"
            if goal.reached(value):
                return "reached"
            if trial.expected(trial.rounds) > best:  # further rounds only add to it
                return "abandoned"
            if self.clock() >= stops or trial.rounds >= last:
                return "stopped"
