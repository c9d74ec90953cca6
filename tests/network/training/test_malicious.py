"""Peers with valid certificates that deviate from the protocol: each deviation, and what must happen."""

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from malicious import (
    Change,
    FloodingServer,
    MaliciousParty,
    MaliciousServer,
    Stopped,
    StubbornParty,
    body,
    filled,
    nothing,
    played,
)
from meetings import (  # noqa: F401
    OTHER,
    TIMEOUTS,
    VICTIM,
    WAITING,
    Meeting,
    close_logs,
    holding,
    make_member,
    meeting,
    settings,
)

from efvfl.config.run_file import LimitConfig
from efvfl.errors import AbsentError, Interrupted, LimitError, ProtocolError
from efvfl.network.links.connections import Hooks
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.frame import Frame, FrameKind, json_frame
from efvfl.network.links.wire import memory_pair
from efvfl.network.training.party_process import PartyProcess
from efvfl.network.training.questions import CHUNK, QuestionHandler, read_held
from efvfl.wire.message import Kind, Message

WELCOME = json_frame(FrameKind.WELCOME, {"number": 0})


# A party that deviates once: it is refused by name, and when it behaves the run ends as if nothing had happened.


@dataclass(frozen=True)
class Wrong:
    kind: FrameKind  # what it was asked
    change: Change
    refused: str


PARTY = [
    pytest.param(
        Wrong(
            FrameKind.REQUEST, filled(3e38), r"top-left's surrogate: expected values of at most 1e\+12, got one of 3e"
        ),
        marks=pytest.mark.attack(
            by="a party",
            tries="reports 3e38 in every entry, so that sums and products are not finite",
            outcome="refused by name before anything is absorbed; the others go on",
        ),
        id="huge report",
    ),
    pytest.param(
        Wrong(
            FrameKind.REQUEST, filled(-1e13), r"top-left's surrogate: expected values of at most 1e\+12, got one of 1e"
        ),
        id="large report",
    ),
    pytest.param(
        Wrong(FrameKind.ASK, filled(3e38), "top-left's representations: expected values of at most"),
        marks=pytest.mark.attack(
            by="a party",
            tries="answers an evaluation with representations of 3e38",
            outcome="refused by name; the evaluation waits for the right ones",
        ),
        id="huge answer",
    ),
    pytest.param(
        Wrong(FrameKind.ASK, body(b"\x01\x1b[2J\x1b]0;done\x07ok\r"), r"rows that it holds: \?\[2J\?\]0;done\?ok\?$"),
        marks=pytest.mark.attack(
            by="a party",
            tries="puts terminal escape sequences into the text of an answer",
            outcome="control characters are replaced before the text is shown or sent",
        ),
        id="escape sequences",
    ),
]


@pytest.mark.parametrize("wrong", PARTY)
def test_a_party_that_deviates_is_refused_by_name(
    meeting: Meeting, wrong: Wrong, caplog: pytest.LogCaptureFixture
) -> None:
    party = MaliciousParty(meeting)
    party.deviate(wrong.kind, wrong.change, after=2 if wrong.kind == FrameKind.REQUEST else 0)
    text = party.refused()
    assert re.search(wrong.refused, text)
    assert f"refused {VICTIM}: {text}" in caplog.messages
    meeting.join(VICTIM)
    meeting.finish()


def test_large_values_that_pass_are_blamed_on_their_sender(tmp_path: Path) -> None:
    """Reports below the limit on values may still ruin a step: the error says whose they were."""
    server, members = Meeting(tmp_path).serving.server, {}
    for name in server.plan.names:
        members[name] = make_member(settings(), name, tmp_path / "other" / name).party
    reports = {name: members[name].handle(message) for name, message in server.begin().items()}
    head = next(server.fusion.head.parameters())
    with torch.no_grad():
        head.fill_(3e38)
    spoilt = Frame(FrameKind.REPLY, 0, 0, reports[OTHER].to_bytes())
    sent = filled(9e11)(spoilt)[0]
    assert isinstance(sent, Frame)
    with pytest.raises(ValueError, match=f"lower the learning rate. The largest value .* 9e.11, is one of {OTHER}"):
        server.respond(reports | {OTHER: Message.from_bytes(sent.body)})


# A party that is connected and does not answer as it should, for ever.


