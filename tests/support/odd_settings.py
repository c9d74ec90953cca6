"""Settings that nobody means: every key of a run file or an experiment file, with every odd value."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from efvfl.config.run_file import RunConfig, load
from efvfl.experiments import experiment_file
from efvfl.experiments.jobs import check
from efvfl.network import handshake
from efvfl.network.training import build
from efvfl.network.training.participant_data import load as hold
from efvfl.runs.build import load_data, make_federation

Table = dict[str, Any]
Path_ = tuple[str, ...]  # keys, from the outermost table on

NAN, INF = float("nan"), float("inf")
NUMBERS: tuple[Any, ...] = (
    NAN,
    INF,
    -INF,
    -1,
    0,
    1,
    2,
    0.5,
    -0.5,
    1e-320,
    1e38,
    1e39,
    1e308,
    10**6,
    2**31,
    2**63,
    10**30,
)
WORDS: tuple[Any, ...] = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "../../x",
    "/",
    "x" * 5000,
    "é",
    "\ud7ff",
    "nan",
    "mlp",
    ":",
    "..:x",
    "a:b",
)
OTHERS: tuple[Any, ...] = (True, False, datetime.date(1979, 5, 27), datetime.time(7, 32))
TABLES: tuple[Any, ...] = (
    {},
    {"x": {}},
    {"name": {}},
    {"name": ""},
    {"name": 3},
    {"name": "topk", "k": -1},
    {"a": {"b": [{}]}},
)
LISTS: tuple[Any, ...] = ([], [[]], [{}], [NAN], [-1], [0], [10**30], ["", ""], [1, "a"], [[[[[1]]]]], list(range(300)))
ODD: tuple[Any, ...] = (*NUMBERS, *WORDS, *OTHERS, *TABLES, *LISTS)

# What is inside tables that a dataclass does not describe.
INSIDE: dict[tuple[str, ...], tuple[str, ...]] = {
    ("optimizer",): ("name", "lr", "momentum", "nesterov", "weight_decay", "foreach", "scheduler"),
    ("optimizer", "scheduler"): ("name", "step_size", "gamma", "T_max", "milestones"),
    ("method", "compressor"): ("name", "ratio", "k", "per", "bits", "levels", "to"),
    ("method", "compressor", "ratio"): ("start", "stop", "steps", "shape"),
    ("method", "down"): ("name", "bits"),
    ("method", "fusion"): ("name", "ratio"),
    ("model", "options"): ("norm", "size", "in_features", "out_features"),
    ("fusion", "options"): ("in_features", "out_features"),
}
# Files that work, in which one key after another becomes odd; together they reach what depends on other keys.
QUICK: Table = {"epochs": 1, "data": {"subset": 40}}
BASES: tuple[Table, ...] = (
    QUICK,
    {**QUICK, "agreement": {"labels": "shared", "fusion": "replicate"}, "method": {"compressor": {"name": "qsgd"}}},
    {**QUICK, "optimizer": {"name": "Adam", "scheduler": {"name": "StepLR", "step_size": 3}}},
    {
        **QUICK,
        "method": {"compressor": {"name": "topk", "ratio": {"start": 0.1, "stop": 0.2, "steps": 3}}},
        "model": {"name": "torch.nn:Linear", "options": {"in_features": 16, "out_features": 16}},
        "fusion": {"name": "torch.nn:Linear", "options": {"in_features": 16, "out_features": 10}},
    },
    {**QUICK, "party": [{"name": "top-left", "model": {"width": 16}, "limits": {"rows": 3}, "private_seed": 4}]},
    {"party": [{"name": "bank", "data": {"path": "bank.npz"}}], "data": {"name": "npz", "path": "labels.npz"}},
)
SWEEP: Table = {"title": "Odd", "base": QUICK, "run": [{"name": "one"}, {"name": "two", "batch_size": 8}]}
SWEEP_KEYS: tuple[Path_, ...] = (
    ("title",),
    ("about",),
    ("seeds",),
    ("error",),
    ("base",),
    ("run",),
    ("figure",),
    *(("run", key) for key in ("name", "row", "column", "seed", "epochs", "data", "model", "method", "odd")),
    *(("figure", key) for key in ("name", "left", "panels")),
)


def key_paths(cls: type = RunConfig, above: tuple[str, ...] = ()) -> Iterator[Path_]:
    """Yield the path of every key that a dataclass and what is inside it have."""
    for f in fields(cls):
        path = (*above, f.name)
        yield path
        for hint in _tables(get_type_hints(cls)[f.name]):
            yield from key_paths(hint, path)
    for inside, names in INSIDE.items():
        if inside[:-1] == above and inside[-1] in {f.name for f in fields(cls)}:
            yield from ((*inside, name) for name in names)
            yield from ((*deeper, name) for deeper, more in INSIDE.items() if deeper[:-1] == inside for name in more)


def _tables(hint: Any) -> Iterator[type]:
    """Yield the dataclasses that a type mentions."""
    if get_origin(hint) in (Union, UnionType, tuple):
        for part in get_args(hint):
            yield from _tables(part)
    elif isinstance(hint, type) and is_dataclass(hint):
        yield hint


def changed(base: Any, path: Path_, value: Any) -> Any:
    """Return a table with another value at a path; what is missing on the way is made, a list gets one entry."""
    if not path:
        return value
    if isinstance(base, list):
        return [changed(base[0] if base else {}, path, value), *base[1:]]
    table = dict(base) if isinstance(base, dict) else {}
    below = table.get(path[0], [{"name": "top-left"}] if path[0] == "party" and len(path) > 1 else {})
    return table | {path[0]: changed(below, path[1:], value)}


def toml(value: Any) -> str:
    """Return a value as TOML, tables inline; the outermost one is a document."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {toml(item)}' for key, item in value.items())}}}"
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else repr(value)


def document(table: Table) -> str:
    """Return a table as the text of a file."""
    return "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in table.items())


def prepare(folder: Path) -> None:
    """Put the arrays that the last of the files needs into a folder."""
    draw = np.random.default_rng(0)
    ids = np.arange(30)
    np.savez(folder / "labels.npz", y=ids % 2, ids=ids)
    np.savez(folder / "bank.npz", x=draw.standard_normal((30, 16)), ids=ids)


def build_all(text: str, folder: Path) -> None:
    """Do what `run`, `serve` and `join` do before they train: read, check, load, build both halves."""
    file = folder / "run.toml"
    file.write_text(text, encoding="utf-8")
    config = load(file)
    data = load_data(config, folder)
    make_federation(config, data)
    handshake.digest(handshake.shared_part(config, data.names))
    server = hold(config, folder, "")
    build.build_server(config, build.make_plan(config, server), server)


def build_sweep(text: str, folder: Path) -> None:
    """Do what `reproduce` does before it trains."""
    jobs = experiment_file.parse(text, "exp", folder).jobs()
    assert len({job.file for job in jobs}) == len(jobs)
    check(jobs)


def names(error: Exception, path: Path_, value: Any) -> bool:
    """Whether an error says which key it is about: by its name, its table's, or what it was set to."""
    text = str(error)
    shown = repr(value)[:20] if not isinstance(value, str) else value[:20]
    return any(str(part) in text for part in path[-2:]) or shown in text
