"""`efvfl data`: list data sets, or download one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from efvfl.cli.options import Commands, add_command

if TYPE_CHECKING:
    from rich.console import Console


def register(commands: Commands) -> None:
    """Add the commands of this file to the parser."""
    data = add_command(
        commands,
        "data",
        "list data sets, or get one",
        "Lists the data sets that a run file can name as data.name, or downloads one and checks what was received.",
        "data list",
        "data get mnist",
    )
    actions = data.add_subparsers(dest="action", required=True, metavar="ACTION")
    about = "Lists all data sets: what they are, how much they download, and whether they are on this machine."
    every = add_command(actions, "list", "what there is, and what is here", about, "data list")
    every.set_defaults(handler=_list)
    about = "Downloads a data set to the folder in EFVFL_DATA, or to the user's cache, and checks its digest."
    get = add_command(actions, "get", "download and check one", about, "data get mnist")
    get.add_argument("name", help="one that `efvfl data list` shows")
    get.set_defaults(handler=_get)


def _list(options: argparse.Namespace, console: Console) -> None:
    from efvfl.runs import terminal

    terminal.list_data(console)


def _get(options: argparse.Namespace, console: Console) -> None:
    from efvfl.runs import terminal

    terminal.get_data(options.name, console)
