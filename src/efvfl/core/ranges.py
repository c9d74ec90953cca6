"""How large every number may be: one table, checked alike for Python and run files. `docs/options.md` shows it."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Final

from efvfl.errors import ConfigError, describe, whole_number

YEARS: Final = 315_360_000  # ten of them, in seconds: no wait is longer, and threads cannot wait for centuries
COUNT: Final = 1 << 40  # rows, steps, epochs: nobody has more
BYTES: Final = 1 << 60
FLOAT32: Final = 3.4028234663852886e38  # the largest one
FLOAT64: Final = sys.float_info.max


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may have."""

    least: float
    most: float
    whole: bool = True
    below: bool = False  # `most` itself is too large


RANGES: Final[dict[str, Range]] = {
    "seed": Range(-(1 << 64), 1 << 64),
    "private_seed": Range(-(1 << 64), 1 << 64),
    "party.private_seed": Range(-(1 << 64), 1 << 64),
    "epochs": Range(0, COUNT),
    "batch_size": Range(0, COUNT),
    "threads": Range(0, 1024),
    "observe_every": Range(1, COUNT),
    "note_every": Range(0, COUNT),
    "patience": Range(0, COUNT),
    "class_weights": Range(1e-9, 1e9, whole=False),
    "data.validation": Range(0, 1, whole=False, below=True),
    "data.test": Range(0, 1, whole=False, below=True),
    "data.subset": Range(0, COUNT),
    "data.held_out": Range(0, COUNT),
    "data.ids": Range(0, COUNT),
    "data.min_parties": Range(1, 1 << 20),
    "data.bins": Range(0, 256),
    "party.ids": Range(0, COUNT),
    "training.local_steps": Range(0, 1 << 20),
    "party.report_seconds": Range(0, YEARS, whole=False),
    "model.width": Range(1, 1 << 20),
    "model.hidden": Range(1, 1 << 20),
    "fusion.hidden": Range(1, 1 << 20),
    "method.updates": Range(1, 1 << 20),
    "method.local_steps": Range(1, 1 << 20),
    "agreement.local_steps": Range(1, 1 << 20),
    "agreement.digest_every": Range(1, COUNT),
    "agreement.pipeline": Range(0, 64),
    "asynchronous.reports": Range(0, 1 << 20),
    "asynchronous.deadline_seconds": Range(0, YEARS, whole=False),
    "asynchronous.most_stale": Range(1, 1 << 24),
    "cached.steps": Range(0, 1 << 20),
    "cached.batches": Range(0, 1 << 20),
    "cached.angle": Range(1e-3, 180, whole=False),
    "protect.clip": Range(0, FLOAT32, whole=False),
    "protect.noise": Range(0, 1e9, whole=False),
    "protect.gradient_clip": Range(0, FLOAT32, whole=False),
    "protect.gradient_noise": Range(0, 1e9, whole=False),
    "protect.delta": Range(1e-300, 1, whole=False, below=True),
    "protect.label_epsilon": Range(0, 16, whole=False),
    "protect.label_range": Range(-FLOAT32, FLOAT32, whole=False),
    "limits.epsilon": Range(0, 1e6, whole=False),
    "visits.noise": Range(0, 1e9, whole=False),
    "visits.epsilon": Range(0, 1e6, whole=False),
    "visits.delta": Range(1e-300, 1, whole=False, below=True),
    "visits.epochs": Range(0, COUNT),
    "limits.bytes": Range(0, BYTES),
    "limits.steps": Range(0, COUNT),
    "limits.rows": Range(0, COUNT),
    "network.absent_seconds": Range(0, YEARS, whole=False),
    "network.stale_seconds": Range(0, YEARS, whole=False),
    "network.silent_seconds": Range(0, YEARS, whole=False),
    "network.save_steps": Range(1, COUNT),
    "network.save_seconds": Range(0, YEARS, whole=False),
    "momentum.eta": Range(1e-6, 1, whole=False),
    "econtrol.eta": Range(1e-6, 1, whole=False),
    "decay.keep": Range(0, 1, whole=False),
    "optimizer.*": Range(-FLOAT64, FLOAT64, whole=False),  # every number in it and in its scheduler
}


_WORDS: Final = ("agreement.pipeline", "class_weights")  # in place of a number; which, is checked where they are used


def check(key: str, value: object, name: str = "") -> None:
    """Refuse a number that is out of the range of a key; `name` is what the error calls it.

    >>> check("model.width", 0)
    Traceback (most recent call last):
    efvfl.errors.ConfigError: model.width: expected at least 1, got 0.
    """
    allowed, name = RANGES[key], name or key
    if allowed.whole:
        number: float = whole_number(name, value)
    elif isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value):
        number = value  # type: ignore[assignment]
    else:
        raise ConfigError(f"{name}: expected a number, got {describe(value)}.")
    if number < allowed.least:
        raise ConfigError(f"{name}: expected at least {shown(allowed.least)}, got {describe(number)}.")
    if number > allowed.most or (allowed.below and number == allowed.most):
        bound = "a number below" if allowed.below else "at most"
        raise ConfigError(f"{name}: expected {bound} {shown(allowed.most)}, got {describe(number)}.")


def check_fields(settings: Any, table: str = "") -> None:
    """Refuse numbers of a dataclass that are out of range, also in its lists; `table` is what a file calls it."""
    for f in fields(settings):
        key, value = f"{table}.{f.name}" if table else f.name, getattr(settings, f.name)
        if key not in RANGES or value is f.default or (key in _WORDS and isinstance(value, str)):
            continue
        if isinstance(f.default, bool) and isinstance(value, bool):
            continue  # a word and a number: yes, no, or how many
        if isinstance(value, list | tuple):
            for i, item in enumerate(value):
                check(key, item, f"{key}[{i}]")
        else:
            check(key, value)


def check_numbers(key: str, value: object, name: str) -> None:
    """Refuse any number out of a key's range in what may also hold words, lists and tables."""
    if isinstance(value, dict):
        for inner, item in value.items():
            check_numbers(key, item, f"{name}.{inner}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            check_numbers(key, item, f"{name}[{i}]")
    elif isinstance(value, Real) and not isinstance(value, bool):
        check(key, value, name)


def shown(bound: float) -> str:
    """Return a bound as errors and documents show it."""
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
