"""`efvfl run`, `finish`, `demo`, `report`, `inspect` and `compressors`: everything in one process."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import (
    Commands,
    add_alone,
    add_command,
    add_dashboard,
    add_device,
    add_json,
    add_log,
    add_start,
    add_tracking,
    dashboard_beside,
    folder_of,
    print_json,
)
from efvfl.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from efvfl.training.federation import Federation
    from efvfl.training.record import Record


_RUN = """Trains what a run file says, with all parties in this process, and leaves records, the model and a picture in
a folder. Interrupted or killed, the same command with --resume goes on from the last record."""
_FINISH = """Asks the process that trains in a folder, `efvfl run` or `efvfl serve`, to end with the step under way as
if that were the last: it evaluates, keeps the model (with patience the best one), tells the parties, and ends with exit
code 0. SIGUSR1 asks for the same. More epochs in the file let it go on later."""
_INSPECT = """Reads a table as a federation would, and says which columns would be used and how, what is missing, and
which ids occur twice. With --against: how many ids two tables share, and in which format they would share more."""


def register(commands: Commands) -> None:
    """Add the commands of this file to the parser."""
    demo = add_command(
        commands,
        "demo",
        "train handwritten digits in four ways and compare what they cost",
        "Trains four parties, each with one quadrant of a digit, in four ways, and prints what each of them costs.",
        "demo",
        "demo --out picture --seed 3",
    )
    demo.add_argument(
        "--out", type=Path, default=Path("efvfl-demo"), help="folder of the picture (default: %(default)s)"
    )
    demo.add_argument("--seed", type=int, default=0, help="of everything random (default: %(default)s)")
    demo.set_defaults(handler=_demo)

    run = add_command(
        commands,
        "run",
        "train from one TOML file, all parties in this process",
        _RUN,
        "run run.toml",
        "run run.toml --epochs 200 --resume",
    )
    run.add_argument("file", type=Path, help="the run file")
    run.add_argument("--out", type=Path, help="folder of records and checkpoint (default: runs/NAME)")
    run.add_argument("--epochs", type=int, help="in place of the file's")
    run.add_argument("--seed", type=int, help="in place of the file's")
    add_device(run)
    run.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    run.add_argument(
        "--replay", type=Path, metavar="FOLDER", help="asynchronous parties: report when they did in the run there"
    )
    add_start(run, "the folder of a finished run")
    add_tracking(run)
    add_log(run)
    add_alone(run)
    add_dashboard(run)
    run.set_defaults(handler=run_file)

    finish = add_command(
        commands,
        "finish",
        "end a training that is under way here and now, and keep its model",
        _FINISH,
        "finish bank.toml",
        "finish runs/run --wait 600",
    )
    finish.add_argument("run", type=Path, help="the folder of a run, or the label holder's folder or own file")
    finish.add_argument(
        "--wait", type=float, default=60.0, metavar="SECONDS", help="for the request to be taken (default: %(default)g)"
    )
    finish.set_defaults(handler=_finish)

    inspect = add_command(
        commands,
        "inspect",
        "what would be used of a table, and what looks wrong in it",
        _INSPECT,
        "inspect bank.csv --id customer --label default",
        "inspect bank.toml",
        "inspect bank.csv --id customer --against telco.csv --against-id subscriber",
    )
    inspect.add_argument("file", type=Path, help=".csv, .csv.gz, .tsv, .parquet or .arrow, or your own file")
    inspect.add_argument("--id", default="", help="the column that names the rows")
    inspect.add_argument("--label", default="", help="the column to predict")
    inspect.add_argument("--weight", default="", help="the column that says how much each row counts, beside --label")
    inspect.add_argument("--against", type=Path, help="another table: how many ids both have, and in which format more")
    inspect.add_argument("--against-id", default="", help="its column of ids (default: that of --id)")
    add_json(inspect)
    inspect.set_defaults(handler=_inspect)

    report = add_command(
        commands,
        "report",
        "one HTML page about a run: metrics, curves, bytes, settings",
        "Writes one page about a run, for people who did not see it. It needs no other file, so it can be mailed.",
        "report runs/run",
        "report bank.toml --out march.html",
    )
    report.add_argument("run", type=Path, help="the folder of a run, or the label holder's folder or own file")
    report.add_argument("--out", type=Path, help="the page (default: report.html in the folder)")
    report.set_defaults(handler=_report)

    compressors = add_command(
        commands,
        "compressors",
        "list compressors: knobs, alpha, measured bytes",
        "Lists all compressors with their settings, and the bytes that each makes of a block of random numbers.",
        "compressors --rows 128 --width 16",
    )
    compressors.add_argument("--rows", type=int, default=128, help="of the block (default: %(default)s)")
    compressors.add_argument("--width", type=int, default=16, help="numbers of a row (default: %(default)s)")
    compressors.set_defaults(handler=_compressors)


def _finish(options: argparse.Namespace, console: Console) -> None:
    from efvfl.runs.status_file import how_it_ended
    from efvfl.util.finish_request import ask_and_wait

    folder = folder_of(options.run)
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: name that of a run, or of the label holder.")
    if how := how_it_ended(folder):
        raise ConfigError(f"nobody trains in {folder}: the last process there {how}.")
    if not ask_and_wait(folder, options.wait):
        raise ConfigError(
            f"nobody has taken the request within {options.wait:g} seconds: only `efvfl run` and `efvfl serve` that "
            f"train in {folder} do. If one waits for a party or computes a long step, give a larger --wait."
        )
    console.print("It ends with the step under way, evaluates, and keeps the model.", soft_wrap=True)


def _demo(options: argparse.Namespace, console: Console) -> None:
    from efvfl.cli.demo import run_demo

    run_demo(options.out, console, options.seed)


def _inspect(options: argparse.Namespace, console: Console) -> None:
    from efvfl.data.tables.inspect import compare_ids, inspect_file, show_ids, show_inspection

    path, id, label, weight = options.file, options.id, options.label, options.weight
    if path.suffix == ".toml":
        from efvfl.config import own_file

        own = own_file.table_of(path)
        id, label, weight = (
            given or own.get(key, "") for given, key in ((id, "id"), (label, "label"), (weight, "weight"))
        )
        path = path.parent / own["path"]
    found = inspect_file(path, id, label, weight)
    ids = {path: id, options.against: options.against_id or id} if options.against else {}
    if options.json:
        print_json(asdict(found) | ({"against": asdict(compare_ids(ids))} if ids else {}))
        return
    show_inspection(found, console)
    if ids:
        show_ids(compare_ids(ids), console)


def _report(options: argparse.Namespace, console: Console) -> None:
    from efvfl.runs import report

    console.print(f"Report: {report.write(folder_of(options.run), options.out)}", soft_wrap=True, highlight=False)


def _compressors(options: argparse.Namespace, console: Console) -> None:
    from efvfl.runs.terminal import compressor_table

    if min(options.rows, options.width) < 1:
        raise ConfigError(f"expected a block of at least 1 x 1, got {options.rows} x {options.width}.")
    console.print(compressor_table((options.rows, options.width)))


def run_file(options: argparse.Namespace, console: Console) -> None:
    """Train what a file says; leave records, a checkpoint after every record, and a picture."""
    from efvfl.config import run_file as configs
    from efvfl.core import losses
    from efvfl.network.ops import terminal_log
    from efvfl.network.ops.status import log_records
    from efvfl.network.workers import worker_group
    from efvfl.runs import metrics, run_folder
    from efvfl.runs.plots import draw_run
    from efvfl.runs.run import train
    from efvfl.runs.terminal import bar, ledger_table, metric_table, summary
    from efvfl.runs.trackers import open_trackers
    from efvfl.training.stopping import ending
    from efvfl.util.extras import left_out
    from efvfl.util.finish_request import finish_on_signal

    worker_group.refuse("run")
    terminal_log.start(options.log)
    config = configs.load(options.file)
    config = replace(config, **{k: getattr(options, k) for k in ("epochs", "seed") if getattr(options, k) is not None})
    if options.device:
        config = configs.on_device(config, options.device)
    out: Path = options.out or Path("runs") / options.file.stem

    def watch(federation: Federation, records: Iterable[Record]) -> Iterator[Record]:
        if options.resume:
            console.print(f"Going on after epoch {federation.epoch}.")
        if not console.is_terminal:
            return log_records(records, config.epochs)
        return bar(records, console, config.method.name, federation.epoch, config.epochs)

    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    start, base = options.start_from, options.file.parent
    with dashboard_beside(options, out, console), finish_on_signal(out), ExitStack() as stack:
        records = train(
            config,
            out,
            options.resume,
            start_from=start,
            base=base,
            watch=watch,
            say=say,
            alone=not options.no_alone,
            callbacks=open_trackers(options.track, out, asdict(config), stack),
            replay=options.replay,
        )
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
