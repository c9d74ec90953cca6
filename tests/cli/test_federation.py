"""The commands of a federation as people run them: processes, exit codes, files, and disks that are full."""

import errno
import gc
import io
import json
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch
from log_lines import PLAIN, logging_as_a_command, objects
from meetings import (  # noqa: F401
    SECONDS,
    VICTIM,
    WAITING,
    Meeting,
    close_logs,
    goes_on,
    make_member,
    same,
    script,
    settings,
)
from torch import Tensor
from warm_processes import PATIENT, Process

from efvfl.cli import sessions
from efvfl.cli.main import main
from efvfl.cli.sessions import setup
from efvfl.config import run_file
from efvfl.config.run_file import NetworkConfig
from efvfl.errors import CheckpointError, Interrupted, RefusedError
from efvfl.network.identity import certificates
from efvfl.network.links import message_log
from efvfl.network.links.connecting import dial
from efvfl.network.links.connections import Hooks
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.frame import Frame, FrameKind, json_frame
from efvfl.network.links.listening import listen
from efvfl.network.links.message_log import MessageLog
from efvfl.network.links.wire import Wire
from efvfl.network.ops import audit_log
from efvfl.network.ops.audit_log import AuditLog
from efvfl.network.ops.lock import Lock
from efvfl.network.training.autosave import CheckpointPolicy
from efvfl.network.training.party_process import PartyProcess
from efvfl.runs.build import load_data, make_federation
from efvfl.runs.export import run_onnx
from efvfl.training import measure
from efvfl.training.federation import Federation
from efvfl.util import checkpoint, files
from efvfl.wire.message import Kind, Message

FILE = """
seed = 4
epochs = 5
batch_size = {batch}
private_seed = 70
agreement = {{ labels = "private" }}
[data]
path = "labels.npz"
[network]
address = "127.0.0.1:0"
save_steps = 7
{network}
[[party]]
name = "north"
data = {{ path = "north.npz", new = "north-new.npz" }}
private_seed = 71
[[party]]
name = "south"
data = {{ path = "south.npz", new = "south-new.npz" }}
private_seed = 72
{limits}
"""
NAMES = ("north", "south")
ROWS, NEW, BATCH = 240, 30, 32
STOPPED = 13  # the request during which everybody is asked to stop


def write_data(folder: Path) -> None:
    chance = np.random.default_rng(9)
    x = {name: chance.normal(size=(ROWS + NEW, 6)).astype(np.float32) for name in NAMES}
    ids = np.array([f"row-{i}" for i in range(ROWS + NEW)])
    y = (x["north"][:, :3] + x["south"][:, :3]).argmax(axis=1)
    np.savez(folder / "labels.npz", y=y[:ROWS], ids=ids[:ROWS])
    for name in NAMES:
        np.savez(folder / f"{name}.npz", x=x[name][:ROWS], ids=ids[:ROWS])
        np.savez(folder / f"{name}-new.npz", x=x[name][ROWS:], ids=ids[ROWS:])


def write_file(path: Path, batch: int = BATCH, network: str = "", limits: str = "") -> Path:
    path.write_text(FILE.format(batch=batch, network=network, limits=limits))
    return path


# One story in real processes: a run that is stopped in the middle by SIGTERM and goes on, beside one that is not.


@dataclass
class Story:
    """What is left of it."""

    folder: Path
    file: Path
    whole: int  # what `efvfl run` returned
    certs: Process
    refused: Process
    first: dict[str, Process]  # until SIGTERM
    saved: dict[str, int]  # how many requests each had handled by then
    last: dict[str, Process]

    def member(self, name: str) -> PartyProcess:
        """A party as its folder has it."""
        options = run_file.load(self.file)
        return make_member(options, name, self.folder / "runs" / "fed" / name, data=self.folder)


def identity(folder: Path, name: str) -> certificates.Credentials:
    return certificates.load(folder / "certs", name)


def dial_as(folder: Path, name: str, port: int) -> Wire:
    return dial(f"127.0.0.1:{port}", identity(folder, name), 64 << 20)


