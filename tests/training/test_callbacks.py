"""Callbacks see every step and every record, and a run with them is the same as one without."""

import dataclasses

import pytest
from problems import everything, problem, same

from efvfl import Agreement, Callback, Record, TopK, efvfl
from efvfl.training.callbacks import TrainingStep


class Seen(Callback):
    def __init__(self) -> None:
        self.steps: list[TrainingStep] = []
        self.records: list[Record] = []

    def on_step(self, step: TrainingStep) -> None:
        self.steps.append(step)

    def on_epoch(self, record: Record) -> None:
        self.records.append(record)


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_run_with_callbacks_is_the_same_and_they_see_all_of_it(pipeline: bool) -> None:
    watched, alone = (problem(efvfl(TopK(0.2)), batch_size=16, agreement=Agreement(pipeline=pipeline)) for _ in "ab")
    seen, expected = Seen(), alone.fit(3, observe_every=2)
    records = watched.fit(3, observe_every=2, callbacks=[Callback(), seen])
    assert same(everything(watched), everything(alone))
    without_time = [dataclasses.replace(record, seconds=0.0) for record in records]
    assert without_time == [dataclasses.replace(record, seconds=0.0) for record in expected]
    assert seen.records == records
    assert [record.epoch for record in records] == [2, 3]
    assert [step.number for step in seen.steps] == list(range(1, watched.server.step_number + 1))
    last = records[-1]
    per_epoch = watched.server.batches.per_epoch
    losses = [step.loss for step in seen.steps[-per_epoch:]]
    assert sum(losses) / per_epoch == last.surrogate_loss
    assert [step.epoch for step in seen.steps] == [step.number // per_epoch for step in seen.steps]
    up, seconds = [step.bytes_up for step in seen.steps], [step.seconds for step in seen.steps]
    assert up == sorted(up)
    assert 0 < up[0] < up[-1] <= last.bytes_up
    assert seconds == sorted(seconds)
    assert seconds[-1] <= last.seconds


def test_callbacks_are_those_of_the_last_call_and_their_exceptions_end_training() -> None:
    class Angry(Callback):
        def on_step(self, step: TrainingStep) -> None:
            raise RuntimeError(f"no more after {step.number}")

    run, seen = problem(efvfl(TopK(0.2)), batch_size=16), Seen()
    run.fit(1, callbacks=[seen])
    before = len(seen.steps)
    run.fit(2)
    assert len(seen.steps) == before == run.server.batches.per_epoch
    with pytest.raises(RuntimeError, match=f"no more after {2 * before + 1}"):
        run.fit(3, callbacks=[Angry()])
