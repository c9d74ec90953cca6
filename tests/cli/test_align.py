"""`efvfl align` as people run it: processes, certificates, files and exit codes."""

import contextlib
import gc
import io
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import polars
import pytest
from alignments import TIMEOUTS, WAITING
from log_lines import PLAIN, objects
from malicious_alignment import deviating, neighbours, on_points
from rich.console import Console
from warm_processes import Process

from efvfl.cli.main import main
from efvfl.cli.sessions import setup
from efvfl.cli.sessions.align import ProgressDisplay, read_tables
from efvfl.config import run_file as configs
from efvfl.data.tables.splits import split_of
from efvfl.errors import EfvflError
from efvfl.network.align.messages import FRAME, AlignmentKind, VoidReason
from efvfl.network.align.party import AlignmentParty
from efvfl.network.align.server import AlignmentServer
from efvfl.network.identity import authority, certificates
from efvfl.network.links.connecting import dial
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.listening import listen
from efvfl.network.ops import audit_log

FILE = """
seed = 4
[data]
path = "labels.csv"
id = "person"
label = "left"
id_format = ["strip", "zeros"]
duplicates = "first"
validation = 0.2
test = 0.1
[network]
address = "127.0.0.1:0"
[[party]]
name = "north"
data = { path = "north.csv", id = "number" }
[[party]]
name = "south"
data = { path = "south.parquet", id = "customer" }
"""
NAMES = ("north", "south")
COMMON = [str(1000 + i) for i in range(60)]  # of the 100 ids of each


def write_tables(folder: Path) -> None:
    """60 % overlap, shuffled; spaces, leading zeros, duplicates and rows without an id or a label."""
    chance = Random(7)
    own = {name: COMMON + [f"{place}{i:05d}" for i in range(40)] for place, name in enumerate(("", *NAMES), 7)}
    for ids in own.values():
        chance.shuffle(ids)
    labels = [(f" {one}", i % 2) for i, one in enumerate(own[""])] + [(own[""][0], 1), ("555", "")]
    (folder / "labels.csv").write_text("person,left\n" + "".join(f"{a},{b}\n" for a, b in labels))
    north = [f"00{one}" for one in own["north"]] + [own["north"][3], ""]
    (folder / "north.csv").write_text("number,x\n" + "".join(f"{one},1.5\n" for one in north))
    polars.DataFrame({"customer": [int(one) for one in own["south"]], "z": 2.0}).write_parquet(folder / "south.parquet")


def expected() -> list[tuple[str, str]]:
    places = split_of(sorted(COMMON), 4, (0.2, 0.1))
    split = {int(place): name for name, rows in places.items() for place in rows}
    return [(one, split[place]) for place, one in enumerate(sorted(COMMON))]


def listed(path: Path) -> list[tuple[str, str]]:
    return list(polars.read_parquet(path / "alignments" / "1.parquet").select("id", "split").iter_rows())


# One story in real processes with certificates: a party and the label holder are killed, and start again.


@dataclass
class Story:
    folder: Path
    refused: tuple[int, str]  # exit code and what was said
    last: dict[str, Process]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.last[name].out.splitlines()) if "event" in line]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("align")
    write_tables(folder)
    (folder / "fed.toml").write_text(FILE)
    (folder / "other.toml").write_text(FILE.replace('"strip", "zeros"', '"strip"'))
    authority.make(folder / "certs", [certificates.SERVER, *NAMES])
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        started.append(Process(folder, "align", *arguments, "--status", "json"))
        return started[-1]

    try:
        server = start("fed.toml")
        address = ("--address", f"127.0.0.1:{server.port()}")
        with contextlib.redirect_stderr(io.StringIO()) as said:
            flags = ("--party", "south", "--dir", str(folder / "other"), "--certs", str(folder / "certs"))
            refused = main(["align", str(folder / "other.toml"), *flags, *address, "--status", "quiet"])
        north = start("fed.toml", "--party", "north", *address)
        server.wait_for("north is here")
        north.kill().end()
        server.kill().end()  # while it waits for south
        server = start("fed.toml", *address, "--log", "json")
        server.port()
        last = {
            name: start("fed.toml", "--party", name, *address, "--out", f"state-{name}", "--log", form)
            for name, form in zip(NAMES, ("json", "plain"), strict=True)
        }
        yield Story(
            folder, (refused, said.getvalue()), {"server": server.end(), **{name: last[name].end() for name in NAMES}}
        )
    finally:
        for process in started:
            if process.running:
                process.kill().end()


def test_all_end_well_with_the_same_list(story: Story) -> None:
    for name, process in story.last.items():
        assert process.code == 0, (name, process.errors)
    for folder in ("runs/fed/server", "state-north", "state-south"):
        assert listed(story.folder / folder) == expected()