@contextmanager
def patient(folder: Path, on_missing: str, **times: float) -> Iterator[Meeting]:
    """A meeting whose server ends the test if it waits for too long."""
    made = Meeting(folder, settings(network={"on_missing": on_missing}))
    made.requests.timeouts = replace(TIMEOUTS, tick=0.01, stale=0.3, linger=0.0, **times)
    ends = time.monotonic() + 60

    def look() -> None:
        assert time.monotonic() < ends, f"the server waits for {made.requests.presence.missing_for()}"

    made.requests.hooks = Hooks(on_tick=look)
    try:
        yield made
    finally:
        made.requests.close()
        made.stop()


STUBBORN: list[Any] = [
    pytest.param(
        FrameKind.REQUEST,
        nothing,
        marks=pytest.mark.attack(
            by="a party",
            tries="stays connected, answers no request any more, and dials again when it is cut off",
            outcome="counts as missing after silent_seconds: 'stale' goes on without it, 'stop' ends",
        ),
        id="silent at requests",
    ),
    pytest.param(
        FrameKind.ASK,
        nothing,
        marks=pytest.mark.attack(
            by="a party",
            tries="stays connected and does not answer an evaluation",
            outcome="counts as missing after silent_seconds",
        ),
        id="silent at questions",
    ),
    pytest.param(
        FrameKind.REQUEST,
        body(b"junk"),
        marks=pytest.mark.attack(
            by="a party",
            tries="answers a request with junk at every connection, and dials again at once",
            outcome="counts as missing after silent_seconds, as if it had not answered",
        ),
        id="wrong at requests",
    ),
]


@pytest.mark.parametrize(("kind", "change"), STUBBORN)
def test_steps_go_on_without_a_party_that_does_not_answer(tmp_path: Path, kind: FrameKind, change: Change) -> None:
    with patient(tmp_path, "stale", silent=0.4) as made:
        party = StubbornParty(made, kind, change, after=2 if kind == FrameKind.REQUEST else 0)
        try:
            for name in made.requests.names:
                if name != VICTIM:
                    made.join(name)
            records = list(made.serving.train())
        finally:
            party.stop()
        assert made.serving.server.step_number == made.serving.steps
        if kind == FrameKind.REQUEST:  # else it takes part in steps, and nothing could be evaluated
            assert VICTIM in records[-1].absent
        else:
            assert [record.test for record in records] == [{}, {}]


@pytest.mark.parametrize(("kind", "change"), STUBBORN)
def test_a_server_that_stops_does_so_for_a_party_that_does_not_answer(
    tmp_path: Path, kind: FrameKind, change: Change
) -> None:
    with patient(tmp_path, "stop", silent=0.2, absent=0.4) as made:
        party = StubbornParty(made, kind, change, after=2 if kind == FrameKind.REQUEST else 0)
        try:
            for name in made.requests.names:
                if name != VICTIM:
                    made.join(name)
            with pytest.raises(AbsentError, match=f"{VICTIM} has been missing for .* on_missing is 'stop'"):
                list(made.serving.train())
        finally:
            party.stop()
        assert party.dials > 1  # it was cut off, and is back: that alone is no answer


