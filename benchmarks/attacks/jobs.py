"""What is trained and attacked, and a file of what came of each."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.attacks.problems import GUEST, TASKS, Task
from benchmarks.attacks.settings import NAMED, SETTINGS, Setting, build
from efvfl.data.base import Dataset
from efvfl.errors import DataError
from efvfl.runs.attacks import catalogue
from efvfl.runs.attacks.bench import Attacked, Attacker, train_and_attack
from efvfl.training.federation import Federation
from efvfl.util.files import write_atomically

FILE = Path(__file__).parent.parent / "results" / "attacks.json"
KNOWN, SHADOW = 10, 200

Job = tuple[str, str, int]  # task, setting, seed
Kinds = tuple[catalogue.AttackKind, ...]
Found = dict[str, dict[str, dict[str, Any]]]


def jobs() -> list[Job]:
    """Return all of them, in the order of the file."""
    return [
        (task, setting.name, seed)
        for task in TASKS
        for setting in SETTINGS
        if not setting.binary or task == "credit"
        for seed in range(TASKS[task].seeds)
    ]


def attack(task: Task, data: Dataset, setting: Setting, seed: int, kinds: Kinds = catalogue.KINDS) -> Attacked:
    """Train one setting and try these attacks on it."""

    def train(federation: Federation) -> None:
        federation.fit(task.epochs, observe_every=task.epochs, gradient=False)

    return train_and_attack(
        partial(build, task, data, setting, seed),
        train,
        task.epochs,
        kinds,
        Attacker(GUEST, KNOWN, SHADOW, seed),
        data.train.labels,
        setting.defence,
        setting.name,
    )


def work(path: Path = FILE) -> None:
    """Try the attacks that the file does not have, and write it after each job.

    Tasks whose data are not here are left out.
    """
    torch.set_num_threads(1)
    found: Found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    absent: dict[str, str] = {}
    for name, setting, seed in sorted(jobs(), key=lambda job: job[2]):
        known = found.get(name, {}).get(setting, {}).get(str(seed), {})
        done = {**known.get("found", {}), **known.get("not_applicable", {})}
        kinds = tuple(kind for kind in catalogue.KINDS if kind.name not in done)
        if name in absent or not kinds:
            continue
        try:
            data = TASKS[name].load(seed)
        except DataError as error:
            absent[name] = str(error)
            print(f"{name}: left out: {error}", flush=True)
            continue
        started = time.process_time()
        result = _rounded(attack(TASKS[name], data, NAMED[setting], seed, kinds).to_table())
        print(name, setting, seed, json.dumps(result["found"]), flush=True)
        for part in ("found", "not_applicable"):
            result[part] = _sorted(known.get(part, {}) | result[part])
        result["cpu_seconds"] = round(time.process_time() - started + known.get("cpu_seconds", 0.0), 1)
        found.setdefault(name, {}).setdefault(setting, {})[str(seed)] = result
        write_atomically(path, (json.dumps(in_order(found), indent=1) + "\n").encode())


def in_order(found: Found) -> Found:
    """Return results in the order of the jobs, whichever was done first."""
    ordered: Found = {}
    for name, setting, seed in jobs():
        if str(seed) in found.get(name, {}).get(setting, {}):
            ordered.setdefault(name, {}).setdefault(setting, {})[str(seed)] = found[name][setting][str(seed)]
    return ordered


def _sorted(outcomes: dict[str, Any]) -> dict[str, Any]:
    """Return outcomes in the order of the catalogue."""
    return {name: outcomes[name] for name in catalogue.NAMES if name in outcomes}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items() if key not in ("name", "party")}
    return round(value, 5) if isinstance(value, float) else value
