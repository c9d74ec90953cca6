"""The text of new files: `federation.toml` and a participant's own, with comments for who edits them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from efvfl.config.own_file import SERVER
from efvfl.config.parsing import parse
from efvfl.errors import ConfigError


@dataclass(frozen=True)
class FederationAnswers:
    """What the label holder decides at the beginning, and all agree on."""

    name: str  # the label holder's
    parties: Sequence[str]  # the others
    address: str
    loss: str
    seed: int


@dataclass(frozen=True)
class OwnAnswers:
    """What a participant says of itself."""

    name: str
    path: str  # of its table, relative to the file
    id: str
    label: str = ""
    listen: str = ""


def federation_text(answers: FederationAnswers) -> str:
    """Return a federation file."""
    holder = "" if answers.name == SERVER else answers.name
    names = [*([holder] if holder else []), *answers.parties]
    parties = "\n\n".join(f"[[party]]\nname = {_text(name)}" for name in names)
    return f"""\
# What all participants agree on: everyone has this file alike, and whoever differs is refused with both values.
# Nobody's data, keys or limits are in it. All keys: docs/run-files.md.
seed = {answers.seed}
loss = {_text(answers.loss)}
label_holder = {_text(holder)}{"" if holder else "   # none of the parties: it has labels alone"}

[data]
name = "table"
align = "psi"               # find the rows of all without showing the others
id_format = ["strip"]       # differences between ids that do not count; also "case", "zeros"
duplicates = "refuse"       # rows of one table with the same id; or "first", "drop"
validation = 0.15
test = 0.15

# Models, compressor and optimiser are the defaults of tables: docs/tables.md.

[network]
{_commented(f"address = {_text(answers.address)}", 28, "where parties dial")}
denied = []                 # fingerprints of certificates that are refused (efvfl fingerprint)

{parties}
"""


def own_text(answers: OwnAnswers) -> str:
    """Return a participant's own file."""
    table = "labels" if answers.name == SERVER else "data"
    label = f"label = {_text(answers.label)}\n" if answers.label else ""
    return f"""\
# The own file of {answers.name}: nobody else gets it. Paths are relative to this file.
party = {_text(answers.name)}
federation = "federation.toml"   # what all agree on
certs = "certs"                  # keys and certificates
{_commented(f'# folder = "runs/{answers.name}"', 33, "models, records, logs; this one, if left out")}
# private_seed = 1               # left out: drawn once, and kept in the folder

[{table}]
path = {_text(answers.path)}
id = {_text(answers.id)}
{label}{"" if table == "labels" else _PARTY}{_network(answers)}"""


_PARTY = """\
# columns = []                   # those to use; none: all others
# leave_out = []
# new = "later.csv"              # rows to predict later

# [model]                        # your own, but for the width
# hidden = [64]

# [limits]                       # the most you are ready to do, whatever you are asked
# bytes = 500_000_000
# rows = 1_000_000
"""


def _commented(line: str, column: int, comment: str) -> str:
    return f"{line:<{column - 2}}  # {comment}"


def _network(answers: OwnAnswers) -> str:
    if not answers.listen:
        return ""
    return f"""
[network]
listen = {_text(answers.listen)}   # where the server listens; in the federation file is where parties dial
"""


def added_party(name: str) -> str:
    """Return what is appended to a federation file for one more party."""
    return f"\n[[party]]\nname = {_text(name)}\n"


def with_denied(text: str, fingerprint: str) -> str:
    """Return the text of a federation file with one more certificate denied; all else in it stays as it is."""
    table = parse(text, "federation.toml")
    network = table.setdefault("network", {})
    denied = [*network.get("denied", []), fingerprint]
    line = f"denied = {json.dumps(denied)}"
    changed, count = re.subn(r"^denied = \[[^\]]*\]", line, text, flags=re.MULTILINE)
    if not count and "denied" not in network:
        changed = re.sub(r"^\[network\][^\n]*$", rf"\g<0>\n{line}", text, count=1, flags=re.MULTILINE)
    network["denied"] = denied
    if parse(changed, "federation.toml") != table:  # it is written in a way that is not ours
        raise ConfigError(f"cannot change this file: write {line!r} below [network] yourself.")
    return changed


def _text(value: str) -> str:
    """Return a string as TOML has it; JSON's are a part of TOML's, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
