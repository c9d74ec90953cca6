"""`efvfl dashboard`: a live page about runs, from their files."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import Commands, add_command, folder_of

if TYPE_CHECKING:
    from rich.console import Console


def register(commands: Commands) -> None:
    """Add the command of this file to the parser."""
    command = add_command(
        commands,
        "dashboard",
        "a live page about a run: curves, bytes, who is here, warnings",
        "Shows a page about runs from their files, while they train and afterwards. It is read only, and is for this\n"
        "machine alone unless --listen says otherwise; then it prints an address with a token.",
        "dashboard bank.toml",
        "dashboard runs/run --listen 0.0.0.0:7180",
    )
    command.add_argument("run", type=Path, help="the folder or own file of a participant, or a folder with several")
    command.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:7180",
        help="where to show it (default: %(default)s); a token is needed beyond this machine",
    )
    command.add_argument("--host", nargs="+", default=[], help="names under which others open it, such as a proxy's")
    command.add_argument("--beside", type=int, default=0, help=argparse.SUPPRESS)  # the process that started it
    command.set_defaults(handler=_dashboard)


def _dashboard(options: argparse.Namespace, console: Console) -> None:
    from efvfl.network.dashboard.serving import serve

    say = partial(print, flush=True)
    serve(folder_of(options.run), options.listen, say, options.beside, frozenset(name.lower() for name in options.host))
