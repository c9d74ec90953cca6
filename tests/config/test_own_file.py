"""A run in two files is the run of one file, and every key has its place in one of the two."""

import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from efvfl.cli.main import main
from efvfl.config import new_files, own_file, ownership, run_file
from efvfl.config.own_file import open_run, participant
from efvfl.config.run_file import RunConfig
from efvfl.errors import ConfigError
from efvfl.network import handshake
from efvfl.network.ops import private_seed

FEDERATION = """
seed = 3
epochs = 7
loss = "binary_cross_entropy"
label_holder = "bank"
model = { width = 8 }
[data]
name = "table"
test = 0.3
[network]
address = "vfl.example.org:7143"
on_missing = "stop"
[[party]]
name = "bank"
[[party]]
name = "telco"
model = { width = 4 }
"""
BANK = """
party = "bank"
private_seed = 11
threads = 2
protect = { clip = 1.0, noise = 0.5 }
data = { path = "customers.csv", id = "customer", label = "default", types = { zip = "category" } }
network = { listen = "0.0.0.0:7143", save_steps = 5 }
"""
TELCO = """
party = "telco"
federation = "federation.toml"
private_seed = 12
data = { path = "clients.csv", id = "client" }
model = { hidden = [5], last = "tanh" }
limits = { bytes = 1000 }
network = { absent_seconds = 9.0 }
"""
# What either would have written in a copy of one file for all.
WHOLE = {
    "bank": """
seed = 3
epochs = 7
loss = "binary_cross_entropy"
label_holder = "bank"
private_seed = 11
threads = 2
protect = { clip = 1.0, noise = 0.5 }
model = { width = 8 }
[data]
name = "table"
test = 0.3
[network]
address = "0.0.0.0:7143"
on_missing = "stop"
save_steps = 5
[[party]]
name = "bank"
private_seed = 11
data = { path = "customers.csv", id = "customer", label = "default", types = { zip = "category" } }
[[party]]
name = "telco"
model = { width = 4 }
""",
    "telco": """
seed = 3
epochs = 7
loss = "binary_cross_entropy"
label_holder = "bank"
model = { width = 8 }
[data]
name = "table"
test = 0.3
[network]
address = "vfl.example.org:7143"
on_missing = "stop"
absent_seconds = 9.0
[[party]]
name = "bank"
[[party]]
name = "telco"
private_seed = 12
data = { path = "clients.csv", id = "client" }
model = { hidden = [5], last = "tanh", width = 4 }
limits = { bytes = 1000 }
""",
}


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("name", "own"), [("bank", BANK), ("telco", TELCO)])
def test_two_files_are_one(tmp_path: Path, name: str, own: str) -> None:
    folder = write(tmp_path, federation=FEDERATION, **{name: own, "whole": WHOLE[name]})
    found, here = open_run(folder / f"{name}.toml")
    assert found == run_file.load(folder / "whole.toml")
    assert here is not None
    assert here.serves == (name == "bank")
    assert open_run(folder / "whole.toml") == (found, None)


def test_all_participants_say_the_same_hello(tmp_path: Path) -> None:
    folder = write(tmp_path, federation=FEDERATION, bank=BANK, telco=TELCO)
    names = ["bank", "telco"]
    shared = [handshake.shared_part(open_run(folder / f"{name}.toml")[0], names) for name in names]
    assert shared[0] == shared[1]
    assert shared[0]["widths"] == [8, 4]


def test_a_label_holder_with_labels_alone(tmp_path: Path) -> None:
    federation = FEDERATION.replace('label_holder = "bank"\n', "")
    own = 'party = "server"\nlabels = { path = "labels.csv", id = "customer", label = "default" }\n'
    folder = write(tmp_path, federation=federation, holder=own)
    config, here = open_run(folder / "holder.toml")
    assert (config.data.path, config.data.id, config.data.label) == ("labels.csv", "customer", "default")
    assert here is not None
    assert here.serves
    assert here.certified == "server"


def _leaves(cls: type, prefix: str = "") -> Iterator[str]:
    """All keys of a run file, dotted."""
    hints = get_type_hints(cls)
    for each in fields(cls):
        kinds = [kind for kind in (hints[each.name], *_arguments(hints[each.name])) if is_dataclass(kind)]
        if kinds and each.name not in ("cached",):
            yield from _leaves(kinds[0], f"{prefix}{each.name}.")  # type: ignore[arg-type]
        else:
            yield prefix + each.name


def _arguments(hint: Any) -> tuple[Any, ...]:
    return tuple(inner for arg in get_args(hint) for inner in (arg, *_arguments(arg)))


def test_every_key_belongs_to_one_of_the_two_files() -> None:
    for key in _leaves(RunConfig):
        # In one file for all, a party's keys are below [[party]], and those of a table of labels in [data].
        own = {key.removeprefix("party."), "labels." + key.removeprefix("data.")}
        agreed = ownership._has(ownership.AGREED, key)
        assert agreed != any(ownership._has(ownership.OWN, each) for each in own), key