def test_a_party_that_answers_in_time_is_never_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What counts is the time since its last answer, not all the time that it was waited for."""
    caplog.set_level(logging.INFO, "efvfl")
    with patient(tmp_path, "stale", silent=0.5) as made:
        respond = made.members[VICTIM].respond

        def slowly(frame: Frame) -> Frame | None:
            time.sleep(0.1)
            return respond(frame)

        made.members[VICTIM].respond = slowly  # type: ignore[method-assign]
        for name in made.requests.names:
            made.join(name)
        records = list(made.serving.train())
        assert not any(record.absent for record in records)
    assert not any("has not answered" in message for message in caplog.messages)


def test_with_wait_a_silent_party_is_shown_as_missing_and_waited_for(tmp_path: Path) -> None:
    with patient(tmp_path, "wait", silent=0.1) as made:
        made.start(*(name for name in made.requests.names if name != VICTIM))
        party = MaliciousParty(made)
        asked = party.play(FrameKind.REQUEST, after=2)
        ends = time.monotonic() + 30
        while VICTIM not in made.requests.presence.missing_for():
            assert time.monotonic() < ends
            time.sleep(0.01)
        party.send(party.answer(asked))  # the connection is still there
        assert party.receive().kind == FrameKind.REQUEST
        assert made.requests.presence.missing_for() == {}


# A server that asks for more than a party allows.


def later_rows(folder: Path, limits: LimitConfig | None = None) -> PartyProcess:
    """A party with a file of rows that were added later, of which the server knows nothing."""
    member, config = make_member(settings(), VICTIM, folder, limits), settings()
    held = holding(config, VICTIM, Path())
    new = {"new": held.columns["train"][:50] + 1}
    ids = {"new": [f"secret-{n}" for n in range(50)]}
    held = replace(held, columns={**held.columns, **new}, ids=held.ids | ids)
    member.represent = QuestionHandler(member.party, held, member.limits.train_rows)
    return member


def hold_begins(server: MaliciousServer) -> None:
    for step in range(40):
        server.begin(step, hold=True)
        server.cotangent(step, hold=True)


def hold_answers(server: MaliciousServer) -> None:
    for step in range(40):
        server.begin(step)
        server.cotangent(step, hold=True)


def plain(server: MaliciousServer) -> None:
    server.begin(0)
    for step in range(40):
        server.cotangent(step)


@pytest.mark.attack(
    by="the label holder",
    tries="asks for 40 reports by BEGIN with the hold bit, of a party with limits.steps = 5",
    outcome="the first BEGIN with it is refused; no way gives more than 5 reports",
)
@pytest.mark.parametrize(
    ("way", "error", "reports"),
    [
        (hold_begins, ProtocolError("top-left: expected BEGIN for step 0 without hold, got one with it."), 0),
        (hold_answers, LimitError("top-left takes part in 5 steps, as its own file says."), 5),
        (plain, LimitError("top-left takes part in 5 steps, as its own file says."), 5),
    ],
    ids=["hold on BEGIN", "hold on answers", "no hold"],
)
def test_a_limit_on_steps_cannot_be_bypassed(
    tmp_path: Path, way: Callable[[MaliciousServer], None], error: Exception, reports: int
) -> None:
    server = MaliciousServer(make_member(settings(), VICTIM, tmp_path, LimitConfig(steps=5)))
    with pytest.raises(type(error), match=re.escape(str(error))):
        way(server)
    assert server.reports == reports


def test_a_limit_on_steps_holds_for_a_return_too(tmp_path: Path) -> None:
    config = settings(network={"on_missing": "stale"})
    server = MaliciousServer(make_member(config, VICTIM, tmp_path, LimitConfig(steps=5)))
    with pytest.raises(LimitError, match="takes part in 5 steps"):
        server.request(Message(Kind.SYNC, 5))
    assert server.reports == 0


@dataclass(frozen=True)
class Scrape:
    table: dict[str, Any]  # the question
    text: str  # of the refusal
    counts: int  # how many rows it counts as


SERVER = [
    pytest.param(
        Scrape({"split": "new", "start": 0, "stop": 50}, "top-left gives no 'new' rows by their places", 1),
        marks=pytest.mark.attack(
            by="the label holder",
            tries="asks for the 50 rows of a party's later file by place, without knowing an id",
            outcome="refused, and counted; they are given by id only",
        ),
        id="later rows by place",
    ),
    pytest.param(
        Scrape({"split": "train", "start": 0, "stop": 200}, "limits.train_rows = true in its own file", 1),
        marks=pytest.mark.attack(
            by="the label holder",
            tries="asks for exact representations of all 200 training rows by place",
            outcome="refused unless the party's own file allows it, and counted",
        ),
        id="training rows by place",
    ),
]


@pytest.mark.parametrize("scrape", SERVER)
def test_a_server_does_not_get_rows_that_it_should_not(tmp_path: Path, scrape: Scrape) -> None:
    member = later_rows(tmp_path)
    answer = MaliciousServer(member).ask(scrape.table)
    assert answer[:1] == b"\x01"
    assert scrape.text in answer.decode()
    assert member.rows_given.value == scrape.counts


@pytest.mark.attack(
    by="the label holder",
    tries="tests 50 guessed ids, all right, beside 3 that the party does not hold",
    outcome="all 53 count: which ids a party holds can be told from which it lacks",
)
def test_an_id_that_a_party_lacks_counts_as_one_that_it_gives(tmp_path: Path) -> None:
    member = later_rows(tmp_path)
    answer = MaliciousServer(member).ask({"ids": ["nobody", *(f"secret-{n}" for n in range(50)), "x", "y"]})
    places, rows = read_held("top-left", answer, 53, member.party.up.width[0])
    assert places == [0, 51, 52]
    assert len(rows) == 50
    assert member.rows_given.value == 53
    answer = MaliciousServer(member).ask({"ids": [f"guess-{n}" for n in range(1000)]})
    assert read_held("top-left", answer, 1000, 4)[0] == list(range(1000))
    assert member.rows_given.value == 1053


def test_what_a_party_allows_is_given_and_counted(tmp_path: Path) -> None:
    member = later_rows(tmp_path, LimitConfig(train_rows=True))
    server = MaliciousServer(member)
    assert server.ask({"split": "test", "start": 0, "stop": 10})[:1] == b"\0"
    assert server.ask({"split": "validation", "start": 0, "stop": 10})[:1] == b"\0"
    assert member.rows_given.value == 0  # evaluation needs these after every epoch
    assert server.ask({"ids": ["secret-7", "train:3"]})[:1] == b"\0"
    assert member.rows_given.value == 2
    assert server.ask({"split": "train", "start": 0, "stop": 200})[:1] == b"\0"
    assert member.rows_given.value == 202


@pytest.mark.attack(
    by="the label holder",
    tries="puts a span of test rows, which do not count, and ids into one question",
    outcome="refused: a question is one or the other",
)
@pytest.mark.parametrize(
    "table",
    [
        {"split": "test", "ids": ["train:0"]},
        {"split": "nothing", "start": 0, "stop": 1, "ids": ["train:0"]},
        {"split": "nothing", "start": 0, "stop": 1, "ids": 5},
    ],
)
def test_a_question_is_a_span_or_a_list_of_ids(tmp_path: Path, table: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="expected a span of a split, a list of ids or columns"):
        MaliciousServer(later_rows(tmp_path)).ask(table)


@pytest.mark.attack(
    by="the label holder",
    tries="guesses 114,688 ids of a party that has set no limit",
    outcome="the party ends after 100,000, also over restarts: ten for each row it holds, 100,000 at least",
)
def test_without_a_limit_of_its_own_a_party_gives_a_bounded_number_of_rows(tmp_path: Path) -> None:
    member = later_rows(tmp_path)
    assert member.rows_allowed == 100_000
    server = MaliciousServer(member)
    for n in range(6):
        if n == 3:
            member.message_log.close()
            server = MaliciousServer(later_rows(tmp_path))  # its process was killed meanwhile
        server.ask({"ids": [f"{n}:{k}" for k in range(CHUNK)]})
    with pytest.raises(LimitError, match=r"114,688 rows are asked for in all, .* allows 100,000: to give more"):
        server.ask({"ids": [f"6:{k}" for k in range(CHUNK)]})


@pytest.mark.attack(
    by="the label holder",
    tries="sends WELCOME without end, so that the party never looks whether it is asked to stop",
    outcome="the party leaves at the next frame; after 9 it refuses the server",
)
def test_a_flood_of_welcomes_does_not_keep_a_party(tmp_path: Path) -> None:
    member = make_member(settings(), VICTIM, tmp_path)

    def stop(count: int) -> None:
        if count == 4:
            joining.stopping.set()

    flood = FloodingServer(WELCOME, 1000, stop)
    joining = Dialler(member, lambda: flood, WAITING)
    with pytest.raises(Interrupted):
        joining.run()
    assert flood.read == 4
    dials = iter([FloodingServer(WELCOME, 1000)])
    with pytest.raises(ProtocolError, match="a server does not send WELCOME here"):
        Dialler(member, lambda: next(dials), WAITING).run()


def test_a_few_copies_of_welcome_do_no_harm(tmp_path: Path) -> None:
    member = make_member(settings(), VICTIM, tmp_path)
    error, heard = played(member, *[WELCOME] * 8, Frame(FrameKind.REQUEST, 0, 0, b"junk"))
    assert not isinstance(error, Stopped)
    assert [frame.kind.name for frame in heard] == ["HELLO", "REFUSE"]
    assert "request 0 is not a message" in heard[-1].json()["text"]


def test_a_party_notices_that_it_is_to_stop_while_it_waits_for_welcome(tmp_path: Path) -> None:
    """The server takes the connection and says nothing."""
    member = make_member(settings(), VICTIM, tmp_path)
    near_wires = []

    def by() -> Any:
        near, far = memory_pair()
        near_wires.append(near)
        joining.stopping.set()
        return far

    joining = Dialler(member, by, replace(WAITING, welcome=30.0))
    with closing(member.message_log), pytest.raises(Interrupted):
        joining.run()
    assert len(near_wires) == 1
