"""The first day of a federation, from the commands in docs/first-day.md alone, as separate processes over mutual TLS.

A block of the page is what one organisation types, or several at the same time. Files that the page says are sent are
carried between folders here, as mail would be. Addresses get a free port, and runs are made short.
"""

import json
import random
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import polars
import pytest
from paths import ROOT
from ports import free_port
from warm_processes import Process

from efvfl.cli.main import main
from efvfl.network.identity import fingerprints
from efvfl.network.ops import private_seed

PAGE = ROOT / "docs" / "first-day.md"
ORGANISATIONS = {"bank": "customers.csv", "telco": "clients.csv", "shop": "visitors.csv"}
ADDRESS = "127.0.0.1:7143"
SHORT = "epochs = 2\nbatch_size = 64\n"  # what the test adds to the federation file
ROWS = 240

Block = dict[str, list[str]]  # commands by organisation


def blocks() -> dict[str, list[Block]]:
    """The blocks of the page, by section."""
    found: dict[str, list[Block]] = {}
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]:
        found[section.splitlines()[0]] = [_block(text) for text in re.findall(r"```sh\n(.*?)```", section, re.S)]
    return found


def _block(text: str) -> Block:
    block: Block = {}
    for line in text.splitlines():
        if line.startswith("# "):
            block[name := line[2:]] = []
        else:
            block[name].append(line)
    return block


@dataclass
class Town:
    """The folders of all organisations, and who runs what."""

    folder: Path
    port: int = field(default_factory=free_port)
    ran: list[str] = field(default_factory=list)
    seen: dict[str, str] = field(default_factory=dict)  # on the live pages

    def of(self, name: str) -> Path:
        return self.folder / name

    def start(self, name: str, line: str) -> Process:
        """Start one command of the page in the folder of an organisation."""
        words = shlex.split(line.replace(ADDRESS, f"127.0.0.1:{self.port}"))
        self.ran.append(line)
        assert words[0] == "efvfl", line
        if words[1] == "dashboard":
            return self.look(Process(self.of(name), *words[1:], "--listen", f"127.0.0.1:{free_port()}"), name)
        process = Process(self.of(name), *words[1:])
        if "--listen" in words:
            process.wait_for("Listening")  # the others come when they are told that it does
        return process

    def look(self, process: Process, name: str) -> Process:
        """Open the live page that a process shows, and end it."""
        address = process.told("Dashboard: ")
        assert "efvfl" in httpx.get(address).text
        self.seen[name] = httpx.get(f"{address}state").text
        return process.stop()

    def play(self, block: Block) -> dict[str, list[Process]]:
        """Run a block: each organisation's commands one after the other, and all of them at the same time."""
        done: dict[str, list[Process]] = {name: [] for name in block}
        for n in range(max(map(len, block.values()))):
            started = {}
            for name, lines in block.items():
                if n < len(lines) and lines[n].startswith("mv "):
                    here = self.of(name)
                    (here / lines[n].split()[1]).rename(here / lines[n].split()[2])
                elif n < len(lines):
                    started[name] = self.start(name, lines[n])
            for name, process in started.items():
                process.end()
                stopped = "dashboard" in block[name][n]  # which runs until then
                assert stopped or process.code == 0, (block, process.out, process.errors)
                done[name].append(process)
            self.carry()
        return done

    def carry(self) -> None:
        """Bring requests to the bank, and invitations to whom they are for."""
        for name in ("telco", "shop"):
            for source, target, what in ((name, "bank", "request"), ("bank", name, "invitation")):
                if (letter := self.of(source) / f"{name}.{what}").exists():
                    shutil.copy(letter, self.of(target))

    def certificate(self, name: str) -> str:
        return fingerprints.of_certificate((self.of(name) / "certs" / f"{name}.crt").read_bytes())


