"""`efvfl plan`: which setting of a run file reaches a target soonest over a slow line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import Commands, add_command, add_json, print_json

if TYPE_CHECKING:
    from rich.console import Console

_ABOUT = """Trains several settings of a run for a moment, on the rows that `efvfl run` would use, and says which of
them reaches the target soonest over a line of this speed: compressors, batches, steps under way, cached
steps. Nothing is written. Validation rows decide; test rows are not looked at."""


def register(commands: Commands) -> None:
    """Add the command of this file to the parser."""
    plan = add_command(
        commands,
        "plan",
        "try which batch, compressor, window and cached steps reach a target soonest over a slow line",
        _ABOUT,
        "plan run.toml --round-trip 40 --up 5 --down 50 --target auc=0.78",
    )
    plan.add_argument("file", type=Path, help="the run file")
    plan.add_argument(
        "--round-trip", type=float, default=20.0, metavar="MS", help="milliseconds (default: %(default)g)"
    )
    plan.add_argument(
        "--up", type=float, default=10.0, metavar="MBIT", help="Mbit/s, each party (default: %(default)g)"
    )
    plan.add_argument(
        "--down", type=float, default=10.0, metavar="MBIT", help="Mbit/s, each party (default: %(default)g)"
    )
    plan.add_argument(
        "--target", default="", help="such as 0.9, auc or auc=0.78 (default: the best of SVFL in the trial, less 1 %%)"
    )
    plan.add_argument("--seconds", type=float, default=120.0, help="for the whole trial (default: %(default)g)")
    add_json(plan)
    plan.set_defaults(handler=_plan)


def _plan(options: argparse.Namespace, console: Console) -> None:
    from rich.console import Console

    from efvfl.network.workers import worker_group
    from efvfl.runs.line import Line
    from efvfl.runs.line_plan import plan_run
    from efvfl.runs.plan_table import progress, show

    worker_group.refuse("plan")
    line = Line(options.round_trip / 1e3, 1e6 * options.up, 1e6 * options.down)
    with progress(Console(stderr=True)) as watch:
        plan = plan_run(options.file, line, options.target, options.seconds, watch=watch)
    if options.json:
        print_json(plan.to_table())
    else:
        show(plan, console)
