"""The trainings of the benchmark: which there are, and a file of what came of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.tables import choose, curve, missing, small
from benchmarks.tables.problems import PROBLEMS, Problem
from benchmarks.tables.rivals import RIVALS
from benchmarks.tables.training import federated, one_place
from efvfl.util.files import write_atomically

RESULTS = Path(__file__).parent.parent / "results"
FILES = {
    "test": RESULTS / "tables.json",
    "choose": RESULTS / "tables_choice.json",
    "small": RESULTS / "tables_small.json",
    "curve": RESULTS / "tables_curve.json",
    "missing": RESULTS / "tables_missing.json",
    "missing-choose": RESULTS / "tables_missing_choice.json",
}
SPLITS = 5  # of rows into training and test rows, unless more are asked for
SEEDS = range(5, 105)  # of those splits, the first ones first; the defaults were chosen with seeds 0 to 4

Job = tuple[str, str, int]  # problem, what is trained, seed
Found = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class Asked:
    """What is asked for of a topic: so many splits into training and test rows, of some tables, by some models."""

    splits: int = SPLITS
    tables: Sequence[str] = ()  # none: all
    models: Sequence[str] = ()  # none: all

    def jobs(self, topic: str) -> list[Job]:
        """Return these trainings."""
        return [
            (table, model, seed)
            for table, model, seed in jobs(topic, self.splits)
            if (not self.tables or table in self.tables) and (not self.models or model in self.models)
        ]


ALL = Asked()


def jobs(topic: str, splits: int = len(SEEDS)) -> list[Job]:
    """Return all trainings of a topic; those with test rows on so many splits."""
    seeds = SEEDS[:splits]
    if topic == "curve":
        return [(curve.PROBLEM, name, seed) for name in curve.METHODS for seed in curve.SEEDS]
    if topic == "small":
        return [(small.PROBLEM, name, seed) for name in small.NAMES for seed in small.SEEDS]
    if topic == "missing":
        return [(case, name, seed) for case in missing.CASES for name in missing.MODELS for seed in seeds]
    if topic == "missing-choose":
        cases, seeds = missing.CHOICE_CASES, missing.CHOICE_SEEDS
        return [(case, name, seed) for case in cases for name in missing.CANDIDATES for seed in seeds]
    if topic == "choose":
        return [
            (problem, c.name, seed) for problem in choose.PROBLEMS for c in choose.CANDIDATES for seed in choose.SEEDS
        ]
    return [(problem, name, seed) for problem in PROBLEMS for name in RIVALS for seed in seeds]


def train(topic: str, job: Job) -> dict[str, Any]:
    """Return what comes of one training, for the file."""
    torch.set_num_threads(1)
    if topic == "missing":
        return missing.train(*job).to_table()
    if topic == "missing-choose":
        return missing.choose(*job).to_table()
    problem, what, seed = _problem(job[0]), job[1], job[2]
    if topic == "curve":
        return curve.follow(problem, curve.METHODS[what], seed)
    if topic == "small":
        return small.train(problem, what, seed).to_table()
    if topic == "test":
        return RIVALS[what](problem, problem.split(seed), seed).to_table()
    (c,) = (c for c in choose.CANDIDATES if c.name == what)
    if c.topic == choose.COMPRESSORS:
        return federated(problem, problem.choice(seed), seed, c.settings, c.bins).to_table()
    return one_place(problem, problem.choice(seed), seed, (), c.settings, c.bins).to_table()


@cache
def _problem(name: str) -> Problem:
    return PROBLEMS[name]()


def work(topic: str, path: Path, processes: int = 0, asked: Asked = ALL) -> None:
    """Do the jobs that the file does not have, and write it after each; 0 processes: in this one."""
    found: Found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    left = [job for job in asked.jobs(topic) if str(job[2]) not in found.get(job[0], {}).get(job[1], {})]
    left.sort(key=lambda job: job[2])  # all that a seed needs before the next: a table is soon complete
    if not processes:
        for job in left:
            _keep(topic, found, path, job, train(topic, job))
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        futures = {pool.submit(train, topic, job): job for job in left}
        for future in as_completed(futures):
            _keep(topic, found, path, futures[future], future.result())


def _keep(topic: str, found: Found, path: Path, job: Job, result: dict[str, Any]) -> None:
    problem, what, seed = job
    found.setdefault(problem, {}).setdefault(what, {})[str(seed)] = result
    print(*job, json.dumps(result)[:120], flush=True)
    ordered: Found = {}  # as the jobs are, whoever was done first
    for name, each, s in jobs(topic):
        if str(s) in found.get(name, {}).get(each, {}):
            ordered.setdefault(name, {}).setdefault(each, {})[str(s)] = found[name][each][str(s)]
    write_atomically(path, (json.dumps(ordered, indent=1) + "\n").encode())
