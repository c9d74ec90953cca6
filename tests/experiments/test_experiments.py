"""Experiments as files, results as files, and sweeps that survive being killed."""

import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from paths import ROOT
from result_files import without_times
from warm_processes import WARM, run_sweep

from efvfl.cli.main import main
from efvfl.errors import CompressionError, ConfigError
from efvfl.experiments import experiment_file as sweeps
from efvfl.experiments.experiment_file import Job, Sweep, changed, load, parse, tasks
from efvfl.experiments.jobs import run_all, run_job
from efvfl.experiments.reproduce import Overrides, _overridden
from efvfl.experiments.results import Result
from efvfl.experiments.tables import (
    Score,
    collect,
    communication,
    differs,
    markdown,
    paper_scores,
    rows_of,
    score,
    totals,
)

SMALL = """
title = "Small"
seeds = [0, 1]
[base]
epochs = 4
batch_size = 300
data = { name = "digits" }
agreement = { labels = "shared" }
optimizer = { lr = 4.0 }
[[run]]
name = "svfl"
row = "SVFL"
column = "uncompressed"
method = { name = "svfl" }
[[run]]
name = "efvfl-qsgd-4"
row = "EF-VFL"
column = "qsgd b=4"
method = { compressor = { name = "qsgd", bits = 4 } }
optimizer = { momentum = 0.5 }
[[figure]]
name = "figure"
left = "gradient"
panels = [{ title = "all", runs = ["svfl", "efvfl-qsgd-4"] }]
"""


@pytest.fixture
def small() -> Sweep:
    return parse(SMALL, "small")


@pytest.mark.parametrize("task", tasks())
def test_every_experiment_that_comes_along_is_read(task: str) -> None:
    plan = load(task)
    keys = [job.key for job in plan.jobs()]
    assert len(set(keys)) == len(keys) == len(plan.cells) * len(plan.seeds)
    for cell in plan.cells:
        cell.config.method.build()


def test_table_2_is_covered() -> None:
    for task in ("mnist", "modelnet10", "cifar100", "cifar10-small", "cifar10-resnet"):
        plan = load(task)
        cells = {(cell.row, cell.column) for cell in plan.cells}
        assert len(plan.cells) == 13
        assert cells == set(paper_scores(plan.paper or task))
    assert [cell.config.optimizer["lr"] for cell in load("mnist").cells if cell.name.startswith("efvfl")] == [
        4.0,
        4.0,
        16.0,
        4.0,
        16.0,
        16.0,
    ]


def test_full_size_experiments_have_the_settings_of_the_paper() -> None:
    """Rate, decay and schedule as in its Sections 5.2 and 5.3, channels as in the authors' code."""
    cosine = {"name": "CosineAnnealingLR", "T_max": 100, "eta_min": 0.0001}
    halved = {"name": "MultiStepLR", "gamma": 0.5}
    for task, rate, scheduler, network, channels in (
        ("cifar100", 0.01, cosine, "resnet18", 32),
        ("cifar10", 0.0025, halved | {"milestones": [40, 60, 80]}, "resnet18", 32),
        ("modelnet10-full", 0.004, halved | {"milestones": [50, 75]}, "mvcnn", 64),
    ):
        plan = load(task)
        assert plan.seeds == (0, 1, 2, 3, 4)
        assert plan.about.endswith("not run here.")
        assert not (ROOT / "results" / f"{task}.jsonl").exists()
        for config in (cell.config for cell in plan.cells):
            assert config.optimizer == {"name": "SGD", "lr": rate, "weight_decay": 0.01, "scheduler": scheduler}
            assert (config.epochs, config.batch_size, config.data.subset) == (100, 128, 0)
            assert (config.model.name, config.model.options) == (network, {"channels": channels})
            assert config.agreement.labels == "shared"
    full = {(cell.row, cell.column): cell.config.method for cell in load("modelnet10-full").cells}
    for of in ("modelnet10", "modelnet10-local"):
        for cell in load(of).cells:
            assert full[cell.row, cell.column] == cell.config.method
    assert [cell.config.agreement.local_steps for cell in load("modelnet10-full").cells] == [1] * 13 + [2] * 3 + [4] * 3


def test_a_run_is_laid_over_the_base(small: Sweep) -> None:
    svfl, efvfl = (cell.config for cell in small.cells)
    assert svfl.method.name == "svfl"
    assert efvfl.method.name == "efvfl"
    assert efvfl.optimizer == {"lr": 4.0, "momentum": 0.5}
    assert svfl.optimizer == {"lr": 4.0}
    assert efvfl.epochs == 4


