"""The comparison of methods: what is trained, which rate is chosen, and the page that is made of the records."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.comparison import jobs, measures
from benchmarks.comparison.jobs import chosen_rate, missing, rounds_to, target, work
from benchmarks.comparison.measures import MEASURES, Measured, Standing, line_seconds, measured
from benchmarks.comparison.methods import ENTRANTS
from benchmarks.comparison.problems import CONTESTS, Contest
from benchmarks.comparison.training import SEEDS, TUNING_SEED, Curve, Point
from tools import comparison as page

from efvfl import Identity, TopK
from efvfl.config.run_file import RunConfig
from efvfl.data import Dataset, digits
from efvfl.runs.build import make_federation
from efvfl.runs.line import shared_line_seconds
from efvfl.training.record import Record

EVERY_METHOD = list(ENTRANTS)


def toy(rounds: int = 12, rates: tuple[float, ...] = (0.5, 2.0)) -> Contest:
    """Return a tiny problem."""

    def settings(rate: float) -> dict[str, Any]:
        return {"batch_size": 60, "data": {"name": "digits"}, "optimizer": {"name": "SGD", "lr": rate}}

    def load(seed: int, config: RunConfig) -> Dataset:
        return digits(seed).subset(300, seed)

    return Contest("toy", "digits", "accuracy", 0.1, 16, rates, rounds, 3, settings, load)


def curve(method: str, rate: float, values: list[float], seed: int = TUNING_SEED, tuning: bool = True) -> Curve:
    """Return a run whose evaluations, 10 rounds and 1 MB apart, have these values."""
    points = [Point(10 * n, v, v - 0.01, 600_000 * n, 400_000 * n, 10_000 * n, 0) for n, v in enumerate(values, 1)]
    return Curve("toy", method, rate, seed, tuning, 1.0, tuple(points))


def by_key(*curves: Curve) -> dict[jobs.Key, Curve]:
    """Return runs as a file of them is read."""
    return {one.key: one for one in curves}


def test_the_page_is_what_the_records_give() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(jobs.read())
    assert (page.DOCS / page.PICTURE).exists()


def test_every_method_has_the_same_problems_seeds_and_grid() -> None:
    found = jobs.read()
    for problem in CONTESTS:
        of = measures.standings(found, problem)
        assert list(of) == EVERY_METHOD
        seeds = {tuple(run.seed for run in one.runs) for one in of.values()}
        assert len(seeds) == 1
        for method in of:
            assert set(jobs.tuning(found, problem, method)) == set(CONTESTS[problem].rates)
    assert TUNING_SEED not in SEEDS
    assert not any(point.test for run in found.values() if run.tuning for point in run.points)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Contest:
    """Return a tiny problem, which is the only one there is."""
    one = toy()
    monkeypatch.setattr(jobs, "CONTESTS", {"toy": one})
    monkeypatch.setattr(page, "CONTESTS", {"toy": one})
    jobs.loaded.cache_clear()
    return one


@pytest.mark.usefixtures("small")
def test_the_rate_reaches_the_target_soonest_among_those_that_do_about_as_well() -> None:
    found = by_key(curve("SVFL", 0.5, [0.5, 0.7, 0.9]), curve("SVFL", 2.0, [0.5, 0.895, 0.895]))
    assert target(found, "toy") == pytest.approx(0.1 + 0.97 * 0.8, abs=5e-4)
    assert chosen_rate(found, "toy", "SVFL") == 2.0
    found |= by_key(curve("CELU", 0.5, [0.5, 0.7, 0.88]), curve("CELU", 2.0, [0.5, 0.86, 0.86]))
    assert chosen_rate(found, "toy", "CELU") == 0.5  # the other does worse by more than a point
    assert rounds_to(found["toy", "CELU", 2.0, TUNING_SEED, True], 0.873) is None


@pytest.mark.usefixtures("small")
def test_what_is_measured_of_a_run() -> None:
    run = measured(curve("SVFL", 0.5, [0.5, 0.8, 0.7, 0.9], 0, False), 3.5e6, 0.75)
    assert run.at_budget == pytest.approx(0.79)
    assert (run.megabytes, run.rounds) == (2.0, 20.0)
    assert run.kept == pytest.approx(0.89)
    nothing = measured(curve("SVFL", 0.5, [0.5], 0, False), 10.0, 0.75)
    assert (nothing.at_budget, nothing.megabytes, nothing.rounds, nothing.seconds) == (None, None, None, None)
    point = Point(7, 0.5, 0.5, 10**6, 10**6, 3_000, 40_000)
    alone = Record(1, 7, 0.5, bytes_up=3_000, bytes_down=40_000)  # a line of its own, so nobody else counts
    assert line_seconds(point) == pytest.approx(shared_line_seconds(alone, measures.LINE))


def standing(method: str, *rounds: float | None) -> Standing:
    """Return a method that reached the target after so many rounds, by seed."""
    runs = (Measured(seed, 0.8, r, r, r, 0.9) for seed, r in enumerate(rounds))
    return Standing(method, 0.5, tuple(runs))


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ((30.0, 30.0), ""),
        ((10.0, 25.0), "to CELU (20 against 18 rounds; 1 of 2)"),
        ((10.0, None), ""),  # one of its seeds does not get there
    ],
)
def test_a_loss_is_said_with_numbers(theirs: tuple[float | None, ...], said: str) -> None:
    of = {page.OURS: standing(page.OURS, 20.0, 20.0), "CELU": standing("CELU", *theirs)}
    assert page.lost_to(of, MEASURES[2], accuracy=True) == said


def test_a_target_that_is_not_reached_is_lost() -> None:
    of = {page.OURS: standing(page.OURS, 20.0, None), "CELU": standing("CELU", 30.0, 30.0)}
    assert "some of its seeds do not get there" in page.lost_to(of, MEASURES[2], accuracy=True)
    assert [page.cell(of[page.OURS], m, accuracy=True, best=False) for m in MEASURES[1:3]] == ["1 of 2 seeds", ""]


def test_without_memory_held_out_rows_are_also_predicted_from_compressed_ones() -> None:
    contest = toy()
    data = jobs.loaded(contest, 0)
    assert {name for name, one in ENTRANTS.items() if one.predicts} == {
        name for name, one in ENTRANTS.items() if one.family == "C-VFL"
    }
    made = make_federation(contest.config(ENTRANTS["C-VFL, top-k 10 %"].change(contest, data.names), 2.0, 0), data)
    made.fit(3, observe_every=3, gradient=False)
    assert data.validation is not None
    exact = contest.score(made, data.validation)
    assert contest.score(made, data.validation, Identity()) == exact
    assert contest.score(made, data.validation, TopK(0.1)) != exact


@pytest.mark.slow
def test_every_method_trains_and_what_is_done_is_not_done_again(
    small: Contest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    path = tmp_path / "comparison.jsonl"
    work(path, ["toy"], EVERY_METHOD, SEEDS[:1])
    torch.set_num_threads(threads)
    found = jobs.read(path)
    assert len(found) == len(path.read_text().splitlines()) == (len(small.rates) + 1) * len(ENTRANTS)
    ends = {key[1]: run.points[-1] for key, run in found.items() if not run.tuning}
    assert {point.rounds for point in ends.values()} == {small.rounds}
    assert ends["CELU"].up == ends["SVFL"].up
    assert ends["SVFL, narrower"].up < 0.3 * ends["SVFL"].up
    assert ends["EF-VFL, ternary, asynchronous"].up < ends["EF-VFL, ternary"].up < 0.2 * ends["SVFL"].up
    assert ends["SVFL"].slowest_up == ends["SVFL"].up / 4  # four parties alike
    text = page.page(found)
    assert all(f"| {name} |" in text for name in ENTRANTS)
    assert len(page.draw(found).axes) == 2
    capsys.readouterr()
    work(path, ["toy"], EVERY_METHOD, SEEDS[:1])
    assert capsys.readouterr().out == ""
    assert not list(missing(found, ["toy"], EVERY_METHOD, SEEDS[:1]))
    assert json.loads(path.read_text().splitlines()[0])["method"] == "SVFL"  # its runs decide the target
