"""An experiment as a file: a base run, what each cell changes, seeds, and the figures drawn from them."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from efvfl.config import RunConfig, read
from efvfl.errors import ConfigError, nearest

FORMAT = 1  # of results: raised when the same configuration means another run


@dataclass(frozen=True)
class Panel:
    """One pair of plots: what is drawn on the left by epoch, and accuracy by communication."""

    title: str
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper."""

    name: str
    left: Literal["gradient", "loss"]
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Cell:
    """One row and column of a table: a configuration that runs once for every seed."""

    name: str
    row: str
    column: str
    config: RunConfig


@dataclass(frozen=True)
class Job:
    """One cell with one seed."""

    cell: str
    config: RunConfig

    @property
    def key(self) -> str:
        """A hash of the whole configuration: equal keys are the same run.

        Settings that have their default are left out, so that a setting added later does not orphan old results.
        """
        chosen = _unlike(asdict(self.config), asdict(RunConfig()))
        text = json.dumps({"format": FORMAT, "config": chosen}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def file(self) -> str:
        """Name of the result's file."""
        return f"{self.cell}-seed{self.config.seed}-{self.key}.json"


def _unlike(table: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """Return what differs from the defaults, tables within tables included."""
    out = {}
    for key, value in table.items():
        same = default.get(key)
        if isinstance(value, dict) and isinstance(same, dict):
            value, same = _unlike(value, same), {}
        if value != same:
            out[key] = value
    return out


@dataclass(frozen=True)
class Sweep:
    """All runs of one task."""

    name: str
    title: str
    about: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    figures: tuple[Figure, ...]
    error: float = 0.0  # Table 1's delta: what is sent until the mean squared gradient is no larger; 0: no such table

    def jobs(self) -> list[Job]:
        """Return every cell with every seed, seed by seed, so that a sweep that stopped early is still a table."""
        return [Job(cell.name, replace(cell.config, seed=seed)) for seed in self.seeds for cell in self.cells]


@dataclass(frozen=True)
class _File:
    """The form of an experiment file."""

    title: str
    about: str = ""
    seeds: tuple[int, ...] = (0,)
    error: float = 0.0
    base: dict[str, Any] = field(default_factory=dict)
    run: tuple[dict[str, Any], ...] = ()
    figure: tuple[Figure, ...] = ()


def tasks() -> list[str]:
    """Return the names of the experiments that come with the package."""
    folder = resources.files("efvfl") / "experiments"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(task: str) -> Sweep:
    """Read an experiment by name, or from a path that ends in .toml."""
    if task.endswith(".toml"):
        path = Path(task)
        try:
            return parse(path.read_text(encoding="utf-8"), path.stem)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
    if task not in tasks():
        raise ConfigError(f"there is no experiment {task!r}. {nearest(task, tasks())}")
    return parse((resources.files("efvfl") / "experiments" / f"{task}.toml").read_text(encoding="utf-8"), task)


def parse(text: str, name: str) -> Sweep:
    """Read an experiment from TOML."""
    try:
        file = read(_File, tomllib.loads(text), name)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not TOML: {error}") from error
    cells = tuple(_cell(file.base, dict(run), name) for run in file.run)
    names = [cell.name for cell in cells]
    if len(set(names)) != len(names) or not cells:
        raise ConfigError(f"{name}: an experiment needs runs, each with a name of its own, but {names} came.")
    for figure in file.figure:
        for run in (run for panel in figure.panels for run in panel.runs):
            if run not in names:
                raise ConfigError(f"{name}: {figure.name} draws {run!r}, which is not a run. {nearest(run, names)}")
    return Sweep(name, file.title, file.about, file.seeds, cells, file.figure, file.error)


def _cell(base: dict[str, Any], run: dict[str, Any], where: str) -> Cell:
    """Lay a run over the base: a table's keys replace those of the base's table, one level deep."""
    labels = {key: run.pop(key, "") for key in ("name", "row", "column")}
    merged = dict(base)
    for key, value in run.items():
        merged[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return Cell(**labels, config=read(RunConfig, merged, f"{where}: run {labels['name']!r}"))


def changed(
    sweep: Sweep,
    *,
    seeds: tuple[int, ...] | None = None,
    epochs: int | None = None,
    subset: int | None = None,
    data: str | None = None,
) -> Sweep:
    """Return a sweep with some settings of all its cells replaced."""

    def config(old: RunConfig) -> RunConfig:
        new = replace(old, epochs=old.epochs if epochs is None else epochs)
        rows = replace(old.data, name=data or old.data.name, subset=old.data.subset if subset is None else subset)
        return replace(new, data=rows)

    cells = tuple(replace(cell, config=config(cell.config)) for cell in sweep.cells)
    return replace(sweep, seeds=sweep.seeds if seeds is None else seeds, cells=cells)
