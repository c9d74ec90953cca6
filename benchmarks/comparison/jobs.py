"""The runs of the comparison: which there are, which rate each method gets, and a file with a line for each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from benchmarks.comparison.methods import ENTRANTS
from benchmarks.comparison.problems import CONTESTS, Contest
from benchmarks.comparison.training import SEEDS, TUNING_SEED, Curve, train
from efvfl.data import Dataset

RESULTS = Path(__file__).parent.parent / "results" / "comparison.jsonl"
TARGET_SHARE = (
    0.97  # of the way from a guess to the best metric of validation rows of SVFL while its rate is looked for
)
CLOSE = 0.01  # of the metric: a rate that does worse by more than this is not chosen for being faster
REFERENCE = "SVFL"

Key = tuple[str, str, float, int, bool]
Found = Mapping[Key, Curve]


def read(path: Path = RESULTS) -> dict[Key, Curve]:
    """Return the runs of a file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {curve.key: curve for curve in map(Curve.of, map(json.loads, lines))}


def tuning(found: Found, problem: str, method: str) -> dict[float, Curve]:
    """Return the runs that look for a method's rate, by rate."""
    runs = (found.get((problem, method, rate, TUNING_SEED, True)) for rate in CONTESTS[problem].rates)
    return {run.rate: run for run in runs if run}


def best(curve: Curve) -> float:
    """Return the best metric of validation rows."""
    return max((point.validation for point in curve.points), default=0.0)


def target(found: Found, problem: str) -> float:
    """Return the metric of validation rows that runs are to reach."""
    chance = CONTESTS[problem].chance
    reached = max((best(curve) for curve in tuning(found, problem, REFERENCE).values()), default=chance)
    return round(chance + TARGET_SHARE * (reached - chance), 3)


def rounds_to(curve: Curve, wanted: float) -> int | None:
    """Return at which evaluation the target is reached; None: never."""
    return next((point.rounds for point in curve.points if point.validation >= wanted), None)


def chosen_rate(found: Found, problem: str, method: str) -> float:
    """Return the rate that reaches the target soonest, among those that do about as well as the best of the grid."""
    runs, wanted = tuning(found, problem, method), target(found, problem)
    least = max(best(curve) for curve in runs.values()) - CLOSE
    good = {rate: curve for rate, curve in runs.items() if best(curve) >= least}
    return min(good, key=lambda rate: (rounds_to(good[rate], wanted) or 10**9, -best(good[rate])))


def missing(found: Found, problems: Iterable[str], methods: Sequence[str], seeds: Iterable[int]) -> Iterator[Key]:
    """Yield what is not in `found` yet, which may grow meanwhile: rates first, then one seed after another."""
    for problem in problems:
        first = [REFERENCE, *(name for name in methods if name != REFERENCE)]  # its runs decide the target
        for method in first:
            for rate in CONTESTS[problem].rates:
                if (key := (problem, method, rate, TUNING_SEED, True)) not in found:
                    yield key
    for seed in seeds:
        for problem in problems:
            for method in methods:
                if (key := (problem, method, chosen_rate(found, problem, method), seed, False)) not in found:
                    yield key


def work(path: Path, problems: Sequence[str], methods: Sequence[str], seeds: Sequence[int] = SEEDS) -> None:
    """Do what the file does not have, and append a line for each run."""
    torch.set_num_threads(1)
    found = read(path)
    for problem, method, rate, seed, looking in missing(found, problems, methods, seeds):
        contest = CONTESTS[problem]
        curve = train(contest, ENTRANTS[method], rate, seed, looking, loaded(contest, seed))
        found[curve.key] = curve
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(curve.to_table()) + "\n")
        print(problem, method, rate, seed, "tuning" if looking else "", best(curve), curve.seconds, "s", flush=True)


@lru_cache(maxsize=len(CONTESTS))
def loaded(contest: Contest, seed: int) -> Dataset:
    """Return the rows of a problem."""
    return contest.load(seed, contest.config({}, contest.rates[0], seed))
