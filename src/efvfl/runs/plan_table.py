"""A plan on the terminal: progress while it is made, then a table and the lines to paste."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import isnan

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from efvfl.runs.line_plan import LinePlan, Watch
from efvfl.runs.trial import Tried


@contextmanager
def progress(console: Console) -> Iterator[Watch]:
    """Show which setting is being tried, and how far it is."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("settings"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=None)

        def watch(method: str, number: int, total: int, rounds: int, value: float) -> None:
            bar.update(
                task, completed=number, total=total, description=f"{escape(method)}: {rounds:,} rounds, {value:.3f}"
            )

        yield watch
        bar.update(task, completed=bar.tasks[0].total or 0, description="")


def show(plan: LinePlan, console: Console) -> None:
    """Print a plan: the table, and what to write into the file."""
    console.print(plan_table(plan))
    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    if plan.best is None:
        say(
            f"No setting reached {_goal(plan)} in the time of the trial, so none is recommended: give more with "
            "--seconds, or a target that can be reached."
        )
        return
    if plan.unfinished:
        say(f"There was not enough time for {plan.unfinished} settings: give more with --seconds.")
    say(f"Soonest over this line: {plan.best.method}, {_numbers(plan.best)}. In the file:\n\n{plan.toml}\n")


def plan_table(plan: LinePlan) -> Table:
    """Return a table of all settings that were tried, the soonest first."""
    line, origin = plan.line, "" if plan.given else ", the best of SVFL in the trial less 1 %"
    table = Table(title=f"To a validation {_goal(plan)}", box=SIMPLE_HEAD, collapse_padding=True)
    table.caption = (
        f"Target: {_goal(plan)}{origin}. Rounds and bytes are counted, the time is arithmetic: every party has a "
        f"line of {1e3 * line.round_trip:g} ms, {line.up / 1e6:g} Mbit/s up and {line.down / 1e6:g} down, and computes "
        "as long as here. Evaluation and TLS come on top."
    )
    table.add_column("setting", vertical="bottom")
    for heading in ("rounds", "expected\ntime", "MB up", "MB\ndown", plan.goal.metric, "against\nSVFL"):
        table.add_column(heading, justify="right", vertical="bottom", no_wrap=True)
    for tried in plan.tried:
        table.add_row(*_cells(plan, tried))
    return table


def _cells(plan: LinePlan, tried: Tried) -> list[str]:
    name = f"{escape(tried.method)}\n{_numbers(tried)}"
    if tried.ending == "not tried":
        return [f"{name}\nnot tried: the time was up"]
    cells = [f"{count / 1e6:.3g}" for count in (tried.bytes_up, tried.bytes_down)] + [f"{tried.value:.4f}"]
    if not tried.reached:
        return [f"{name}\n{tried.ending} after {tried.rounds:,} rounds", "", "", *cells]
    times = "" if isnan(sooner := plan.sooner(tried)) else f"{sooner:.1f} x"
    return [name, f"{tried.rounds:,}", duration(tried.seconds), *cells, times]


def duration(seconds: float) -> str:
    """Return a time with a unit.

    >>> duration(0.25), duration(75), duration(7300)
    ('0.25 s', '75 s', '122 min')
    """
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _goal(plan: LinePlan) -> str:
    return f"{plan.goal.metric} of {plan.goal.value:.4g}"


def _numbers(tried: Tried) -> str:
    batch, cached = tried.config.batch_size, tried.config.agreement.cached.steps
    return f"batch {batch or 'full'}, window {tried.window}, cached {cached}"