def test_keys_tell_runs_apart_and_ignore_defaults(small: Sweep) -> None:
    job = small.jobs()[0]
    assert job.key == Job("other name", job.config).key
    assert job.key != replace(job, config=replace(job.config, seed=7)).key
    assert job.key != replace(job, config=replace(job.config, epochs=5)).key
    assert changed(small, epochs=2, seeds=(3,), subset=100).jobs()[0].config.data.subset == 100
    # fixed for good: committed results are found by these
    assert load("mnist").jobs()[0].key == "8b201ef2b7ca1e39"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (SMALL.replace('left = "gradient"', 'left = "slope"'), "slope"),
        (
            SMALL.replace('runs = ["svfl", ', 'runs = ["svfll", '),
            r"draws 'svfll', which is not a run\. Did you mean 'svfl'",
        ),
        (SMALL.replace('name = "efvfl-qsgd-4"', 'name = "svfl"'), "expected runs with unique names, got"),
        (SMALL.replace("batch_size", "batchsize"), r"run 'svfl': unknown key 'batchsize'\. Did you mean"),
        ("title = ", "is not TOML"),
        ("title = 'x'", r"expected one or more \[\[run\]\] tables or a \[grid\], got none"),
    ],
)
def test_mistakes_in_experiments_are_answered(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse(text, "small")


def test_unknown_experiments_are_answered(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no experiment 'minst'\. Did you mean 'mnist'"):
        load("minst")
    with pytest.raises(ConfigError, match=r"run `python -m benchmarks\.comparison`"):
        load("comparison")
    with pytest.raises(ConfigError, match="cannot read"):
        load(str(tmp_path / "none.toml"))
    path = tmp_path / "mine.toml"
    path.write_text(SMALL)
    assert load(str(path)).name == "mine"


@pytest.mark.usefixtures("warm_pool")
def test_results_are_the_same_in_one_process_and_in_several(small: Sweep, tmp_path: Path) -> None:
    small = changed(small, epochs=2)
    for job in small.jobs():
        run_job(job, tmp_path / "one")
    heard: dict[str, int] = {}
    run_all(small.jobs(), tmp_path / "many", workers=2, report=lambda job, epoch: heard.update({job.file: epoch}))
    assert without_times(tmp_path / "one") == without_times(tmp_path / "many")
    assert set(heard.values()) == {2}
    assert len(heard) == 4
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "many").iterdir()}
    run_all(small.jobs(), tmp_path / "many")  # nothing is left to do
    assert stamps == {p: p.stat().st_mtime_ns for p in (tmp_path / "many").iterdir()}


def test_without_ray_the_engine_says_how_to_get_it(
    small: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"--engine ray needs ray: pip install 'efvfl\[ray\]'"):
        run_all(small.jobs(), tmp_path, engine="ray")


@pytest.mark.usefixtures("warm_pool")
def test_a_failing_run_stops_the_sweep_with_its_own_error(small: Sweep, tmp_path: Path) -> None:
    jobs = changed(small, epochs=1, data="mnistt").jobs()
    with pytest.raises(ConfigError, match=r"run 'svfl': .*Did you mean 'mnist'.*npz.*table"):
        run_all(jobs, tmp_path, workers=1)


@pytest.mark.usefixtures("warm_pool")
def test_a_run_that_diverges_does_not_take_the_others_with_it(small: Sweep, tmp_path: Path) -> None:
    first, *others = changed(small, epochs=2).jobs()
    wild = replace(first, config=replace(first.config, optimizer={"name": "SGD", "lr": 1e38, "weight_decay": 10.0}))
    with pytest.raises(CompressionError, match=rf"1 of 4 runs diverged(?s:.)*{first.cell}, seed 0: .*only finite"):
        run_all([wild, *others], tmp_path, workers=1)
    assert {path.name for path in tmp_path.glob("*.json")} == {job.file for job in others}


@pytest.mark.slow
def test_killing_a_sweep_and_starting_it_again_changes_no_result(tmp_path: Path) -> None:
    """kill -9 on a process that runs a sweep, several times, against a sweep that nobody disturbed."""
    file = tmp_path / "small.toml"
    file.write_text(SMALL.replace("epochs = 4", "epochs = 12"))

    def start(out: str) -> BaseProcess:
        process = WARM.Process(target=run_sweep, args=(file, tmp_path / out))
        process.start()
        return process

    def end(process: BaseProcess) -> int | None:
        process.join(120)
        return process.exitcode

    assert end(start("calm")) == 0
    kills = 0
    while True:
        process = start("killed")
        deadline = time.monotonic() + 120
        parts, seen = tmp_path / "killed" / ".parts", set(without_times(tmp_path / "killed"))
        while process.is_alive() and time.monotonic() < deadline:
            # Kill as soon as something new is on disk: in the middle of a run, or between two.
            new = {p.name for p in (tmp_path / "killed").glob("*.json")} - seen
            if kills < 4 and (new or (parts.exists() and any(parts.iterdir()))):
                time.sleep(0.05 * kills)
                process.kill()
                kills += 1
                break
            time.sleep(0.002)
        if end(process) == 0:
            break
    assert kills >= 3
    assert without_times(tmp_path / "calm") == without_times(tmp_path / "killed")
    assert len(without_times(tmp_path / "calm")) == 4
    assert not any((tmp_path / "killed" / ".parts").iterdir())


