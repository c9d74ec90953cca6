"""Guesses that are spread over many questions, salts or connections: all of them count, and soon there are no more."""

import json
import logging
import secrets
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from alignments import Meeting, config
from malicious_alignment import Holder

from efvfl.config.run_file import LimitConfig, PartyConfig, RunConfig
from efvfl.errors import EfvflError, LimitError, ProtocolError
from efvfl.network.align.delivery import Delivery, PartyList, RowSplits
from efvfl.network.align.messages import SALT, AlignmentKind, PlacesPart, write, write_place_answer
from efvfl.network.align.party import AlignmentParty
from efvfl.network.links.frame import Frame, FrameKind

HELD = [f"{i:04d}" for i in range(0, 600, 20)]  # 30 ids


def party(folder: Path, chosen: RunConfig, ids: list[str] | None = None) -> AlignmentParty:
    return AlignmentParty(chosen, "north", HELD if ids is None else ids, folder, 1)


def with_rows(rows: int, align: str = "psi") -> RunConfig:
    return replace(config("north", align=align), party=(PartyConfig("north", limits=LimitConfig(rows=rows)),))


def enumerate_all(north: AlignmentParty) -> set[str]:
    """Test 600 ids, 30 at a time, each under a salt of its own; return what was found."""
    found: set[str] = set()
    try:
        for start in range(0, 600, 30):
            holder = Holder(north, [f"{i:04d}" for i in range(start, start + 30)])
            holder.size()
            found |= set(holder.matches())
    except LimitError as error:
        assert "limits.rows of north allows 117, the default for 3 alignments" in str(error)  # noqa: PT017
    return found


# One honest alignment with 30 ids counts 30, 8 decoys and a list: 39.


@pytest.mark.attack(
    by="the label holder",
    tries="tests 600 ids under 20 salts, 30 each, as announced or as first told; limits.rows is left out",
    outcome="all count together: after three alignments' worth the party stops with an error (before: all found)",
)
@pytest.mark.parametrize("announced", [30, 0])
def test_a_new_salt_is_no_new_allowance(tmp_path: Path, announced: int) -> None:
    chosen = config("north", ids=announced)
    assert len(enumerate_all(party(tmp_path, chosen))) <= 3 * 2
    assert enumerate_all(party(tmp_path, chosen)) == set()  # it was started again, and has not forgotten


@pytest.mark.attack(
    by="the label holder",
    tries="first says that it brings 30 ids, then asks about 600 under another salt, which nobody announced",
    outcome="the party refuses before it sends a point: the size that was first counted decides",
)
def test_a_size_that_grows_is_no_new_allowance(tmp_path: Path) -> None:
    north = party(tmp_path, config("north"))
    Holder(north, HELD).matches()
    greedy = Holder(party(tmp_path, config("north")), [f"{i:04d}" for i in range(600)])
    with pytest.raises(LimitError, match=r"tests 668 ids in total, but limits\.rows of north allows 117"):
        greedy.matches()
    assert greedy.heard == b""


@pytest.mark.parametrize("align", ["psi", "hash", "none"])
def test_three_honest_alignments_are_within_the_default(tmp_path: Path, align: str) -> None:
    chosen = config("north", align=align, ids=len(HELD))
    for _ in range(3):
        with Meeting(tmp_path, chosen, {"": HELD, "north": HELD}) as meeting:
            assert meeting.run().ids == HELD
            assert meeting.wait("north") is None
    with Meeting(tmp_path, chosen, {"": HELD, "north": HELD}) as meeting:
        meeting.run_until_ended("north")
        assert isinstance(meeting.wait("north"), LimitError)


def test_a_limit_of_0_counts_without_a_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "efvfl")
    north = party(tmp_path, with_rows(0))
    for _ in range(5):
        assert set(Holder(north, HELD).matches()) == set(HELD)
    assert json.loads((tmp_path / "align.json").read_text())["tested"] == 5 * 38
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "has now tested" in text] == [
        f"the label holder has now tested {n * 38} points of any number: limits.rows is 0." for n in range(1, 6)
    ]


def test_every_new_salt_is_logged_with_the_total(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "efvfl")
    north = party(tmp_path, config("north", ids=30))
    for _ in range(2):
        holder = Holder(north, HELD)
        places = holder.matches()
        assert holder.send_list(HELD, sorted(places.values()))
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "has now tested" in text] == [
        "the label holder has now tested 38 points of the 117 that limits.rows allows.",
        "the label holder has now tested 77 points of the 117 that limits.rows allows.",
    ]


@pytest.mark.attack(
    by="the label holder",
    tries="guesses the id at one place again and again: a part under another salt between two guesses",
    outcome="one list for each salt: the second guess is refused (before: a guess for each round trip)",
)
@pytest.mark.parametrize("align", ["psi", "hash"])
def test_a_salt_gives_one_test_of_a_list(tmp_path: Path, align: str) -> None:
    holder = Holder(party(tmp_path, with_rows(0, align)), ["x-1"])
    if align == "psi":
        holder.matches()
    else:
        holder.ask(write(AlignmentKind.DIGESTS, holder.salt, 0))
    first = holder.places(["guess-1"], [(0, 0)]).to_bytes()
    answer = holder.ask(first)
    assert holder.ask(first) == answer
    assert holder.ask(holder.places(["guess-2"], [(0, 0)]).to_bytes()) == answer  # of the first guess: it tells nothing
    assert holder.ask(first) == answer
    between = PlacesPart(secrets.token_bytes(SALT), holder.challenge.point, 1, 0, [])
    assert holder.ask(between.to_bytes()) == write(AlignmentKind.ROWS, 0)
    for question in (holder.places(["guess-3"], [(0, 0)]).to_bytes(), first):
        with pytest.raises(ProtocolError, match="expected one list for each salt, got a second one"):
            holder.ask(question)


