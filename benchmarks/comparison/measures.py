"""What is compared: the metric at a budget of bytes, and bytes, rounds and seconds to a target, from the records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from benchmarks.comparison.jobs import REFERENCE, Found, chosen_rate, target, tuning
from benchmarks.comparison.methods import ENTRANTS
from benchmarks.comparison.training import SEEDS, Curve, Point
from efvfl.runs.line import Line, PartyRound, Round, run_seconds

BUDGET_SHARE = 0.1  # of what SVFL sends in its whole run, both directions
LINE = Line()  # of each party to the server


@dataclass(frozen=True)
class Measured:
    """A run in numbers. What it never reached is None."""

    seed: int
    at_budget: float | None  # test metric, of the model that is best on validation rows within the budget
    megabytes: float | None  # to the target, both directions, all parties
    rounds: float | None  # to the target
    seconds: float | None  # to the target on the line: arithmetic, without computing
    kept: float | None  # test metric of the model that is best on validation rows of the whole run


@dataclass(frozen=True)
class Measure:
    """A column of the tables."""

    name: str
    unit: str
    larger: bool  # is better
    of: Callable[[Measured], float | None]

    def better(self, one: float, other: float) -> bool:
        """Whether one is better than the other."""
        return one > other if self.larger else one < other


MEASURES = (
    Measure("metric within the budget", "", True, lambda run: run.at_budget),
    Measure("MB to the target", "MB", False, lambda run: run.megabytes),
    Measure("rounds to the target", "rounds", False, lambda run: run.rounds),
    Measure("seconds on the line", "s", False, lambda run: run.seconds),
    Measure("metric of the whole run", "", True, lambda run: run.kept),
)


@dataclass(frozen=True)
class Standing:
    """How a method does on a problem: its rate, and a run for each seed."""

    method: str
    rate: float
    runs: tuple[Measured, ...]

    def values(self, measure: Measure) -> list[float]:
        """Return the values of the runs that have one."""
        return [value for run in self.runs if (value := measure.of(run)) is not None]

    def mean(self, measure: Measure) -> float | None:
        """Return the mean; None unless all runs have a value."""
        values = self.values(measure)
        return mean(values) if len(values) == len(self.runs) else None

    def deviation(self, measure: Measure) -> float:
        """Return the standard deviation over the seeds."""
        values = self.values(measure)
        return stdev(values) if len(values) > 1 else 0.0


def sent(point: Point) -> int:
    """Return the bytes of both directions."""
    return point.up + point.down


def budget(found: Found, problem: str) -> float:
    """Return the bytes that a run may send: the same share of an SVFL run for all methods."""
    rate = chosen_rate(found, problem, REFERENCE)
    runs = (found.get((problem, REFERENCE, rate, seed, False)) for seed in SEEDS)
    return BUDGET_SHARE * mean(sent(run.points[-1]) for run in runs if run)


def line_seconds(point: Point) -> float:
    """Return the time of these rounds on lines of the parties' own, one round after the other, without computing."""
    slowest = PartyRound(point.slowest_up / point.rounds, point.slowest_down / point.rounds, 0.0)
    return run_seconds(LINE, Round([slowest], 0.0), 1, point.rounds)


def measured(curve: Curve, most: float, wanted: float) -> Measured:
    """Return a run in numbers."""
    within = [point for point in curve.points if sent(point) <= most]
    first = next((point for point in curve.points if point.validation >= wanted), None)
    return Measured(
        curve.seed,
        _kept(within),
        sent(first) / 1e6 if first else None,
        float(first.rounds) if first else None,
        line_seconds(first) if first else None,
        _kept(curve.points),
    )


def _kept(points: Sequence[Point]) -> float | None:
    return max(points, key=lambda point: point.validation).test if points else None


def standings(found: Found, problem: str) -> dict[str, Standing]:
    """Return how the methods do that have runs, in the order of the methods."""
    most, wanted = budget(found, problem), target(found, problem)
    out = {}
    for method in ENTRANTS:
        if not tuning(found, problem, method):
            continue
        rate = chosen_rate(found, problem, method)
        curves = [found[key] for seed in SEEDS if (key := (problem, method, rate, seed, False)) in found]
        if curves:
            out[method] = Standing(method, rate, tuple(measured(curve, most, wanted) for curve in curves))
    return out


def leader(all_of: Mapping[str, Standing], measure: Measure) -> str | None:
    """Return the method with the best mean, of those of which all runs have a value."""
    means = {name: value for name, one in all_of.items() if (value := one.mean(measure)) is not None}
    if not means:
        return None
    return (max if measure.larger else min)(means, key=lambda name: means[name])
