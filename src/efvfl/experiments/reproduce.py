"""`efvfl reproduce TASK` and `efvfl figures TASK`: run what is missing, then write tables, figures and the page."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from efvfl.data import catalogue
from efvfl.errors import ConfigError
from efvfl.experiments import experiment_file, figures, page, tables
from efvfl.experiments.experiment_file import Job, Sweep
from efvfl.experiments.jobs import run_all
from efvfl.experiments.results import unfinished
from efvfl.util.files import write_atomically

QUICK_EPOCHS = 5


def chosen(options: argparse.Namespace) -> Sweep:
    """Return the sweep that the command line describes."""
    plan = experiment_file.load(options.task)
    seeds = tuple(options.seeds) if options.seeds else None
    epochs, data = options.epochs, None
    if options.quick:
        seeds, epochs = seeds or plan.seeds[:1], QUICK_EPOCHS if epochs is None else epochs
        if not all(catalogue.present(name) for name in _catalogued(plan)) and plan.cells[0].config.model.name == "mlp":
            data = "digits"
    return experiment_file.changed(plan, seeds=seeds, epochs=epochs, subset=options.subset, data=data)


def reproduce(options: argparse.Namespace, console: Console) -> None:
    """Run the missing jobs, unless only figures are requested; then print the table and write figures and page."""
    if options.task == "list":
        console.print(_tasks())
        return
    plan = chosen(options)
    folder = options.out / plan.name
    if options.command == "reproduce":
        for name in _catalogued(plan):
            catalogue.require(name)
        _run(plan, folder, options, console)
    results = tables.collect(plan, folder)
    if not results:
        raise ConfigError(
            f"no results of {plan.name!r} were found in {folder}: run `efvfl reproduce {options.task}` first."
        )
    comparable = plan.cells[0].config.data.name != "digits"
    console.print(tables.on_screen(plan, results, comparable))
    paths = figures.write(plan, results, folder)
    html_file = folder / f"{plan.name}.html"
    write_atomically(html_file, page.page(plan, results, comparable).encode())
    for path in (*(p for p in paths if p.suffix == ".png"), html_file):
        console.print(f"Written: {path}", soft_wrap=True)


def _catalogued(plan: Sweep) -> set[str]:
    """Return the catalogue's data sets that an experiment needs."""
    return {cell.config.data.name for cell in plan.cells} - set(catalogue.OWN)


def _run(plan: Sweep, folder: Path, options: argparse.Namespace, console: Console) -> None:
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
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(plan.name, total=total, completed=sum(done.values()), note="")

        def report(job: Job, epoch: int) -> None:
            done[job.key] = max(done[job.key], epoch)
            finished = sum(done[j.key] >= j.config.epochs for j in jobs)
            progress.update(bar, completed=sum(done.values()), note=f"{finished} of {len(jobs)} runs done")

        run_all(jobs, folder, options.workers, options.engine, report)


def _tasks() -> Table:
    table = Table(title="Experiments")
    for heading in ("task", "cells", "seeds", "about"):
        table.add_column(heading)
    for name in experiment_file.tasks():
        plan = experiment_file.load(name)
        table.add_row(name, str(len(plan.cells)), str(len(plan.seeds)), plan.about)
    return table
