"""Rows that parties lack: one model of all rows beside what could be done without it. `benchmarks.tables missing`

Of every party but the label holder a share of the rows is missing at random, of training rows and test rows alike.
Flights are also taken as they are: some have no record of the plane, some none of the weather. Scores are of all test
rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import polars
from numpy.typing import NDArray

from benchmarks.tables.problems import Problem, Rows, credit, flights
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


# What was tried on validation rows: how much of a row's loss is that of all who are present.
SHARES = {f"{OURS}, {share:.0%} for all present": share for share in (0.25, 0.5, 0.75, 0.9)}
CANDIDATES = (*SHARES, INTERSECTION)
CHOICE_CASES = [name for name, case in CASES.items() if case.table != "all flights"]
CHOICE_SEEDS = range(3)


def choose(name: str, what: str, seed: int) -> Result:
    """Return what comes of one training, on validation rows."""
    case, before = CASES[name], core_subsets.WHOLE
    core_subsets.WHOLE = SHARES.get(what, before)
    core_subsets._shares.cache_clear()
    try:
        return MODELS[OURS if what in SHARES else what](case, _table(case.table).choice(seed), seed)
    finally:
        core_subsets.WHOLE = before
        core_subsets._shares.cache_clear()


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
