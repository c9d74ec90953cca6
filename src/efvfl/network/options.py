"""The words of a federation's commands; they load nothing, so that `efvfl --help` stays quick."""

from __future__ import annotations

import argparse
from pathlib import Path

COMMANDS = ("certs", "serve", "join", "predict", "audit")


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to the command line."""
    made = commands.add_parser("certs", help="make a private CA and a key pair for every participant")
    made.add_argument("file", type=Path, help="the federation file")
    made.add_argument("--out", type=Path, default=Path("certs"), help="folder (default: %(default)s)")
    made.add_argument("--days", type=int, default=365, help="until they expire (default: %(default)s)")

    for name, text in (
        ("serve", "the label holder: train with the parties that join"),
        ("join", "a party: take part, and answer questions about rows"),
        ("predict", "the label holder: predict rows by id with the parties that join"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("file", type=Path, help="the federation file")
        if name == "join":
            command.add_argument("--party", required=True, help="which of the parties this is")
        if name == "predict":
            command.add_argument("--ids", type=Path, help="a file with one id a line")
            command.add_argument("--split", choices=("validation", "test"), help="in place of --ids")
            command.add_argument("--out", type=Path, default=Path("predictions.csv"), help=".csv or .parquet")
        command.add_argument("--dir", type=Path, help="this participant's folder (default: runs/FILE/NAME)")
        command.add_argument("--address", help="in place of the file's")
        command.add_argument("--certs", type=Path, default=Path("certs"), help="folder (default: %(default)s)")
        command.add_argument("--insecure", action="store_true", help="no TLS; on loopback addresses only")
        command.add_argument("--status", choices=("live", "json", "quiet"), default="live")

    audit = commands.add_parser("audit", help="what left the building: totals by kind, and what each kind contains")
    audit.add_argument("run", type=Path, help="a participant's folder, or one with several")
