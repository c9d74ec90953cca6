"""`efvfl plan` from Python: what is tried, when it is abandoned, what is recommended."""

import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from networks import config as small_config

from efvfl import CachedSteps
from efvfl.config.run_file import MethodConfig, RunConfig, read
from efvfl.errors import ConfigError
from efvfl.runs.build import load_data
from efvfl.runs.candidates import RECOMMENDED, SETTINGS, candidates, to_toml, with_setting, yardstick
from efvfl.runs.goal import Goal, ValidationMetrics, parse_goal
from efvfl.runs.line import Line
from efvfl.runs.line_plan import LinePlan, plan_run
from efvfl.runs.trial import EVERY, Trial


def run(**changes: object) -> RunConfig:
    """A few digits, of which a fifth is for validation."""
    data = {"subset": 300, "validation": 0.2, "test": 0.02}
    return small_config(**{"data": data, "batch_size": 64, "model": {"width": 8}} | changes)


def ticking() -> Callable[[], float]:
    """A clock that moves by a second whenever it is looked at."""
    return map(float, count()).__next__


# What is tried.


def test_our_setting_is_first_and_the_files_own_is_among_them() -> None:
    found = candidates(run(), rows=300)
    assert 12 <= len(found) + 1 <= 16
    assert found[0].config == with_setting(run(), RECOMMENDED)
    assert found[0].config.method.down
    assert found[0].config.agreement.build().window == RECOMMENDED.window
    assert found[0].config.agreement.cached.steps == RECOMMENDED.cached
    assert (found[1].method, found[1].config) == ("as in the file", run())
    assert {c.config.batch_size for c in found} == {64, 256}
    assert {c.config.batch_size for c in candidates(run(), rows=200)} == {64}  # no batch has more rows than there are
    assert {c.config.batch_size for c in candidates(run(batch_size=0), rows=300)} == {0}


def test_what_shared_labels_do_not_have_is_left_out_and_nothing_is_tried_twice() -> None:
    found = candidates(run(agreement={"labels": "shared"}), rows=300)
    assert not any(c.config.method.down or c.config.agreement.cached.steps for c in found)
    keys = [repr((c.config.batch_size, c.config.method, c.config.agreement)) for c in found]
    assert len(set(keys)) == len(keys) < len(SETTINGS) + 1


def test_what_a_rule_refuses_is_not_tried() -> None:
    compress = run(method={"name": "svfl"}, agreement={"labels": "shared", "fusion": "compress"})
    assert candidates(compress, rows=300) == []  # the fusion model has no compressor, and SVFL is the yardstick


def test_the_yardstick_is_svfl_whatever_the_file_says() -> None:
    own = run(agreement={"pipeline": 4, "memory_dtype": "bfloat16", "cached": {"steps": 3}}, memory="mapped")
    plain = yardstick(own).config
    assert plain.method == MethodConfig("svfl")
    assert (plain.agreement.pipeline, plain.agreement.cached.steps, plain.memory) == (False, 0, "ram")
    assert yardstick(run(method={"name": "svfl"})).config.method == plain.method
    assert not [c for c in candidates(run(method={"name": "svfl"}), 300) if c.config.method.name == "svfl"]


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_the_lines_to_paste_say_what_was_tried(number: int) -> None:
    changed = with_setting(run(), SETTINGS[number])
    pasted = read(RunConfig, tomllib.loads(to_toml(changed)), "pasted")
    assert (pasted.batch_size, pasted.method, pasted.agreement) == (
        changed.batch_size,
        changed.method,
        changed.agreement,
    )


def test_lines_of_other_methods_can_be_pasted_too() -> None:
    for method in ({"name": "svfl"}, {"compressor": {"name": "topk", "ratio": 0.2}, "start": "exact"}):
        own = run(method=method, agreement={"pipeline": "auto"})
        pasted = read(RunConfig, tomllib.loads(to_toml(own)), "pasted")
        assert pasted.method.build() == own.method.build()
        assert pasted.agreement == own.agreement


# Goals.


