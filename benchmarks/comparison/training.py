"""One run of the comparison, and what is kept of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.comparison.methods import Entrant
from benchmarks.comparison.problems import Contest
from efvfl.config.compressors import compressor_from
from efvfl.data import Dataset
from efvfl.errors import CompressionError
from efvfl.runs.build import make_federation
from efvfl.training.federation import Federation

SEEDS, TUNING_SEED = (0, 1, 2), 3


@dataclass(frozen=True)
class Point:
    """Where a run stands at an evaluation."""

    rounds: int
    validation: float  # the metric
    test: float
    up: int  # bytes of all parties, since the start
    down: int
    slowest_up: int  # of the party that has sent and received the most
    slowest_down: int


@dataclass(frozen=True)
class Curve:
    """A run. One with `tuning` looks for a rate: it is shorter, and of another seed."""

    problem: str
    method: str
    rate: float
    seed: int
    tuning: bool
    seconds: float  # of computing in one process, evaluations included
    points: Sequence[Point]  # a run that diverges has none after that

    @property
    def key(self) -> tuple[str, str, float, int, bool]:
        """What tells it from the others."""
        return self.problem, self.method, self.rate, self.seed, self.tuning

    def to_table(self) -> dict[str, Any]:
        """Return it for a line of JSON: points as lists."""
        points = [list(asdict(point).values()) for point in self.points]
        return {name: value for name, value in vars(self).items() if name != "points"} | {"points": points}

    @classmethod
    def of(cls, table: dict[str, Any]) -> Curve:
        """Read what `to_table` made."""
        return cls(**{**table, "points": tuple(Point(*point) for point in table["points"])})


def train(contest: Contest, entrant: Entrant, rate: float, seed: int, tuning: bool, data: Dataset) -> Curve:
    """Train for the rounds of the problem, half of them for tuning, and note every evaluation."""
    began = time.process_time()
    made = make_federation(contest.config(entrant.change(contest, data.names), rate, seed), data)
    rounds = contest.rounds // 2 if tuning else contest.rounds
    points = []
    for _ in range(rounds // contest.every):
        try:
            for turn in range(contest.every):  # one that is late is not waited for, so it does not hold either
                made.step(hold=turn == contest.every - 1 and not entrant.late)
        except CompressionError:  # numbers that are not finite
            break
        points.append(_point(contest, entrant, made, data, tuning))
    seconds = round(time.process_time() - began, 2)
    return Curve(contest.name, entrant.name, rate, seed, tuning, seconds, points)


def _point(contest: Contest, entrant: Entrant, made: Federation, data: Dataset, tuning: bool) -> Point:
    """Look at a run; one without memory may predict from compressed rows, if validation rows say that it is better."""
    sent = {name: (made.ledger.total("up", name), made.ledger.total("down", name)) for name in made.parties}
    ways = [None, compressor_from(entrant.predicts)] if entrant.predicts else [None]
    scores = [contest.score(made, data.validation, way) for way in ways]
    way = ways[scores.index(max(scores))]
    test = 0.0 if tuning else contest.score(made, data.test, way)  # not looked at before rates are chosen
    return Point(
        made.server.step_number,
        round(max(scores), 5),
        round(test, 5),
        sum(up for up, _ in sent.values()),
        sum(down for _, down in sent.values()),
        *max(sent.values(), key=sum),
    )
