"""The dashboard without a browser: who may look, what it reads, and how it tells a live process from a dead one."""

import asyncio
import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from efvfl.cli.main import main
from efvfl.errors import CheckpointError, Interrupted, ProtocolError
from efvfl.experiments.results import Result
from efvfl.network.dashboard import app as dashboard
from efvfl.network.dashboard import files
from efvfl.network.dashboard.app import Door, Looks, make_app
from efvfl.network.dashboard.files import LedgerTail
from efvfl.network.dashboard.watched import Watched, stage_of
from efvfl.runs import status_file
from efvfl.runs.run_folder import save_records
from efvfl.runs.status_file import STATUS, StatusFile, born, is_alive, kept
from efvfl.training.record import Record

TOKEN = "t" * 43


def records(count: int) -> list[Record]:
    ledger = {"up": {"telco": {"report": 100}}, "down": {"telco": {"cotangent": 50}}}
    return [
        Record(
            epoch=n,
            step=8 * n,
            surrogate_loss=1 / n,
            validation={"loss": 2 / n, "accuracy": 1 - 0.5 / n},
            bytes_up=100.0 * n,
            bytes_down=50.0 * n,
            ledger=ledger,
        )
        for n in range(1, count + 1)
    ]


def write_status(folder: Path, **changes: Any) -> None:
    table: dict[str, Any] = {"stage": "running", "name": "server", "command": "serve", "pid": os.getpid()}
    table |= {"born": born(os.getpid()), "host": socket.gethostname(), "time": time.time(), "step": 3}
    (folder / STATUS).write_text(json.dumps(table | changes))


def line(direction: str, kind: str, size: int, peer: str = "telco", when: float = 1.0) -> str:
    table = {"time": when, "peer": peer, "direction": direction, "kind": kind, "number": 1, "step": 1}
    return json.dumps(table | {"payload": size - 9, "frame": size}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A label holder's folder while it trains."""
    path = tmp_path / "run"
    path.mkdir()
    save_records(path, records(3))
    write_status(path, steps=80, sent={"telco": [300, 150]}, uncompressed={"telco": [3000, 3000]})
    (path / "ledger.jsonl").write_text(line("in", "hello", 70, when=5.0) + line("out", "cotangent", 60))
    return path


class Client:
    """Asks an application in this process, and keeps its cookies."""

    def __init__(self, app: FastAPI) -> None:
        self.app, self.cookies = app, httpx.Cookies()

    def get(self, path: str, method: str = "GET", **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1:7180", cookies=self.cookies
            ) as found:
                answer = await found.request(method, path, **more)
                self.cookies.update(found.cookies)
                return answer

        return asyncio.run(ask())


def client(folder: Path, door: Door | None = None) -> Client:
    return Client(make_app(Watched(folder), door or Door()))


def test_the_page_and_its_files_come_from_here_and_nothing_else_does(folder: Path) -> None:
    found = client(folder)
    page = found.get("/")
    assert page.status_code == 200
    assert page.headers["content-security-policy"].startswith(
        "default-src 'none'; script-src 'self'; style-src 'self';"
    )
    assert page.headers["cache-control"] == "no-store"
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(named) == 5
    for name in named:
        text = found.get(name)
        assert text.status_code == 200, name
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text.text) == [], name
    assert not re.search(r"<script>|<style|style=|onclick", page.text)
    for path in ("/static/app.py", "/static/..%2fapp.py", "/docs", "/openapi.json", "/run/status.json"):
        assert found.get(path).status_code == 404, path
    assert found.get("/state", "POST").status_code == 405


@pytest.mark.parametrize(
    ("host", "open_to_all", "with_token"),
    [
        ("127.0.0.1:7180", True, True),
        ("localhost:7180", True, True),
        ("[::1]:7180", True, True),
        ("[::1]", True, True),
        ("192.168.0.5:7180", False, True),
        ("vfl.example.org:7180", False, True),
        ("evil.example.com", False, False),
        ("127.0.0.1.evil.example.com:7180", False, False),
        ("", False, False),
    ],
)
def test_only_names_that_are_ours_are_answered(folder: Path, host: str, open_to_all: bool, with_token: bool) -> None:
    """A page elsewhere could have its own name lead here, and read what we answer (DNS rebinding)."""
    assert client(folder).get("/state", headers={"host": host}).status_code == (200 if open_to_all else 421)
    door = Door(TOKEN, frozenset({"vfl.example.org"}))
    shown = {"host": host, "authorization": f"Bearer {TOKEN}"}
    assert client(folder, door).get("/state", headers=shown).status_code == (200 if with_token else 421)