def test_goals_are_read() -> None:
    def known() -> list[str]:
        return ["loss", "accuracy", "auc"]

    assert parse_goal("0.9", "accuracy", list) == Goal("accuracy", 0.9)  # what others there are does not matter
    assert parse_goal("auc=0.78", "accuracy", known) == Goal("auc", 0.78)
    assert parse_goal("auc", "accuracy", known) == Goal("auc")
    with pytest.raises(ConfigError, match=r"target: expected a number, or a metric of this run, got 'acc'.*accuracy"):
        parse_goal("acc=0.9", "accuracy", known)
    for text in ("auc=high", "auc=nan", "auc="):
        with pytest.raises(ConfigError, match="target: expected a number for auc"):
            parse_goal(text, "accuracy", known)


def test_what_is_better_depends_on_the_metric() -> None:
    accuracy, loss = Goal("accuracy", 0.9), Goal("loss", 0.3)
    assert accuracy.reached(0.9)
    assert accuracy.reached(0.95)
    assert not accuracy.reached(0.89)
    assert loss.reached(0.3)
    assert loss.reached(0.2)
    assert not loss.reached(0.31)
    assert not accuracy.reached(float("nan"))
    assert not loss.reached(float("nan"))
    assert accuracy.best([0.5, float("nan"), 0.7]) == 0.7
    assert loss.best([0.5, 0.7]) == 0.5
    assert accuracy.near(0.8).value == pytest.approx(0.792)
    assert loss.near(0.5).value == pytest.approx(0.505)


def test_nothing_is_chosen_without_validation_rows() -> None:
    with pytest.raises(ConfigError, match=r"no validation rows.*raise data\.validation"):
        plan_run(run(data={"validation": 0.0, "test": 0.3}))


def test_an_unknown_metric_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"got 'auk'. Did you mean 'auc'\? Known: accuracy, auc, log_loss, loss"):
        plan_run(run(), target="auk=0.9")


# Trials.


def test_a_trial_counts_what_a_run_sends(tmp_path: Path) -> None:
    """The same rounds in one go, with nothing under way at the end, send the same bytes but for a few headers."""
    own = with_setting(run(), replace(RECOMMENDED, cached=0))
    data = load_data(own, tmp_path)
    trial = Trial(own, data, ValidationMetrics(data.validation), Line())
    for _ in range(4):
        trial.advance("accuracy")
    assert [at for at, _ in trial.curve] == [EVERY, 2 * EVERY, 3 * EVERY, 4 * EVERY]
    whole = Trial(own, data, trial.measured, Line()).federation
    record = whole.fit(4)[-1]
    assert record.step == trial.rounds
    sums = [sum(getattr(p, name) for p in trial.cost.parties) for name in ("bytes_up", "bytes_down")]
    assert [trial.rounds * total for total in sums] == pytest.approx([record.bytes_up, record.bytes_down], rel=0.1)
    assert all(p.seconds > 0 for p in trial.cost.parties)
    assert trial.cost.server > 0
    assert trial.expected(20) > 20 * trial.line.round_trip / 2
    assert trial.clock is time.thread_time
    assert Trial(replace(own, threads=2), data, trial.measured, Line()).clock is time.perf_counter