@pytest.mark.parametrize(
    ("file", "line", "told"),
    [
        ("bank", "epochs = 3", r"bank.toml: epochs is agreed on by all: write it in federation.toml"),
        ("bank", "model = { width = 3 }", r"model.width is agreed on by all"),
        ("bank", "method = { name = 'svfl' }", r"method.name is agreed on by all"),
        ("bank", "epoch = 3", r"bank.toml: unknown key 'epoch'"),
        ("bank", "limits = { byte = 3 }", r"bank.toml: limits: unknown key 'byte'. Did you mean 'bytes'"),
        ("bank", "folder = 3", r"folder: expected a path, got 3"),
        ("bank", "labels = 3", r"bank.toml: labels: expected a table, got 3"),
        ("federation", "private_seed = 3", r"federation.toml: private_seed is not for all to know: .* the own file"),
        ("federation", "memory = 'mapped'", r"memory is not for all to know"),
        ("federation", "protect = { clip = 1.0 }", r"protect.clip is not for all to know"),
        ("federation", "[[party]]\nname = 'x'\nlimits = { bytes = 3 }", r"write it as limits.bytes in the own file"),
        ("federation", "[[party]]\nname = 'x'\ndata = { path = 'x.csv' }", r"write it as data.path in the own file"),
        ("federation", "epoch = 3", r"federation.toml: unknown key 'epoch'. Did you mean 'epochs'"),
        ("telco", "protect = { visits = { noise = 1.0 } }", r"protect: unknown key 'visits'"),
    ],
)
def test_a_key_in_the_wrong_file_is_sent_to_the_right_one(tmp_path: Path, file: str, line: str, told: str) -> None:
    texts = {"federation": FEDERATION, "bank": BANK, "telco": TELCO}
    texts[file] = texts[file] + line if line.startswith("[[") else line + "\n" + texts[file]
    folder = write(tmp_path, **texts)
    with pytest.raises(ConfigError, match=told):
        open_run(folder / f"{file if file != 'federation' else 'bank'}.toml")


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ("federation = 'federation.toml'", "expected party = 'NAME'"),
        ("party = 'tel'", "'tel' is not a party of this federation. Did you mean 'telco'"),
        ("party = 'server'\ndata = { path = 'x.csv' }", "'server' has labels alone"),
        ("party = 'telco'\nlabels = { path = 'x.csv' }", r"\[labels\] is the label holder's"),
        ("party = 'telco'\nnetwork = { listen = ':1' }", "network.listen is the label holder's"),
        ("party = 'telco'\nfederation = 'none.toml'", "`efvfl accept`"),
        ("party = 'telco'\nfederation = 'own.toml'", "own.toml is a participant's own file"),
    ],
)
def test_own_files_that_do_not_fit(tmp_path: Path, own: str, told: str) -> None:
    folder = write(tmp_path, federation=FEDERATION, own=own)
    with pytest.raises(ConfigError, match=told):
        open_run(folder / "own.toml")


def test_tables_in_a_federation_of_arrays(tmp_path: Path) -> None:
    folder = write(tmp_path, federation=FEDERATION.replace('name = "table"\n', ""), telco=TELCO)
    with pytest.raises(ConfigError, match=r"clients.csv is a table, but the federation file has data.name = ''"):
        open_run(folder / "telco.toml")


def test_one_file_for_all_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, federation=FEDERATION, bank=BANK)
    assert main(["run", str(folder / "bank.toml")]) == 2
    assert "one participant's own file" in capsys.readouterr().err
    assert main(["join", str(folder / "federation.toml")]) == 2
    assert "who joins?" in capsys.readouterr().err
    assert main(["join", str(folder / "bank.toml")]) == 2
    assert "`efvfl serve`" in capsys.readouterr().err


def test_folders_are_beside_the_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = tmp_path / "bank", tmp_path / "elsewhere"
    for each in (folder, elsewhere):
        each.mkdir()
    write(folder, federation=FEDERATION, bank=BANK, other=BANK + '\nfolder = "state/x"\ncerts = "../keys"\n')
    monkeypatch.chdir(elsewhere)
    here = participant(Path("../bank/bank.toml"))
    assert [path.resolve() for path in (here.folder, here.certs)] == [folder / "runs" / "bank", folder / "certs"]
    there = participant(Path("../bank/other.toml"))
    assert [path.resolve() for path in (there.folder, there.certs)] == [folder / "state" / "x", tmp_path / "keys"]


def test_a_private_seed_is_drawn_once_and_kept(tmp_path: Path) -> None:
    texts = {"federation": FEDERATION, "bank": BANK.replace("private_seed = 11\n", ""), "telco": TELCO}
    folder = write(tmp_path, **texts)
    config, bank = open_run(folder / "bank.toml")
    assert bank is not None
    first = private_seed.completed(config, bank, bank.folder)
    assert first.private_seed == first.of("bank").private_seed
    assert first.private_seed is not None
    assert private_seed.completed(config, bank, bank.folder) == first
    assert private_seed.completed(config, bank, tmp_path / "another").private_seed != first.private_seed
    kept = bank.folder / private_seed.FILE
    assert kept.stat().st_mode & 0o777 == 0o600
    assert bank.folder.stat().st_mode & 0o777 == 0o700
    kept.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        private_seed.completed(config, bank, bank.folder)
    chosen, telco = open_run(folder / "telco.toml")
    assert telco is not None
    assert private_seed.completed(chosen, telco, telco.folder) == chosen
    assert not telco.folder.exists()


def test_code_in_a_federation_file_is_found() -> None:
    table = tomllib.loads(
        "fusion = { name = 'a.b:C' }\n[method]\ncompressor = { name = 'd:E' }\ndown = { name = 'qsgd' }"
    )
    assert own_file.named_code(table) == ["a.b:C", "d:E"]


@pytest.mark.parametrize(
    "text", ["[network]\naddress = 'x:1'", "[network]\ndenied = []\n", "[network]\ndenied = ['AB']"]
)
def test_a_certificate_is_added_to_the_deny_list(text: str) -> None:
    before = tomllib.loads(text)["network"].get("denied", [])
    assert tomllib.loads(new_files.with_denied(text, "CD"))["network"]["denied"] == [*before, "CD"]


def test_a_file_that_is_written_otherwise_is_not_changed() -> None:
    with pytest.raises(ConfigError, match="below \\[network\\] yourself"):
        new_files.with_denied("network = { address = 'x:1' }", "CD")
