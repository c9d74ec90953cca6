"""Options that several commands share; nothing heavy is imported here, so that `efvfl --help` stays quick."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from efvfl.network.ops.session import SessionOptions

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_device(command: argparse.ArgumentParser) -> None:
    """Add the choice of a device."""
    command.add_argument("--device", choices=("cpu", "cuda", "mps"), help="of local models, in place of the file's")


def add_start(command: argparse.ArgumentParser, what: str) -> None:
    """Add the choice of a trained run to start from."""
    command.add_argument(
        "--from",
        dest="start_from",
        type=Path,
        metavar="RUN",
        help=f"start from the parameters of {what}, where they fit",
    )


def add_tracking(command: argparse.ArgumentParser) -> None:
    """Add the choice of experiment trackers."""
    command.add_argument(
        "--track",
        nargs="+",
        choices=("tensorboard", "mlflow", "wandb"),
        default=[],
        help="also write the curves for these, each to a folder of its name in the run's",
    )


def add_log(command: argparse.ArgumentParser) -> None:
    """Add the choice of how log lines on stderr look."""
    command.add_argument(
        "--log",
        choices=("auto", "plain", "json"),
        default="auto",
        help="lines of the log on stderr (default: for people at a terminal, else plain)",
    )


def add_metrics(command: argparse.ArgumentParser) -> None:
    """Add the choice of an address for Prometheus."""
    command.add_argument(
        "--metrics", default="", metavar="[HOST:]PORT", help="tell Prometheus at /metrics (default: no)"
    )


def add_json(command: argparse.ArgumentParser) -> None:
    """Add the choice of JSON: one value on stdout, in place of tables and sentences."""
    command.add_argument("--json", action="store_true", help="print JSON in place of tables")


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=1))


def add_session(command: argparse.ArgumentParser, *folder: str) -> None:
    """Add what every participant's process needs: its folder, an address, certificates and a way to show its status."""
    command.add_argument(*(folder or ("--dir",)), type=Path, help="this participant's folder (default: runs/FILE/NAME)")
    command.add_argument("--address", help="in place of the file's")
    command.add_argument("--certs", type=Path, default=Path("certs"), help="folder (default: %(default)s)")
    command.add_argument("--insecure", action="store_true", help="no TLS; on loopback addresses only")
    command.add_argument("--status", choices=("live", "json", "quiet"), default="live")
    add_log(command)


def session_options(options: argparse.Namespace) -> SessionOptions:
    """Return the options of `add_session` as the network package takes them."""
    from efvfl.network.ops.session import SessionOptions

    return SessionOptions(
        file=options.file,
        folder=options.dir,
        address=options.address,
        certs=options.certs,
        insecure=options.insecure,
        status=options.status,
        log=options.log,
        metrics=getattr(options, "metrics", ""),
        start_from=getattr(options, "start_from", None),
    )
