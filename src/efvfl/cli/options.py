"""Options that several commands share; nothing heavy is imported here, so that `efvfl --help` stays quick."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console

    from efvfl.network.ops.session import SessionOptions

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(commands: Commands, name: str, summary: str, about: str, *examples: str) -> argparse.ArgumentParser:
    """Add a command: `summary` is its line in the list of all, `about` and the examples are under its own --help."""
    return commands.add_parser(
        name,
        help=summary,
        description=about,
        epilog=examples_text(*examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def examples_text(*examples: str) -> str:
    """Return commands as the end of a --help shows them."""
    return "\n".join([f"example{'s' if len(examples) > 1 else ''}:", *(f"  efvfl {line}" for line in examples)])


def add_device(command: argparse.ArgumentParser) -> None:
    """Add the choice of a device."""
    command.add_argument(
        "--device", choices=("cpu", "cuda", "mps"), help="where local models compute, in place of the file's"
    )


def add_alone(command: argparse.ArgumentParser) -> None:
    """Add the choice not to train what reports compare with."""
    command.add_argument(
        "--no-alone",
        action="store_true",
        help="do not train the label holder's own columns alone afterwards, for the report to compare with",
    )


def add_dashboard(command: argparse.ArgumentParser) -> None:
    """Add the choice of a live page."""
    command.add_argument("--dashboard", action="store_true", help="show a live page meanwhile, on this machine alone")


@contextlib.contextmanager
def dashboard_beside(options: argparse.Namespace, folder: Path, console: Console) -> Iterator[None]:
    """Have a live page of a folder while a command works, if it is asked for."""
    if not options.dashboard:
        yield
        return
    from efvfl.network.dashboard.serving import started_beside

    with started_beside(folder, lambda line: console.print(line, soft_wrap=True, highlight=False, markup=False)):
        yield


def add_start(command: argparse.ArgumentParser, what: str) -> None:
    """Add the choice of a trained run to start from."""
    command.add_argument(
        "--from",
        dest="start_from",
        type=Path,
        metavar="RUN",
        help=f"start from the trained parameters in {what}, where they fit",
    )


def add_tracking(command: argparse.ArgumentParser) -> None:
    """Add the choice of experiment trackers."""
    command.add_argument(
        "--track",
        nargs="+",
        choices=("tensorboard", "mlflow", "wandb"),
        default=[],
        metavar="TRACKER",
        help="also write the curves for tensorboard, mlflow or wandb, each to a folder of its name in that of the run",
    )


def add_panel(command: argparse.ArgumentParser) -> None:
    """Add the choices of who predicts, for a model that needs not everybody."""
    command.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help="for a missing party, before rows are predicted without it (default: 5; trained for subsets only)",
    )
    command.add_argument(
        "--require", nargs="+", default=[], metavar="PARTY", help="predict no row without the columns of these"
    )


def add_log(command: argparse.ArgumentParser) -> None:
    """Add the choice of how log lines on stderr look."""
    command.add_argument(
        "--log",
        choices=("auto", "plain", "json"),
        default="auto",
        help="form of the log on stderr (default: for people at a terminal, else plain lines)",
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


def add_place(command: argparse.ArgumentParser, *folder: str) -> None:
    """Add where a participant keeps its things, and where the server is."""
    command.add_argument(
        *(folder or ("--dir",)),
        type=Path,
        help="this participant's folder (default: the own file's; with one file for all, runs/FILE/NAME)",
    )
    command.add_argument("--address", metavar="HOST:PORT", help="of the server, in place of the file's")
    command.add_argument(
        "--certs", type=Path, help="folder of keys and certificates (default: the own file's, or certs)"
    )


def add_session(command: argparse.ArgumentParser, *folder: str) -> None:
    """Add what every participant's process needs: its folder, an address, certificates and a way to show its status."""
    add_place(command, *folder)
    command.add_argument("--insecure", action="store_true", help="no TLS; on loopback addresses only")
    command.add_argument(
        "--status",
        choices=("live", "json", "quiet"),
        default="live",
        help="how it goes: a line for people, JSON lines on stdout, or nothing (default: %(default)s)",
    )
    add_log(command)


def session_options(options: argparse.Namespace) -> SessionOptions:
    """Return the options of `add_session`, or of `add_place` alone, as the network package takes them."""
    from efvfl.config import own_file
    from efvfl.network.ops.session import SessionOptions

    participant = own_file.find(options.file)
    return SessionOptions(
        file=options.file,
        folder=options.dir,
        address=options.address,
        certs=options.certs or (participant.certs if participant else Path("certs")),
        insecure=getattr(options, "insecure", False),
        status=getattr(options, "status", "quiet"),
        log=getattr(options, "log", "auto"),
        metrics=getattr(options, "metrics", ""),
        start_from=getattr(options, "start_from", None),
        participant=participant,
    )


def leading_options(options: argparse.Namespace) -> SessionOptions:
    """Return the options of a command that only the label holder runs."""
    session = session_options(options)
    if session.participant and not session.participant.serves:
        from efvfl.errors import ConfigError

        name, command = session.participant.name, options.command
        raise ConfigError(
            f"{options.file} is the own file of {name!r}, and only the label holder runs `efvfl {command}`. Take part "
            f"with `efvfl join {options.file}`."
        )
    return session


def add_file(command: argparse.ArgumentParser) -> None:
    """Add the file that every participant's command takes."""
    command.add_argument("file", type=Path, help="your own file, such as bank.toml, or one file for all")


def folder_of(place: Path) -> Path:
    """Return a folder that is named as such, or that of a participant's own file."""
    if place.suffix != ".toml":
        return place
    from efvfl.config import own_file

    return own_file.participant(place).folder
