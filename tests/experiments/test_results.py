"""What the committed results show, and what a short run shows by itself."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from paths import ROOT

from efvfl.config.run_file import AgreementConfig, MethodConfig, RunConfig
from efvfl.data import digits
from efvfl.experiments import experiment_file
from efvfl.experiments.results import Result, read_compact, write_compact
from efvfl.experiments.tables import collect, paper_scores, score
from efvfl.runs.build import make_federation
from efvfl.training.measure import Split

RESULTS = ROOT / "results"
COMMITTED = sorted(RESULTS.glob("*.jsonl"))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_every_committed_run_is_read_and_has_the_key_of_its_job(path: Path, tmp_path: Path) -> None:
    plan = experiment_file.load(path.stem)
    results, jobs = read_compact(path), {job.file: job for job in plan.jobs()}
    assert set(results) == set(jobs)  # a name ends in the hash of the job's configuration
    for name, result in results.items():
        job = jobs[name]
        assert (result.cell, result.config["seed"]) == (job.cell, job.config.seed)
        assert result.config["epochs"] == job.config.epochs == result.columns["epoch"][-1]
        assert {len(column) for column in result.columns.values()} == {len(result.columns["epoch"])}
        assert result.ledger
        assert result.versions["efvfl"]
    write_compact(tmp_path / "again.jsonl", dict(reversed(results.items())))
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()


def test_only_compact_files_are_committed() -> None:
    listed = subprocess.run(["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git repository")
    assert listed.stdout.split() == [str(path.relative_to(ROOT)) for path in COMMITTED]
    assert sum(len(read_compact(path)) for path in COMMITTED) >= 252


@pytest.fixture(scope="module")
def mnist() -> dict[tuple[str, str], list[Result]]:
    plan = experiment_file.load("mnist")
    results = collect(plan, RESULTS / "mnist")
    assert set(results) == {cell.name for cell in plan.cells}
    assert all(len(done) == 5 for done in results.values())
    return {(cell.row, cell.column): results[cell.name] for cell in plan.cells}


def test_mnist_is_reproduced(mnist: dict[tuple[str, str], list[Result]]) -> None:
    """Every SVFL and EF-VFL cell is within two of the paper's standard deviations, or better."""
    for cell, paper in paper_scores("mnist").items():
        if cell[0] != "CVFL":
            assert score(mnist[cell]).mean >= paper.mean - 2 * paper.std, cell


def test_error_feedback_is_never_worse_on_mnist(mnist: dict[tuple[str, str], list[Result]]) -> None:
    for row, column in mnist:
        if row == "EF-VFL":
            ours, theirs = mnist["EF-VFL", column], mnist["CVFL", column]
            assert score(ours).mean >= score(theirs).mean, column


@pytest.mark.slow
def test_the_gradient_vanishes_with_error_feedback_and_without_compression_but_not_with_direct_compression() -> None:
    ends, data = {}, digits()
    few = replace(data, train=Split([x[:240] for x in data.train.features], data.train.labels[:240]))
    for name in ("svfl", "cvfl", "efvfl"):
        config = RunConfig(
            batch_size=0,
            method=MethodConfig(name, {"name": "topk", "ratio": 0.02}),
            agreement=AgreementConfig(labels="shared"),
            optimizer={"lr": 4.0},
        )
        first, *_, last = make_federation(config, few).train(300, observe_every=50)
        ends[name] = last.gradient / first.gradient
    assert ends["svfl"] < 0.05
    assert ends["efvfl"] < 0.05
    assert ends["cvfl"] > 0.5


def test_the_order_of_methods_shows_on_cifar_in_place_of_cifar_100() -> None:
    """Little compression costs EF-VFL nothing; with much of it CVFL falls far behind."""
    plan = experiment_file.load("cifar10-small")
    found = collect(plan, RESULTS / "cifar10-small")
    assert all(len(done) == 3 for done in found.values())
    scores = {name: score(done).mean for name, done in found.items()}
    for name in ("efvfl-qsgd-4", "efvfl-topk-10"):
        assert abs(scores[name] - scores["svfl"]) < 2
    for name in ("qsgd-1", "qsgd-2", "topk-1"):
        assert scores[f"efvfl-{name}"] > scores[f"cvfl-{name}"] + 10
