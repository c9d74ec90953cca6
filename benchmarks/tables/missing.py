"""Rows that parties lack: one model of all rows beside what could be done without it. `benchmarks.tables missing`

Of every party but the label holder a share of the rows is missing at random, of training rows and test rows alike.
Flights are also taken as they are: some have no record of the plane, some none of the weather. Scores are of all test
rows.

How subsets are trained is chosen by rows of the same tables that are none of these, of which there are many more: as
many are trained on, and 16,400 scored (`missing-choose`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import polars
from numpy.typing import NDArray

from benchmarks.tables.problems import MOST_ROWS, TEST, Problem, Rows, credit, flights
from benchmarks.tables.training import Result
from efvfl import VerticalClassifier
from efvfl.core import subsets as core_subsets
from efvfl.errors import DataWarning
from efvfl.runs.estimator_subsets import present
from efvfl.util.rng import derive, uniforms

Probabilities = NDArray[np.float64]
Split = tuple[Rows, Rows]  # rows to train on, and rows to score

RATES = (0.0, 0.1, 0.5)
FEWEST = 20  # values of a column: with fewer, none may be left after rows were kept aside for validation
TABLES: Mapping[str, Callable[[], Problem]] = {
    "credit": credit,
    "flights": flights,
    "all flights": lambda: flights(complete=False),
    "other credit": partial(credit, others=True),
    "other flights": partial(flights, others=True),
}


@dataclass(frozen=True)
class Case:
    """A table, and the share of its rows that every party but the label holder is made to lack."""

    table: str
    rate: float = 0.0

    def problem(self, seed: int) -> Problem:
        """Return the table with nothing in the cells of rows that a party lacks."""
        whole = _table(self.table)
        frame = whole.frame
        for party, columns in whole.columns.items():
            if party != whole.label_holder:
                here = polars.Series(uniforms(derive(seed, "missing", party), frame.height) >= self.rate)
                frame = frame.with_columns(polars.when(here).then(polars.col(name)).alias(name) for name in columns)
        return replace(whole, frame=frame)


CASES: Mapping[str, Case] = {
    **{f"{table}, {rate:.0%} missing": Case(table, rate) for table in ("credit", "flights") for rate in RATES},
    "flights, as they are": Case("all flights"),
}


@cache
def _table(name: str) -> Problem:
    return TABLES[name]()


def subsets(case: Case, split: Split, seed: int) -> Result:
    """Train one model of all rows, for every subset of the parties."""
    problem, held = case.problem(seed), split[1]
    model = _fitted(problem, split[0], seed, subsets=True)
    own = problem.columns[problem.label_holder]
    alone = problem.frame.select(
        polars.col(name) if name in own else polars.lit(None, kind).alias(name)
        for name, kind in problem.frame.schema.items()
    )
    by_itself = problem.scores(held, _predicted(model, alone[held]))["auc"]
    return Result.of(problem, held, _predicted(model, problem.frame[held]), alone_auc=by_itself)


def label_holder_alone(case: Case, split: Split, seed: int) -> Result:
    """Train the label holder's part, which has all rows."""
    return Result.of(_table(case.table), split[1], _alone(case, split, seed))


def intersection(case: Case, split: Split, seed: int) -> Result:
    """Train on the rows that all have, and predict those so; the label holder alone predicts the others."""
    problem = case.problem(seed)
    complete = present(problem.frame, problem.columns).all(dim=1).numpy()
    found = _alone(case, split, seed).copy()
    train, held = (rows[complete[rows]] for rows in split)
    found[complete[split[1]]] = _trained(problem, (train, held), seed)
    return Result.of(problem, split[1], found)


Model = Callable[[Case, Split, int], Result]
OURS, ALONE, INTERSECTION = "one model of all rows", "label holder alone", "intersection, else label holder alone"
MODELS: Mapping[str, Model] = {OURS: subsets, ALONE: label_holder_alone, INTERSECTION: intersection}


