"""Reports that come late: what both ends agree to, and what they refuse."""

from typing import Any

import pytest
import torch
from problems import everything, memories, problem, same

from efvfl import Agreement, Federation, Quorum, SharedLabels, TopK, efvfl
from efvfl.core.channel import send_exactly
from efvfl.errors import ConfigError, ProtocolError
from efvfl.training.arrivals import Arrivals, Enough, load_arrivals
from efvfl.training.simulated_clock import SimulatedClock
from efvfl.wire.message import Kind, Message

SPEEDS = {"party1": 1.0, "party2": 1.0, "party3": 5.0}


def asynchronous(quorum: Quorum | None = None, **options: Any) -> Federation:
    agreement = options.pop("agreement", None) or Agreement(asynchronous=quorum or Quorum(reports=2, most_stale=6))
    return problem(efvfl(TopK(0.2)), agreement=agreement, batch_size=16, **{"report_seconds": SPEEDS} | options)


def late(step: int, rows: int = 16, block: int = 1) -> Message:
    return Message(Kind.LATE, step, {block: send_exactly(torch.zeros(rows, 4, dtype=torch.float64))})


def test_a_party_learns_from_its_own_batch_and_continues_where_it_is_told() -> None:
    party = asynchronous().parties["party1"]
    reported: list[int] = []
    party.may_report = reported.append
    party.handle(Message(Kind.BEGIN, 0))
    reply = party.handle(late(5))
    assert (reply.kind, reply.step, party.step, len(party.open)) == (Kind.REPORT, 5, 5, 1)
    assert party.handle(late(5)) == reply, "one that comes twice gets the same reply"
    ready = party.handle(Message(Kind.LATE, 9, late(9).packets, hold=True))
    assert (ready.kind, ready.step, party.step, len(party.open)) == (Kind.READY, 9, 9, 0)
    assert reported == [0, 5], "no step twice, and none that was skipped"


@pytest.mark.attack(
    by="the label holder",
    tries="calls a report late to have a party report twice on a step, or skip more steps than were agreed on",
    outcome="the party refuses, and nothing changes",
)
@pytest.mark.parametrize("step", [0, 1, 8, 1 << 40])
def test_a_party_refuses_to_skip_more_than_was_agreed_or_to_report_twice(step: int) -> None:
    party = asynchronous().parties["party1"]
    party.handle(Message(Kind.BEGIN, 0))
    before = party.state_dict()
    with pytest.raises(ProtocolError, match=r"expected LATE to a step from 2 to 7, .* most_stale is 6, got one to"):
        party.handle(late(step))
    assert str(party.state_dict()) == str(before)


@pytest.mark.parametrize(("block", "rows"), [(2, 16), (1, 15)])
def test_an_answer_of_another_form_is_refused_and_nothing_changes(block: int, rows: int) -> None:
    party = asynchronous().parties["party1"]
    party.handle(Message(Kind.BEGIN, 0))
    before = party.block.vector()
    with pytest.raises(ProtocolError, match=r"expected (block 1 alone|shape)"):
        party.handle(late(3, rows, block))
    assert torch.equal(party.block.vector(), before)
    assert (party.step, party.reporting) == (0, True)


def test_nobody_is_late_where_that_was_not_agreed_on() -> None:
    party = problem(efvfl(TopK(0.2)), batch_size=16).parties["party1"]
    party.handle(Message(Kind.BEGIN, 0))
    with pytest.raises(ProtocolError, match="the participants have not agreed on a quorum, got one to 3"):
        party.handle(late(3))
    agreed = asynchronous().parties["party1"]
    with pytest.raises(ProtocolError, match="as no report is open, got one to 3"):
        agreed.handle(late(3))


@pytest.mark.attack(
    by="a party",
    tries="reports on another step than the one it was asked for, because it is late",
    outcome="the report is refused as soon as it is here; nothing is absorbed",
)
def test_the_server_wants_a_report_on_the_step_that_the_party_was_asked_for() -> None:
    run = asynchronous()
    for _ in range(2):
        run.step()
    server = run.server
    assert server.attendance.late == {"party3": 0}
    packets = run.parties["party3"].open.replies[-1][2].packets
    asked = Message(Kind.BEGIN, 0)
    server.check("party3", Message(Kind.REPORT, 0, packets), asked)
    for step in (1, server.step_number):
        with pytest.raises(
            ProtocolError, match=f"party3: expected REPORT on step 0 with block 3, got REPORT .* {step}"
        ):
            server.check("party3", Message(Kind.REPORT, step, packets), asked)
    with pytest.raises(ProtocolError, match=r"expected reports of .*, got those of \['party3'\]"):
        server.respond({"party3": Message(Kind.REPORT, 0, packets)})


