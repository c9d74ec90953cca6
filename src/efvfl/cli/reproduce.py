"""`efvfl reproduce` and `efvfl figures`: the experiments of the paper, or your own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import Commands, add_command, add_dashboard, add_device, add_log, dashboard_beside

if TYPE_CHECKING:
    from rich.console import Console

    from efvfl.experiments.reproduce import Overrides


def register(commands: Commands) -> None:
    """Add the commands of this file to the parser."""
    reproduce = add_command(
        commands,
        "reproduce",
        "run an experiment of the paper and print its table, ours beside the paper's",
        "Trains all runs of an experiment, several at a time, and prints its table; what is there already stays.",
        "reproduce list",
        "reproduce mnist --quick",
    )
    _add_experiment(reproduce)
    reproduce.add_argument("--workers", type=int, default=0, help="processes (default: one for each core)")
    reproduce.add_argument(
        "--engine", choices=("processes", "ray"), default="processes", help="what runs them (default: %(default)s)"
    )
    add_log(reproduce)
    add_dashboard(reproduce)
    reproduce.set_defaults(handler=_reproduce)

    figures = add_command(
        commands,
        "figures",
        "draw an experiment's figures from the results there are",
        "Draws the figures of an experiment, and prints its table, from results in a folder. Nothing is trained.",
        "figures mnist --out results",
    )
    _add_experiment(figures)
    figures.set_defaults(handler=_figures)


def _add_experiment(command: argparse.ArgumentParser) -> None:
    command.add_argument("task", help="a name from `efvfl reproduce list`, or a path that ends in .toml")
    command.add_argument("--out", type=Path, default=Path("results"), help="folder of results (default: %(default)s)")
    command.add_argument("--seeds", type=int, nargs="+", help="in place of the file's")
    command.add_argument("--epochs", type=int, help="in place of the file's; schedulers are stretched with them")
    command.add_argument("--subset", type=int, help="so many training rows, chosen by seed")
    command.add_argument("--quick", action="store_true", help="one seed, five epochs; digits if the data is not here")
    add_device(command)


def _overrides(options: argparse.Namespace) -> Overrides:
    from efvfl.experiments.reproduce import Overrides

    seeds = tuple(options.seeds) if options.seeds else None
    return Overrides(seeds, options.epochs, options.subset, options.quick, options.device)


def _reproduce(options: argparse.Namespace, console: Console) -> None:
    from efvfl.experiments.reproduce import list_tasks, reproduce
    from efvfl.network.ops import terminal_log

    terminal_log.start(options.log)
    if options.task == "list":
        list_tasks(console)
    else:
        with dashboard_beside(options, options.out / Path(options.task).stem, console):
            reproduce(options.task, options.out, _overrides(options), console, options.workers, options.engine)


def _figures(options: argparse.Namespace, console: Console) -> None:
    from efvfl.experiments.reproduce import list_tasks, show_results

    if options.task == "list":
        list_tasks(console)
    else:
        show_results(options.task, options.out, _overrides(options), console)