def joining(story_folder: Path, member: PartyProcess, port: int) -> Dialler:
    return Dialler(member, partial(dial_as, story_folder, member.party.name, port), WAITING)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("story")
    write_data(folder)
    file = write_file(folder / "fed.toml")
    write_file(folder / "other.toml", batch=16)
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        started.append(Process(folder, *arguments))
        return started[-1]

    serve = ("serve", "fed.toml", "--status", "json", "--track", "tensorboard")
    try:
        made = start("certs", "fed.toml").end()
        server = start(*serve)
        whole = main(["run", str(file), "--out", str(folder / "whole")])  # meanwhile
        # One party in this process, so that it can hold everybody up in the middle of the run.
        south = make_member(run_file.load(file), "south", folder / "runs" / "fed" / "south", data=folder)
        respond, reached, go = south.respond, threading.Event(), threading.Event()

        def slowly(frame: Frame) -> Frame | None:
            if frame.kind == FrameKind.REQUEST and frame.number == STOPPED:
                reached.set()
                go.wait(PATIENT)
            return respond(frame)

        south.respond = slowly  # type: ignore[method-assign]
        port = server.port()
        address = ("--address", f"127.0.0.1:{port}")
        refused = start("join", "other.toml", "--party", "south", "--dir", "other", *address).end()
        here = joining(folder, south, port)
        ended: list[BaseException] = []
        thread = threading.Thread(target=lambda: ended.append(outcome_of(here.run)), daemon=True)
        thread.start()
        north = start("join", "fed.toml", "--party", "north", *address, "--status", "json")
        assert reached.wait(PATIENT), north.end().errors
        first = {"server": server.stop().end(), "north": north.stop().end()}
        here.stopping.set()
        go.set()
        thread.join(SECONDS)
        assert isinstance(ended[0], Interrupted)
        south.message_log.close()
        folders = {name: folder / "runs" / "fed" / name for name in ("server", *NAMES)}
        states = {name: checkpoint.load(path / "checkpoint.safetensors") for name, path in folders.items()}
        requests = states["server"]["requests"]
        saved = {"server": requests["number"]} | {name: states[name]["handled"] for name in NAMES}
        # The same commands again.
        last = {"server": start(*serve)}
        address = ("--address", f"127.0.0.1:{last['server'].port()}")
        last |= {n: start("join", "fed.toml", "--party", n, *address, "--status", "quiet") for n in NAMES}
        for process in last.values():
            process.end()
        yield Story(folder, file, whole, made, refused, first, saved, last)
    finally:
        for process in started:
            if process.running:
                process.kill().end()


def outcome_of(work: Callable[[], None]) -> BaseException:
    try:
        work()
    except BaseException as error:
        return error
    return AssertionError("it ended by itself")


def test_the_story_ends_well(story: Story) -> None:
    assert story.whole == 0
    for name, process in {"certs": story.certs, **story.last}.items():
        assert process.code == 0, (name, process.errors)


def test_certificates_for_all_names_in_the_file(story: Story) -> None:
    made = {f"{name}.{ending}" for name in ("ca", "server", *NAMES) for ending in ("crt", "key")}
    assert {path.name for path in (story.folder / "certs").iterdir()} == made
    assert all(f"made certs/{name}" in story.certs.out for name in made)
    assert "keep ca.key" in story.certs.out


def test_a_party_with_another_setting_is_refused_and_told_which(story: Story) -> None:
    assert story.refused.code == 4
    assert (
        "the server refuses south: the shared part of the files differs: batch_size: the server has 32, south has 16"
        in (story.refused.errors)
    )


def test_sigterm_saves_everything_in_the_middle_of_the_run(story: Story) -> None:
    for process in story.first.values():
        assert process.code == 130
        assert "everything is saved, the same command goes on from here" in process.errors
    assert story.saved == {"server": STOPPED, "north": STOPPED + 1, "south": STOPPED + 1}


def test_the_final_model_is_that_of_one_process(story: Story) -> None:
    """Every tensor of every participant: parameters, optimisers, memories."""
    expected = checkpoint.load(story.folder / "whole" / "checkpoint.safetensors")
    server = checkpoint.load(story.folder / "runs" / "fed" / "server" / "checkpoint.safetensors")
    assert server["requests"]["under_way"] == 0
    assert server["requests"]["told"] == sorted(NAMES)
    assert same(server["server"], expected["federation"]["server"])
    assert same(server["ledger"], expected["federation"]["ledger"])
    for name in NAMES:
        party = checkpoint.load(story.folder / "runs" / "fed" / name / "checkpoint.safetensors")
        assert same(party["party"], expected["federation"]["parties"][name])
    ours = (story.folder / "runs" / "fed" / "server" / "records.jsonl").read_text().splitlines()
    kept = ("epoch", "step", "surrogate_loss", "validation", "test", "bytes_up", "bytes_down", "ledger", "paper_bits")
    for mine, other in zip(map(json.loads, ours), map(json.loads, expected["records"]), strict=True):
        assert {key: mine[key] for key in kept} == {key: other[key] for key in kept}


def test_curves_are_tracked_across_the_interruption(story: Story) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = story.folder / "runs" / "fed" / "server"
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    tracked = {event.step: event.value for event in events.Scalars("validation/accuracy")}
    assert tracked == pytest.approx({record["step"]: record["validation"]["accuracy"] for record in records})
    assert [event.step for event in events.Scalars("step/loss")] == list(range(1, records[-1]["step"] + 1))