def test_a_party_that_was_started_again_in_the_middle_tests_the_list_again(tmp_path: Path) -> None:
    holder = Holder(party(tmp_path, config("north")), HELD)
    places = sorted(holder.matches().values())
    assert holder.send_list(HELD, places)
    holder.party = party(tmp_path, config("north"))
    assert holder.send_splits(30) == 0
    assert holder.send_list(HELD, places)
    assert holder.send_splits(30) == 30


# align = "none": a party that guesses the label holder's list.


def attempt(meeting: Meeting, folder: Path, ids: list[str]) -> tuple[str, bytes]:
    """Join once with these ids; return how it ended, and the challenge that was answered."""
    north, challenge = party(folder, with_rows(0, "none"), ids), b""
    wire = meeting.dial("north")
    wire.send(north.hello().to_bytes())
    try:
        while True:
            frame = Frame.from_bytes(wire.receive(5))
            if frame.kind == FrameKind.REFUSE:
                return str(frame.json()["text"]), challenge
            if frame.kind == FrameKind.ASK:
                if frame.body[0] == AlignmentKind.SPLITS:
                    return "splits", challenge
                if frame.body[0] == AlignmentKind.ROWS:
                    challenge = frame.body
                wire.send(north.respond(frame).to_bytes())
    finally:
        wire.close()
        north.close()


def guess(folder: Path, guesses: list[str]) -> tuple[list[tuple[str, bytes]], EfvflError | None]:
    """Join with one list after the other while the label holder runs; return how each ended, and the label holder."""
    ended: list[EfvflError] = []
    with Meeting(folder, config("north", align="none"), {"": [*HELD, "7391"], "north": []}) as meeting:
        server = meeting.server = meeting.serve()

        def run() -> None:
            try:
                server.run()
            except EfvflError as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            seen = [attempt(meeting, folder / "north", [*HELD, last]) for last in guesses]
            if seen[-1][0] != "splits":
                thread.join(10)
        finally:
            server.requests.stopping.set()
            thread.join(10)
    return seen, ended[0] if ended else None


@pytest.mark.attack(
    by="a party",
    tries="align = 'none': dials again and again, each time with another guess of one id of the label holder",
    outcome="every attempt has a new challenge, and the third wrong list ends the run with its name (before: no end)",
)
def test_the_third_wrong_list_ends_the_run(tmp_path: Path) -> None:
    seen, ended = guess(tmp_path, ["7388", "7389", "7390"])
    assert all("not the same ids in the same order" in text for text, _ in seen)
    assert len({challenge for _, challenge in seen}) == 3
    assert isinstance(ended, ProtocolError)
    assert "expected the same ids in the same order from north, got 3 lists that differ" in str(ended)


def test_a_party_that_mends_its_table_is_welcome(tmp_path: Path) -> None:
    seen, _ = guess(tmp_path, ["7388", "7389", "7391"])
    assert [text for text, _ in seen][2] == "splits"


# What is left behind by a table that has changed, or by a response that is refused.


@pytest.mark.attack(
    by="a disk",
    tries="has an order of points for 30 ids where the table has lost one since, or a flipped bit in it",
    outcome="refused as a place without an id (a traceback before)",
)
@pytest.mark.parametrize("flipped", [False, True])
def test_an_order_that_points_past_the_table_is_refused(tmp_path: Path, flipped: bool) -> None:
    holder = Holder(party(tmp_path, config("north")), HELD)
    place = holder.matches()[HELD[-1]]
    if flipped:
        (path,) = (tmp_path / "align-orders").iterdir()
        order = bytearray(path.read_bytes())
        order[4 * place[1] + 2] ^= 0x10
        path.write_bytes(order)
    holder.party = party(tmp_path, config("north"), HELD if flipped else HELD[:-1])
    with pytest.raises(ProtocolError, match="has places where north has no id"):
        holder.send_list([HELD[-1]], [place])


@pytest.mark.attack(
    by="a party",
    tries="responds to the test of the list with a point of small order, then starts again and is honest",
    outcome="the response is refused and changes nothing: the delivery is finished",
)
def test_a_refused_response_leaves_the_delivery_as_it_was(tmp_path: Path) -> None:
    holder = Holder(party(tmp_path, config("north")), HELD)
    places = holder.matches()
    listed = PartyList(HELD, np.array(list(places.values())), [RowSplits(bytes(30))])
    delivery = Delivery("north", listed, 1, holder.salt)
    question = delivery.question()
    with pytest.raises(ProtocolError, match="expected points of the curve's large subgroup"):
        delivery.take(write_place_answer(30, (bytes(32), bytes(16))))
    assert delivery.question() == question
    while not delivery.done:
        delivery.take(holder.ask(delivery.question()))
    assert delivery.same
