"""Time and bytes to a target over a slow line: what windows, cached steps and coarse rounding save, alone and together.

    EFVFL_DATA=folder python -m benchmarks.fewer_rounds count    # rounds, bytes and metrics, in one process
    EFVFL_DATA=folder python -m benchmarks.fewer_rounds time     # seconds of a round, over the emulated line

How many rounds a run needs is counted in one process, which trains the same model bit for bit. Each setting has the
learning rate of a small grid that reaches the target soonest with a seed of its own, among those that do about as well
as the best in half a run; the numbers are those of three other seeds. The target is one of validation rows; the metric
of a run is that of test rows, of the model that is best on validation rows, which early stopping keeps, and of the last
one. A seed decides the rows of each split, the initial parameters and the batches. `make performance` puts the results
on a page.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.emulated_line import network
from benchmarks.fewer_rounds_problems import PROBLEMS, Problem
from benchmarks.replay import record
from efvfl.data import Dataset
from efvfl.runs.build import load_data, make_federation
from efvfl.util.files import write_atomically

OUT = Path(__file__).parent / "results" / "fewer_rounds.json"
SEEDS, TUNING_SEED = (0, 1, 2), 3
POINTS = 0.003  # of the metric: a rate that does worse by more is not chosen for reaching the target sooner
TIMED = 60  # rounds over the line, at least

Table = Mapping[str, Any]
TERNARY = {"name": "uniform", "levels": 1, "scale": "row"}
SEVEN = {"name": "uniform", "levels": 7, "scale": "row"}
TOP_K = {"name": "topk", "ratio": 0.1}
QSGD = {"name": "qsgd", "bits": 4}

# What travels: up, and down where that is compressed too.
METHODS: dict[str, Table] = {
    "SVFL": {"name": "svfl"},
    "CVFL, top-k 10 %": {"name": "cvfl", "compressor": TOP_K},
    "CVFL, qsgd 4 bit": {"name": "cvfl", "compressor": QSGD},
    "CVFL, ternary": {"name": "cvfl", "compressor": TERNARY, "down": SEVEN},
    "EF-VFL, top-k 10 %": {"name": "efvfl", "compressor": TOP_K},
    "EF-VFL, qsgd 4 bit": {"name": "efvfl", "compressor": QSGD},
    "EF-VFL, ternary": {"name": "efvfl", "compressor": TERNARY, "down": SEVEN},
}
WINDOW, CACHED = {"pipeline": 2}, {"cached": {"steps": 9}}
EXTRAS: dict[str, Table] = {"": {}, "window of 2": WINDOW, "9 cached steps": CACHED, "both": WINDOW | CACHED}
RECOMMENDED = "EF-VFL, ternary, both, cotangents 31 levels by row"
# What else the cotangents of the recommended setting could go through.
DOWNLINKS: dict[str, Table] = {
    "exact": {},
    "ternary by row": TERNARY,
    "7 levels by block": SEVEN | {"scale": "block"},
    "31 levels by row": SEVEN | {"levels": 31},
}
UPLINKS: dict[str, Table] = {
    "ternary by block": TERNARY | {"scale": "block"},
    "7 levels by row": SEVEN,
    "15 levels by block": SEVEN | {"levels": 15, "scale": "block"},
}


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    name: str
    extra: str
    method: Table
    agreement: Table

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.name}, {self.extra}" if self.extra else self.name


def settings() -> list[Setting]:
    """Return all combinations, and FedBCD and CELU as their papers have them, without error feedback."""
    found = [
        Setting(name, extra, method, agreement)
        for name, method in METHODS.items()
        for extra, agreement in EXTRAS.items()
    ]
    svfl = METHODS["SVFL"]
    of_one_batch = {"cached": {"steps": 4, "batches": 1, "angle": 180.0}}
    ternary = METHODS["EF-VFL, ternary"]
    found += [
        Setting("EF-VFL", f"{name}, 9 cached steps", {**ternary, "compressor": up}, CACHED)
        for name, up in UPLINKS.items()
    ]
    found += [
        Setting("EF-VFL, ternary, 9 cached steps", f"cotangents {name}", {**ternary, "down": down}, CACHED)
        for name, down in DOWNLINKS.items()
    ]
    for down in ("exact", "31 levels by row"):
        both = {**ternary, "down": DOWNLINKS[down]}
        found.append(Setting("EF-VFL, ternary, both", f"cotangents {down}", both, EXTRAS["both"]))
    few = {"cached": {"steps": 9, "batches": 9}}
    found.append(Setting("EF-VFL, ternary", "9 cached steps of 9 batches", ternary, few))
    for start in ("exact", "mean"):
        found.append(
            Setting("EF-VFL, top-k 10 %", f"start = {start}", {**METHODS["EF-VFL, top-k 10 %"], "start": start}, {})
        )
    first = {**METHODS["EF-VFL, top-k 10 %"], "first": SEVEN}
    found.append(Setting("EF-VFL, top-k 10 %", "7 levels at first visits", first, {}))
    found.append(Setting("FedBCD", "4 local steps", svfl, of_one_batch))
    found.append(Setting("CELU", "4 local steps", svfl, {"cached": {"steps": 4, "batches": 5, "angle": 60.0}}))
    return found


@dataclass(frozen=True)
class Run:
    """One training in one process."""

    seed: int
    rounds: int  # until the target; 0: not reached
    bytes_up: int  # until the target, or the end
    bytes_down: int
    best: float  # on validation rows
    kept: float  # on test rows, of the model that is best on validation rows
    last: float  # on test rows, of the last model
    curve: list[list[float]]  # [rounds, metric of validation rows]


@dataclass(frozen=True)
class Result:
    """All that is known of one setting on one problem."""

    problem: str
    setting: str
    rate: float
    runs: list[Run]
    timed: dict[str, list[float]] = field(default_factory=dict)  # by seed: rounds over the line, and their seconds

    @property
    def seconds_a_round(self) -> float:
        """The mean over all that was timed."""
        return sum(seconds for _, seconds in self.timed.values()) / sum(rounds for rounds, _ in self.timed.values())

    @property
    def reached(self) -> bool:
        """Whether all seeds have reached the target."""
        return all(run.rounds for run in self.runs)


# Counting, in one process.


def train(problem: Problem, setting: Setting, rate: float, seed: int, rounds: int, data: Dataset) -> Run:
    """Train for so many rounds, and note when the target is reached."""
    made = make_federation(problem.config(setting.method, setting.agreement, rate, seed), data)
    at, sent, best, kept, curve = 0, (0, 0), 0.0, 0.0, []
    for _ in range(rounds // problem.every):
        for turn in range(problem.every):  # with a window nobody holds: that would let the steps under way run dry
            made.step(hold=made.window == 1 and turn == problem.every - 1)
        metric = problem.score(made, data.validation)
        curve.append([made.server.step_number, round(metric, 6)])
        if metric > best:
            best, kept = metric, problem.score(made, data.test)
        if not at:
            sent = made.ledger.total("up"), made.ledger.total("down")
            at = made.server.step_number if metric >= problem.target else 0
    return Run(seed, at, *sent, best, kept, problem.score(made, data.test), curve)


def tuned(problem: Problem, setting: Setting) -> float:
    """Return the rate that reaches the target soonest, among those that do about as well as the best of them."""
    data = load_data(problem.config(setting.method, setting.agreement, problem.rates[0], TUNING_SEED), Path())
    half = problem.rounds // 2
    runs = {rate: train(problem, setting, rate, TUNING_SEED, half, data) for rate in problem.rates}
    least = max(run.best for run in runs.values()) - POINTS
    good = [rate for rate, run in runs.items() if run.best >= least]
    return min(good, key=lambda rate: (runs[rate].rounds or half + 1, -runs[rate].best))


def count(problem: Problem, setting: Setting) -> Result:
    """Return how a setting does with its best rate."""
    torch.set_num_threads(1)
    rate = tuned(problem, setting)
    configs = {seed: problem.config(setting.method, setting.agreement, rate, seed) for seed in SEEDS}
    runs = [
        train(problem, setting, rate, seed, problem.rounds, load_data(config, Path()))
        for seed, config in configs.items()
    ]
    return Result(problem.name, setting.key, rate, runs)


# Timing, over the line.


def timed(problem: Problem, setting: Setting, result: Result, seeds: tuple[int, ...]) -> Result:
    """Return the result with the seconds of as many rounds as the target takes, and a minimum, for these seeds."""
    torch.set_num_threads(1)
    found = dict(result.timed)
    for run in (run for run in result.runs if run.seed in seeds):
        config = problem.config(setting.method, setting.agreement, result.rate, run.seed)
        rounds = max(TIMED, min(run.rounds, problem.rounds))
        made = make_federation(config, load_data(config, Path()))
        with network(config, record(made, rounds + 4)) as serving:
            while serving.server.step_number < 2:
                serving.advance()  # all parties are connected, and kernels are compiled
            began, started = serving.server.step_number, time.perf_counter()
            while serving.server.step_number < began + rounds:
                serving.advance()
            found[str(run.seed)] = [float(rounds), time.perf_counter() - started]
    return replace(result, timed=found)


# Files.


def read(path: Path = OUT) -> dict[tuple[str, str], Result]:
    """Return the results of a file by problem and setting."""
    if not path.exists():
        return {}
    table = json.loads(path.read_text(encoding="utf-8"))
    found = [Result(**{**one, "runs": [Run(**run) for run in one["runs"]]}) for one in table]
    return {(one.problem, one.setting): one for one in found}


def write(found: Mapping[tuple[str, str], Result], path: Path = OUT) -> None:
    """Write results, one line each."""
    lines = ",\n".join(json.dumps(asdict(one)) for one in found.values())
    write_atomically(path, f"[\n{lines}\n]\n".encode())


def jobs(problem: str, only: str) -> Iterator[tuple[Problem, Setting]]:
    """Yield what is asked for."""
    for one in PROBLEMS:
        yield from ((one, setting) for setting in settings() if problem in one.name and only in setting.key)


def main() -> None:
    """Count or time what is asked for, and keep everything else."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["count", "time"])
    parser.add_argument("--problem", default="", help="a part of its name")
    parser.add_argument("--setting", default="", help="a part of its name")
    parser.add_argument("--missing", action="store_true", help="only what is not in the file yet")
    parser.add_argument("--seeds", type=int, nargs="+", default=[SEEDS[0]], help="time: those to time")
    parser.add_argument("--processes", type=int, default=2, help="count: so many at a time")
    options = parser.parse_args()
    found = read()
    work = list(jobs(options.problem, options.setting))
    if options.what == "time":
        for problem, setting in work:
            known = found[problem.name, setting.key]
            seeds = tuple(seed for seed in options.seeds if not options.missing or str(seed) not in known.timed)
            found[problem.name, setting.key] = timed(problem, setting, known, seeds)
            print(problem.name, setting.key, found[problem.name, setting.key].timed, flush=True)
            write(found)
        return
    work = [(p, s) for p, s in work if not options.missing or (p.name, s.key) not in found]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for result in pool.map(count, *zip(*work, strict=True)):
            found[result.problem, result.setting] = result
            runs = [
                (run.rounds, f"{run.bytes_up / 1e6:.2f} MB", f"{run.kept:.4f}", f"{run.last:.4f}")
                for run in result.runs
            ]
            print(result.problem, result.setting, result.rate, *runs, flush=True)
            write(found)


if __name__ == "__main__":
    main()