@dataclass(frozen=True)
class Weights:
    """How subsets are trained: what the loss of all counts, and how much of a smaller one's is by what all predict."""

    whole: float = core_subsets.WHOLE
    taught: float = core_subsets.TAUGHT

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Train so inside this context."""
        before = Weights(core_subsets.WHOLE, core_subsets.TAUGHT)
        self._use()
        try:
            yield
        finally:
            before._use()

    def _use(self) -> None:
        core_subsets.WHOLE, core_subsets.TAUGHT = self.whole, self.taught
        core_subsets._weights.cache_clear()


DEFAULT = "all a third, smaller ones 70 % taught"
TRIED: Mapping[str, Weights] = {
    DEFAULT: Weights(),
    "all a third, by labels alone": Weights(taught=0.0),
    "all a half, smaller ones 70 % taught": Weights(whole=0.5),
    "all three quarters, smaller ones 70 % taught": Weights(whole=0.75),
}
CANDIDATES = (*TRIED, ALONE, INTERSECTION)
CHOICE_CASES: Mapping[str, Case] = {
    f"other rows of {table}, {rate:.0%} missing": Case(f"other {table}", rate)
    for table in ("credit", "flights")
    for rate in (0.0, 0.5)
}
CHOICE_SEEDS = range(200, 206)
TRAINED_ON = round(MOST_ROWS * (1 - TEST))


def choose(name: str, what: str, seed: int) -> Result:
    """Return what comes of one training on rows that the benchmark does not have."""
    case = CHOICE_CASES[name]
    split = _table(case.table).draw(TRAINED_ON, seed)
    if what not in TRIED:
        return MODELS[what](case, split, seed)
    with TRIED[what].in_use():
        return subsets(case, split, seed)


def train(name: str, what: str, seed: int) -> Result:
    """Return what comes of one training, on test rows."""
    case = CASES[name]
    return MODELS[what](case, _table(case.table).split(seed), seed)


def _alone(case: Case, split: Split, seed: int) -> Probabilities:
    """Return what the label holder predicts by itself, trained once for all shares of missing rows."""
    key = (case.table, seed, len(split[0]))
    if key not in _KEPT:
        _KEPT.clear()  # jobs come seed by seed
        problem = _table(case.table)
        _KEPT[key] = _trained(problem, split, seed, [problem.label_holder])
    return _KEPT[key]


_KEPT: dict[tuple[str, int, int], Probabilities] = {}


def _trained(problem: Problem, split: Split, seed: int, parties: Sequence[str] = ()) -> Probabilities:
    """Return the probabilities of the second rows by an estimator of the first, of all parties or some."""
    columns = {name: problem.columns[name] for name in parties or problem.columns}
    frame = problem.frame.select(name for names in columns.values() for name in names)
    chosen = replace(problem, frame=frame, columns=columns)
    return _predicted(_fitted(chosen, split[0], seed), frame[split[1]])


def _fitted(problem: Problem, rows: Rows, seed: int, subsets: bool = False) -> VerticalClassifier:
    """Return an estimator of these rows, with all other defaults."""
    used = {
        party: [name for name in names if _has_values(problem, name, rows)] for party, names in problem.columns.items()
    }
    model = VerticalClassifier(used, label_holder=problem.label_holder, subsets=subsets, random_state=seed)
    with warnings.catch_warnings(action="ignore", category=DataWarning):
        return model.fit(problem.frame[rows], problem.classes[rows])


def _predicted(model: VerticalClassifier, frame: polars.DataFrame) -> Probabilities:
    with warnings.catch_warnings(action="ignore", category=DataWarning):  # levels that no training row had
        found: Probabilities = model.predict_proba(frame)
    return found


def _has_values(problem: Problem, column: str, rows: Rows) -> bool:
    """Whether a column has some values in these rows: few planes have a speed, and estimators refuse empty columns."""
    return problem.frame.get_column(column)[rows].drop_nulls().len() >= FEWEST
