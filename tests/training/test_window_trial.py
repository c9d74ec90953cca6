"""`pipeline = "auto"`: what is measured and what is chosen, on a clock that the test sets."""

import pytest
from problems import everything, problem, same

from efvfl import Agreement, SharedLabels, TopK, efvfl
from efvfl.config.run_file import AgreementConfig, read
from efvfl.core import rules
from efvfl.core.agreement import AUTO_WINDOWS
from efvfl.errors import ConfigError
from efvfl.training.window_trial import STEPS, WindowTrial

TRIED = STEPS * len(AUTO_WINDOWS)


class Line:
    """Steps on a line: a round takes so long, and no step less than its busiest stage."""

    def __init__(self, seconds: float, stage: float) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.stage = stage
        self.trial = WindowTrial(lambda: self.now)

    def run(self, first: int, last: int, record_every: int = 0) -> None:
        """Answer these steps; those under way end in bursts, one round apart."""
        for step in range(first, last):
            window = self.trial.window(step)
            if step % window == 0:
                self.now += max(self.seconds, window * self.stage)
            left = record_every - step % record_every - 1 if record_every else window
            self.trial.answered(step, min(window, left))


@pytest.mark.parametrize(
    ("seconds", "stage", "expected"),
    [
        (0.040, 0.001, 8),  # nearly all of a round is latency
        (0.040, 0.010, 4),  # four steps fill the busiest stage
        (0.042, 0.010, 4),  # eight would be 5 % faster
        (0.040, 0.039, 1),  # computing is all there is
        (0.040, 0.020, 2),
    ],
)
def test_the_smallest_window_that_is_nearly_the_fastest_is_chosen(seconds: float, stage: float, expected: int) -> None:
    line = Line(seconds, stage)
    line.run(0, TRIED)
    assert [line.trial.window(step) for step in range(0, TRIED, STEPS)] == list(AUTO_WINDOWS)
    assert not line.trial.due(TRIED - 1)
    assert line.trial.due(TRIED)
    assert line.trial.medians[1] == pytest.approx(seconds)
    told = line.trial.choose()
    assert line.trial.chosen == line.trial.window(0) == line.trial.window(10 * TRIED) == expected
    assert f"chose {expected} (a step takes" in told
    assert f"pipeline = {expected}" in told
    assert not line.trial.due(TRIED)


def test_a_pause_now_and_then_does_not_change_the_choice() -> None:
    line = Line(0.040, 0.010)
    for first in range(0, TRIED, STEPS):
        line.run(first, first + 9)
        line.now += 60.0  # such as a checkpoint, or a party that was away
        line.run(first + 9, first + STEPS)
    line.trial.choose()
    assert line.trial.chosen == 4


@pytest.mark.parametrize(("every", "measured"), [(1, []), (2, [1]), (3, [1, 2]), (5, [1, 2, 4]), (9, [1, 2, 4, 8])])
def test_what_fits_between_two_records_is_measured(every: int, measured: list[int]) -> None:
    line = Line(0.040, 0.001)
    line.run(0, TRIED, record_every=every)
    assert list(line.trial.medians) == measured
    told = line.trial.choose()
    assert line.trial.chosen == (max(measured) if measured else 1)
    assert ("observe_every" in told) == (not measured)


def test_a_restart_keeps_what_was_measured_and_what_was_chosen() -> None:
    line, again = Line(0.040, 0.010), Line(0.040, 0.010)
    line.run(0, 100)
    again.now = -1e6  # another process's clock
    again.trial.load_state_dict(line.trial.state_dict())
    assert again.trial.medians == line.trial.medians
    again.run(100, TRIED)
    assert min(min(found) for found in again.trial._seconds.values()) > 0
    again.trial.choose()
    other = WindowTrial()
    other.load_state_dict(again.trial.state_dict())
    assert other.chosen == again.trial.chosen == 4
    other.answered(500, 4)
    assert other.medians == again.trial.medians  # nothing more is measured


def test_in_one_process_nothing_is_under_way() -> None:
    runs = [problem(efvfl(TopK(0.2)), batch_size=16, agreement=Agreement(pipeline=p)) for p in ("auto", False)]
    assert runs[0].window == 1
    records = [run.fit(2) for run in runs]
    assert [record.window for record in records[0]] == [1, 1]
    assert [record.bytes_up for record in records[0]] == [record.bytes_up for record in records[1]]
    auto, plain = runs
    assert same(everything(auto), everything(plain))


def test_the_word_is_read_and_others_are_refused() -> None:
    found = read(AgreementConfig, {"pipeline": "auto"}, "file")
    assert found.build().measures_window
    assert found.build().window == AUTO_WINDOWS[-1]
    with pytest.raises(ConfigError, match="pipeline: expected true or false or a whole number or 'auto', got 'car'"):
        read(AgreementConfig, {"pipeline": "car"}, "file")
    with pytest.raises(ConfigError, match="pipeline: expected a whole number, got 'car'"):
        Agreement(pipeline="car")  # type: ignore[arg-type]
    rules.check(rules.Choices(Agreement(SharedLabels(fusion="replicate"), pipeline="auto")))
