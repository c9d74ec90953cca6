"""`efvfl serve`, `join`, `predict` and `audit`: a federation over a network."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import (
    Commands,
    add_alone,
    add_command,
    add_dashboard,
    add_device,
    add_file,
    add_json,
    add_metrics,
    add_panel,
    add_session,
    add_start,
    add_tracking,
    dashboard_beside,
    folder_of,
    leading_options,
    print_json,
    session_options,
)
from efvfl.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


_SERVE = """The label holder's process: it waits for the parties, trains with them, and leaves records and the model in
its folder. Stopped or killed, the same command goes on where it was."""
_JOIN = """A party's process: it dials the label holder, takes part in training, and answers questions about its rows
until the label holder ends the run. Stopped or killed, the same command goes on where it was."""
_PREDICT = """Predicts rows with the trained model: those of a file of ids, or of a split. The parties run `efvfl join`
meanwhile. A model that was trained for subsets of parties predicts with those that are here and hold the row; the file
says whose columns a prediction rests on. Exit code 6: done, but some rows have no prediction."""
_WHO = "who joins? Give your own file (`efvfl init` writes one), or --party NAME with one file for all."


def register(commands: Commands) -> None:
    """Add the commands of this file to the parser."""
    serve = add_command(
        commands,
        "serve",
        "the label holder: train with the parties that join",
        _SERVE,
        "serve bank.toml",
        "serve bank.toml --address 0.0.0.0:7143 --status json",
    )
    add_file(serve)
    add_device(serve)
    add_session(serve)
    add_start(serve, "this participant's folder of a finished run")
    add_tracking(serve)
    add_metrics(serve)
    add_alone(serve)
    add_dashboard(serve)
    serve.set_defaults(handler=_serve)

    join = add_command(
        commands,
        "join",
        "a party: take part, and answer questions about rows",
        _JOIN,
        "join telco.toml",
        "join federation.toml --party telco",
    )
    add_file(join)
    join.add_argument("--party", help="with one file for all: which of the parties this is")
    add_device(join)
    add_session(join)
    add_start(join, "this participant's folder of a finished run")
    add_metrics(join)
    add_dashboard(join)
    join.set_defaults(handler=_join)

    predict = add_command(
        commands,
        "predict",
        "the label holder: predict rows by id with the parties that join",
        _PREDICT,
        "predict bank.toml --split test",
        "predict bank.toml --ids ids.txt --out march.parquet",
    )
    add_file(predict)
    predict.add_argument("--ids", type=Path, help="a file with one id a line")
    predict.add_argument("--split", choices=("validation", "test"), help="in place of --ids")
    predict.add_argument("--out", type=Path, help=".csv or .parquet (default: predictions.csv, beside the own file)")
    add_panel(predict)
    add_device(predict)
    add_session(predict)
    predict.set_defaults(handler=_predict)

    audit = add_command(
        commands,
        "audit",
        "what left the building: totals by kind, and what each kind contains",
        "Adds up what a participant has sent and received, from the list of every frame that it keeps in its folder.",
        "audit bank.toml",
        "audit runs/federation/bank --json",
    )
    audit.add_argument("run", type=Path, help="a participant's own file or folder, or a folder with several")
    add_json(audit)
    audit.set_defaults(handler=_audit)


def _serve(options: argparse.Namespace, console: Console) -> None:
    from efvfl.cli.sessions import serve, setup
    from efvfl.network.identity import certificates

    session = leading_options(options)
    config = setup.start(session, options.device)
    folder = session.folder_of(certificates.SERVER)
    with dashboard_beside(options, folder, console), contextlib.ExitStack() as stack:
        serve.train(session, config, console, stack, alone=not options.no_alone, trackers=options.track)


def _join(options: argparse.Namespace, console: Console) -> None:
    from efvfl.cli.sessions import join, setup

    session = session_options(options)
    name = session.party(options.party)
    if not name:
        holder = f"{options.file} is the label holder's own file: start `efvfl serve` with it."
        raise ConfigError(holder if session.participant else _WHO)
    config = setup.start(session, options.device)
    with dashboard_beside(options, session.folder_of(name), console), contextlib.ExitStack() as stack:
        join.join(session, name, config, console, stack)


def _predict(options: argparse.Namespace, console: Console) -> None:
    from efvfl.cli.sessions import serve, setup

    session = leading_options(options)
    config = setup.start(session, options.device, single_process="predict")
    out = options.out or (options.file.parent if session.participant else Path()) / "predictions.csv"
    wanted = serve.PredictionFile(options.ids, options.split, out, options.require, options.wait)
    with contextlib.ExitStack() as stack:
        serve.predict(session, wanted, config, console, stack)


def _audit(options: argparse.Namespace, console: Console) -> None:
    from efvfl.network.ops import audit_log
    from efvfl.runs import spent_file

    folders = audit_log.folders(folder_of(options.run))
    if options.json:
        tables = [audit_log.as_table(folder.name, audit_log.read(folder)) for folder in folders]
        for table, folder in zip(tables, folders, strict=True):
            table |= {"spent": found} if (found := spent_file.load(folder)) else {}
        print_json(tables)
        return
    for folder in folders:
        lines = audit_log.read(folder)
        spent = [f"  spent on {line}" for line in spent_file.lines(spent_file.load(folder))]
        console.print(audit_log.table(folder.name, lines), audit_log.contents(lines), *spent, "", highlight=False)