def test_elsewhere_a_token_is_needed(folder: Path) -> None:
    found = client(folder, Door(TOKEN))
    for path in ("/", "/state", "/events", "/metrics", "/static/chart.js", "/?token=wrong", f"/state?token={TOKEN}"):
        answer = found.get(path)
        assert answer.status_code == 401, path
        assert "records" not in answer.text
    entered = found.get(f"/?token={TOKEN}")
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert "HttpOnly" in entered.headers["set-cookie"]
    assert "samesite=strict" in entered.headers["set-cookie"].lower()
    assert found.get("/state").status_code == 200  # the cookie is kept
    shown = {"authorization": f"Bearer {TOKEN}"}  # as Prometheus shows it
    assert client(folder, Door(TOKEN)).get("/metrics", headers=shown).status_code == 200
    assert TOKEN not in repr(Door(TOKEN))


def test_the_state_of_a_label_holder(folder: Path) -> None:
    run = client(folder).get("/state").json()["run"]
    assert (run["name"], run["stage"], run["status"]["step"]) == ("server", "running", 3)
    assert run["charts"]["Loss by epoch"]["series"][1]["y"] == [2.0, 1.0, pytest.approx(2 / 3, rel=1e-5)]
    assert run["charts"]["sent"]["rows"] == [["telco, up", [3000, 300]], ["telco, down", [3000, 150]]]
    assert run["peers"]["telco"]["since"] == 5.0
    assert [(each["direction"], each["kind"], each["bytes"]) for each in run["left"]] == [
        ("out", "cotangent", 60),
        ("in", "hello", 70),
    ]
    assert "derivative" in run["left"][0]["what"]