def make_tables(folder: Path) -> None:
    """Three tables about the same people; nobody has all of them."""
    chance = random.Random(5)
    lines: dict[str, list[str]] = {
        "bank": ["customer,age,income,default"],
        "telco": ["client,calls,plan"],
        "shop": ["visitor,basket"],
    }
    for row in range(ROWS):
        x, y, z = (chance.gauss(0, 1) for _ in range(3))
        lines["bank"].append(f"c{row:04d},{40 + 10 * x:.1f},{chance.gauss(3, 1):.2f},{int(x + y + z > 0)}")
        if row % 8:
            lines["telco"].append(f"c{row:04d},{5 + y:.2f},{chance.choice('ab')}")
        if row % 9:
            lines["shop"].append(f"c{row:04d},{z:.2f}")
    for name, table in ORGANISATIONS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / table).write_text("\n".join(lines[name]) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Town:
    """The day up to the report."""
    town = Town(tmp_path_factory.mktemp("day"))
    make_tables(town.folder)
    page = blocks()
    first, *others = page["Two files and a key"]
    town.play(first)
    agreed = town.of("bank") / "federation.toml"
    agreed.write_text(SHORT + agreed.read_text(encoding="utf-8"), encoding="utf-8")
    for section in ("Request, invitation", "What would go wrong?", "Training", "Predictions and a report"):
        others += page[section]
    for block in others:
        town.play(block)
    return town


def test_every_command_of_the_page_is_played(story: Town) -> None:
    # What the tests below play in their own way is listed here, so that a new section cannot be left out.
    sections = set(blocks())
    assert sections == {
        "Two files and a key",
        "Request, invitation",
        "What would go wrong?",
        "Training",
        "Predictions and a report",
        "A certificate is renewed",
        "A certificate is denied",
        "A party is added",
    }
    played = {line.split()[1] for line in story.ran}
    assert played >= {"init", "sign", "accept", "doctor", "align", "serve", "join", "dashboard", "audit", "predict"}
    assert played >= {"report", "export"}
    assert all('"step"' in story.seen[name] for name in ("bank", "telco"))  # on the live pages of both


def test_the_day_leaves_predictions_and_nothing_where_it_was_not_asked_for(story: Town) -> None:
    bank, telco = story.of("bank"), story.of("telco")
    predicted = polars.read_csv(bank / "predictions.csv")
    assert predicted.height > 20
    assert set(predicted["status"]) == {"ok"}
    assert "telco" in (bank / "runs" / "bank" / "report.html").read_text(encoding="utf-8")
    assert (bank / "federation.toml").read_text() == (telco / "federation.toml").read_text()
    assert (bank / "runs" / "bank" / "export" / "fusion" / "model.onnx").exists()
    assert (telco / "runs" / "telco" / "export" / "parties" / "telco" / "model.onnx").exists()
    # No key has travelled, and keys and seeds are their owners' alone.
    keys = {path.relative_to(story.folder).as_posix() for path in story.folder.rglob("*.key")}
    assert {"bank/certs/ca.key", "bank/certs/server.key", "telco/certs/telco.key"} <= keys
    assert not [key for key in keys if key.startswith("bank/") and "telco" in key]
    seeds = [folder / "runs" / folder.name / private_seed.FILE for folder in (bank, telco)]
    assert len({seed.read_text() for seed in seeds}) == 2
    for path in (*seeds, *(story.folder / key for key in keys)):
        assert path.stat().st_mode & 0o077 == 0, path


def test_two_files_give_the_model_of_one(story: Town, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # One file with everything that the two organisations say, the seeds that they drew included, in one process.
    bank, telco = story.of("bank"), story.of("telco")
    agreed = (bank / "federation.toml").read_text(encoding="utf-8")
    begin = agreed.index("[[party]]")
    seeds = {folder.name: (folder / "runs" / folder.name / private_seed.FILE).read_text() for folder in (bank, telco)}
    tables = {
        "bank": f'path = "{bank}/customers.csv", id = "customer", label = "default"',
        "telco": f'path = "{telco}/clients.csv", id = "client"',
    }
    parties = [
        f'[[party]]\nname = "{name}"\ndata = {{ {table} }}\nprivate_seed = {seeds[name]}\n'
        for name, table in tables.items()
    ]
    whole = tmp_path / "whole.toml"
    whole.write_text(f"private_seed = {seeds['bank']}\n" + agreed[:begin] + "\n".join(parties), encoding="utf-8")
    assert main(["run", str(whole), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    places = (tmp_path / "run", bank / "runs" / "bank")
    here, there = (json.loads((place / "records.jsonl").read_text().splitlines()[-1]) for place in places)
    for key in ("step", "surrogate_loss", "validation", "bytes_up", "bytes_down"):
        assert here[key] == there[key], key
    outputs = [polars.read_parquet(place / "outputs.parquet") for place in places]
    assert outputs[0].equals(outputs[1])


def test_renewed_denied_and_added(story: Town) -> None:
    page = blocks()
    predict, join = (page["Predictions and a report"][0][name][0] for name in ("bank", "telco"))
    old, server = story.certificate("telco"), story.of("bank") / "certs" / "server.crt"

    # Renewal: a server waits and a party dials when both certificates are replaced; neither is started again.
    before = server.read_bytes()
    bank = story.start("bank", f"{predict} --status json")
    bank.port()
    for block in page["A certificate is renewed"]:
        story.play(block)
    assert story.certificate("telco") != old
    assert server.read_bytes() != before
    telco = story.start("telco", join)
    for process in (bank, telco):
        process.end()
        assert process.code == 0, process.errors
    assert "renewed certificate of server" in bank.errors

    # Denied: the server that waits refuses it at once. With a new key the same server lets telco in.
    bank = story.start("bank", f"{predict} --status json")
    bank.port()
    deny, *again = page["A certificate is denied"]
    story.play(deny)
    telco = story.start("telco", join)
    telco.end()
    assert telco.code == 4
    assert "deny list" in telco.errors
    assert bank.running
    for block in again:
        story.play(block)
    telco = story.start("telco", join)
    for process in (bank, telco):
        process.end()
        assert process.code == 0, process.errors

    # A third party, in a run of its own.
    for block in page["A party is added"]:
        story.play(block)
    for name in ORGANISATIONS:
        assert (story.of(name) / "runs" / "three" / "checkpoint.safetensors").exists(), name
    last = json.loads((story.of("bank") / "runs" / "three" / "records.jsonl").read_text().splitlines()[-1])
    assert last["epoch"] == 2
