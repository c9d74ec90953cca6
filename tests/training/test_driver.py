"""The driver over a transport, and the contract of the transport within one process."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from problems import everything, problem, same
from torch import Tensor

from efvfl import QSGD, Agreement, SharedLabels, TopK, cvfl, efvfl
from efvfl.compress import Compressor, Identity
from efvfl.core.absence import Attendance
from efvfl.core.channel import Channel
from efvfl.errors import ProtocolError
from efvfl.training.arrivals import Enough
from efvfl.training.driver import Driver
from efvfl.training.record import Observation
from efvfl.training.schedule import Schedule
from efvfl.training.transport import Handler, LocalTransport
from efvfl.wire.message import Kind, Message
from efvfl.wire.packet import Packet, number


def test_requests_are_collected_in_the_order_of_posting() -> None:
    run = problem(efvfl(TopK(0.2)), batch_size=16, agreement=Agreement(pipeline=True))
    transport = run.transport
    with pytest.raises(ProtocolError, match="no request is under way"):
        transport.collect()
    for ahead in (0, 1):
        transport.post(run.server.begin(ahead))
    assert [request.names for request in transport.under_way] == [frozenset(run.parties)] * 2
    assert not any(request.hold for request in transport.under_way)
    replies = transport.collect()
    assert {reply.kind for reply in replies.values()} == {Kind.REPORT}
    assert {reply.step for reply in replies.values()} == {0}
    transport.post(run.server.step(replies, hold=True))
    assert [request.hold for request in transport.under_way] == [False, True]
    assert {reply.step for reply in transport.collect().values()} == {1}
    assert {reply.kind for reply in transport.collect().values()} == {Kind.READY}
    assert not transport.under_way


def test_questions_change_nothing_and_are_answered_if_there_is_somebody_to_answer() -> None:
    run = problem(efvfl(TopK(0.2)))
    with pytest.raises(ProtocolError, match="answer no questions"):
        run.transport.ask({"party1": b"?"})
    asking = LocalTransport(run.parties, answer=lambda name, question: name.encode() + question)
    assert asking.ask({"party1": b"?", "party2": b"!"}) == {"party1": b"party1?", "party2": b"party2!"}


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_driver_without_an_observer_trains_the_same(pipeline: bool) -> None:
    watched, driven = (
        problem(efvfl(TopK(0.2)), batch_size=16, agreement=Agreement(pipeline=pipeline)) for _ in range(2)
    )
    expected = watched.fit(3, observe_every=2)
    schedule = Schedule(watched.server.batches.per_epoch, 3, 2, watched.window)
    pauses = []
    driver = Driver(driven.server, driven.transport, lambda: pauses.append(driver.reports))
    records = list(driver.run(schedule, Observation))
    assert same(everything(watched), everything(driven))
    for mine, other in zip(records, expected, strict=True):
        for name in ("epoch", "step", "surrogate_loss", "bytes_up", "bytes_down", "ledger", "paper_bits"):
            assert getattr(mine, name) == getattr(other, name), name
        assert math.isnan(mine.gradient)
        assert (mine.train, mine.absent) == ({}, {})
    assert driver.finished(schedule)
    assert max(pauses) == schedule.window  # it pauses while messages travel


class LosesTheReportsOf(LocalTransport):
    """Loses all reports on one step, as if everybody had gone."""

    def __init__(self, step: int, parties: Mapping[str, Handler]) -> None:
        super().__init__(parties)
        self.lost = step

    def collect(self, enough: Enough | None = None) -> dict[str, Message]:
        replies = super().collect()
        return {name: reply for name, reply in replies.items() if (reply.kind, reply.step) != (Kind.REPORT, self.lost)}


def test_an_epoch_whose_last_step_nobody_attended_has_its_record() -> None:
    run = problem(efvfl(TopK(0.2)), batch_size=16)
    run.server.attendance = Attendance(replace(run.server.plan, stale=True))
    steps = run.server.batches.per_epoch
    driver = Driver(run.server, LosesTheReportsOf(steps - 1, run.parties))
    (record,) = driver.run(Schedule(steps, 1, 1, run.window), Observation)
    assert (record.epoch, record.step) == (1, steps)
    assert record.absent == {name: [[steps - 1, steps - 1]] for name in run.parties}
    assert math.isfinite(record.surrogate_loss)  # of the steps before


@pytest.mark.parametrize("start", ["compressed", "exact"])
def test_the_papers_bits_are_those_of_all_that_parties_encode(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    encode = Channel._encode

    def counting(channel: Channel, compressor: Compressor, residual: Tensor, step: int) -> Packet:
        if channel.what.endswith("representation"):
            counted.append(compressor.paper_bits(tuple(residual.shape)))
        return encode(channel, compressor, residual, step)

    monkeypatch.setattr(Channel, "_encode", counting)
    for method in (efvfl(TopK(0.2), start=start), cvfl(QSGD(4)), efvfl(Identity())):  # type: ignore[arg-type]
        counted.clear()
        run = problem(method, batch_size=25, batch_order="independent")
        assert run.fit(4, gradient=False)[-1].paper_bits == sum(counted) > 0


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_what_several_parties_get_is_counted_once_beside_every_copy(labels: str) -> None:
    agreement = Agreement(labels=SharedLabels()) if labels == "shared" else Agreement()
    run = problem(efvfl(TopK(0.2), down=QSGD(4)), batch_size=16, agreement=agreement, label_holder="party3")
    post, expected = run.transport.post, [0]

    def counted(messages: Mapping[str, Message]) -> None:
        blocks = {
            (b, p.header() + p.body)
            for n, m in messages.items()
            if n != "party3"
            for b, g in m.packets.items()
            for p in g
        }
        expected[0] += sum(len(number(block)) + len(data) for block, data in blocks)
        expected[0] += sum(len(replace(m, packets={}).to_bytes()) for n, m in messages.items() if n != "party3")
        post(messages)

    run.transport.post = counted  # type: ignore[method-assign]
    [record] = run.fit(2, observe_every=2)
    assert record.bytes_down_once == expected[0]
    assert (record.bytes_down_once < 0.7 * record.bytes_down) == (labels == "shared")
    restored = problem(efvfl(TopK(0.2), down=QSGD(4)), batch_size=16, agreement=agreement, label_holder="party3")
    restored.load_state_dict(run.state_dict())
    assert restored.record().bytes_down_once == record.bytes_down_once
    state = run.driver.state_dict()
    del state["copies"]
    run.driver.load_state_dict(state)
    assert math.isnan(run.record().bytes_down_once), "what a record cannot know is NaN"
