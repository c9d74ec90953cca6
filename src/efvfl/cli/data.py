"""`efvfl data`: list data sets, or download one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from efvfl.cli.options import Commands

if TYPE_CHECKING:
    from rich.console import Console


def register(commands: Commands) -> None:
    """Add the commands of this file to the parser."""
    data = commands.add_parser("data", help="list data sets, or get one")
    actions = data.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="what there is, and what is here").set_defaults(handler=_list)
    get = actions.add_parser("get", help="download and check one")
    get.add_argument("name")
    get.set_defaults(handler=_get)


def _list(options: argparse.Namespace, console: Console) -> None:
    from efvfl.runs import terminal

    terminal.list_data(console)


def _get(options: argparse.Namespace, console: Console) -> None:
    from efvfl.runs import terminal

    terminal.get_data(options.name, console)