def test_logs_are_lines_of_the_form_that_was_asked_for(story: Story) -> None:
    came = {str(line["event"]) for line in objects(story.last["server"].errors)}
    assert all(any(name in event for event in came) for name in NAMES)
    assert objects(story.last["north"].errors)
    plain = story.last["south"].errors.splitlines()
    assert plain
    assert all(PLAIN.fullmatch(line) for line in plain)


def test_a_party_with_another_id_format_is_refused_and_told_which(story: Story) -> None:
    code, said = story.refused
    assert code == 4
    assert "id_format: the server has ['strip', 'zeros'], south has ['strip']" in said


def test_each_gets_a_report_of_its_own_table(story: Story) -> None:
    first, last = story.events("north")
    kept = ("total", "missing", "duplicates", "changed", "id_format")
    assert [first[key] for key in kept] == [102, 1, 1, 100, ["strip", "zeros"]]
    assert "Ids are compared without spaces around them, without leading zeros." in first["event"]
    assert (last["shared"], last["share"]) == (60, 60 / 102)
    assert {split: last[split] for split in ("train", "validation", "test")} == {
        split: sum(row[1] == split for row in expected()) for split in ("train", "validation", "test")
    }
    assert last["event"].startswith("Alignment 1: 60 rows. That is 58.8% of the 102 here: ")
    assert "north.csv: 60 of 102 rows take part. Left out: 40 whose id is not in all tables, 1 without" in last["event"]
    first, listening, last = story.events("server")
    assert [first[key] for key in kept[:4]] == [101, 0, 1, 100]  # the row without a label is no row of the table
    assert listening["event"] == f"Listening on 127.0.0.1:{listening['port']} for north, south."
    assert last["shared"] == 60
    left_out = {"unlabelled": 1, "without_id": 0, "duplicates": 1, "unmatched": 40, "weightless": 0}
    counts = {"rows": 102, **left_out, "taking_part": 60}
    assert list(last["tables"].values()) == [counts]


