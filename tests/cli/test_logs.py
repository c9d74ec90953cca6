"""Lines without a terminal: whole, with a time, and as JSON where a program reads them."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import polars
import pytest
from log_lines import PLAIN, objects
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from warm_processes import PATIENT, Process

from efvfl.cli.main import main

LONG = "a_column_with_quite_a_long_name_" * 4
RUN = "epochs = 2\nobserve_gradient = false\n[data]\nname = 'digits'\nsubset = 100\n[method]\nname = 'svfl'\n"
FEDERATION = """
epochs = 2
[data]
path = "labels.npz"
[network]
address = "127.0.0.1:0"
[[party]]
name = "north"
data = { path = "north.npz" }
"""

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def one(*arguments: str) -> Process:
        started.append(Process(tmp_path, *arguments))
        return started[-1]

    yield one
    for process in started:
        if process.running:
            process.kill().end()


def scraped(port: int, enough: Callable[[dict[str, Sample]], bool]) -> dict[str, Sample]:
    """Ask a process for its metrics until they are what one waits for; the last sample of every name."""
    ends = time.monotonic() + PATIENT
    while time.monotonic() < ends:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=PATIENT).text
        found = {s.name: s for family in text_string_to_metric_families(text) for s in family.samples}
        if enough(found):
            return found
        time.sleep(0.02)
    raise AssertionError(text)


@pytest.mark.slow
def test_a_run_without_a_terminal_logs_a_line_an_epoch(tmp_path: Path, start: Start) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "bad.toml").write_text("epochs = 0\n")
    plain = start("run", "run.toml", "--out", "plain")
    as_json = start("run", "run.toml", "--out", "json", "--log", "json")
    wrong = start("run", "bad.toml", "--log", "json")
    assert plain.end().code == 0, plain.errors
    lines = plain.errors.splitlines()
    assert all(PLAIN.fullmatch(line) for line in lines), lines
    epochs = [line for line in lines if " INFO epoch " in line]
    assert [line.split(" INFO ")[1].partition(":")[0] for line in epochs] == ["epoch 1 of 2", "epoch 2 of 2"]
    assert "validation" not in plain.out.partition("After training")[0]  # no bar that nobody sees move
    assert as_json.end().code == 0, as_json.errors
    first, second = [line for line in objects(as_json.errors) if "epoch" in line]
    assert (first["epoch"], second["epoch"]) == (1, 2)
    records = [json.loads(line) for line in (tmp_path / "json" / "records.jsonl").read_text().splitlines()]
    assert [line["validation"] for line in (first, second)] == [record["validation"] for record in records]
    assert wrong.end().code == 2
    (error,) = objects(wrong.errors)
    assert (error["level"], error["exit_code"]) == ("error", 2)


@pytest.mark.slow
def test_so_do_participants_and_their_lines_are_whole(tmp_path: Path, start: Start) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "north.npz", x=rng.normal(size=(60, 3)).astype(np.float32))
    np.savez(tmp_path / "labels.npz", y=rng.integers(0, 2, 60))
    (tmp_path / "fed.toml").write_text(FEDERATION)
    server = start("serve", "fed.toml", "--insecure", "--status", "json", "--log", "json", "--metrics", "0")
    waiting = scraped(server.port("metrics"), lambda found: "efvfl_missing_seconds" in found)
    assert waiting["efvfl_missing_seconds"].labels == {"party": "north"}
    assert waiting["efvfl_step"].value == 0
    assert waiting["efvfl_steps"].value > 0
    join = ("join", "fed.toml", "--insecure", "--party", "north")
    lost = start(*join, "--address", "127.0.0.1:1", "--dir", "lost", "--metrics", "0", "--status", "json")
    alone = scraped(lost.port("metrics"), lambda found: "efvfl_connected" in found)
    assert alone["efvfl_connected"].value == 0
    assert not any(sample.labels.get("party") for sample in alone.values())
    lost.kill().end()
    north = start(*join, "--address", f"127.0.0.1:{server.port()}")
    assert north.end().code == 0, north.errors
    assert server.end().code == 0, server.errors
    lines = [*north.errors.splitlines(), *north.out.splitlines()]
    assert all(PLAIN.fullmatch(line) for line in lines), lines
    assert any("Done after" in line for line in north.out.splitlines())
    (seed,) = [line for line in lines if "private_seed" in line]
    assert " WARNING " in seed
    assert len(seed) > 200  # all of it on one line
    assert {line["level"] for line in objects(server.errors)} == {"info", "warning"}
    assert any("north" in str(line["event"]) for line in objects(server.errors))

    folder = tmp_path / "runs" / "fed"
    audit = start("audit", str(folder)).end()
    (totals,) = [line for line in audit.out.splitlines() if " out " in line and "total" in line and "not" not in line][
        :1
    ]
    assert "socket" in audit.out
    assert totals.count("│") == 7  # the whole row on one line
    both = start("audit", str(folder), "--json").end()
    found = {entry["participant"]: entry for entry in json.loads(both.out)}
    assert set(found) == {"server", "north"}
    sent = {kind: entry["payload_bytes"] for kind, entry in found["north"]["out"]["kinds"].items()}
    assert sent["report"] > 0
    assert sent == {kind: entry["payload_bytes"] for kind, entry in found["server"]["in"]["kinds"].items()}
    assert all(entry["contains"] for entry in found["north"]["out"]["kinds"].values())


def test_tables_in_a_pipe_are_as_wide_as_they_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [f"value number {i % 3} of this column" for i in range(30)]
    polars.DataFrame({"id": range(30), LONG: values, "y": [0, 1] * 15}).write_csv(tmp_path / "a.csv")
    assert main(["inspect", str(tmp_path / "a.csv"), "--id", "id", "--label", "y"]) == 0
    shown = capsys.readouterr().out
    (row,) = [line for line in shown.splitlines() if LONG in line]
    assert "category" in row
    assert row.count("'value number") == 3
    assert "…" not in shown


def test_inspect_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = polars.DataFrame({"id": range(30), "x": [1.0] * 30, "y": [0, 1] * 15})
    table.write_csv(tmp_path / "a.csv")
    table.head(10).write_csv(tmp_path / "b.csv")
    command = ["inspect", str(tmp_path / "a.csv"), "--id", "id", "--label", "y", "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 30
    assert [(c["column"], c["used"]) for c in found["columns"]] == [("id", False), ("x", True), ("y", False)]
    assert found["columns"][1]["warnings"] == ["constant: it carries no information."]
    assert "30" in found["ids"]
    assert main([*command, "--against", str(tmp_path / "b.csv")]) == 0
    against = json.loads(capsys.readouterr().out)["against"]
    assert against["shared"] == 10
    assert sorted(against["tables"].values()) == [10, 30]
