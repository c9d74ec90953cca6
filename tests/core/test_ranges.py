"""Every number of a run file has a range, and the same range in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import odd_settings
import pytest
import torch

from efvfl import Optimizer, Protection, SharedLabels, Training
from efvfl.config.run_file import LimitConfig, ModelConfig, NetworkConfig, RunConfig, load
from efvfl.core import losses
from efvfl.core.memories import MEMORIES
from efvfl.core.ranges import RANGES, check, check_numbers
from efvfl.data.base import cut_rows
from efvfl.errors import ConfigError, EfvflError
from efvfl.models.mlp import mlp
from efvfl.runs.build import make_optimizer

NAN, INF = float("nan"), float("inf")


def numbers(cls: type, table: str = "") -> Iterator[str]:
    """Yield the keys of all numbers of a dataclass and of the tables in it."""
    for f in fields(cls):
        hint = get_type_hints(cls)[f.name]
        kinds = {hint, *get_args(hint)} | {inner for part in get_args(hint) for inner in get_args(part)}
        for kind in kinds:
            if isinstance(kind, type) and is_dataclass(kind):
                yield from numbers(kind, f.name)
        if kinds & {int, float}:
            yield f"{table}.{f.name}" if table else f.name


def test_every_number_of_a_run_file_has_a_range() -> None:
    of_memories = {f"{name}.{knob}" for name, cls in MEMORIES.items() for knob in numbers(cls)}
    of_methods = {"method.local_steps", "method.updates"}  # which functions in Python take or return
    assert set(numbers(RunConfig)) | of_memories | of_methods == set(RANGES) - {"optimizer.*"}


@pytest.mark.parametrize("key", RANGES)
def test_both_ends_are_in_range_and_what_lies_beyond_is_not(key: str) -> None:
    allowed = RANGES[key]
    check(key, allowed.least)
    inside = allowed.most if not allowed.below else np.nextafter(allowed.most, 0)
    check(key, inside)
    beyond = (allowed.least - 1, allowed.most + 1) if allowed.whole else (-INF, INF, NAN)
    for wrong in (*beyond, "1", None, {}, [], True):
        with pytest.raises(ConfigError, match=r"^what: expected "):
            check(key, wrong, "what")
    if allowed.whole:
        with pytest.raises(ConfigError, match=r"expected a whole number, got 1\.5"):
            check(key, 1.5)


def test_numbers_within_tables_and_lists() -> None:
    check_numbers("optimizer.*", {"lr": 0.1, "betas": [0.9, 0.99], "foreach": True, "name": "nan"}, "optimizer")
    for wrong, where in (({"lr": NAN}, r"optimizer\.lr"), ({"a": [0, {"b": INF}]}, r"optimizer\.a\[1\]\.b")):
        with pytest.raises(ConfigError, match=where):
            check_numbers("optimizer.*", wrong, "optimizer")


@pytest.mark.attack(
    by="a file",
    tries="nan, inf, {}, dates, null characters, huge widths and threads, negative times and limits",
    outcome="refused with the name of the key (46 tracebacks before)",
)
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("threads = 100000", "threads: expected at most 1,024, got 100000"),
        ("threads = 1000000000000000000000000", "threads: expected a number within 64 bits, got 80 bits"),
        ("private_seed = {}", r"private_seed: expected a whole number or .*, got \{\}"),
        ("class_weights = {}", r"class_weights: expected a string or a list, got \{\}"),
        ("class_weights = [1, -1]", r"class_weights\[1\]: expected at least 1e-09, got -1"),
        ("class_weights = [1, inf]", r"class_weights\[1\]: expected a finite number, got inf"),
        ("seed = 1979-05-27", "seed: expected no date or time, got 1979-05-27: write it as a string"),
        ("epochs = 1e3", r"epochs: expected a whole number, got 1000\.0"),
        ("[data]\nvalidation = nan", "data: validation: expected a finite number, got nan"),
        ("[data]\nvalidation = -0.1", r"data\.validation: expected at least 0, got -0\.1"),
        ("[data]\ntest = 1", r"data\.test: expected a number below 1, got 1"),
        ("[data]\nvalidation = 0.5\ntest = 0.5", "leave no rows to train on: expected a sum below 1"),
        ("[data]\nsubset = -1", r"data\.subset: expected at least 0, got -1"),
        ("[data]\npath = 'a\\u0000b'".replace("'", '"'), "data: path: expected a text without null characters"),
        ("[model]\nwidth = 1000000000", r"model\.width: expected at most 1,048,576, got 1000000000"),
        ("[fusion]\nhidden = [8, 0]", r"fusion\.hidden\[1\]: expected at least 1, got 0"),
        ("[network]\nabsent_seconds = -1", r"network\.absent_seconds: expected at least 0, got -1"),
        ("[network]\nstale_seconds = inf", "network: stale_seconds: expected a finite number, got inf"),
        (
            "[network]\nsave_seconds = 1e12",
            r"network\.save_seconds: expected at most 315,360,000, got 1000000000000\.0",
        ),
        (f"[network]\naddress = 'a:{'1' * 5000}'", "address: expected host:port"),
        ("[[party]]\nname = 'bank'\nlimits = { rows = -1 }", r"limits\.rows: expected at least 0, got -1"),
        ("[[party]]\nname = ''", r"\[\[party\]\] name: expected 1 to 200 characters without slashes, got ''"),
        ("[[party]]\nname = '../x'", r"\[\[party\]\] name: expected 1 to 200 characters without slashes"),
        ("[[party]]\nname = 'bank'\nprivate_seed = {}", r"private_seed: expected a whole number or .*, got \{\}"),
        (
            "[[party]]\nname = 'a'\ndata = { path = 'x', types = { b = 3 } }",
            "types: b: unknown value 3. Known: boolean",
        ),
        ("[protect]\nclip = nan", "protect: clip: expected a finite number, got nan"),
        ("[optimizer]\nlr = inf", "optimizer: lr: expected a finite number, got inf"),
        ("[model]\noptions = { a = [{ b = nan }] }", r"options: a\[0\]: b: expected a finite number, got nan"),
        (f"epochs = {'[' * 3000}{']' * 3000}", "is not TOML: maximum recursion|at most 16 tables and lists"),
        (f"epochs = {'9' * 5000}", "is not TOML"),
    ],
)
def test_odd_values_are_answered(text: str, error: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=error):
        load(file)


def test_every_key_with_odd_values_is_read_or_refused_by_name(tmp_path: Path) -> None:
    file, refused, allowed = tmp_path / "run.toml", 0, 0
    odd: tuple[Any, ...] = (NAN, -1, 10**30, {}, [{}], "\x00")
    for path in odd_settings.key_paths():
        for value in odd:
            file.write_text(odd_settings.document(odd_settings.changed(odd_settings.QUICK, path, value)))
            try:
                load(file)
            except EfvflError as error:
                refused += odd_settings.names(error, path, value)
            else:
                allowed += 1
    assert (refused + allowed, refused > 500) == (len(odd) * len(list(odd_settings.key_paths())), True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Training(batch_size=-1),
        lambda: Training(batch_size=10**30),
        lambda: Training(seed=10**30),
        lambda: Optimizer("SGD", {"lr": NAN}),
        lambda: Optimizer("SGD", {"lr": INF}),
        lambda: Optimizer("SGD", {"lr": 0.1}, "StepLR", {"step_size": 1, "gamma": NAN}),
        lambda: Protection(clip=NAN),
        lambda: Protection(clip=1.0, noise=-1.0),
        lambda: SharedLabels(local_steps=10**30),
        lambda: SharedLabels(digest_every=0),
        lambda: ModelConfig(width=10**30),
        lambda: LimitConfig(rows=-1),
        lambda: NetworkConfig(stale_seconds=NAN),
        lambda: RunConfig(threads=10**6),
        lambda: cut_rows(10, (NAN, 0.1), 0),
        lambda: cut_rows(10, (INF, 0.1), 0),
        lambda: losses.class_weights([1.0, INF], torch.tensor([0, 1]), 2),
        lambda: mlp(1 << 20, 1 << 20),
        lambda: make_optimizer({"scheduler": {"name": 0}}),
    ],
)
def test_the_same_holds_in_python(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize(
    ("optimizer", "error"),
    [
        (Optimizer("SGD", {"lr": 1e39}), "torch.optim.SGD does not take .*overflow"),
        (Optimizer("Adam", {"capturable": True}), "torch.optim.Adam does not take"),
        (Optimizer("SGD", {"lr": 0.1}, "StepLR", {"step_size": 0}), "scheduler StepLR does not take"),
        (Optimizer("SGD", {"lr": 0.1}, "CosineAnnealingLR", {"T_max": 0}), "scheduler CosineAnnealingLR does not take"),
        (Optimizer("SGD", {"lr": 0.1}, "MultiStepLR", {"milestones": 3}), "scheduler MultiStepLR does not take"),
    ],
)
def test_options_that_fail_at_the_first_step_are_refused_before_it(optimizer: Optimizer, error: str) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    with pytest.raises(ConfigError, match=error):
        optimizer.build_scheduler(optimizer.build(parameters))