def test_status_as_json(story: Story) -> None:
    for process in (story.first["server"], story.first["north"], story.last["server"]):
        lines = [json.loads(line) for line in process.out.splitlines()]
        assert all(line["time"] > 1e9 for line in lines)
    for process in (story.first["server"], story.last["server"]):
        first = json.loads(process.out.splitlines()[0])
        assert first["event"] == f"Listening on 127.0.0.1:{first['port']} for north, south."
    events = [e for line in story.last["server"].out.splitlines() if (e := json.loads(line).get("event"))]
    assert [text for text in events if text.startswith("epoch 5: loss on surrogates")]
    where = "runs/fed/server"
    assert events[-1] == f"Trained. Records: {where}/records.jsonl. A page about it: efvfl report {where}"
    scores = next(line for line in map(json.loads, story.last["server"].out.splitlines()) if "test" in line)
    assert scores["event"].startswith("test: accuracy ")
    assert 0 < scores["test"]["auc"] <= 1
    states = [line for line in map(json.loads, story.first["server"].out.splitlines()) if "event" not in line]
    for state in states:
        assert {"step", "steps", "loss", "bytes_out", "bytes_in", "compute", "codec", "waiting", "missing"} <= set(
            state
        )


def test_status_quiet_prints_nothing(story: Story) -> None:
    assert [story.last[name].out for name in NAMES] == ["", ""]


def test_no_process_ended_with_a_traceback(story: Story) -> None:
    for process in (story.certs, story.refused, *story.first.values(), *story.last.values()):
        assert "Traceback" not in process.errors, process.errors


@pytest.mark.attack(
    by="another user of the machine",
    tries="reads a participant's folder: models, memories, ids, labels and the ledger",
    outcome="may not: folders are 0700 and all files 0600, whatever the umask was",
)
def test_nobody_else_can_read_what_is_left(story: Story) -> None:
    runs = story.folder / "runs" / "fed"
    modes = {path: path.stat().st_mode for path in (*runs.rglob("*"), *(story.folder / "whole").rglob("*"))}
    assert len(modes) > 15
    assert {path for path, mode in modes.items() if stat.S_ISREG(mode) and mode & 0o077} == set()
    assert {stat.S_IMODE((runs / name).stat().st_mode) for name in ("server", "north")} == {0o700}


def test_audit(story: Story, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["audit", str(story.folder / "runs" / "fed")]) == 0
    out = capsys.readouterr().out
    for name in ("server", *NAMES):
        lines = audit_log.read(story.folder / "runs" / "fed" / name)
        table = out[out.index(f"{name}: what was sent (out) and received (in)") :]
        for direction in ("out", "in"):
            chosen = [line for line in lines if line.direction == direction and not line.socket]
            on_socket = sum(line.socket for line in lines if line.direction == direction)
            row = next(r for r in table.splitlines() if direction in r.split() and "total" in r)
            counts = [len(chosen), sum(line.payload for line in chosen), sum(line.frame for line in chosen)]
            cells = [int(cell.replace(",", "")) for cell in row.replace("│", " ").split()[2:]]
            assert cells == [*counts, on_socket]
            assert on_socket > 0  # more than the frames, but for what a connection carried in its last second
    assert "cotangent: the derivative of the loss by a party's representation of the batch's rows" in out
    # What north sent is what the server received, except for what was in transit when one of them stopped.
    ours = [line for line in audit_log.read(story.folder / "runs" / "fed" / "north") if line.direction == "out"]
    theirs = [line for line in audit_log.read(story.folder / "runs" / "fed" / "server") if line.direction == "in"]
    reports = [(line.number, line.payload) for line in theirs if line.peer == "north" and line.kind == "report"]
    assert set(reports) <= {(line.number, line.payload) for line in ours if line.kind == "report"}
    assert main(["audit", str(story.folder / "runs" / "fed" / "north")]) == 0
    assert "server: what was sent" not in capsys.readouterr().out
    assert main(["audit", str(story.folder / "certs")]) == 2
    assert "there is no ledger.jsonl in" in capsys.readouterr().err


def command(*arguments: str) -> int:
    """Run a command in this process; a file it has left open becomes a warning here, and not in some later test."""
    try:
        return main(arguments)
    finally:
        gc.collect()


# Predictions: the server's command in this process, the parties in threads.