@pytest.mark.parametrize("labels", ["private", SharedLabels(downlink="aggregate")])
def test_a_run_goes_on_from_any_step_and_from_what_was_recorded(labels: Any) -> None:
    agreement = Agreement(labels, asynchronous=Quorum(reports=2, most_stale=6))
    run, other = (asynchronous(agreement=agreement) for _ in "ab")
    for _ in range(6):
        run.step()
    assert run.server.attendance.late, "somebody is late at this moment"
    other.load_state_dict(run.state_dict())
    for each in (run, other):
        each.fit(5, observe_every=5)
    assert same(everything(run), everything(other))
    assert run.arrivals == other.arrivals
    assert all(torch.equal(a, b) for a, b in memories(run))
    again = asynchronous(agreement=agreement, report_seconds=None, arrivals=run.arrivals)
    records = again.fit(5, observe_every=5)
    assert same(everything(run), everything(again)), "the record alone decides, whatever the speeds"
    assert "simulated_seconds" not in records[-1].to_json()
    assert '"simulated_seconds"' in run.record().to_json()


def test_before_a_record_all_are_waited_for() -> None:
    run = asynchronous()
    records = run.fit(4)
    per_epoch = run.server.batches.per_epoch
    assert [len(run.arrivals[per_epoch * epoch - 1]) for epoch in (1, 2, 3, 4)] == [3] * 4
    assert [record.simulated_seconds for record in records] == [5.0, 10.0, 15.0, 20.0]
    assert not run.server.attendance.late


def test_a_record_of_another_run_is_refused(tmp_path: Any) -> None:
    run = asynchronous()
    run.fit(4, observe_every=4)
    run.driver.arrivals.save(tmp_path)
    read = load_arrivals(tmp_path)
    assert [tuple(names) for names in read] == run.arrivals
    with pytest.raises(ConfigError, match=r"expected reports of all 3 parties at step 3, .* observe_every"):
        asynchronous(arrivals=read).fit(4)
    short = asynchronous(arrivals=[*read[:7], ["party1", "party2", "party3"]])
    assert short.fit(4, observe_every=4)[-1].step == 8, "a run that was ended early ends there again"
    with pytest.raises(ConfigError, match=r"expected names of the parties .*, got 'nobody'"):
        asynchronous(arrivals=[["nobody"]])
    (tmp_path / "arrivals.jsonl").write_text('{"step": 1, "reports": {}}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="expected a line for every step from 0 on"):
        load_arrivals(tmp_path)
    (tmp_path / "arrivals.jsonl").write_text("[]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot read who reported when"):
        load_arrivals(tmp_path / "arrivals.jsonl")
    with pytest.raises(ConfigError, match=r"report_seconds: expected names of the parties"):
        asynchronous(report_seconds={"nobody": 2.0})
    with pytest.raises(ConfigError, match=r"report_seconds: expected 0 or more for 'party1' at step 0, got -1"):
        asynchronous(report_seconds=lambda name, step: -1.0).step()
    with pytest.raises(ConfigError, match=r"asynchronous: expected Quorum\(\.\.\.\), got 3"):
        Agreement(asynchronous=3)  # type: ignore[arg-type]


def test_what_is_enough() -> None:
    three = {"a", "b", "c"}
    two = Enough(Quorum(reports=2, deadline_seconds=5.0), frozenset({"a"}))
    assert not two.met({"b", "c"}, three, 99.0), "this one is waited for in any case"
    assert two.met({"a", "b"}, three, 0.0)
    assert not two.met({"a"}, three, 4.9)
    assert two.met({"a"}, three, 5.0)
    assert not Enough(Quorum(deadline_seconds=5.0), frozenset()).met(set(), three, 99.0), "one must be there"
    planned = Enough(Quorum(reports=1), frozenset(), frozenset({"b"}))
    assert not planned.met({"a", "c"}, three, 99.0)
    assert planned.taken(three) == {"b"}


def test_the_clock_of_a_pipeline_and_the_arrivals_of_nobody() -> None:
    clock = SimulatedClock(lambda name, step: 1.0 + step)
    assert [clock.arrival("a", step) for step in (0, 1)] == [1.0, 3.0], "one thing after another"
    piped = problem(efvfl(TopK(0.2)), agreement=Agreement(pipeline=2), report_seconds={"party3": 4.0}, batch_size=16)
    records = piped.fit(1)
    assert records[-1].simulated_seconds == 16.0, "what is slowest sets the pace"
    assert piped.arrivals == []
    assert Arrivals(["a"]).reports() == []
