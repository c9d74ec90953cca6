"""Experiment files: a base run, the changes of each cell, the seeds, and the figures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from efvfl.config import user_code
from efvfl.config.parsing import parse as toml
from efvfl.config.parsing import read
from efvfl.config.run_file import Device, RunConfig, on_device
from efvfl.core import losses
from efvfl.errors import ConfigError, describe, nearest
from efvfl.experiments import grid
from efvfl.experiments.shorter import with_epochs

ELSEWHERE = {  # what needs more than the package has
    "comparison": "the comparison has tables that are not part of the package: in a checkout, run `python -m "
    "benchmarks.comparison`, and then `python -m tools.comparison` for docs/comparison.md."
}
FORMAT = 1  # of results: increased when the same configuration means a different run


@dataclass(frozen=True)
class Panel:
    """One pair of plots: gradient or loss by epoch, and accuracy by communication."""

    title: str
    runs: tuple[str, ...]


@dataclass(frozen=True)
class FigureSpec:
    """A figure of one or more panels."""

    name: str
    panels: tuple[Panel, ...]
    left: Literal["gradient", "loss"] = "loss"
    by: Literal["epoch", "step"] = "epoch"  # step: residuals, contraction and bytes, of runs with `note_every`


@dataclass(frozen=True)
class Cell:
    """One cell of a table: a configuration that runs once for every seed."""

    name: str
    row: str
    column: str
    config: RunConfig

    def __post_init__(self) -> None:
        """Check the names, and that the run trains at all."""
        for key in ("name", "row", "column"):
            if not isinstance(value := getattr(self, key), str):
                raise ConfigError(f"run {self.name!r}: {key}: expected a string, got {value!r}.")
        if self.config.epochs < 1:
            raise ConfigError(
                f"run {self.name!r}: epochs: expected at least 1, because without training there is no result, got "
                f"{self.config.epochs}."
            )


@dataclass(frozen=True)
class Job:
    """One cell with one seed."""

    cell: str
    config: RunConfig
    folder: Path | None = None  # of a user's experiment: the folder of its data and modules

    @property
    def key(self) -> str:
        """A hash of the whole configuration and of the user's data and modules: equal keys mean the same run.

        Default values are left out, so that adding a setting does not invalidate old results.
        """
        table = {"format": FORMAT, "config": _non_defaults(asdict(self.config), asdict(RunConfig()))}
        if digests := _user_digests(self.config, self.folder):
            table["brought"] = digests
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def file(self) -> str:
        """Name of the result's file."""
        return file_name(self.cell, self.config.seed, self.key)


def file_name(cell: str, seed: int, key: str) -> str:
    """Return the name of a run's file."""
    return f"{cell}-seed{seed}-{key}.json"


def key_in(name: str) -> str:
    """Return the key in the name of a run's file."""
    return name.removesuffix(".json").rpartition("-")[2]


def _non_defaults(table: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """Return the entries that differ from the defaults, also within nested tables."""
    out = {}
    for key, value in table.items():
        same = default.get(key)
        if isinstance(value, dict) and isinstance(same, dict):
            value, same = _non_defaults(value, same), {}
        if value != same:
            out[key] = value
    return out


def _user_digests(config: RunConfig, folder: Path | None) -> dict[str, str]:
    """Return the digests of the user's files by name: a run with other contents is a different run."""
    if folder:
        user_code.look_in(folder)
    files = [config.data.path, *(party.data.path for party in config.party if party.data)]
    models = [config.model, *(party.model for party in config.party if party.model)]
    optimizers = [config.optimizer, *(party.training.optimizer for party in config.party)]
    names = [config.fusion.name, *(model.name for model in models), config.loss, *config.metrics]
    names += user_code.names_in([asdict(config.method), optimizers])
    found = {path: user_code.digest_of_file((folder or Path()) / path) for path in files if path}
    return found | {name: user_code.digest_of_module(name.partition(":")[0]) for name in names if ":" in name}


@dataclass(frozen=True)
class Sweep:
    """All runs of one experiment."""

    name: str
    title: str
    about: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    figures: tuple[FigureSpec, ...]
    error: float = 0.0  # Table 1's delta, a bound on the mean squared gradient; 0: no such table
    folder: Path | None = None  # of a user's experiment
    paper: str = ""  # the experiment whose numbers in the paper stand beside these, though they are not comparable

    def __post_init__(self) -> None:
        """Check that one table can show all runs, before any is trained."""
        names = [cell.name for cell in self.cells]
        if len(set(names)) != len(names) or not all(names):
            raise ConfigError(f"{self.name}: expected runs with unique names, got {names}.")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"{self.name}: seeds: expected one or more different seeds, got {list(self.seeds)}.")
        places: dict[tuple[str, str], str] = {}
        for cell in self.cells:
            other = places.setdefault((cell.row, cell.column), cell.name)
            if other != cell.name:
                raise ConfigError(
                    f"{self.name}: runs {other!r} and {cell.name!r} have the same row {cell.row!r} and column "
                    f"{cell.column!r}, but a table has one cell there: change one of them."
                )
        if unsaid := [cell.name for cell in self.cells if not cell.config.loss]:
            raise ConfigError(
                f"{self.name}: run {unsaid[0]!r} leaves the loss to its label: set `loss`, to compare by one metric."
            )
        metrics = {losses.lookup(cell.config.loss).metric_name for cell in self.cells}
        if len(metrics) > 1:
            raise ConfigError(
                f"{self.name}: losses measured by {' and by '.join(sorted(metrics))} do not fit into one table: use "
                "separate experiments."
            )

    @property
    def metric(self) -> str:
        """The metric that belongs to the loss of all runs."""
        return losses.lookup(self.cells[0].config.loss).metric_name

    def jobs(self) -> list[Job]:
        """Return every cell with every seed, seed by seed, so that an interrupted sweep still fills a table."""
        pairs = [(seed, cell) for seed in self.seeds for cell in self.cells]
        return [Job(cell.name, replace(cell.config, seed=seed), self.folder) for seed, cell in pairs]