def test_the_ledger_names_what_was_sent(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    everything = audit_log.read(story.folder / "state-north")
    lines = [line for line in everything if not line.socket]
    out = [line.kind for line in lines if line.direction == "out"]
    assert out == ["hello", "answer-size", "answer-blinded", "answer-rows", "answer-splits", "bye"]
    assert {line.kind for line in lines if line.direction == "in"} == {
        "welcome", "ask-size", "ask-blinded", "ask-rows", "ask-splits", "stop"
    }  # fmt: skip
    assert main(["audit", str(story.folder / "state-north")]) == 0
    assert "ask-blinded: the label holder's ids as points that look random without its key" in capsys.readouterr().out


def test_no_process_ended_with_a_traceback(story: Story) -> None:
    for process in story.last.values():
        assert "Traceback" not in process.errors, process.errors


# The rest in this process: one side is the command, the other a thread.


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tables(tmp_path)
    (tmp_path / "fed.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*arguments: str) -> int:
    """Run a command here; a file it has left open becomes a warning here, and not in some later test."""
    try:
        return main(["align", "fed.toml", "--insecure", *arguments])
    finally:
        gc.collect()


def rewrite(place: Path, old: str, new: str) -> None:
    text = (place / "fed.toml").read_text()
    assert old in text
    (place / "fed.toml").write_text(text.replace(old, new))


def test_nothing_shared_is_told_to_all(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The label holder's command, and both parties in threads."""
    config = configs.load(place / "fed.toml")
    members = [AlignmentParty(config, name, [f"{name}-1"], place / name, 1) for name in NAMES]
    threads: list[threading.Thread] = []

    def opened(*rest: Any) -> Any:
        server, port = listen(*rest)
        for member in members:
            joining = Dialler(member, partial(dial, f"127.0.0.1:{port}", None, FRAME), WAITING)
            threads.append(threading.Thread(target=joining.run))
            threads[-1].start()
        return server, port

    monkeypatch.setattr(setup, "listen", opened)
    assert command() == 2
    for thread in threads:
        thread.join(30)
    assert [member.void for member in members] == [VoidReason.EMPTY, VoidReason.EMPTY]
    assert "The ids here have 4 to 6 characters: 100% digits only." in capsys.readouterr().err


@pytest.mark.attack(
    by="a party",
    tries="answers for every id with the point of the next one",
    outcome="the label holder's command names the party and exits with 3; there is no list",
)
def test_a_party_that_deviates_ends_the_command_with_its_name(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The label holder's command, and a party in a thread."""
    rewrite(place, '[[party]]\nname = "south"\ndata = { path = "south.parquet", id = "customer" }\n', "")
    config = configs.load(place / "fed.toml")
    kind = deviating({AlignmentKind.BLINDED: on_points(100, neighbours)})
    member = kind(config, "north", read_tables(config, place, "north").ids, place / "north", 1)
    diallers: list[Dialler] = []
    threads: list[threading.Thread] = []

    def join(dialler: Dialler) -> None:
        with contextlib.suppress(EfvflError):
            dialler.run()

    def opened(*rest: Any) -> Any:
        server, port = listen(*rest)
        diallers.append(Dialler(member, partial(dial, f"127.0.0.1:{port}", None, FRAME), WAITING))
        threads.append(threading.Thread(target=join, args=diallers))
        threads[-1].start()
        return server, port

    monkeypatch.setattr(setup, "listen", opened)
    code = command()
    diallers[0].stopping.set()
    threads[0].join(30)
    member.close()
    assert code == 3
    assert "north claims to hold an id that was made up here at random" in capsys.readouterr().err
    assert not list(place.rglob("alignments/*"))


@pytest.mark.parametrize(("reason", "ids"), [(VoidReason.EMPTY, ["x-1"]), (VoidReason.UNCUT, ["1001"])])
def test_a_party_that_shares_nothing_is_told_its_own_format(
    place: Path, reason: VoidReason, ids: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A party's command, and the label holder in a thread."""
    rewrite(place, '[[party]]\nname = "south"\ndata = { path = "south.parquet", id = "customer" }\n', "")
    rewrite(place, "validation = 0.2\ntest = 0.1", "validation = 0.49\ntest = 0.5")
    config = configs.load(place / "fed.toml")
    server = AlignmentServer(config, ids, None, place / "server", TIMEOUTS, threads=1)
    listening, port = listen("127.0.0.1:0", None, FRAME, 1, server.requests.accept)
    ended: list[EfvflError] = []

    def serve() -> None:
        try:
            server.run()
        except EfvflError as error:
            ended.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    assert command("--party", "north", "--address", f"127.0.0.1:{port}") == 2
    thread.join(30)
    listening.close()
    text = capsys.readouterr().err
    assert ended
    assert ("4 to 6 characters: 100% digits only" in text) == (reason == VoidReason.EMPTY)
    assert ("could not make a list of the rows" in text) == (reason == VoidReason.UNCUT)
    assert "x-1" not in text
    assert not (place / "runs" / "fed" / "north" / "alignments").exists()


@pytest.mark.parametrize(
    ("old", "new", "arguments", "text"),
    [
        ('data = { path = "north.csv", id = "number" }', "", ("--party", "north"), "'north' has no table in this file"),
        (', id = "number"', "", ("--party", "north"), "expected the name of the id column of north.csv, got none"),
        ('"number"', '"nummer"', ("--party", "north"), "has no column 'nummer'. Did you mean 'number'?"),
        ('label = "left"', "", (), "the label holder has no labels"),
        ('duplicates = "first"', "", (), "rows share 1 ids"),
        ("seed = 4", "seed = 4", ("--party", "nort"), "'nort' is not a party of this federation. Did you mean"),
        ("seed = 4", 'label_holder = "north"', ("--party", "north"), "`efvfl align` without --party does its part"),
        (FILE[FILE.index("[[party]]") :], "", (), "the file needs a [[party]] for every party"),
        ("test = 0.1", "test = 0.1\nstratify = true", (), "needs a private_seed at the top level"),
        ("test = 0.1", "test = 0.1\nids = -1", (), "data.ids: expected at least 0, got -1"),
    ],
)  # fmt: skip
def test_a_setting_that_is_wrong_is_told_before_anybody_is_asked(
    place: Path, old: str, new: str, arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(place, old, new)
    assert command(*arguments) == 2
    assert text in capsys.readouterr().err


def test_a_label_holder_may_have_columns_and_labels_in_two_tables(place: Path) -> None:
    rewrite(place, "seed = 4", 'label_holder = "north"')
    local = read_tables(configs.load(place / "fed.toml"), place, "")
    assert [table.path.name for table in local.tables] == ["north.csv", "labels.csv"]
    assert sorted(local.ids) == sorted(COMMON)
    labels = dict(zip(local.tables[1].ids, local.tables[1].frame["left"], strict=True))
    assert local.labels is not None
    assert local.labels.tolist() == [labels[one] for one in local.ids]


def test_a_bar_counts_shards() -> None:
    state: dict[str, Any] = {"done": 0, "of": 0, "missing": {"north": 1.0}}
    console = Console(force_terminal=True, width=100, record=True, legacy_windows=False)
    progress = ProgressDisplay("live", console, lambda: state)
    try:
        progress()
        assert progress._bar is not None
        assert progress._bar.tasks[0].description == "waiting for north"
        state |= {"done": 3, "of": 12, "missing": {}}
        progress()
        task = progress._bar.tasks[0]
        assert (task.description, task.completed, task.total) == ("shards compared", 3, 12)
        state |= {"connected": False}
        progress()
        assert progress._bar.tasks[0].description == "no link to the server"
    finally:
        progress.close()
