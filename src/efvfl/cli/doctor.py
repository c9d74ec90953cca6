"""`efvfl doctor`: what would go wrong, before it does."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from efvfl.cli.options import Commands, add_command, add_file, add_json, add_place, print_json, session_options
from efvfl.errors import ConfigError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from efvfl.network.doctor.diagnosis import Diagnosis

_ABOUT = """Reads the files, the table, the keys, the disk and the clock, dials the label holder as training would,
and says what would go wrong and what to do about it, with an estimate of the bytes and the time of the run.
Nothing is changed. Exit code 2 if something would stop this participant.

A running server shows that the way to it is free. To measure the line and compare the clocks and files, the label
holder runs it with --listen, which waits on the server's port, and each party runs it meanwhile."""


def register(commands: Commands) -> None:
    """Add the command of this file to the parser."""
    doctor = add_command(
        commands,
        "doctor",
        "what would go wrong: files, tables, keys, disk, clock and the line",
        _ABOUT,
        "doctor bank.toml --listen 300",
        "doctor telco.toml",
        "doctor federation.toml --party telco",
    )
    add_file(doctor)
    doctor.add_argument("--party", help="with one file for all: which of the parties this is")
    doctor.add_argument(
        "--listen", type=float, default=0.0, metavar="SECONDS", help="wait so long for parties' doctors"
    )
    add_place(doctor)
    add_json(doctor)
    doctor.set_defaults(handler=_doctor)


def _doctor(options: argparse.Namespace, console: Console) -> None:
    from rich.console import Console

    from efvfl.network.doctor.checkup import Checkup

    session = session_options(options)
    party = session.party(options.party)
    if options.listen < 0 or (options.listen and party):
        raise ConfigError("--listen is for the label holder, with a number of seconds: leave it out.")
    say = partial(Console(stderr=True).print, soft_wrap=True, highlight=False, markup=False)
    checkup = Checkup(session, party, tell=say)
    checkup.run(options.listen)
    if options.json:
        print_json(checkup.to_table())
    else:
        for found in checkup.findings:
            _show(found, console)
    if problems := checkup.problems:
        names = ", ".join(dict.fromkeys(found.what for found in problems))
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise ConfigError(f"{count} would stop this participant: {names}.")


def _show(found: Diagnosis, console: Console) -> None:
    from rich.text import Text

    colour = {"ok": "green", "warning": "yellow", "problem": "bold red"}[found.grade]
    line = Text.assemble((f"{found.grade:<8}", colour), f" {found.what:<11} {printable(found.text)}")
    console.print(line, soft_wrap=True, highlight=False)
    if found.advice:
        console.print(f"{'':<20} -> {printable(found.advice)}", soft_wrap=True, highlight=False, markup=False)