@dataclass(frozen=True)
class _File:
    """The schema of an experiment file."""

    title: str
    about: str = ""
    seeds: tuple[int, ...] = (0,)
    error: float = 0.0
    paper: str = ""
    grid: dict[str, Any] = field(default_factory=dict)  # lists of values; a run's own `grid` replaces it
    base: dict[str, Any] = field(default_factory=dict)
    run: tuple[dict[str, Any], ...] = ()
    figure: tuple[FigureSpec, ...] = ()


def tasks() -> list[str]:
    """Return the names of the experiments that come with the package.

    >>> "mnist" in tasks()
    True
    """
    folder = resources.files("efvfl") / "experiments"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(task: str) -> Sweep:
    """Return an experiment by its name, or by a path that ends in .toml."""
    if task.endswith(".toml"):
        path = Path(task)
        try:
            return parse(path.read_text(encoding="utf-8"), path.stem, path.resolve().parent)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
    if task in ELSEWHERE:
        raise ConfigError(ELSEWHERE[task])
    if task not in tasks():
        raise ConfigError(f"there is no experiment {task!r}. {nearest(task, tasks())}")
    return parse((resources.files("efvfl") / "experiments" / f"{task}.toml").read_text(encoding="utf-8"), task)


def parse(text: str, name: str, folder: Path | None = None) -> Sweep:
    """Return an experiment from TOML; `folder` has the user's data and modules."""
    file = read(_File, toml(text, name), name)
    runs = file.run or (({"name": name},) if file.grid else ())
    if not runs:
        raise ConfigError(f"{name}: expected one or more [[run]] tables or a [grid], got none.")
    names = [run.get("name", "") for run in runs]
    if not all(names):
        raise ConfigError(f"{name}: expected runs with unique names, got {names}.")
    of_run = {str(run.get("name", "")): _cells(file, dict(run), name) for run in runs}
    cells = tuple(cell for found in of_run.values() for cell in found)
    if len(of_run) < len(runs):
        raise ConfigError(f"{name}: expected runs with unique names, got {names}.")
    figures = tuple(_drawn(figure, of_run, name) for figure in file.figure)
    return Sweep(name, file.title, file.about, file.seeds, cells, figures, file.error, folder, file.paper)


def _drawn(figure: FigureSpec, of_run: Mapping[str, Sequence[Cell]], where: str) -> FigureSpec:
    """Return a figure of cells: a run that is a grid stands for all of its own."""
    known = {name: [cell.name for cell in cells] for name, cells in of_run.items()}
    known |= {cell.name: [cell.name] for cells in of_run.values() for cell in cells}
    for run in (run for panel in figure.panels for run in panel.runs):
        if run not in known:
            raise ConfigError(f"{where}: {figure.name} draws {run!r}, which is not a run. {nearest(run, known)}")
    panels = [replace(p, runs=tuple(cell for run in p.runs for cell in known[run])) for p in figure.panels]
    return replace(figure, panels=tuple(panels))


def _cells(file: _File, run: dict[str, Any], where: str) -> list[Cell]:
    """Return the cells of a run: one for each combination of the grid's values."""
    what = f"{where}: run {run.get('name', '')!r}"
    varied = run.pop("grid", file.grid)
    if not isinstance(varied, dict):
        raise ConfigError(f"{what}: grid: expected a table with lists of values, got {describe(varied)}.")
    points = grid.points(varied, what)
    for path in points[0].values:
        if grid.has(run, path):
            raise ConfigError(
                f"{what}: {'.'.join(path)} is set, and [grid] varies it: give the run a `grid` of its own."
            )
    return [_cell(file.base, dict(run), point, where) for point in points]


def _cell(base: dict[str, Any], run: dict[str, Any], point: grid.Point, where: str) -> Cell:
    """Return the base with the changes of a run; keys of a table replace those of the base's table, one level deep.

    A run without a row gets its name as the row. Values of a grid come last, and are in the name and the column.
    """
    labels = {key: run.pop(key, "") for key in ("name", "row", "column")}
    labels["row"] = labels["row"] or labels["name"]
    merged = dict(base)
    for key, value in run.items():
        below = base.get(key)
        merged[key] = below | value if isinstance(below, dict) and isinstance(value, dict) else value
    if point.label and isinstance(labels["name"], str):
        labels["name"] = grid.in_file_names(f"{labels['name']}, {point.label}")
        labels["column"] = f"{labels['column']}, {point.label}" if labels["column"] else point.label
    what = f"{where}: run {labels['name']!r}"
    return Cell(**labels, config=read(RunConfig, point.put_into(merged, what), what))


def changed(
    sweep: Sweep,
    *,
    seeds: tuple[int, ...] | None = None,
    epochs: int | None = None,
    subset: int | None = None,
    data: str | None = None,
    device: Device | None = None,
) -> Sweep:
    """Return the sweep with some settings of all cells replaced; schedulers are stretched with the epochs."""

    def config(old: RunConfig) -> RunConfig:
        new = old if epochs is None else with_epochs(old, epochs)
        new = new if device is None else on_device(new, device)
        rows = replace(old.data, name=data or old.data.name, subset=old.data.subset if subset is None else subset)
        return replace(new, data=rows)

    cells = tuple(replace(cell, config=config(cell.config)) for cell in sweep.cells)
    return replace(sweep, seeds=sweep.seeds if seeds is None else seeds, cells=cells)
