"""`efvfl serve`, `join`, `predict` and `audit`: a federation over a network."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import (
    Commands,
    add_alone,
    add_dashboard,
    add_device,
    add_session,
    add_start,
    dashboard_beside,
    session_options,
)

if TYPE_CHECKING:
    from rich.console import Console


def register(commands: Commands) -> None:
    """Add the commands of this file to the parser."""
    serve = commands.add_parser("serve", help="the label holder: train with the parties that join")
    serve.add_argument("file", type=Path, help="the federation file")
    add_device(serve)
    add_session(serve)
    add_start(serve, "this participant's folder of a finished run")
    add_alone(serve)
    add_dashboard(serve)
    serve.set_defaults(handler=_serve)

    join = commands.add_parser("join", help="a party: take part, and answer questions about rows")
    join.add_argument("file", type=Path, help="the federation file")
    join.add_argument("--party", required=True, help="which of the parties this is")
    add_device(join)
    add_session(join)
    add_start(join, "this participant's folder of a finished run")
    add_dashboard(join)
    join.set_defaults(handler=_join)

    predict = commands.add_parser("predict", help="the label holder: predict rows by id with the parties that join")
    predict.add_argument("file", type=Path, help="the federation file")
    predict.add_argument("--ids", type=Path, help="a file with one id a line")
    predict.add_argument("--split", choices=("validation", "test"), help="in place of --ids")
    predict.add_argument("--out", type=Path, default=Path("predictions.csv"), help=".csv or .parquet")
    add_device(predict)
    add_session(predict)
    predict.set_defaults(handler=_predict)

    audit = commands.add_parser("audit", help="what left the building: totals by kind, and what each kind contains")
    audit.add_argument("run", type=Path, help="a participant's folder, or one with several")
    audit.set_defaults(handler=_audit)


def _serve(options: argparse.Namespace, console: Console) -> None:
    from efvfl.cli.sessions import serve, setup
    from efvfl.network.identity import certificates

    session = session_options(options)
    config = setup.start(session, options.device)
    folder = session.folder_of(certificates.SERVER)
    with dashboard_beside(options, folder, console), contextlib.ExitStack() as stack:
        serve.train(session, config, console, stack, alone=not options.no_alone)


def _join(options: argparse.Namespace, console: Console) -> None:
    from efvfl.cli.sessions import join, setup

    session = session_options(options)
    config = setup.start(session, options.device)
    with dashboard_beside(options, session.folder_of(options.party), console), contextlib.ExitStack() as stack:
        join.join(session, options.party, config, console, stack)


def _predict(options: argparse.Namespace, console: Console) -> None:
    from efvfl.cli.sessions import serve, setup

    session = session_options(options)
    config = setup.start(session, options.device, single_process="predict")
    wanted = serve.PredictionFile(options.ids, options.split, options.out)
    with contextlib.ExitStack() as stack:
        serve.predict(session, wanted, config, console, stack)


def _audit(options: argparse.Namespace, console: Console) -> None:
    from efvfl.network.ops import audit_log

    for folder in audit_log.folders(options.run):
        lines = audit_log.read(folder)
        console.print(audit_log.table(folder.name, lines), audit_log.contents(lines), "", highlight=False)
