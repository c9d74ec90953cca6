"""The benchmark of tables: what it compares, and the page that is made of its results."""

import json
from pathlib import Path

import numpy as np
import polars
import pytest
from benchmarks.tables import choose, curve
from benchmarks.tables import jobs as command
from benchmarks.tables.problems import PROBLEMS, Problem, breast
from benchmarks.tables.rivals import RIVALS
from benchmarks.tables.training import federated, run_config
from tools import tables


def test_the_page_is_what_the_results_give() -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.with_part(page, tables.part(tables.read(""), tables.read("_choice"))) == page
    assert page.count(tables.START) == page.count(tables.END) == 1
    assert (tables.PAGE.parent / tables.PICTURE).exists()


def test_results_are_of_the_jobs_and_the_choice_is_of_other_seeds() -> None:
    for topic, path in command.FILES.items():
        found = json.loads(path.read_text(encoding="utf-8"))
        done = [(p, what, int(seed)) for p, runs in found.items() for what, by in runs.items() for seed in by]
        assert done == [job for job in command.jobs(topic) if job in set(done)], f"in the order of {topic}"
    compared = tables.read("")
    assert list(compared) == list(PROBLEMS)
    assert len(compared) >= 6
    for runs in compared.values():  # every model on the same splits
        assert list(runs) == list(RIVALS)
        assert len({tuple(by_seed) for by_seed in runs.values()}) == 1
    assert not set(command.SEEDS) & {*choose.SEEDS, *curve.SEEDS}


def test_no_candidate_is_the_default_under_another_name() -> None:
    default, *others = choose.CANDIDATES
    problem = breast()
    plain = run_config(problem, 0, default.settings)
    for c in others:
        assert c.bins != default.bins or run_config(problem, 0, c.settings) != plain, c.name


def test_validation_rows_are_training_rows() -> None:
    problem = breast()
    train, test = problem.split(3)
    fitted, held = problem.choice(3)
    assert sorted([*fitted, *held]) == sorted(train)
    assert not set(held) & set(test)


@pytest.mark.slow
def test_every_model_trains_and_what_is_done_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=120)
    town = rng.choice(["Bern", "Chur"], 120)
    frame = polars.DataFrame({"x": x, "town": town, "noise": [None, *rng.normal(size=119)]})
    classes = ((x > 0) ^ (town == "Bern")).astype(np.int64)
    toy = Problem("toy", frame, {"a": ["x"], "b": ["town", "noise"]}, classes, "a")
    monkeypatch.setattr(command, "PROBLEMS", {"toy": lambda: toy})
    command._problem.cache_clear()
    monkeypatch.setattr(command, "SEEDS", range(5, 6))
    path = tmp_path / "tables.json"
    command.work("test", path)
    found = json.loads(path.read_text(encoding="utf-8"))["toy"]
    assert set(found) == set(RIVALS)
    assert found["label holder alone"]["5"]["auc"] < 0.8 < found["EF-VFL"]["5"]["auc"]  # neither knows it alone
    assert found["EF-VFL"]["5"]["bytes_up"] < 0.5 * found["SVFL"]["5"]["bytes_up"]
    capsys.readouterr()
    command.work("test", path)
    assert capsys.readouterr().out == ""
    result = federated(toy, toy.choice(0), 0, {"epochs": 1}, bins=0)
    assert result.epochs == 1
    assert 0 <= result.auc <= 1
