"""The command line: `efvfl demo`, `efvfl run FILE.toml`, `efvfl serve`, `efvfl join` and the rest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli import network_options as network
from efvfl.errors import (
    AbsentError,
    CheckpointError,
    ConfigError,
    DataError,
    EfvflError,
    Interrupted,
    LimitError,
    RefusedError,
)

if TYPE_CHECKING:
    from rich.console import Console

    from efvfl.training.federation import Federation
    from efvfl.training.record import Record

# Exit codes: what a script can tell apart.
USAGE = 2  # a setting or a file is wrong
FAILED = 3  # training could not go on
REFUSED = 4  # the other side will not have us, or it asks for more than our own file allows
ABSENT = 5  # a participant was missing for too long
INTERRUPTED = 130  # by Ctrl-C or SIGTERM; `serve` and `join` have saved everything

_CODES: tuple[tuple[type[EfvflError], int], ...] = (
    (ConfigError, USAGE),
    (CheckpointError, USAGE),
    (DataError, USAGE),
    (RefusedError, REFUSED),
    (LimitError, REFUSED),
    (AbsentError, ABSENT),
    (Interrupted, INTERRUPTED),
    (EfvflError, FAILED),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="efvfl", description="Vertical federated learning with error feedback.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="train three methods on handwritten digits and compare them")
    demo.add_argument(
        "--out", type=Path, default=Path("efvfl-demo"), help="folder of the picture (default: %(default)s)"
    )
    demo.add_argument("--seed", type=int, default=0)

    run = commands.add_parser("run", help="train from one TOML file, all parties in this process")
    run.add_argument("file", type=Path)
    run.add_argument("--out", type=Path, help="folder of records and checkpoint (default: runs/NAME)")
    run.add_argument("--epochs", type=int, help="in place of the file's")
    run.add_argument("--seed", type=int, help="in place of the file's")
    network.add_device(run)
    run.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")

    data = commands.add_parser("data", help="list data sets, or get one")
    actions = data.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="what there is, and what is here")
    get = actions.add_parser("get", help="download and check one")
    get.add_argument("name")

    for name, text in (
        ("reproduce", "run an experiment of the paper and print its table, ours beside the paper's"),
        ("figures", "draw an experiment's figures from the results there are"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("task", help="a name from `efvfl reproduce list`, or a path that ends in .toml")
        command.add_argument(
            "--out", type=Path, default=Path("results"), help="folder of results (default: %(default)s)"
        )
        command.add_argument("--seeds", type=int, nargs="+", help="in place of the file's")
        command.add_argument("--epochs", type=int, help="in place of the file's")
        command.add_argument("--subset", type=int, help="so many training rows, chosen by seed")
        command.add_argument(
            "--quick", action="store_true", help="one seed, five epochs; digits if the data is not here"
        )
        if name == "reproduce":
            command.add_argument("--workers", type=int, default=0, help="processes (default: one for each core)")
            command.add_argument("--engine", choices=("processes", "ray"), default="processes")

    inspect = commands.add_parser("inspect", help="what would be used of a table, and what looks wrong in it")
    inspect.add_argument("file", type=Path, help=".csv, .csv.gz, .tsv, .parquet or .arrow")
    inspect.add_argument("--id", default="", help="the column that names the rows")
    inspect.add_argument("--label", default="", help="the column to predict")

    report = commands.add_parser("report", help="one HTML page about a run: metrics, curves, bytes, settings")
    report.add_argument("run", type=Path, help="the folder of a run, or of the label holder")
    report.add_argument("--out", type=Path, help="the page (default: report.html in the folder)")

    network.add_commands(commands)

    compressors = commands.add_parser("compressors", help="list compressors: knobs, alpha, measured bytes")
    compressors.add_argument("--rows", type=int, default=128)
    compressors.add_argument("--width", type=int, default=16)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    from rich.console import Console  # late, so that --help stays quick

    console = Console()
    try:
        if options.command == "demo":
            from efvfl.cli.demo import run_demo

            run_demo(options.out, console, options.seed)
        elif options.command == "run":
            run_file(options, console)
        elif options.command == "data":
            from efvfl.runs import terminal

            terminal.list_data(console) if options.action == "list" else terminal.get_data(options.name, console)
        elif options.command == "inspect":
            from efvfl.data.tables.inspect import command

            command(options.file, options.id, options.label, console)
        elif options.command == "report":
            from efvfl.runs import report

            console.print(f"Report: {report.write(options.run, options.out)}", soft_wrap=True, highlight=False)
        elif options.command in network.COMMANDS:
            _run_network(options, console)
        elif options.command in ("reproduce", "figures"):
            from efvfl.experiments.reproduce import reproduce

            reproduce(options, console)
        else:
            from efvfl.runs.terminal import compressor_table

            if min(options.rows, options.width) < 1:
                raise ConfigError(f"a block of {options.rows} x {options.width} came, at least 1 x 1 is expected.")
            console.print(compressor_table((options.rows, options.width)))
    except EfvflError as error:
        print(f"efvfl: {error}", file=sys.stderr)
        return next(code for kind, code in _CODES if isinstance(error, kind))
    except KeyboardInterrupt:
        print("efvfl: interrupted.", file=sys.stderr)
        return INTERRUPTED
    return 0


def _run_network(options: argparse.Namespace, console: Console) -> None:
    from efvfl.cli.network import run_command

    run_command(options, console)


def run_file(options: argparse.Namespace, console: Console) -> None:
    """Train what a file says; leave records, a checkpoint after every record, and a picture."""
    from efvfl.config import run_file as configs
    from efvfl.core import losses
    from efvfl.network.workers import worker_group
    from efvfl.runs import metrics, run_folder
    from efvfl.runs.plots import draw_runs
    from efvfl.runs.run import train
    from efvfl.runs.terminal import bar, comparison, ledger_table, metric_table
    from efvfl.util.extras import left_out

    worker_group.refuse("run")
    config = configs.load(options.file)
    config = replace(config, **{k: getattr(options, k) for k in ("epochs", "seed") if getattr(options, k) is not None})
    if options.device:
        config = configs.on_device(config, options.device)
    out: Path = options.out or Path("runs") / options.file.stem

    def watch(federation: Federation, records: Iterable[Record]) -> Iterator[Record]:
        if options.resume:
            console.print(f"Going on after epoch {federation.epoch}.")
        return bar(records, console, config.method.name, federation.epoch, config.epochs)

    records = train(config, out, options.resume, base=options.file.parent, watch=watch)
    name = options.file.stem
    console.print(comparison({name: records}), ledger_table(records[-1]))
    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    outputs = run_folder.load_outputs(out)
    if outputs:
        with left_out(say):
            found = {split: metrics.of_loss(config.loss, o.output, o.labels) for split, o in outputs.items()}
            console.print(metric_table(found))
    say(f"Records: {out / 'records.jsonl'}")
    with left_out(say):
        draw_runs(out / "run.png", {name: records}, name, metric=losses.lookup(config.loss).metric_name)
        say(f"Picture: {out / 'run.png'}")
    say(f"A page about it: efvfl report {out}")
