"""The driver over a transport, and the contract of the transport within one process."""

import math

import pytest
from problems import everything, problem, same

from efvfl import QSGD, Agreement, TopK, cvfl, efvfl
from efvfl.compress import Identity
from efvfl.errors import ProtocolError
from efvfl.training.driver import Driver
from efvfl.training.record import Observation
from efvfl.training.schedule import Schedule
from efvfl.training.transport import LocalTransport
from efvfl.wire.message import Kind


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


@pytest.mark.parametrize("start", ["compressed", "exact"])
def test_the_papers_bits_are_those_the_parties_count(start: str) -> None:
    for method in (efvfl(TopK(0.2), start=start), cvfl(QSGD(4)), efvfl(Identity())):  # type: ignore[arg-type]
        run = problem(method, batch_size=25, batch_order="independent")
        record = run.fit(4)[-1]
        assert record.paper_bits == sum(party.up.paper_bits for party in run.parties.values()) > 0
