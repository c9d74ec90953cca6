"""The models that the default federation is compared with, all on the same rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from benchmarks.tables.problems import Problem, Rows
from benchmarks.tables.training import Result, one_place
from efvfl import VerticalClassifier
from efvfl.data.tables.columns import Category
from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.errors import DataWarning

Model = Callable[[Problem, tuple[Rows, Rows], int], Result]  # trains on the first rows, is scored on the second


def estimator(method: str) -> Model:
    """Return a function that trains the estimator with all its defaults but the method."""

    def run(problem: Problem, rows: tuple[Rows, Rows], seed: int) -> Result:
        train, held = rows
        model = VerticalClassifier(
            problem.columns, method=method, label_holder=problem.label_holder, random_state=seed
        ).fit(problem.frame[train], problem.classes[train])
        with warnings.catch_warnings(action="ignore", category=DataWarning):  # levels that no training row had
            found = model.predict_proba(problem.frame[held])
        sent = {"bytes_up": model.bytes_up_, "bytes_down": model.bytes_down_, "epochs": model.records_[-1].epoch}
        return Result.of(problem, held, found, **sent)

    return run


def alone(problem: Problem, rows: tuple[Rows, Rows], seed: int) -> Result:
    """Train the network that the label holder could train without the others."""
    return one_place(problem, rows, seed, [problem.label_holder])


def logistic(problem: Problem, rows: tuple[Rows, Rows], seed: int) -> Result:
    """Train logistic regression on the joined table, standardised and with a column for each level."""
    train, held = rows
    x = Encoder.fit(problem.frame[train], TableSettings()).transform(problem.frame)
    model = LogisticRegression(max_iter=1000).fit(x[train], problem.classes[train])
    return Result.of(problem, held, model.predict_proba(x[held]))


def trees(problem: Problem, rows: tuple[Rows, Rows], seed: int) -> Result:
    """Train gradient-boosted trees on the joined table; they split numbers, gaps and categories in their own way."""
    train, held = rows
    encoder = Encoder.fit(problem.frame[train], TableSettings(categories="embed"))
    x = np.stack([_of_trees(problem, column) for column in encoder.columns], axis=1)
    coded = [isinstance(column, Category) for column in encoder.columns]
    model = HistGradientBoostingClassifier(random_state=seed, categorical_features=coded)
    model.fit(x[train], problem.classes[train])
    return Result.of(problem, held, model.predict_proba(x[held]))


def _of_trees(problem: Problem, column: object) -> NDArray[np.float64]:
    values = problem.frame.get_column(column.name)  # type: ignore[attr-defined]
    if isinstance(column, Category):
        codes = column.codes(values).astype(np.float64)
        return np.where(codes > 0, codes, np.nan)  # unseen or missing
    return values.cast(float).to_numpy()


RIVALS: dict[str, Model] = {
    "label holder alone": alone,
    "logistic regression, joined": logistic,
    "same network, joined": one_place,
    "gradient-boosted trees, joined": trees,
    "SVFL": estimator("svfl"),
    "EF-VFL": estimator("efvfl"),
}