def test_a_trial_knows_who_computed_for_how_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = run()
    data = load_data(own, tmp_path)
    trial = Trial(own, data, ValidationMetrics(data.validation), Line())
    now = 0.0
    trial.clock = trial.federation.transport.clock = lambda: now

    def slower(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            nonlocal now
            now += seconds
            return call(*given)

        return called

    for number, party in enumerate(trial.federation.parties.values(), start=1):
        monkeypatch.setattr(party, "handle", slower(party.handle, number))
    monkeypatch.setattr(trial.federation.server, "learn", slower(trial.federation.server.learn, 0.5))
    trial.advance("accuracy")
    assert [party.seconds for party in trial.cost.parties] == [1.0, 2.0, 3.0, 4.0]
    assert trial.cost.server == 0.5


@pytest.fixture(scope="module")
def plan() -> LinePlan:
    """All settings, on a clock that does not move: nothing ends for lack of time."""
    own = run(epochs=8, optimizer={"name": "SGD", "lr": 2.0}, method={"compressor": {"name": "topk", "ratio": 0.01}})
    return plan_run(own, Line(0.1, 1e6, 1e6), "0.4", clock=lambda: 0.0)


def test_the_soonest_is_first_and_the_slower_ones_were_abandoned(plan: LinePlan) -> None:
    assert plan.goal == Goal("accuracy", 0.4)
    assert plan.given
    reached = [tried for tried in plan.tried if tried.reached]
    assert reached
    assert reached == plan.tried[: len(reached)]
    assert [t.seconds for t in reached] == sorted(t.seconds for t in reached)
    assert plan.best == reached[0]
    assert plan.yardstick in reached
    assert plan.sooner(plan.best) == plan.yardstick.seconds / plan.best.seconds > 1
    for tried in reached:
        assert tried.rounds % EVERY == 0
        assert tried.value >= 0.4
    for tried in plan.tried[len(reached) :]:
        assert tried.ending == "abandoned"
        assert tried.value < 0.4
        assert tried.seconds > plan.best.seconds
        assert plan.sooner(tried) != plan.sooner(tried)  # NaN
    assert tomllib.loads(plan.toml)["batch_size"] == plan.best.config.batch_size


def test_nobody_is_tried_for_much_longer_than_the_best_takes(plan: LinePlan) -> None:
    own = plan.tried[[tried.method for tried in plan.tried].index("as in the file")].config
    found = {repr(tried.config): tried for tried in plan.tried}
    best = plan.yardstick.seconds
    for candidate in candidates(own, rows=300):  # in the order of the trial
        tried = found[repr(candidate.config)]
        if tried.reached:
            best = min(best, tried.seconds)
        else:  # a look earlier it was not slower; what a round costs is known better by and by
            assert tried.seconds * (tried.rounds - EVERY) / tried.rounds < 1.5 * best


def test_a_plan_as_json(plan: LinePlan) -> None:
    table = plan.to_table()
    assert table["line"] == {"round_trip": 0.1, "up": 1e6, "down": 1e6}
    assert (table["metric"], table["target"], table["target_given"]) == ("accuracy", 0.4, True)
    assert [row["seconds"] for row in table["settings"]] == [tried.seconds for tried in plan.tried]
    assert table["settings"][-1]["times_sooner"] is None


def test_without_a_target_it_is_nearly_what_svfl_reaches() -> None:
    found = plan_run(run(epochs=3, optimizer={"name": "SGD", "lr": 2.0}), seconds=9, clock=ticking())
    assert not found.given
    assert found.yardstick.reached
    assert found.goal.value is not None
    assert found.goal.value <= found.yardstick.value
    assert {tried.ending for tried in found.tried} >= {"reached", "not tried"}  # the time was soon over
    assert found.unfinished == sum(tried.ending in ("stopped", "not tried") for tried in found.tried)
    assert {tried.window for tried in found.tried if tried.ending == "not tried"} >= {2, 4}


def test_a_target_that_nobody_reaches_recommends_nothing() -> None:
    found = plan_run(run(), target="1.5", seconds=12, clock=ticking())
    assert found.best is None
    assert found.toml == ""
    assert {tried.ending for tried in found.tried} <= {"stopped", "not tried"}
    assert found.sooner(found.yardstick) != found.sooner(found.yardstick)


def test_training_that_diverges_is_said_to_fail() -> None:
    wild = {"optimizer": {"name": "SGD", "lr": 1e38}, "model": {"width": 8, "last": "identity"}}
    found = plan_run(run(**wild), target="0.99", seconds=60, clock=ticking())
    assert found.yardstick.ending == found.tried[1].ending == "failed"
    assert found.best is None
    with pytest.raises(ConfigError, match="training without compression ends in numbers that are not finite"):
        plan_run(run(**wild), clock=lambda: 0.0)


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="seconds: expected a number above 0, got 0"):
        plan_run(run(), seconds=0)


def test_cached_steps_keep_the_files_other_choices() -> None:
    own = run(agreement={"cached": {"steps": 1, "batches": 3, "angle": 45.0}})
    assert with_setting(own, RECOMMENDED).agreement.cached == CachedSteps(RECOMMENDED.cached, 3, 45.0)
