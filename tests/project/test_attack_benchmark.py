"""The benchmark of attacks: what it tries, and the page that is made of its results."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.attacks import jobs
from benchmarks.attacks.problems import TASKS, digits
from benchmarks.attacks.settings import NAMED, build
from tools import privacy

from efvfl.errors import DataError
from efvfl.runs.attacks import catalogue


def test_the_page_is_what_the_results_give() -> None:
    page = privacy.PAGE.read_text(encoding="utf-8")
    assert privacy.with_part(page, privacy.part(privacy.read())) == page
    assert page.count(privacy.START) == page.count(privacy.END) == 1
    assert (privacy.PAGE.parent / "results" / "attacks.png").exists()


def test_results_are_complete_and_in_the_order_of_the_jobs() -> None:
    found = json.loads(jobs.FILE.read_text(encoding="utf-8"))
    done = [(task, name, int(seed)) for task, runs in found.items() for name, by in runs.items() for seed in by]
    assert done == jobs.jobs()
    for runs in found.values():
        for result in (result for by_seed in runs.values() for result in by_seed.values()):
            assert set(result["found"]) | set(result["not_applicable"]) <= set(catalogue.NAMES)
            assert {"auc", "accuracy"} <= set(result["scores"])


def number(by_seed: Any, attack: str) -> float:
    found = privacy.value(by_seed, attack)
    assert found is not None, f"{attack} applies"
    return found


def test_what_the_page_says_follows_from_the_results() -> None:
    results = privacy.read()
    for runs in results.values():
        for name, by_seed in runs.items():
            if not name.startswith(("A", "B", "EF-VFL and B")):  # which have noise on labels
                assert number(by_seed, "direction") > 0.9, f"{name} hides no label"
            if " C" in name or name.startswith("C:"):
                assert min(number(by_seed, attack) for attack in privacy.COLUMNS) > 0.9, f"{name} hides columns"
        plain, direct, summed = (runs[name] for name in ("SVFL", "CVFL, top-k 10 %", "EF-VFL, top-k 10 %"))
        assert number(plain, "inverse") < number(summed, "inverse") < number(direct, "inverse")
        nearer = (number(plain, "inverse") + number(direct, "inverse")) / 2
        assert number(summed, "inverse") < nearer
        assert abs(number(summed, "inverse-held-out") - number(plain, "inverse-held-out")) < 0.05
        assert number(runs["deeper head"], "inverse") < number(plain, "inverse")
        gain = number(plain, "completion") - number(plain, "columns-alone")
        assert gain < 0.15
        assert number(plain, "active-completion") < number(plain, "completion") + 0.02
        assert number(runs["A: labels randomised once, ε = 1"], "direction") < 0.85
    credit = results["credit"]
    assert 0.9 < number(credit["Marvell"], "direction") < 0.95
    assert number(credit["A: labels randomised once, ε = 1"], "direction") < 0.78


def test_a_job_is_done_once_and_data_that_are_not_here_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(seed: int) -> Any:
        raise DataError("no EFVFL_DATA")

    small = replace(TASKS["digits"], load=lambda seed: digits(seed).subset(200, seed), epochs=1)
    monkeypatch.setattr(jobs, "TASKS", {"digits": small, "credit": replace(TASKS["credit"], load=absent)})
    monkeypatch.setattr(jobs, "jobs", lambda: [("credit", "SVFL", 0), ("digits", "EF-VFL and C, ε = 16", 0)])
    path = tmp_path / "found.json"
    jobs.work(path)
    assert "credit: left out: no EFVFL_DATA" in capsys.readouterr().out
    result = json.loads(path.read_text())["digits"]["EF-VFL and C, ε = 16"]["0"]
    assert result["found"]["inverse"] > 0.8
    before = path.read_bytes()
    jobs.work(path)
    assert path.read_bytes() == before


def test_every_setting_can_be_built() -> None:
    data = digits(0).subset(64, 0)
    for setting in NAMED.values():
        if not setting.binary:
            build(TASKS["digits"], data, setting, 0)
