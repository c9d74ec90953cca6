"""Every step, not only every epoch: the batch, what is sent of each block, and records between two steps."""

from typing import Any

import pytest
import torch
from problems import everything, problem, same

from efvfl import QSGD, Agreement, Callback, Federation, Record, SharedLabels, TopK, cvfl, efvfl
from efvfl.core.memories import EF14, Decay, EControl, Memory, Momentum
from efvfl.training.callbacks import Sending, TrainingStep


class Sent(Callback):
    def __init__(self) -> None:
        self.seen: list[Sending] = []
        self.rows: list[Any] = []

    def on_sent(self, sending: Sending) -> None:
        self.seen.append(sending)

    def on_step(self, step: TrainingStep) -> None:
        self.rows.append(step.rows)


def test_every_block_that_is_sent_is_told_with_what_was_lost() -> None:
    watched, plain = (problem(efvfl(TopK(0.5), down=QSGD(4)), batch_size=16) for _ in range(2))
    sent = Sent()
    records = watched.fit(2, callbacks=[sent])
    assert [r.train for r in records] == [r.train for r in plain.fit(2)]
    assert same(everything(watched), everything(plain))
    assert len(sent.seen) == 8 * 3 * 2
    assert {(s.step, s.block, s.direction) for s in sent.seen} == {
        (t, name, way) for t in range(8) for name in watched.parties for way in ("up", "down")
    }
    for sending in sent.seen:
        assert 0 <= sending.lost <= sending.residual
        if sending.direction == "up":
            assert 0.5 <= sending.contraction <= 1  # what top-k of a half guarantees
    of_one = sum(s.bytes for s in sent.seen if s.direction == "up" and s.block == "party2")
    ledger = watched.ledger.table()["up"]["party2"]["report"]
    assert 0.5 * ledger < of_one < ledger  # the rest are headers
    more = len(sent.seen)
    watched.fit(3)
    assert len(sent.seen) == more  # who is not asked again is not told


def test_the_residual_of_a_step_is_what_was_to_be_sent() -> None:
    """Direct compression sends h itself: the first report is on the representations before training."""
    federation, sent = problem(cvfl(TopK(0.5))), Sent()
    h = federation.represent("train")["party1"]
    federation.fit(1, callbacks=[sent])
    [first] = [s for s in sent.seen if (s.step, s.block, s.direction) == (0, "party1", "up")]
    assert first.residual == pytest.approx(float(h.square().sum()))
    kept = h.reshape(-1).abs().sort(descending=True).values[: h.numel() // 2]
    assert first.lost == pytest.approx(float(h.square().sum() - kept.square().sum()))


def test_a_compressed_fusion_model_is_block_0() -> None:
    federation, sent = problem(efvfl(TopK(0.5)), agreement=Agreement(SharedLabels(fusion="compress"))), Sent()
    federation.fit(2, callbacks=[sent])
    of_fusion = [s for s in sent.seen if s.block == "block 0"]
    assert [s.step for s in of_fusion] == [0, 1]
    assert of_fusion[0].residual > of_fusion[0].lost > 0


def test_a_step_says_which_rows_its_batch_had() -> None:
    federation, sent = problem(batch_size=16), Sent()
    federation.fit(1, callbacks=[sent])
    assert torch.equal(torch.cat(sent.rows).sort().values, torch.arange(60))
    full = Sent()
    problem().fit(1, callbacks=[full])
    assert full.rows == [slice(None)]


def test_records_between_any_two_steps_change_nothing() -> None:
    class EverySecond(Callback):
        def __init__(self, federation: Federation) -> None:
            self.federation = federation
            self.records: list[Record] = []

        def on_step(self, step: TrainingStep) -> None:
            if step.number % 2 == 0:
                self.records.append(self.federation.record())

    watched, plain = (problem(efvfl(TopK(0.5), down=QSGD(4)), batch_size=16) for _ in range(2))
    seen = EverySecond(watched)
    last = watched.fit(2, callbacks=[seen])[-1]
    assert same(everything(watched), everything(plain)) is False
    plain.fit(2)
    assert same(everything(watched), everything(plain))
    assert [record.step for record in seen.records] == [2, 4, 6, 8]
    assert seen.records[-1].train == last.train
    assert seen.records[0].distortion > 0


@pytest.mark.parametrize("memory", [Momentum(), EF14(), EControl(), Decay()])
def test_a_memory_with_a_state_of_its_own_is_not_disturbed_by_records_and_callbacks(memory: Memory) -> None:
    watched, plain = (problem(efvfl(TopK(0.3), memory=memory), batch_size=16) for _ in range(2))
    watched.record()
    many = watched.fit(2, callbacks=[Sent()])
    few = plain.fit(2, observe_every=2, gradient=False)
    assert same(everything(watched), everything(plain))
    assert many[-1].bytes_up >= few[-1].bytes_up  # READY after the first record
    sides = [run.server.channels["party1"].memory.state_dict() for run in (watched, plain)]
    assert str(sides[0]) == str(sides[1])