SLEEPS = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from efvfl.experiments.jobs import end_with_parent

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=end_with_parent)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 300).result()
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
def test_no_worker_goes_on_when_the_sweep_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "sleeps.py"
    file.write_text(SLEEPS)
    with subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True) as sweep:
        assert sweep.stdout is not None
        stat = Path("/proc", sweep.stdout.readline().strip(), "stat")
        assert stat.read_text().split(")")[-1].split()[0] in "RS"
        sweep.kill()
    ends = time.monotonic() + 60
    while stat.exists() and stat.read_text().split(")")[-1].split()[0] not in "ZX":
        assert time.monotonic() < ends, "the worker goes on"
        time.sleep(0.05)


@pytest.mark.usefixtures("warm_pool")
def test_reproduce_prints_a_table_and_writes_figures_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    out = tmp_path / "results"
    arguments = [str(file), "--out", str(out), "--epochs", "2", "--seeds", "0"]
    assert main(["figures", *arguments]) == 2
    assert f"run `efvfl reproduce {file}` first" in capsys.readouterr().err
    assert main(["reproduce", *arguments, "--workers", "1"]) == 0
    printed = capsys.readouterr().out
    assert "Small: test accuracy (%), one seed" in " ".join(printed.split())
    made = {path.name for path in (out / "small").iterdir() if path.suffix != ".json"}
    assert {f"small-figure-{axis}.{form}" for axis in ("paper", "sent") for form in ("svg", "png")} <= made
    page = (out / "small" / "small.html").read_text()
    assert page.count("<svg") == 2
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "").replace("https://matplotlib.org", "")
    assert main(["figures", *arguments]) == 0
    assert main(["reproduce", "list"]) == 0
    assert "modelnet10" in capsys.readouterr().out


@pytest.mark.usefixtures("warm_pool")
def test_quick_works_offline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFVFL_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    quick = _overridden("mnist", Overrides(quick=True))
    assert quick.seeds == load("mnist").seeds[:1]
    assert {(cell.config.epochs, cell.config.data.name) for cell in quick.cells} == {(5, "digits")}
    assert main(["reproduce", "mnist", "--quick", "--epochs", "1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "MNIST: test accuracy" in " ".join(printed.split())
    assert "paper" not in printed.split("Written")[0]  # digits are not MNIST: nothing to compare with
    assert main(["reproduce", "mnist", "--out", str(tmp_path / "other")]) == 2
    assert "efvfl data get mnist" in capsys.readouterr().err


def test_tables(small: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def result(cell: str, accuracy: float) -> Result:
        columns = {
            "test_accuracy": [0.1, accuracy],
            "bytes_up": [1e6, 2e6],
            "bytes_down": [0, 4e6],
            "paper_bits": [8, 8e6],
            "gradient": [3.0, 1.0],
        }
        return Result(cell, {}, columns, {}, {})

    results = {"svfl": [result("svfl", 0.90), result("svfl", 0.92)], "efvfl-qsgd-4": [result("efvfl-qsgd-4", 0.8)]}
    assert str(score(results["svfl"])) == "91.0 ± 1.4"
    assert score(results["efvfl-qsgd-4"]) == Score(80.0, 0.0, 1)
    mine = replace(small, name="mnist")
    headings, body = rows_of(mine, results)
    assert headings == ["method", "", "uncompressed", "qsgd b=4"]
    assert body[0] == ["SVFL", "ours", "91.0 ± 1.4*", ""]  # the paper has 91.6 ± 0.1
    assert body[1] == ["", "paper", "91.6 ± 0.1", ""]
    assert body[3][3] == "87.2 ± 0.4"
    assert "*" not in str(rows_of(mine, results, comparable=False))
    standing_in = rows_of(replace(small, paper="mnist"), results, comparable=False)[1]
    assert standing_in[:2] == [["SVFL", "ours", "91.0 ± 1.4", ""], ["", "paper", "91.6 ± 0.1", ""]]
    assert markdown(mine, results).splitlines()[1] == "| --- | --- | --- | --- |"
    assert communication(mine, results)[1][0] == ["SVFL", "uncompressed", "2.00", "4.00", "1.00"]
    assert totals(replace(mine, error=2.0), results)[1][0] == ["SVFL", "uncompressed", "2 of 2", "2", "2.00", "4.00"]
    assert totals(replace(mine, error=1.9), results)[1][0] == ["SVFL", "uncompressed", "0 of 2", "", "", ""]
    assert differs(Score(10, 0), Score(12.1, 1))
    assert not differs(Score(10, 0), Score(11.9, 1))
    assert collect(small, tmp_path) == {}
    assert sweeps.FORMAT == 1
