"""Records by step: what they say is what callbacks are told, and a run that goes on from a checkpoint has them all."""

import math
from pathlib import Path

import pytest
from problems import everything, problem, same

from efvfl import Agreement, Callback, Record, TopK, efvfl
from efvfl.training.callbacks import Sending, TrainingStep
from efvfl.training.step_notes import joined
from efvfl.util import checkpoint


class Told(Callback):
    def __init__(self) -> None:
        self.sent: list[Sending] = []
        self.steps: list[TrainingStep] = []

    def on_sent(self, sending: Sending) -> None:
        self.sent.append(sending)

    def on_step(self, step: TrainingStep) -> None:
        self.steps.append(step)


@pytest.mark.parametrize("pipeline", [False, True])
def test_every_third_step_is_noted_as_callbacks_are_told_of_it(pipeline: bool) -> None:
    watched, plain = (problem(efvfl(TopK(0.2)), batch_size=16, agreement=Agreement(pipeline=pipeline)) for _ in "ab")
    told = Told()
    records = watched.fit(4, observe_every=2, callbacks=[told], note_every=3)
    plain.fit(4, observe_every=2)
    assert same(everything(watched), everything(plain))
    notes = joined([record.steps for record in records])
    wanted = [step for step in told.steps if step.number % 3 == 0]
    assert notes["step"] == [step.number for step in wanted]
    assert len(wanted) == len(told.steps) // 3 > 1
    for name in ("loss", "bytes_up", "bytes_down"):
        assert notes[name] == [getattr(step, name) for step in wanted]
    for block in watched.parties:
        of_block = {s.step + 1: s for s in told.sent if (s.block, s.direction) == (block, "up")}
        assert notes[f"residual up {block}"] == [of_block[step.number].residual for step in wanted]
        assert notes[f"lost up {block}"] == [of_block[step.number].lost for step in wanted]
    assert all(step <= record.step for record in records for step in record.steps["step"])
    assert Record.from_json(records[0].to_json()).steps == records[0].steps


def test_without_it_nothing_is_noted_and_a_look_takes_nothing() -> None:
    run = problem(efvfl(TopK(0.2)), batch_size=16)
    assert not any(record.steps for record in run.fit(2))
    assert "steps" not in run.record().to_json()
    looks: list[Record] = []

    class Looking(Callback):
        def on_step(self, step: TrainingStep) -> None:
            looks.append(run.record())

    [record] = run.fit(3, callbacks=[Looking()], note_every=1)
    assert not any(look.steps for look in looks)
    assert len(record.steps["step"]) == run.server.batches.per_epoch


def test_a_run_that_goes_on_has_the_notes_of_the_steps_before(tmp_path: Path) -> None:
    whole, half, rest = (problem(efvfl(TopK(0.2)), batch_size=16) for _ in range(3))
    [expected] = whole.fit(1, note_every=1)

    def stop() -> None:
        if half.server.step_number == 2 and half.driver.between_steps:
            checkpoint.save(tmp_path / "c", half.state_dict())
            raise KeyboardInterrupt

    half.driver.pause = stop
    with pytest.raises(KeyboardInterrupt):
        half.fit(1, note_every=1)
    rest.load_state_dict(checkpoint.load(tmp_path / "c"))
    [record] = rest.fit(1, note_every=1)
    assert record.steps == expected.steps
    assert record.steps["step"][:2] == [1, 2]


def test_a_block_that_is_not_sent_has_no_number() -> None:
    found = joined([{"step": [1.0], "lost up a": [2.0]}, {}, {"step": [2.0], "lost up b": [3.0]}])
    assert found["step"] == [1.0, 2.0]
    assert [found["lost up a"][0], found["lost up b"][1]] == [2.0, 3.0]
    assert math.isnan(found["lost up a"][1])
    assert math.isnan(found["lost up b"][0])
