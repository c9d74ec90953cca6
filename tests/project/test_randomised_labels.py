"""What randomised labels cost: the page is what the results give, and the results are what it claims."""

from statistics import mean

import pytest
from benchmarks import randomised_labels as benchmark
from tools import randomised_labels as tool


def test_the_page_is_what_the_results_give() -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    assert tool.with_part(page, tool.part(tool.read())) == page
    assert page.count(tool.START) == page.count(tool.END) == 1


def test_every_setting_has_as_many_seeds() -> None:
    found = tool.read()
    for problem, runs in found.items():
        assert set(runs) == set(benchmark.settings(problem))
        assert {tuple(by_seed) for by_seed in runs.values()} == {tuple(map(str, benchmark.SEEDS))}


def test_credit_loses_at_most_a_hundredth_at_epsilon_four() -> None:
    found = tool.read()
    exact, private = (
        mean(tool.values(found, "credit", name, "auc"))
        for name in (benchmark.name_of(0, "private"), benchmark.name_of(4.0, "corrected"))
    )
    assert exact - private <= 0.01


def test_settings_are_those_of_run_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A score of one epoch on a few rows: what the benchmark calls exists and trains."""
    from benchmarks.tables.problems import breast

    monkeypatch.setattr(benchmark, "_credit", breast)
    monkeypatch.setitem(benchmark.CREDIT, "epochs", 1)
    for name in (benchmark.name_of(4.0, "shared"), benchmark.name_of(2.0, "plain")):
        assert 0 <= benchmark.train_credit(0, benchmark.settings("credit")[name])["auc"] <= 1
