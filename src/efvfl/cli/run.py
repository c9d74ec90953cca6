"""`efvfl run`, `demo`, `report`, `inspect` and `compressors`: everything in one process."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import Commands, add_device, add_start
from efvfl.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from efvfl.training.federation import Federation
    from efvfl.training.record import Record


def register(commands: Commands) -> None:
    """Add the commands of this file to the parser."""
    demo = commands.add_parser("demo", help="train three methods on handwritten digits and compare them")
    demo.add_argument(
        "--out", type=Path, default=Path("efvfl-demo"), help="folder of the picture (default: %(default)s)"
    )
    demo.add_argument("--seed", type=int, default=0)
    demo.set_defaults(handler=_demo)

    run = commands.add_parser("run", help="train from one TOML file, all parties in this process")
    run.add_argument("file", type=Path)
    run.add_argument("--out", type=Path, help="folder of records and checkpoint (default: runs/NAME)")
    run.add_argument("--epochs", type=int, help="in place of the file's")
    run.add_argument("--seed", type=int, help="in place of the file's")
    add_device(run)
    run.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    add_start(run, "the folder of a finished run")
    run.set_defaults(handler=run_file)

    inspect = commands.add_parser("inspect", help="what would be used of a table, and what looks wrong in it")
    inspect.add_argument("file", type=Path, help=".csv, .csv.gz, .tsv, .parquet or .arrow")
    inspect.add_argument("--id", default="", help="the column that names the rows")
    inspect.add_argument("--label", default="", help="the column to predict")
    inspect.add_argument("--weight", default="", help="the column that says how much each row counts, beside --label")
    inspect.add_argument("--against", type=Path, help="another table: how many ids both have, and in which format more")
    inspect.add_argument("--against-id", default="", help="its column of ids (default: that of --id)")
    inspect.set_defaults(handler=_inspect)

    report = commands.add_parser("report", help="one HTML page about a run: metrics, curves, bytes, settings")
    report.add_argument("run", type=Path, help="the folder of a run, or of the label holder")
    report.add_argument("--out", type=Path, help="the page (default: report.html in the folder)")
    report.set_defaults(handler=_report)

    compressors = commands.add_parser("compressors", help="list compressors: knobs, alpha, measured bytes")
    compressors.add_argument("--rows", type=int, default=128)
    compressors.add_argument("--width", type=int, default=16)
    compressors.set_defaults(handler=_compressors)


def _demo(options: argparse.Namespace, console: Console) -> None:
    from efvfl.cli.demo import run_demo

    run_demo(options.out, console, options.seed)


def _inspect(options: argparse.Namespace, console: Console) -> None:
    from efvfl.data.tables.inspect import command, compare_ids

    command(options.file, options.id, options.label, console, options.weight)
    if options.against:
        compare_ids({options.file: options.id, options.against: options.against_id or options.id}, console)


def _report(options: argparse.Namespace, console: Console) -> None:
    from efvfl.runs import report

    console.print(f"Report: {report.write(options.run, options.out)}", soft_wrap=True, highlight=False)


def _compressors(options: argparse.Namespace, console: Console) -> None:
    from efvfl.runs.terminal import compressor_table

    if min(options.rows, options.width) < 1:
        raise ConfigError(f"expected a block of at least 1 x 1, got {options.rows} x {options.width}.")
    console.print(compressor_table((options.rows, options.width)))


def run_file(options: argparse.Namespace, console: Console) -> None:
    """Train what a file says; leave records, a checkpoint after every record, and a picture."""
    from efvfl.config import run_file as configs
    from efvfl.core import losses
    from efvfl.network.workers import worker_group
    from efvfl.runs import metrics, run_folder
    from efvfl.runs.plots import draw_run
    from efvfl.runs.run import train
    from efvfl.runs.terminal import bar, ledger_table, metric_table, summary
    from efvfl.training.stopping import ending
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

    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    start, base = options.start_from, options.file.parent
    records = train(config, out, options.resume, start_from=start, base=base, watch=watch, say=say)
    name = options.file.stem
    if ended := ending(records[-1], config.epochs):
        say(ended)
    console.print(summary(name, records[-1]), ledger_table(records[-1]))
    outputs, settings = run_folder.load_outputs(out), run_folder.load_settings(out)
    loss = settings.config["loss"] if settings else config.loss  # a file may leave it to the label
    if outputs:
        with left_out(say):
            found = {split: metrics.of_loss(loss, o.output, o.labels) for split, o in outputs.items()}
            console.print(metric_table(found))
    say(f"Records: {out / 'records.jsonl'}")
    with left_out(say):
        draw_run(out / "run.png", name, records, metric=losses.lookup(loss).metric_name)
        say(f"Picture: {out / 'run.png'}")
    say(f"A page about it: efvfl report {out}")