def scraped(found: httpx.Response) -> dict[tuple[str, ...], float]:
    """What Prometheus reads: values by name and labels."""
    assert found.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(found.text)
    return {(s.name, *(v for _, v in sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def test_prometheus_is_told_the_same_as_by_the_process_itself(folder: Path) -> None:
    more: dict[str, Any] = {"bytes_out": 7, "bytes_in": 9, "missing": {"shop": 4.5}, "parties": ["shop", "telco"]}
    write_status(folder, steps=80, epoch=3, loss=0.5, seconds={"compute": 2.0, "waiting": 1.0}, **more)
    found = scraped(client(folder).get("/metrics"))
    assert {key: v for key, v in found.items() if "updated" not in key[0]} == {
        ("efvfl_running", "run"): 1.0,
        ("efvfl_step", "run"): 3.0,
        ("efvfl_steps", "run"): 80.0,
        ("efvfl_epoch", "run"): 3.0,
        ("efvfl_loss", "run"): 0.5,
        ("efvfl_bytes_total", "out", "run"): 7.0,
        ("efvfl_bytes_total", "in", "run"): 9.0,
        ("efvfl_seconds_total", "compute", "run"): 2.0,
        ("efvfl_seconds_total", "waiting", "run"): 1.0,
        ("efvfl_missing_seconds", "shop", "run"): 4.5,
        ("efvfl_missing_seconds", "telco", "run"): 0.0,
        ("efvfl_score", "loss", "run", "validation"): pytest.approx(2 / 3),
        ("efvfl_score", "accuracy", "run", "validation"): pytest.approx(1 - 0.5 / 3),
    }
    assert found["efvfl_updated_timestamp_seconds", "run"] == pytest.approx(time.time(), abs=60)
    (folder / STATUS).write_text(json.dumps(dead()))
    assert scraped(client(folder).get("/metrics"))["efvfl_running", "run"] == 0.0


def test_several_runs_and_those_of_an_experiment_have_metrics_of_their_own(folder: Path) -> None:
    party, work = folder.parent / "telco", folder.parent / "mnist" / ".parts" / "key"
    for path in (party, work):
        path.mkdir(parents=True)
    write_status(party, command="join", connected=True, step=4)
    write_status(work, command="reproduce", name="EF-VFL, seed 1", step=5)
    found = scraped(client(folder.parent).get("/metrics"))
    steps = {key[1]: number for key, number in found.items() if key[0] == "efvfl_step"}
    assert steps == {"run": 3.0, "telco": 4.0, "mnist/EF-VFL, seed 1": 5.0}
    assert found["efvfl_connected", "telco"] == 1.0


@pytest.mark.parametrize(
    "status",
    [
        {"step": "3", "seconds": [1], "missing": {"a": "b"}, "parties": "all", "time": None},
        {"step": 10**400, "loss": {}, "seconds": {"compute": None}, "missing": 7, "parties": [1, []]},
    ],
)
def test_a_damaged_status_tells_prometheus_less(folder: Path, status: dict[str, Any]) -> None:
    (folder / STATUS).write_text(json.dumps(status))
    found = scraped(client(folder).get("/metrics"))
    assert ("efvfl_step", "run") not in found
    assert found["efvfl_running", "run"] == 0.0


def test_events_come_as_files_grow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "EVERY", 0.01)
    monkeypatch.setattr(dashboard, "FRESH", 0.0)
    looks = Looks(Watched(folder))

    async def watch() -> list[dict[str, Any]]:
        async def gone() -> bool:
            return False

        events = looks.events("", gone)
        found = [await anext(events)]
        save_records(folder, records(4))
        found.append(await anext(events))
        with open(folder / "ledger.jsonl", "a") as file:
            file.write(line("out", "cotangent", 40))
        found.append(await anext(events))
        assert looks.streams == 1
        await events.aclose()  # type: ignore[attr-defined]
        return [json.loads(event.removeprefix("data: "))["run"] for event in found]

    first, second, third = asyncio.run(watch())
    assert [run["last"]["epoch"] for run in (first, second, third)] == [3, 4, 4]
    assert [run["left"][0]["bytes"] for run in (first, second, third)] == [60, 60, 100]
    assert looks.streams == 0


def test_streams_are_counted(folder: Path) -> None:
    app = make_app(Watched(folder), Door())
    found = Client(app)
    app.state.looks.stopping = True  # so that they end at once
    answer = found.get("/events")
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    app.state.looks.streams = dashboard.STREAMS
    assert found.get("/events").status_code == 503


def test_a_large_ledger_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIECE", 1000)
    path = tmp_path / "ledger.jsonl"
    path.write_text("".join(line("out", "report", 100 + n) for n in range(50)) + "junk\n" + "{" * 3000 + "\n")
    tail, shares = LedgerTail(path), []
    for _ in range(200):
        before = tail.place
        tail.look()
        assert tail.place - before <= 1000
        shares.append(tail.share)
        if tail.share == 1.0:
            break
    assert len(shares) > 5
    assert tail.sums["out", "report"] == [50, sum(range(100, 150))]
    half = line("in", "hello", 30)
    with open(path, "a") as file:
        file.write(half[:20])
    tail.look()
    assert ("in", "hello") not in tail.sums
    with open(path, "a") as file:
        file.write(half[20:])
    tail.look()
    assert tail.sums["in", "hello"] == [1, 30]
    path.write_text(line("out", "report", 5))  # a new run in the same folder
    tail.look()
    assert dict(tail.sums) == {("out", "report"): [1, 5]}


def test_of_a_large_file_of_records_the_last_ones_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_records(tmp_path, records(200))
    monkeypatch.setattr(files, "PIECE", 5000)
    lines = files.last_lines(tmp_path / "records.jsonl")
    assert 5 < len(lines) < 40
    assert Record.from_json(lines[-1]).epoch == 200
    assert Record.from_json(lines[0]).epoch == 201 - len(lines)


def dead() -> dict[str, Any]:
    """Return the status of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    status = {"stage": "running", "pid": process.pid, "born": born(process.pid), "time": time.time()}
    process.kill()
    state = status | {"host": socket.gethostname()}
    while born(process.pid):  # killed, but not yet buried: that is dead as well
        time.sleep(0.01)
    assert is_alive(state) is False
    process.communicate()
    return state


def test_how_a_process_is() -> None:
    now = time.time()
    here = {"pid": os.getpid(), "born": born(os.getpid()), "host": socket.gethostname(), "time": now}
    running = here | {"stage": "running"}
    assert stage_of(running, False, now) == "running"
    assert stage_of(running, False, now + 60) == "silent"
    assert stage_of(running | {"host": "elsewhere"}, False, now) == "running"
    assert stage_of(running | {"host": "elsewhere"}, False, now + 60) == "silent"
    assert stage_of(running | {"born": "1"}, False, now) == "killed"  # another process has its number now
    assert stage_of(running | {"pid": "1; rm"}, False, now) == "running"
    assert stage_of(dead(), False, now) == "killed"
    assert stage_of(here | {"stage": "finished"}, False, now + 60) == "finished"
    assert stage_of(None, True, now) == "finished"
    assert stage_of(None, False, now) == "unknown"


def test_a_folder_of_several_and_a_party_without_labels(folder: Path) -> None:
    party = folder.parent / "telco"
    party.mkdir()
    limits: dict[str, Any] = {"limits": {"bytes": 500}, "used": {"bytes": 100}, "connected": True}
    write_status(party, command="join", name="telco", **limits, seconds={"compute": 3, "waiting": 1})
    state = client(folder.parent).get("/state", params={"run": "telco"}).json()
    assert [(each["id"], each["stage"]) for each in state["runs"]] == [("run", "running"), ("telco", "running")]
    assert state["chosen"] == "telco"
    assert state["run"]["status"]["limits"] == {"bytes": 500}
    assert state["run"]["charts"]["time"]["rows"] == [["computing", [0.75]], ["waiting for others", [0.25]]]
    other = client(folder.parent).get("/state", params={"run": "../" * 5 + "etc"}).json()
    assert other["chosen"] == "run"  # only what was found has a name
    write_status(folder, stage="finished")
    assert client(folder.parent).get("/state").json()["chosen"] == "telco"  # the one at work


def test_what_is_damaged_or_not_there_yet_is_left_out(tmp_path: Path) -> None:
    assert client(tmp_path / "none").get("/state").json() == {"runs": [], "chosen": "", "run": None}
    for name in (STATUS, "settings.json", "records.jsonl", "ledger.jsonl"):
        (tmp_path / name).write_text("[" * 100_000)
    run = client(tmp_path).get("/state").json()["run"]
    assert (run["stage"], run["charts"], run["left"]) == ("unknown", {}, [])


def test_an_experiment(tmp_path: Path) -> None:
    work = tmp_path / ".parts" / "key"
    work.mkdir(parents=True)
    write_status(work, name="EF-VFL, seed 1", command="reproduce")
    columns = {"epoch": [1.0, 2.0], "step": [8.0, 16.0], "validation_accuracy": [0.5, 0.75], "test_loss": [2.0, 1.0]}
    done = Result("SVFL", {"seed": 0}, columns, {}, {})
    (tmp_path / "a.json").write_text(done.to_json())
    (tmp_path / "b.json").write_text("{}")
    run = client(tmp_path).get("/state").json()["run"]
    assert [(each["name"], each["stage"]) for each in run["runs"]] == [
        ("SVFL, seed 0", "finished"),
        ("EF-VFL, seed 1", "running"),
    ]
    assert run["charts"]["results"]["series"][0]["y"] == [0.5, 0.75]


def test_the_file_is_written_once_a_second_and_says_how_it_ended(tmp_path: Path) -> None:
    calls = []

    def state() -> dict[str, Any]:
        calls.append(1)
        return {"step": len(calls), "loss": float("nan")}

    status = StatusFile(tmp_path, "serve", "server", state)
    status.watch()
    for _ in range(1000):
        status()
    assert len(calls) == 1
    assert (tmp_path / STATUS).stat().st_mode & 0o777 == 0o600
    for number in range(30):
        logging.getLogger("efvfl").warning("warning %d\x1b[2J %s", number, "x" * 1000)
    status.leave(ProtocolError, ProtocolError("memories differ"), None)
    table = json.loads((tmp_path / STATUS).read_text())
    assert (table["stage"], table["why"], table["loss"]) == ("failed", "memories differ", None)
    assert len(table["warnings"]) == status_file.WARNINGS
    assert table["warnings"][-1]["text"].startswith("warning 29")
    assert all(len(each["text"]) <= status_file.TEXT and "\x1b" not in each["text"] for each in table["warnings"])
    logging.getLogger("efvfl").warning("later")
    status()
    assert json.loads((tmp_path / STATUS).read_text()) == table


@pytest.mark.parametrize(
    ("error", "stage"),
    [(None, "finished"), (Interrupted, "stopped"), (KeyboardInterrupt, "stopped"), (OSError, "failed")],
)
def test_a_context_says_how_it_ended(tmp_path: Path, error: type[BaseException] | None, stage: str) -> None:
    try:
        with kept(StatusFile(tmp_path, "run", "x", lambda: {"step": 1})):
            assert json.loads((tmp_path / STATUS).read_text())["stage"] == "running"
            if error:
                raise error
    except (Interrupted, KeyboardInterrupt, OSError):
        pass
    assert json.loads((tmp_path / STATUS).read_text())["stage"] == stage


def test_a_disk_that_takes_no_status_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **more: Any) -> None:
        raise CheckpointError("no space left")

    monkeypatch.setattr(status_file, "write_atomically", full)
    with kept(StatusFile(tmp_path, "run", "x", dict)):
        pass
    assert not (tmp_path / STATUS).exists()


def test_commands_that_cannot_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", str(tmp_path / "none")]) == 2
    assert "expected a folder of a run" in capsys.readouterr().err
    assert main(["dashboard", str(tmp_path), "--listen", "127.0.0.1"]) == 2
    assert "expected host:port" in capsys.readouterr().err
    assert main(["dashboard", str(tmp_path), "--listen", "192.0.2.1:7180"]) == 2  # of nobody's machine
    assert "cannot listen on 192.0.2.1:7180" in capsys.readouterr().err