@pytest.fixture
def predict(story: Story, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    threads: list[threading.Thread] = []
    loops: list[Dialler] = []

    def run(*arguments: str) -> int:
        members = [story.member(name) for name in NAMES]

        def opened(*rest: Any) -> Any:
            server, port = listen(*rest)
            for member in members:
                loops.append(joining(story.folder, member, port))
                threads.append(threading.Thread(target=partial(outcome_of, loops[-1].run), daemon=True))
                threads[-1].start()
            return server, port

        monkeypatch.setattr(setup, "listen", opened)
        monkeypatch.chdir(story.folder)
        return command("predict", "fed.toml", *(() if "--log" in arguments else ("--status", "quiet")), *arguments)

    yield run
    for loop in loops:
        loop.stopping.set()
    for thread in threads:
        thread.join(SECONDS)


@pytest.fixture(scope="module")
def trained(story: Story) -> Federation:
    options = run_file.load(story.file)
    made = make_federation(options, load_data(options, story.folder))
    made.load_state_dict(checkpoint.load(story.folder / "whole" / "checkpoint.safetensors")["federation"])
    return made


def columns(story: Story, ids: list[str]) -> list[Tensor]:
    """Rows by id, straight from the files."""
    parts = []
    for name in NAMES:
        old, new = (np.load(story.folder / f"{name}{which}.npz") for which in ("", "-new"))
        table = dict(zip([*old["ids"], *new["ids"]], [*old["x"], *new["x"]], strict=True))
        parts.append(torch.tensor(np.stack([table[i] for i in ids])))
    return parts


def test_every_participant_exports_its_own_part_and_together_they_predict(
    story: Story, trained: Federation, tmp_path: Path
) -> None:
    for name in ("server", *NAMES):
        assert main(["export", str(story.folder / "runs" / "fed" / name), "--out", str(tmp_path / name)]) == 0
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    kinds = ("model.safetensors", "model.pt2", "model.onnx")
    wanted = {f"server/fusion/{kind}" for kind in kinds} | {f"{n}/parties/{n}/{kind}" for n in NAMES for kind in kinds}
    assert found == wanted | {f"{name}/MODEL_CARD.md" for name in ("server", *NAMES)}
    assert "none of them can predict alone" in (tmp_path / "north" / "MODEL_CARD.md").read_text()
    rows = [x[:9] for x in trained.splits["test"].features]
    parts = {
        name: run_onnx((tmp_path / name / "parties" / name / "model.onnx").read_bytes(), {"columns": x.numpy()})
        for name, x in zip(NAMES, rows, strict=True)
    }
    output = run_onnx((tmp_path / "server" / "fusion" / "model.onnx").read_bytes(), parts)
    np.testing.assert_allclose(output, trained.predict(rows).numpy(), rtol=1e-5, atol=1e-5)


def check_predictions(frame: polars.DataFrame, ids: list[str], output: Tensor) -> None:
    shares = torch.softmax(output.double(), dim=1)
    shown = [f"probability_{c}" for c in range(3)]
    assert frame.columns == ["id", "prediction", *shown, "parties", "status"]
    assert set(frame["status"]) == {"ok"}
    assert set(frame["parties"]) == {", ".join(NAMES)}
    assert frame["id"].to_list() == ids
    assert frame["prediction"].to_list() == shares.argmax(dim=1).tolist()
    for c in range(3):
        assert frame[f"probability_{c}"].to_list() == pytest.approx(shares[:, c].tolist(), abs=1e-6)


def test_predict_a_split(story: Story, trained: Federation, predict: Callable[..., int], tmp_path: Path) -> None:
    out = tmp_path / "test.csv"
    assert predict("--split", "test", "--out", str(out)) == 0
    split = trained.splits["test"]
    options = run_file.load(story.file)
    ids = load_data(options, story.folder).ids["test"]
    frame = polars.read_csv(out)
    check_predictions(frame, ids, trained.predict(split.features))
    accuracy = (torch.tensor(frame["prediction"].to_list()) == split.labels).double().mean()
    last = json.loads((story.folder / "whole" / "records.jsonl").read_text().splitlines()[-1])
    assert accuracy == pytest.approx(last["test"]["accuracy"])
    assert measure.evaluate(trained.models, trained.fusion, split, trained.server.loss) == last["test"]


@pytest.mark.parametrize("form", ["plain", "json"])
def test_predict_logs_as_it_was_told(
    predict: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    with logging_as_a_command():
        assert predict("--split", "test", "--out", str(tmp_path / "test.csv"), "--log", form) == 0
        assert predict("--split", "test", "--out", str(tmp_path / "test.txt"), "--log", form) == 2
    shown = capsys.readouterr()
    *lines, complaint = shown.err.splitlines()
    if form == "json":
        found = objects(shown.err)
        assert found[-1]["exit_code"] == 2
        (done,) = [line for line in found if "predicted" in line]
        assert done["predicted"] == done["asked"] == 36
        assert shown.out == ""
    else:
        assert complaint.startswith("efvfl: expected a name that ends in .csv")
        assert any("north is here" in line for line in lines)
        assert all(PLAIN.fullmatch(line) for line in [*lines, *shown.out.splitlines()])
        assert "Predictions of 36 of 36 rows" in shown.out


def test_predict_ids(story: Story, trained: Federation, predict: Callable[..., int], tmp_path: Path) -> None:
    """Rows added later, and rows of the training, in the order of the file."""
    ids = ["row-265", "row-3", "row-240", "row-269", "row-17", "row-3"]
    (tmp_path / "ids.txt").write_text("\n".join(ids) + "\n\n")
    out = tmp_path / "some.parquet"
    assert predict("--ids", str(tmp_path / "ids.txt"), "--out", str(out)) == 0
    check_predictions(polars.read_parquet(out), ids, trained.predict(columns(story, ids)))


def test_predict_unknown_ids(
    story: Story,
    trained: Federation,
    predict: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are marked in the file, the parties that lack them are told, and all others are predicted."""
    (tmp_path / "ids.txt").write_text("row-1\nrow-9999\nrow-3\n")
    assert predict("--ids", str(tmp_path / "ids.txt"), "--out", str(tmp_path / "some.csv")) == 6
    said = capsys.readouterr().err
    assert f"1 of 3 rows were not predicted, such as 'row-9999' (not held by {', '.join(NAMES)})" in said
    frame = polars.read_csv(tmp_path / "some.csv")
    assert frame["status"].to_list() == ["ok", f"not held by {', '.join(NAMES)}", "ok"]
    assert frame["id"].to_list() == ["row-1", "row-9999", "row-3"]
    assert frame[1, "prediction"] is None
    assert frame[1, "parties"] is None
    check_predictions(frame[[0, 2]], ["row-1", "row-3"], trained.predict(columns(story, ["row-1", "row-3"])))
    assert caplog.text.count("1 of 3 ids that were asked for are not held here") == len(NAMES)


def test_predict_unknown_ids_alone(
    predict: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ids.txt").write_text("row-9999\n")
    assert predict("--ids", str(tmp_path / "ids.txt"), "--out", str(tmp_path / "no.csv")) == 6
    assert "1 of 1 rows were not predicted" in capsys.readouterr().err
    assert not (tmp_path / "no.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "give either --ids FILE, with one id a line, or --split validation or test."),
        (["--split", "test", "--ids", "ids.txt"], "give either --ids FILE"),
        (["--ids", "absent.txt"], "cannot read absent.txt: "),
        (["--ids", "empty.txt"], "empty.txt"),
        (
            ["--split", "test", "--out", "some.txt"],
            "expected a name that ends in .csv or .parquet, got --out some.txt.",
        ),
    ],
)
def test_predict_what_cannot_be(
    story: Story, predict: Callable[..., int], arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (story.folder / "empty.txt").write_text("\n")
    assert predict(*arguments) == 2
    assert text in capsys.readouterr().err


def test_predict_before_the_end_of_training(
    story: Story, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(story.folder)
    assert command("predict", "fed.toml", "--split", "test", "--dir", str(tmp_path / "empty")) == 2
    assert "is not finished: run `efvfl serve fed.toml` first." in capsys.readouterr().err


# Exit codes, in this process.


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data and a file, without certificates."""
    write_data(tmp_path)
    write_file(tmp_path / "fed.toml", network='on_missing = "stop"\nabsent_seconds = 0.3')
    monkeypatch.chdir(tmp_path)
    return tmp_path


JOIN = ["join", "fed.toml", "--status", "quiet"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["serve", "absent.toml"], "cannot read absent.toml"),
        (["serve", "fed.toml"], "certs/ca.crt is missing. Get a certificate: `efvfl request` "),
        ([*JOIN, "--party", "north"], "certs/ca.crt is missing. Get a certificate: `efvfl request` "),
        (
            [*JOIN, "--party", "nort"],
            "'nort' is not a party of this federation. Did you mean 'north'? Known: north, south.",
        ),
        (
            ["serve", "fed.toml", "--insecure", "--address", "0.0.0.0:0"],
            "expected a loopback address with --insecure, got '0.0.0.0:0'",
        ),
        (
            [*JOIN, "--party", "north", "--insecure", "--address", "10.0.0.1:7143"],
            "expected a loopback address with --insecure, got",
        ),
        (
            ["serve", "fed.toml", "--insecure", "--address", "127.0.0.1:x"],
            "address: expected host:port, such as 'vfl.example.org:7143', got '127.0.0.1:x'",
        ),
        (["certs", "fed.toml", "--days", "0"], "expected 1 to 36500 days of validity, got 0."),
        (["join", "fed.toml"], "who joins? Give your own file"),
        (["serve", "absent.toml"], "cannot read absent.toml: No such file or directory."),
        (["audit", "absent"], "there is no ledger.jsonl in absent"),
    ],
)
def test_usage(place: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(*arguments) == 2
    captured = capsys.readouterr()
    assert text in captured.err.replace("\n", "")
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("arguments", [["join"], ["serve"], ["serve", "fed.toml", "--status", "loud"]])
def test_words_that_are_no_command(place: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_a_server_whose_parties_do_not_come(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["serve", "fed.toml", "--insecure", "--status", "json"]
    for _ in range(2):  # what was saved is taken up again
        assert command(*arguments) == 5
        captured = capsys.readouterr()
        # A busy machine may look a little later than at once.
        said = r"has been missing for \d seconds, and on_missing is 'stop'\. Everything is saved"
        assert re.search(said, captured.err)
        assert json.loads(captured.out.splitlines()[0])["port"] > 0
        assert checkpoint.load(place / "runs" / "fed" / "server" / "checkpoint.safetensors")["requests"]["number"] == 0


def test_a_party_whose_server_does_not_come(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(*JOIN, "--party", "north", "--insecure", "--address", "127.0.0.1:1") == 5
    captured = capsys.readouterr()
    assert re.search(
        r"the server could not be reached for \d seconds \(nobody listens on 127\.0\.0\.1:1: ", captured.err
    )
    assert captured.out == ""


@pytest.fixture
def fake(place: Path) -> Iterator[Callable[..., str]]:
    """A server in the test's own hands, which sends the same frames to everyone; returns its address."""
    servers = []

    def serve(*frames: Frame) -> str:
        def accept(wire: Wire, name: str | None) -> None:
            for frame in frames:
                wire.send(frame.to_bytes())

        server, port = listen("127.0.0.1:0", None, 1 << 20, 2, accept)
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield serve
    for server in servers:
        server.close()


BEGIN = Frame(FrameKind.REQUEST, 0, 0, Message(Kind.BEGIN, 0).to_bytes())
WELCOME = json_frame(FrameKind.WELCOME, {"number": 0})


@pytest.mark.parametrize(
    ("frames", "limits", "code", "text"),
    [
        ([json_frame(FrameKind.REFUSE, {"code": "wrong", "text": "no"})], "", 4, "the server refuses north: no"),
        ([WELCOME, BEGIN], "limits = { bytes = 10 }", 4, "would bring what north sent to "),
        (
            [WELCOME, Frame(FrameKind.ASK, 1, 0, b'{"ids": ["row-1", "row-2"]}')],
            "limits = { rows = 1 }",
            4,
            "of 2 rows",
        ),
        ([WELCOME, replace(BEGIN, number=5)], "", 3, "expected request 0, got request 5"),
        ([WELCOME, replace(BEGIN, body=b"junk")], "", 3, "request 0 is not a message"),
        ([WELCOME, Frame(FrameKind.STOP, 0)], "", 0, ""),
    ],
)
def test_codes_of_a_party(
    place: Path,
    fake: Callable[..., str],
    frames: list[Frame],
    limits: str,
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write_file(place / "fed.toml")
    file.write_text(file.read_text().replace("private_seed = 71", f"private_seed = 71\n{limits}"))
    assert command(*JOIN, "--party", "north", "--insecure", "--address", fake(*frames)) == code
    assert text in capsys.readouterr().err


def test_without_the_packages_of_the_network(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for name in ("setup", "serve"):
        monkeypatch.delattr(sessions, name, raising=False)
        monkeypatch.delitem(sys.modules, f"efvfl.cli.sessions.{name}", raising=False)
    for name in [name for name in sys.modules if name.startswith(("efvfl.network.identity", "efvfl.network.links"))]:
        monkeypatch.delitem(sys.modules, name)
    assert command("serve", "fed.toml") == 2
    text = capsys.readouterr().err
    assert text == "efvfl: a federation over a network needs cryptography: pip install 'efvfl[network]'.\n"


# Disks that are full, and folders that cannot be written. What was saved last stays as it is.


class Full(io.FileIO):
    """A file of which only the first bytes fit."""

    room = 0

    def write(self, data: Any, /) -> int:
        super().write(bytes(data)[: self.room])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Short(io.FileIO):
    """A file that takes less than it is given, as the system may."""

    def write(self, data: Any, /) -> int:
        return int(super().write(bytes(data)[:10]) or 0)


def failing(number: int, kind: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """A call that fails at its n-th time, and from then on."""
    left = [number]

    def call(*arguments: Any, **named: Any) -> Any:
        if not left[0]:
            raise OSError(kind, os.strerror(kind))
        left[0] -= 1
        return real(*arguments, **named)

    return call


def opened_as(kind: type[io.FileIO]) -> Callable[..., Any]:
    """`open` for a disk of that kind; reading works."""

    def call(path: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        return kind(path, mode) if "w" in mode else open(path, mode, *rest, **named)

    return call


def no_fsync(after: int, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "fsync", failing(after, errno.ENOSPC, os.fsync))


SPOILS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no room": lambda patch: patch.setattr(files, "open", opened_as(Full), raising=False),
    "some room": lambda patch: patch.setattr(
        files, "open", opened_as(type("Half", (Full,), {"room": 1000})), raising=False
    ),
    "read-only": lambda patch: patch.setattr(files, "open", failing(0, errno.EACCES, open), raising=False),
    "a disk that turned read-only": lambda patch: patch.setattr(
        files, "open", failing(0, errno.EROFS, open), raising=False
    ),
    "no rename": lambda patch: patch.setattr(os, "replace", failing(0, errno.EACCES, os.replace)),
    **{f"fsync {n}": partial(no_fsync, n) for n in range(4)},
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_party_that_cannot_save(
    tmp_path: Path,
    script: list[Frame],
    monkeypatch: pytest.MonkeyPatch,
    spoil: str,
) -> None:
    folder = tmp_path / "member"
    member = make_member(settings(), VICTIM, folder)
    for frame in script[:3]:
        member.respond(frame)
    member.save()
    good = member.path.read_bytes()
    for frame in script[3:5]:
        member.respond(frame)
    with monkeypatch.context() as patch:
        SPOILS[spoil](patch)
        with pytest.raises(CheckpointError, match=r"cannot (write|flush) .*(No space left|denied|Read-only)"):
            member.save()
        assert (member.saved, member.durable) == (3, 0)  # it does not say that more is safe
    after_the_rename = spoil == "fsync 3"
    assert (member.path.read_bytes() == good) is not after_the_rename
    assert [path.name for path in folder.glob(".*")] == []  # nothing half-written is left
    handled = 5 if after_the_rename else 3
    assert checkpoint.load(member.path)["handled"] == handled
    again = make_member(settings(), VICTIM, folder)
    assert again.handled == handled
    goes_on(again, script[handled:])


def test_a_party_that_could_not_save_can_once_there_is_room(
    tmp_path: Path,
    script: list[Frame],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = make_member(settings(), VICTIM, tmp_path)
    for frame in script[:4]:
        member.respond(frame)
    for spoil in ("fsync 0", "no room", "some room", "read-only", "no rename", "fsync 1"):
        with monkeypatch.context() as patch:
            SPOILS[spoil](patch)
            with pytest.raises(CheckpointError):
                member.save()
    member.save()
    goes_on(make_member(settings(), VICTIM, tmp_path), script[4:])


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_server_that_cannot_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str) -> None:
    """Its second checkpoint fails in the middle of a run; it goes on from the first one, and ends as it would have."""
    meeting = Meeting(tmp_path)
    meeting.serving.saving = CheckpointPolicy(
        NetworkConfig(save_steps=2, save_seconds=1000.0)
    )  # the others save when all is done: their disks are full at no time
    saved: list[bytes] = []
    save = meeting.serving.save

    def spoilt() -> None:
        if len(saved) < 1:
            save()
            saved.append(meeting.serving.path.read_bytes())
            return
        with monkeypatch.context() as patch:
            SPOILS[spoil](patch)
            save()

    meeting.serving.save = spoilt  # type: ignore[method-assign]
    try:
        meeting.start(*meeting.requests.names)
        end = time.monotonic() + SECONDS
        while not meeting.errors and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        meeting.stop()
    (error,) = (error for error in meeting.errors if not isinstance(error, Interrupted))
    assert isinstance(error, CheckpointError)
    assert re.match("cannot (write|flush) ", str(error))
    assert (meeting.serving.path.read_bytes() == saved[0]) is (spoil != "fsync 3")
    checkpoint.load(meeting.serving.path)
    again = Meeting(tmp_path)
    try:
        again.start(*again.requests.names)
        again.records += again.serving.records
        again.finish()
    finally:
        again.stop()


@pytest.mark.parametrize("kind", [Full, Short])
def test_a_log_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[io.FileIO]) -> None:
    log = MessageLog(tmp_path)
    log.append(0, b"first" * 100)
    log.flush()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(message_log, "open", opened_as(type("Half", (kind,), {"room": 10})), raising=False)
        with pytest.raises(CheckpointError, match=r"cannot write the log .*000000000001.log: .*Nothing was sent"):
            log.append(1, b"second" * 100)
        assert (log.end, 1 in log) == (1, False)
    assert {path: path.read_bytes() for path in before} == before
    again = MessageLog(tmp_path)  # as after a crash
    assert (again.start, again.end, again.read(0)) == (0, 1, b"first" * 100)
    again.append(1, b"second" * 100)
    again.close()
    log.close()
    assert MessageLog(tmp_path).read(1) == b"second" * 100


def test_a_log_goes_on_once_there_is_room(tmp_path: Path) -> None:
    """What was half-written must not hide what comes after it."""
    log = MessageLog(tmp_path)
    log.append(0, b"first")
    assert log._file is not None
    file: Any = log._file
    log._file = _Wrapped(file, lambda data: file.write(data[:7]))  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match="only 7 bytes were written"):
        log.append(1, b"second")
    log._file = file
    log.append(1, b"second")
    log.close()
    again = MessageLog(tmp_path)
    assert [again.read(n) for n in range(again.end)] == [b"first", b"second"]


class _Wrapped:
    """A file whose writing is another's."""

    def __init__(self, file: Any, write: Callable[[bytes], Any]) -> None:
        self.file = file
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("kind", [errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_folders_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    monkeypatch.setattr(Path, "mkdir", failing(0, kind, Path.mkdir))
    with pytest.raises(CheckpointError, match=r"cannot open the log in .*new/log: "):
        make_member(settings(), VICTIM, tmp_path / "new")
    with pytest.raises(CheckpointError, match=r"cannot write .*ledger.jsonl: "):
        AuditLog(tmp_path / "new")
    with pytest.raises(CheckpointError, match=r"cannot write .*The previous file is unchanged"):
        files.write_atomically(tmp_path / "new" / "file", b"data")


def test_an_audit_log_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / audit_log.FILE).symlink_to("/dev/full")
    log = AuditLog(tmp_path)
    with pytest.raises(CheckpointError, match=r"ledger.jsonl.*No space left on device.* Free some space"):
        log.record("server", "out", Frame(FrameKind.BYE))
    log.close()  # does not try again


def test_a_line_of_the_audit_log_that_was_half_written_does_not_spoil_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(audit_log, "open", lambda path, mode, **_: Short(path, mode), raising=False)
        log = AuditLog(tmp_path)
    with pytest.raises(CheckpointError, match="only a part was written"):
        log.record("server", "out", Frame(FrameKind.HELLO))
    log.close()
    again = AuditLog(tmp_path)
    again.record("server", "out", Frame(FrameKind.BYE))
    again.close()
    assert [line.kind for line in audit_log.read(tmp_path)] == ["bye"]


@pytest.mark.slow
def test_join_on_a_full_disk_ends_with_a_sentence(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """HELLO is written down as soon as somebody has it."""
    monkeypatch.chdir(story.folder)
    (tmp_path / audit_log.FILE).symlink_to("/dev/full")
    server, port = listen(
        "127.0.0.1:0", None, 1 << 20, 2, lambda wire, name: wire.send(Frame(FrameKind.BYE).to_bytes())
    )
    arguments = ("--party", "north", "--dir", str(tmp_path), "--address", f"127.0.0.1:{port}", "--insecure")
    try:
        assert command("join", "fed.toml", *arguments) == 2
    finally:
        server.close()
    assert "No space left on device. Free some space" in capsys.readouterr().err


def test_output_on_a_full_disk_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert command("compressors") == 2
    assert "No space left on device: free some space" in capsys.readouterr().err


def test_a_folder_that_others_may_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o755)
    Lock(tmp_path).release()
    assert f"{tmp_path} is open to other users (mode 755)" in caplog.text
    caplog.clear()
    Lock(tmp_path / "new").release()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert caplog.text == ""


def test_a_full_disk_at_the_server_is_not_a_partys_fault(tmp_path: Path) -> None:
    """Its trail cannot be written: it ends with that, and nobody is refused for it."""
    meeting = Meeting(tmp_path)

    def full(peer: str, direction: str, frame: Frame) -> None:
        if direction == "out":
            raise CheckpointError("cannot write the ledger: No space left on device.")

    meeting.requests.hooks = Hooks(on_frame=full)
    try:
        meeting.start(*meeting.requests.names)
        end = time.monotonic() + SECONDS
        while not meeting.errors and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        meeting.stop()
    assert [error for error in meeting.errors if isinstance(error, RefusedError)] == []
    assert any(isinstance(error, CheckpointError) for error in meeting.errors)
