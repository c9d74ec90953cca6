"""A run in two files: `federation.toml` is what all participants agree on, and each has its own, such as `bank.toml`.

Both together are one `RunConfig`, the same as that of one file with everything; nothing else knows of the second file.
Paths are relative to the file that they are written in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from efvfl.config import ownership, table_defaults
from efvfl.config.parsing import parse
from efvfl.config.run_file import LimitConfig, OwnData, RunConfig, load, read
from efvfl.core.row_protection import RowProtection
from efvfl.errors import ConfigError, nearest, system_text

SERVER = "server"  # whose own file this is, where the label holder has no columns
LARGEST = 1 << 20  # bytes of a federation file: it may come from another organisation


@dataclass(frozen=True)
class Participant:
    """Whose own file it is, and what lies beside it."""

    name: str  # of a party, or 'server'
    serves: bool  # it holds the labels, and runs the server
    file: Path
    federation: Path
    folder: Path  # of its runs
    certs: Path

    @property
    def certified(self) -> str:
        """The name in its certificate."""
        return SERVER if self.serves else self.name


def open_run(path: Path) -> tuple[RunConfig, Participant | None]:
    """Read a run from a participant's own file and the federation file that it names, or from one file for all."""
    own = _table(path)
    if not ownership.is_own(own):
        return load(path), None
    here = participant(path, own)
    federation = read_federation(here.federation)
    return read(RunConfig, merge(own, federation, path.name), f"{path.name} with {here.federation.name}"), here


def find(path: Path) -> Participant | None:
    """Return whose own file this is; None for one file for all, and for none at all: whoever loads it says why."""
    try:
        own = _table(path)
    except ConfigError:
        return None
    return participant(path, own) if ownership.is_own(own) else None


def participant(path: Path, own: Mapping[str, Any] | None = None) -> Participant:
    """Return whose own file this is, also while there is no federation file yet: then nobody serves but 'server'."""
    own = _table(path) if own is None else own
    if not ownership.is_own(own):
        raise ConfigError(
            f"{path} is not a participant's own file: expected party = 'NAME' and federation = 'federation.toml' in "
            "it. `efvfl init` writes one."
        )
    ownership.check_own(own, path.name, str(own.get("federation", "federation.toml")))
    places = {"federation": "federation.toml", "certs": "certs", "folder": f"runs/{path.stem}"}
    for key, default in places.items():
        value = own.get(key, default)
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{path.name}: {key}: expected a path, got {value!r:.80}.")
        places[key] = value
    base, name = path.parent, str(own["party"])
    found = Participant(
        name, name == SERVER, path, base / places["federation"], base / places["folder"], base / places["certs"]
    )
    if found.federation.exists():
        holder = read_federation(found.federation).get("label_holder", "")
        return replace(found, serves=name in (SERVER, holder))
    return found


def table_of(path: Path) -> dict[str, Any]:
    """Return what an own file says of its table: at least `path`."""
    own = _table(path)
    participant(path, own)
    for key, kind in (("data", OwnData), ("labels", OwnData)):
        if key in own:
            read(kind, own[key], f"{path.name}: {key}")
            return dict(own[key])
    raise ConfigError(f"{path}: expected [data] with the path of your table, got none.")


def read_federation(path: Path) -> dict[str, Any]:
    """Return the table of a federation file, checked on its own."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {path}, what all agree on: {system_text(error)}. The label holder makes it with "
            "`efvfl init`; a party gets it with its invitation, by `efvfl accept`."
        ) from error
    return parse_federation(text, path.name)


def parse_federation(text: str, where: str) -> dict[str, Any]:
    """Return the table in the text of a federation file, which may come from others; `where` names it in errors."""
    if len(text.encode()) > LARGEST:
        raise ConfigError(f"{where}: expected at most {LARGEST:,} bytes, got {len(text.encode()):,}.")
    table = parse(text, where)
    if ownership.is_own(table):
        raise ConfigError(f"{where} is a participant's own file: expected the federation file, which all have alike.")
    ownership.check_agreed(table, where)
    read(RunConfig, table, where)
    return table


def named_code(value: Any) -> list[str]:
    """Return the 'package.module:attribute' that a federation file has imported, wherever they stand in it."""
    if isinstance(value, dict):
        here = [value["name"]] if isinstance(value.get("name"), str) and ":" in value["name"] else []
        return here + [code for item in value.values() for code in named_code(item)]
    return [code for item in value for code in named_code(item)] if isinstance(value, list) else []


def merge(own: Mapping[str, Any], federation: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the table of one file that has what both say; `where` names the own file in errors."""
    name, parties = str(own["party"]), [dict(party) for party in federation.get("party", [])]
    names = [party["name"] for party in parties]
    serves = name in (SERVER, federation.get("label_holder", ""))
    if parties and name not in (SERVER, *names):
        raise ConfigError(f"{where}: party = {name!r} is not a party of this federation. {nearest(name, names)}")
    _check_place(own, federation, where, serves)
    mine = ("memory", "threads", "protect") if serves else ("memory", "threads")
    table = {**federation, **{key: own[key] for key in mine if key in own}}
    if name != SERVER:
        entry = next((party for party in parties if party["name"] == name), None)
        if entry is None:
            parties.append(entry := {"name": name})
        entry |= _personal(own, federation, entry)
        if "protect" in own and not serves:  # of its rows; a label holder's is of its labels
            entry["protect"] = own["protect"]
    if serves and "private_seed" in own:
        table["private_seed"] = own["private_seed"]
    if "labels" in own:
        table["data"] = {**federation.get("data", {}), **own["labels"]}
    network = dict(own.get("network", {}))
    listen = network.pop("listen", None)
    table["network"] = {**federation.get("network", {}), **network, **({"address": listen} if listen else {})}
    return {**table, "party": parties} if parties else table


def _personal(own: Mapping[str, Any], federation: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a party's own file says of it, as its [[party]] has it in one file for all."""
    found = {key: own[key] for key in ("data", "limits", "private_seed", "training") if key in own}
    if "model" in own:  # in place of [model], but for the width that all know
        width = {**federation.get("model", {}), **entry.get("model", {})}
        found["model"] = {**own["model"], **width}
    return found


def _check_place(own: Mapping[str, Any], federation: Mapping[str, Any], where: str, serves: bool) -> None:
    """Refuse what this participant cannot have, and tables in a federation of arrays."""
    server = own["party"] == SERVER
    if "labels" in own and not serves:
        raise ConfigError(f"{where}: [labels] is the label holder's: leave it out.")
    for key in ("data", "model", "limits", "training"):
        if key in own and server:
            raise ConfigError(f"{where}: [{key}] is a party's, and 'server' has labels alone: name them in [labels].")
    if "listen" in own.get("network", {}) and not serves:
        raise ConfigError(f"{where}: network.listen is the label holder's: parties dial out. Leave it out.")
    for key, kind in (("data", OwnData), ("limits", LimitConfig), *(() if serves else (("protect", RowProtection),))):
        if key in own:
            read(kind, own[key], f"{where}: {key}")
    path = str(own.get("data", own.get("labels", {})).get("path", ""))
    chosen = str(federation.get("data", {}).get("name", ""))
    if table_defaults.are_tables("", [path]) and chosen != table_defaults.TABLES:
        raise ConfigError(
            f"{where}: {path} is a table, but the federation file has data.name = {chosen!r}: all must know that rows "
            f"come from tables. Agree on data.name = '{table_defaults.TABLES}' there."
        )


def _table(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # not UTF-8, or a path with a null character
        raise ConfigError(f"cannot read {path}: {system_text(error)}.") from error
    return parse(text, str(path))
