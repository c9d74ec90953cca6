"""Whether a table of few rows asks for other defaults: breast, on validation rows. `python -m benchmarks.tables small`

Its 80 validation rows of one split tell little. So there are four cuts of the training rows of each of the seeds 0 to
4; test rows are not looked at. All is trained in one place.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.tables.problems import Problem, Rows
from benchmarks.tables.rivals import logistic
from benchmarks.tables.training import Result, Settings, one_place
from efvfl.config.table_defaults import OPTIMIZER

PROBLEM = "breast"
SPLITS, CUTS = 5, 4
SEEDS = range(SPLITS * CUTS)
LOGISTIC = "logistic regression, joined"

SETTINGS: Mapping[str, Settings] = {
    "the defaults": {},
    "weight decay 0.5": {"optimizer": {**OPTIMIZER, "weight_decay": 0.5}},
    "weight decay 1": {"optimizer": {**OPTIMIZER, "weight_decay": 1.0}},
    "patience 20": {"patience": 20},
    "a fifth of the rows decides": {"data": {"name": "table", "validation": 0.2}},
    "batches of 32 rows": {"batch_size": 32},
    "linear at parties and server": {"model": {"name": "linear"}, "fusion": {"hidden": []}},
}
NAMES = (*SETTINGS, LOGISTIC)


def rows(problem: Problem, seed: int) -> tuple[Rows, Rows]:
    """Return the rows to train on and the validation rows: all are training rows of a split."""
    split, cut = seed % SPLITS, seed // SPLITS
    return problem.choice(split, split + 100 * cut)


def train(problem: Problem, name: str, seed: int) -> Result:
    """Return what comes of one training."""
    if name == LOGISTIC:
        return logistic(problem, rows(problem, seed), seed)
    return one_place(problem, rows(problem, seed), seed, (), SETTINGS[name])
