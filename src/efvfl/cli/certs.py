"""`efvfl certs`: an authority and all key pairs in one place, for demonstrations and for clients of the service."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import Commands, add_command

if TYPE_CHECKING:
    from rich.console import Console


_ABOUT = """Makes a certificate authority, and with it a key and a certificate for the server and every party in the
file. What is there already stays: the same command makes what is missing, such as for a party that is new."""


def register(commands: Commands) -> None:
    """Add the commands of this file to the parser."""
    certs = add_command(
        commands,
        "certs",
        "for demonstrations: a CA and all keys in one place (else: init, sign)",
        _ABOUT,
        "certs federation.toml",
        "certs federation.toml --host vfl.example.org --days 730",
    )
    certs.add_argument("file", type=Path, help="the federation file")
    certs.add_argument("--out", type=Path, default=Path("certs"), help="folder (default: %(default)s)")
    certs.add_argument("--days", type=int, default=365, help="until they expire (default: %(default)s)")
    certs.add_argument("--host", nargs="+", default=[], help="further names or addresses of the server, for HTTPS")
    certs.add_argument("--client", nargs="+", default=[], help="names of clients of the prediction service")
    certs.set_defaults(handler=_certs)


def _certs(options: argparse.Namespace, console: Console) -> None:
    """Make what is missing for the names in a federation file, and print the new files."""
    from efvfl.config import run_file as configs
    from efvfl.network.identity import authority, certificates
    from efvfl.network.training import participant_data

    config = configs.load(options.file)
    names, named = participant_data.party_names(config, options.file.parent), [party.name for party in config.party]
    if not set(named) <= set(names):  # a federation file names parties and no data: arrays are in their own files
        names = named
    made = authority.make(options.out, [certificates.SERVER, *names, *options.client], options.days, options.host)
    for path in made:
        console.print(f"made {path}", soft_wrap=True, highlight=False)
    text = f"Give each party its NAME.key and NAME.crt, and {options.out / 'ca.crt'}, by a way you trust; keep ca.key."
    console.print(text if made else "Nothing was missing.", soft_wrap=True, highlight=False)
