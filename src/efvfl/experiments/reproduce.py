"""`efvfl reproduce TASK` and `efvfl figures TASK`: run what is missing, then write tables, figures and the page."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import efvfl
from efvfl.config.run_file import Device
from efvfl.data import catalogue
from efvfl.errors import ConfigError
from efvfl.experiments import experiment_file, figures, page, tables
from efvfl.experiments.experiment_file import Job, Sweep
from efvfl.experiments.jobs import Engine, run_all
from efvfl.experiments.results import unfinished
from efvfl.util.files import write_atomically

log = logging.getLogger("efvfl")

QUICK_EPOCHS = 5
SAID_SECONDS = 30.0  # between two lines about progress, where nobody sees a bar


@dataclass(frozen=True)
class Overrides:
    """What a caller changes of an experiment file; None leaves what the file says."""

    seeds: tuple[int, ...] | None = None
    epochs: int | None = None
    subset: int | None = None  # training rows, chosen by seed
    quick: bool = False  # one seed and few epochs; digits where the data set is not on this machine
    device: Device | None = None  # of all local models


def reproduce(
    task: str, out: Path, overrides: Overrides, console: Console, workers: int = 0, engine: Engine = "processes"
) -> None:
    """Run what is missing of an experiment; then print its table and write its figures and page."""
    plan = _overridden(task, overrides)
    for name in _catalogued(plan):
        catalogue.require(name)
    _run(plan, out / plan.name, workers, engine, console)
    _show(plan, task, out, console)


def show_results(task: str, out: Path, overrides: Overrides, console: Console) -> None:
    """Print an experiment's table and write its figures and page from the results there are."""
    _show(_overridden(task, overrides), task, out, console)


def list_tasks(console: Console) -> None:
    """Print the experiments that come with the package."""
    console.print(_tasks())


def _overridden(task: str, overrides: Overrides) -> Sweep:
    plan = experiment_file.load(task)
    seeds, epochs, data = overrides.seeds, overrides.epochs, None
    if overrides.quick:
        seeds, epochs = seeds or plan.seeds[:1], QUICK_EPOCHS if epochs is None else epochs
        if not all(catalogue.present(name) for name in _catalogued(plan)) and plan.cells[0].config.model.name == "mlp":
            data = "digits"
    return experiment_file.changed(
        plan, seeds=seeds, epochs=epochs, subset=overrides.subset, data=data, device=overrides.device
    )


def _show(plan: Sweep, task: str, out: Path, console: Console) -> None:
    folder = out / plan.name
    results = tables.collect(plan, folder)
    if not results:
        raise ConfigError(f"no results of {plan.name!r} were found in {folder}: run `efvfl reproduce {task}` first.")
    for version, count in tables.made_elsewhere(results, efvfl.__version__).items():
        log.warning(
            "%d results were made by efvfl %s and are not repeated: give another --out to train with %s.",
            count,
            version,
            efvfl.__version__,
        )
    comparable = plan.cells[0].config.data.name != "digits"
    console.print(tables.on_screen(plan, results, comparable))
    paths = figures.write(plan, results, folder)
    html = folder / f"{plan.name}.html"
    write_atomically(html, page.page(plan, results, comparable).encode(), public=True)
    for path in (*(p for p in paths if p.suffix == ".png"), html):
        console.print(f"Written: {path}", soft_wrap=True)


def _catalogued(plan: Sweep) -> set[str]:
    """Return the catalogue's data sets that an experiment needs."""
    return {cell.config.data.name for cell in plan.cells} - set(catalogue.OWN)


def _run(plan: Sweep, folder: Path, workers: int, engine: Engine, console: Console) -> None:
    jobs = plan.jobs()
    missing = unfinished(jobs, folder)
    done = {job.key: 0 if job in missing else job.config.epochs for job in jobs}
    total = sum(job.config.epochs for job in jobs)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,} epochs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    )
    # A bar that nobody sees move is left out; there are lines of the log then.
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        said = time.monotonic()
        bar = progress.add_task(plan.name, total=total, completed=sum(done.values()), note="")

        def on_epoch(job: Job, epoch: int) -> None:
            nonlocal said
            before, done[job.key] = done[job.key], max(done[job.key], epoch)
            finished = sum(done[j.key] >= j.config.epochs for j in jobs)
            over = before < job.config.epochs <= epoch
            due = over or (epoch < job.config.epochs and time.monotonic() - said >= SAID_SECONDS)
            if due and not console.is_terminal:
                said = time.monotonic()
                text = (
                    "%d of %d runs done: %s, seed %d" if over else "%d of %d runs done, at work: %s, seed %d, epoch %d"
                )
                about = (finished, len(jobs), job.cell, job.config.seed)
                log.info(text, *about, *(() if over else (epoch,)))
            progress.update(bar, completed=sum(done.values()), note=f"{finished} of {len(jobs)} runs done")

        run_all(jobs, folder, workers, engine, on_epoch)


def _tasks() -> Table:
    table = Table(title="Experiments")
    for heading in ("task", "cells", "seeds", "about"):
        table.add_column(heading)
    for name in experiment_file.tasks():
        plan = experiment_file.load(name)
        table.add_row(name, str(len(plan.cells)), str(len(plan.seeds)), plan.about)
    return table
