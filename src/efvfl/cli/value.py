"""`efvfl value`: how well every subset of parties predicts, and what each party and each column is worth."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import (
    Commands,
    add_command,
    add_device,
    add_json,
    add_session,
    folder_of,
    print_json,
    session_options,
)

if TYPE_CHECKING:
    from rich.console import Console

    from efvfl.training.values import ValueEstimate

_VALUE = """Shows how well every subset of parties predicts held-out rows, and what each party is worth by that (Shapley
values), of a run whose model was trained for subsets. It was computed when training ended, from what the label
holder had been sent anyway: nothing is asked for, and no party need be here.

With --columns, the label holder finds which columns matter, with all parties that join again (`efvfl join`) and
agreed to it (limits.columns in their own files): each puts a column's values in another order, and the label holder
scores what comes of it. A party sees its own columns here afterwards, the label holder those it was told by name."""


def register(commands: Commands) -> None:
    """Add the command of this file to the parser."""
    value = add_command(
        commands,
        "value",
        "what each party, and each column, is worth",
        _VALUE,
        "value runs/run",
        "value bank.toml --json",
        "value bank.toml --columns",
    )
    value.add_argument("run", type=Path, help="the folder of a run, or a participant's folder or own file")
    value.add_argument("--columns", action="store_true", help="the label holder: ask the parties which columns matter")
    add_json(value)
    add_device(value)
    add_session(value)
    value.set_defaults(handler=_value)


def _value(options: argparse.Namespace, console: Console) -> None:
    from efvfl.runs.column_worth import load_column_values
    from efvfl.runs.party_worth import NOBODY, load_values, read_values

    folder = _ask(options, console) if options.columns else folder_of(options.run)
    columns, worth = load_column_values(folder), None if options.columns else load_values(folder)
    if columns is None and worth is None:
        worth = read_values(folder)
    if options.json:
        print_json((asdict(worth) if worth else {}) | ({"columns": asdict(columns)} if columns else {}))
        return
    if worth:
        subsets = [(" + ".join(names) or NOBODY, estimate) for names, estimate in worth.shown()]
        _show(console, f"{worth.metric} of subsets of parties", worth.metric, subsets)
        _show(console, "what each party is worth", worth.metric, list(worth.values.items()))
        console.print(worth.note(), soft_wrap=True, highlight=False)
    if columns:
        for party in columns.parties:
            _show(console, f"columns of {party}", columns.metric, list(columns.ordered(party).items()))
        console.print(columns.note(), soft_wrap=True, highlight=False)


def _show(console: Console, title: str, metric: str, rows: Sequence[tuple[str, ValueEstimate]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for heading in ("", metric, "low", "high"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, estimate in rows:
        numbers = (f"{number:.4f}" for number in (estimate.value, estimate.low, estimate.high))
        table.add_row(Text(name), *numbers)
    console.print(table)


def _ask(options: argparse.Namespace, console: Console) -> Path:
    """Find which columns matter, say who took part, and return the label holder's folder."""
    from efvfl.cli.sessions import serve, setup
    from efvfl.network.identity import certificates

    options.file = options.run
    session = session_options(options)
    config = setup.start(session, options.device, single_process="value --columns")
    with contextlib.ExitStack() as stack:
        found = serve.value_columns(session, config, console, stack)
    if not options.json:
        for name, count in found.unnamed.items():
            console.print(
                f"{name} was told what its {count:,} columns are worth, and keeps their names to itself.",
                soft_wrap=True,
                highlight=False,
                markup=False,
            )
        for text in found.refused.values():
            console.print(text, soft_wrap=True, highlight=False, markup=False)
    return session.folder_of(certificates.SERVER)
