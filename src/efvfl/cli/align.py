"""`efvfl align`: find the rows that all participants share, or list what was found before."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from efvfl.cli.options import Commands, add_command, add_file, add_session, session_options

if TYPE_CHECKING:
    from rich.console import Console


_ABOUT = """Finds the rows that all participants share, without showing anybody an id that it does not have, and leaves
the list in every participant's folder: `serve` and `join` train on these rows. All run it at the same
time, each with its own file."""


def register(commands: Commands) -> None:
    """Add the commands of this file to the parser."""
    align = add_command(
        commands,
        "align",
        "find the rows that all share, all at the same time",
        _ABOUT,
        "align bank.toml",
        "align federation.toml --party bank",
        "align bank.toml --list",
    )
    add_file(align)
    align.add_argument("--party", help="with one file for all: which of the parties this is")
    align.add_argument("--list", action="store_true", help="show the lists in this participant's folder, and end")
    add_session(align, "--dir", "--out")
    align.set_defaults(handler=_align)


def _align(options: argparse.Namespace, console: Console) -> None:
    from efvfl.cli.sessions import align, setup

    session = session_options(options)
    name = session.party(options.party)
    if options.list:
        align.show_lists(session, name, console)
        return
    config = setup.start(session, single_process="align")
    with contextlib.ExitStack() as stack:
        if name:
            align.follow(session, name, config, console, stack)
        else:
            align.lead(session, config, console, stack)
