"""Working files of a sweep and the compact file that is kept: what is found in either is not trained again."""

import json
from pathlib import Path

import pytest
from log_lines import logging_as_a_command, objects

from efvfl.cli.main import main
from efvfl.errors import DataError
from efvfl.experiments.experiment_file import Job, Sweep, changed, parse
from efvfl.experiments.jobs import run_all
from efvfl.experiments.results import Result, compact_file, find, fold, read_compact, unfinished
from efvfl.experiments.tables import collect

PLAN = """
title = "Two"
seeds = [1, 0]
[base]
epochs = 3
data = { name = "digits" }
[[run]]
name = "svfl"
method = { name = "svfl" }
[[run]]
name = "efvfl-top-k"
"""


@pytest.fixture
def plan() -> Sweep:
    return parse(PLAN, "two")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "two").mkdir()
    return tmp_path / "two"


def leave(job: Job, folder: Path, loss: float = 0.1) -> None:
    """Write what a finished run leaves, with numbers that are hard to write down."""
    columns: dict[str, list[float]] = {
        "epoch": [1, 3],
        "train_loss": [float("nan"), loss],
        "test_accuracy": [1 / 3, 0.1 + 0.2],
    }
    result = Result(job.cell, {"seed": job.config.seed}, columns, {"up": {"a": {"h": 12}}}, {"efvfl": "0.2.0"})
    (folder / job.file).write_text(result.to_json())


def test_folding_moves_runs_and_keeps_every_digit(plan: Sweep, folder: Path) -> None:
    for job in plan.jobs():
        leave(job, folder)
    before = {path.name: path.read_text() for path in folder.iterdir()}
    found = [result.to_json() for result in find(plan.jobs(), folder)]
    assert fold(plan.jobs(), folder) == 4
    assert list(folder.iterdir()) == []
    assert {name: result.to_json() for name, result in read_compact(compact_file(folder)).items()} == before
    assert [result.to_json() for result in find(plan.jobs(), folder)] == found
    assert set(collect(plan, folder)) == {"svfl", "efvfl-top-k"}
    lines = [json.loads(line) for line in compact_file(folder).read_text().splitlines()]
    assert [(line["cell"], line["config"]["seed"]) for line in lines] == [
        ("efvfl-top-k", 0),
        ("efvfl-top-k", 1),
        ("svfl", 0),
        ("svfl", 1),
    ]
    assert {line["key"] for line in lines} == {job.key for job in plan.jobs()}


def test_the_order_in_which_runs_were_folded_does_not_show(plan: Sweep, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for job in plan.jobs():
        leave(job, folder)
    fold(plan.jobs(), folder)
    for job in reversed(plan.jobs()):
        leave(job, other)
        assert fold(plan.jobs(), other) == 1
    assert compact_file(folder).read_bytes() == compact_file(other).read_bytes()


def test_runs_of_other_settings_stay_in_the_working_folder(plan: Sweep, folder: Path) -> None:
    trial = changed(plan, epochs=1).jobs()[0]
    leave(trial, folder)
    assert fold(plan.jobs(), folder) == 0
    assert (folder / trial.file).exists()
    assert not compact_file(folder).exists()


def test_a_run_that_is_kept_is_never_replaced(plan: Sweep, folder: Path) -> None:
    """As after a kill between the compact file and the removal of what it was made from."""
    job = plan.jobs()[0]
    leave(job, folder)
    fold(plan.jobs(), folder)
    leave(job, folder, loss=9.0)
    assert find([job], folder)[0].columns["train_loss"][-1] == 0.1
    assert fold(plan.jobs(), folder) == 0
    assert find([job], folder)[0].columns["train_loss"][-1] == 0.1
    assert not (folder / job.file).exists()


def test_finished_is_finished_wherever_it_is_found(plan: Sweep, folder: Path) -> None:
    """Nothing is trained: the check of open runs would refuse a data set that does not exist."""
    jobs = changed(plan, data="no such data").jobs()
    leave(jobs[0], folder)
    fold(jobs, folder)
    leave(jobs[1], folder)
    assert unfinished(jobs, folder) == jobs[2:]
    run_all(jobs[:2], folder)


@pytest.mark.usefixtures("warm_pool")
def test_reproduce_trains_only_what_neither_place_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "two.toml", tmp_path / "out"
    file.write_text(PLAN.replace("seeds = [1, 0]", "seeds = [0]"))
    command = ["reproduce", str(file), "--out", str(out), "--epochs", "1", "--workers", "1"]
    with logging_as_a_command():
        assert main([*command, "--log", "json"]) == 0
    shown = capsys.readouterr()
    one, other = (str(line["event"]) for line in objects(shown.err))  # one line for each run
    assert one.startswith("1 of 2 runs done: ")
    assert other.startswith("2 of 2 runs done: ")
    jobs = changed(parse(file.read_text(), "two"), epochs=1).jobs()
    assert {text.partition(": ")[2] for text in (one, other)} == {f"{job.cell}, seed 0" for job in jobs}
    assert "epochs" not in shown.out  # no bar that nobody sees move
    assert fold(jobs, out / "two") == 2
    kept = compact_file(out / "two").read_bytes()
    (out / "two" / "two.html").unlink()
    assert main(command) == 0
    assert "one seed" in " ".join(capsys.readouterr().out.split())
    assert list((out / "two").glob("*.json")) == []  # nothing was trained again
    assert (out / "two" / "two.html").exists()
    compact_file(out / "two").write_bytes(kept.splitlines(keepends=True)[0])
    assert main(command) == 0
    assert len(list((out / "two").glob("*.json"))) == 1


@pytest.mark.parametrize("change", [lambda line: line[:-30], lambda line: "[]", lambda line: line.replace("key", "k")])
def test_a_damaged_line_is_named(plan: Sweep, folder: Path, change: object) -> None:
    leave(plan.jobs()[0], folder)
    fold(plan.jobs(), folder)
    path = compact_file(folder)
    path.write_text(f"{path.read_text()}{change(path.read_text().strip())}\n")  # type: ignore[operator]
    with pytest.raises(DataError, match=r"line 2 of .*two\.jsonl: expected a run"):
        unfinished(plan.jobs(), folder)


def test_a_run_that_is_there_twice_is_named(plan: Sweep, folder: Path) -> None:
    leave(plan.jobs()[0], folder)
    fold(plan.jobs(), folder)
    compact_file(folder).write_text(2 * compact_file(folder).read_text())
    with pytest.raises(DataError, match=r"line 2 of .*: expected every run once, got svfl-seed1-.* again"):
        find(plan.jobs(), folder)
