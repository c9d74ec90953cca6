"""`efvfl init`: the files of a new participant, from its table."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.cli.options import Commands, add_command
from efvfl.cli.questions import Questions
from efvfl.errors import ConfigError, nearest

if TYPE_CHECKING:
    from rich.console import Console

    from efvfl.config.new_files import FederationAnswers, OwnAnswers

_ABOUT = """Writes what a participant needs, from its table: its own file, and its key. Whoever holds the column to
predict starts the federation (--label, --invite): it also gets federation.toml, which all agree on, and an
authority that signs the others' requests. Everybody else gets a request to send to it. What no flag says is
asked at a terminal. No file is ever replaced, and no key leaves this machine."""


def register(commands: Commands) -> None:
    """Add the command of this file to the parser."""
    init = add_command(
        commands,
        "init",
        "write a participant's files from its table: what is agreed on, its own, and its key",
        _ABOUT,
        "init customers.csv --party bank --label default --invite telco --address vfl.bank.example:7143",
        "init clients.csv --party telco",
    )
    init.add_argument("table", type=Path, help="your table: .csv, .csv.gz, .tsv, .parquet or .arrow")
    init.add_argument("--party", metavar="NAME", help="your name; 'server' for a label holder with labels alone")
    init.add_argument("--id", metavar="COLUMN", help="the column that names the rows (default: recognised)")
    init.add_argument("--label", metavar="COLUMN", help="the label holder: the column to predict")
    init.add_argument("--invite", nargs="+", metavar="NAME", help="the label holder: names of the other parties")
    init.add_argument("--address", metavar="HOST:PORT", help="the label holder: where parties will dial")
    init.add_argument("--loss", help="the label holder: such as mse (default: what suits the label)")
    init.add_argument("--days", type=int, default=365, help="until the server's certificate expires (%(default)s)")
    init.add_argument("--out", type=Path, default=Path(), help="folder of the files (default: the current one)")
    init.set_defaults(handler=_init)


def _init(options: argparse.Namespace, console: Console) -> None:
    from efvfl.data.tables.roles import guess_roles

    asking, roles = Questions(console), guess_roles(options.table)
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", options.table.name.partition(".")[0]) or "party"
    name = asking.text("--party", options.party, "Your name in the federation", stem if asking.possible else "")
    leads = bool(options.label or options.invite or name == "server") or asking.yes(
        "Do you hold the column to predict, and start the federation?"
    )
    columns = f"the columns are {', '.join(roles.columns)[:300]}"
    none = f"no column has another value in every row; {columns}"
    id = _column(roles.columns, asking.text("--id", options.id, "The column that names the rows", roles.id, none))
    out = _Writer(options.out, name, options.days, console)
    if leads:
        out.lead(
            *_lead(options, asking, name, id, _column(roles.columns, _label(options, asking, roles.label, columns)))
        )
    else:
        from efvfl.config.new_files import OwnAnswers

        out.follow(OwnAnswers(name, os.path.relpath(options.table, options.out), id))


def _label(options: argparse.Namespace, asking: Questions, guess: str, columns: str) -> str:
    return asking.text("--label", options.label, "The column to predict", guess, columns)


def _column(known: tuple[str, ...], name: str) -> str:
    if name not in known:
        raise ConfigError(f"the table has no column {name!r}. {nearest(name, known)}")
    return name


def _lead(
    options: argparse.Namespace, asking: Questions, name: str, id: str, label: str
) -> tuple[FederationAnswers, OwnAnswers]:
    """Return what the label holder decides."""
    from efvfl.config.new_files import FederationAnswers, OwnAnswers
    from efvfl.config.run_file import check_address
    from efvfl.data.tables.roles import loss_for

    others = asking.text("--invite", " ".join(options.invite or ()), "Names of the other parties, with spaces")
    here = f"{socket.gethostname()}:7143" if asking.possible else ""
    address = check_address(asking.text("--address", options.address, "Where parties will dial, as host:port", here))
    loss = options.loss or loss_for(options.table, label)
    host, _, port = address.rpartition(":")
    listen = "" if host in ("127.0.0.1", "localhost", "[::1]") else f"0.0.0.0:{port}"
    return (
        FederationAnswers(name, others.split(), address, loss, secrets.randbits(31)),
        OwnAnswers(name, os.path.relpath(options.table, options.out), id, label, listen),
    )


class _Writer:
    """Writes the files of one participant, once everything in them is checked."""

    def __init__(self, folder: Path, name: str, days: int, console: Console) -> None:
        from efvfl.network.identity.certificates import check_name

        check_name(name)
        self.name, self.days, self.console = name, days, console
        self.own, self.federation, self.certs = folder / f"{name}.toml", folder / "federation.toml", folder / "certs"
        if name == "federation":
            raise ConfigError("'federation' cannot be a name: federation.toml is what all agree on. Choose another.")

    def lead(self, agreed: FederationAnswers, own: OwnAnswers) -> None:
        """Write the files of the label holder, and make an authority with the server's certificate."""
        from efvfl.config.new_files import federation_text, own_text
        from efvfl.network.identity import authority
        from efvfl.network.identity.certificates import check_name

        for name in agreed.parties:
            check_name(name)
        self._write({self.federation: federation_text(agreed), self.own: own_text(own)})
        host = agreed.address.rpartition(":")[0].strip("[]")
        for path in authority.make(self.certs, ["server"], self.days, [host]):
            self._say(f"made {path}")
        self._say("ca.key signs the certificates of all: whoever has it can pretend to be anyone.")
        for name in agreed.parties:
            self._say(f"Next, with the request of {name}: efvfl sign {self.own} {name}.request")

    def follow(self, own: OwnAnswers) -> None:
        """Write the own file of a party, and make its key and a request."""
        from efvfl.cli.keys import write_request
        from efvfl.config import own_file
        from efvfl.config.new_files import own_text

        self._write({self.own: own_text(own)})
        write_request(own_file.participant(self.own), self.console)
        self._say(f"Next, with what comes back: efvfl accept {self.own} {self.name}.invitation")

    def _write(self, texts: dict[Path, str]) -> None:
        """Write new files that load together; nothing is written if one of them is there already."""
        from efvfl.config import own_file
        from efvfl.config.parsing import parse
        from efvfl.config.run_file import RunConfig, read
        from efvfl.network.identity.authority import prepare, write_new

        for path in texts:
            if os.path.lexists(path):
                raise ConfigError(f"{path} is there already, and is not replaced: move it away, or choose --out.")
        agreed = texts.get(self.federation) or _text_of(self.federation)
        if agreed:
            federation = own_file.parse_federation(agreed, self.federation.name)
            merged = own_file.merge(parse(texts[self.own], self.own.name), federation, self.own.name)
            read(RunConfig, merged, self.own.name)
        prepare(self.own.parent)
        for path, text in texts.items():
            write_new(path, text.encode(), 0o600, [])
            self._say(f"wrote {path}")

    def _say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
