"""The words of a federation's commands; they load nothing, so that `efvfl --help` stays quick."""

from __future__ import annotations

import argparse
from pathlib import Path

COMMANDS = ("certs", "align", "serve", "join", "predict", "serve-predictions", "audit")


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to the command line."""
    made = commands.add_parser("certs", help="make a private CA and a key pair for every participant")
    made.add_argument("file", type=Path, help="the federation file")
    made.add_argument("--out", type=Path, default=Path("certs"), help="folder (default: %(default)s)")
    made.add_argument("--days", type=int, default=365, help="until they expire (default: %(default)s)")
    made.add_argument("--host", nargs="+", default=[], help="further names or addresses of the server, for HTTPS")
    made.add_argument("--client", nargs="+", default=[], help="names of clients of the prediction service")

    for name, text in (
        ("align", "find the rows that all share: the label holder, or with --party a party"),
        ("serve", "the label holder: train with the parties that join"),
        ("join", "a party: take part, and answer questions about rows"),
        ("predict", "the label holder: predict rows by id with the parties that join"),
        ("serve-predictions", "the label holder: predict rows by id for clients, over HTTPS"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("file", type=Path, help="the federation file")
        if name in ("align", "join"):
            command.add_argument("--party", required=name == "join", help="which of the parties this is")
        if name == "predict":
            command.add_argument("--ids", type=Path, help="a file with one id a line")
            command.add_argument("--split", choices=("validation", "test"), help="in place of --ids")
            command.add_argument("--out", type=Path, default=Path("predictions.csv"), help=".csv or .parquet")
        if name == "serve-predictions":
            _add_service(command)
        if name != "align":
            add_device(command)
        folder = ("--dir", "--out") if name == "align" else ("--dir",)
        command.add_argument(*folder, type=Path, help="this participant's folder (default: runs/FILE/NAME)")
        command.add_argument("--address", help="in place of the file's")
        command.add_argument("--certs", type=Path, default=Path("certs"), help="folder (default: %(default)s)")
        command.add_argument("--insecure", action="store_true", help="no TLS; on loopback addresses only")
        command.add_argument("--status", choices=("live", "json", "quiet"), default="live")

    audit = commands.add_parser("audit", help="what left the building: totals by kind, and what each kind contains")
    audit.add_argument("run", type=Path, help="a participant's folder, or one with several")


def add_device(command: argparse.ArgumentParser) -> None:
    """Add the choice of a device."""
    command.add_argument("--device", choices=("cpu", "cuda", "mps"), help="of local models, in place of the file's")


def _add_service(command: argparse.ArgumentParser) -> None:
    command.add_argument("--listen", default="127.0.0.1:8443", help="where clients ask (default: %(default)s)")
    command.add_argument("--token-file", type=Path, help="clients show what it holds (default: token in the folder)")
    command.add_argument("--client-certs", nargs="+", metavar="NAME", help="in place of a token: names of clients")
    command.add_argument("--tls-cert", type=Path, help="in place of the federation's server certificate")
    command.add_argument("--tls-key", type=Path, help="its key")
    command.add_argument("--timeout", type=float, default=10.0, help="seconds for a request (default: %(default)g)")
    command.add_argument("--source", choices=("cached", "live"), default="cached", help="live: nothing is kept")
    command.add_argument("--cache-rows", type=int, default=1_000_000, help="of every party (default: %(default)s)")
    command.add_argument("--warm", action="store_true", help="fetch all rows of the splits at the start")
    command.add_argument("--fallback", choices=("mean",), default="", help="what stands in for a missing party")
