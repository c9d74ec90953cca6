"""Participants of an alignment that deviate: what must happen, and that no id reaches anybody who does not hold it."""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from alignments import Meeting, config, leaks
from malicious_alignment import (
    Answer,
    Holder,
    deviating,
    false_response,
    neighbours,
    on_points,
    one_point,
    own_rewritten,
    own_twice,
    small_order,
    swapped,
    too_many,
)

from efvfl.config.run_file import LimitConfig, PartyConfig, RunConfig
from efvfl.errors import ConfigError, LimitError, ProtocolError, RefusedError
from efvfl.network.align import psi, sizes
from efvfl.network.align.messages import POINT, AlignmentKind, write
from efvfl.network.align.party import AlignmentParty
from efvfl.network.links.frame import Frame, FrameKind

COUNT = 100  # ids of each, of which half are shared


def ids_of() -> dict[str, list[str]]:
    common = [f"both-{i:05d}" for i in range(COUNT // 2)]
    return {
        "": common + [f"holder-{i:05d}" for i in range(COUNT // 2)],
        "north": common + [f"north-{i:05d}" for i in range(COUNT // 2)],
    }


def asked_kinds(heard: list[bytes]) -> set[AlignmentKind]:
    frames = [Frame.from_bytes(data) for data in heard]
    return {AlignmentKind(frame.body[0]) for frame in frames if frame.kind == FrameKind.ASK}


# A party that deviates. It is refused by a text, or ends the alignment; in no case is there a list.

TWICE = "expected every point once in an answer of north, got one twice"
MADE_UP = "north claims to hold an id that was made up here at random"
ANOTHER = "expected north to hold the shared rows that its answers point to, got another list"
DEVIATIONS: dict[str, tuple[AlignmentKind, Answer, str, bool]] = {  # with what is said, and whether all is over
    # Once in about 150 times no decoy stands before a shared id: then the test of the list finds it.
    "neighbours": (AlignmentKind.BLINDED, on_points(COUNT, neighbours), f"{MADE_UP}|{ANOTHER}", True),
    "one point": (AlignmentKind.BLINDED, on_points(COUNT, one_point), TWICE, False),
    "own twice": (AlignmentKind.BLINDED, on_points(COUNT, own_twice), TWICE, False),
    "own twice in other bytes": (AlignmentKind.BLINDED, on_points(COUNT, own_rewritten), TWICE, True),
    "too many": (AlignmentKind.BLINDED, on_points(COUNT, too_many), "expected 100 points, .* got 102", False),
    "small order": (AlignmentKind.BLINDED, on_points(COUNT, small_order), "north sent .* cannot be matched", True),
    "false response": (AlignmentKind.ROWS, false_response, ANOTHER, True),
}


@pytest.mark.attack(
    by="a party",
    tries="answers with neighbours' points or with one, has points twice or too many, forges the last test",
    outcome="it is refused or the run ends with its name; it receives no id, and there is no list",
)
@pytest.mark.parametrize("what", DEVIATIONS)
def test_a_party_that_deviates_gets_no_id_and_no_list(tmp_path: Path, what: str) -> None:
    kind, change, text, over = DEVIATIONS[what]
    ids = ids_of()
    with Meeting(tmp_path, config("north"), ids) as meeting:
        meeting.kinds["north"] = deviating({kind: change})
        ended = meeting.run_until_ended("north")
        refused = None if over else meeting.wait("north")
        heard = meeting.heard["north"]
    if over:
        assert isinstance(ended, ProtocolError)
    else:
        assert isinstance(refused, RefusedError)
    assert re.search(text, str(ended if over else refused))
    assert leaks(heard, ids[""]) == []
    assert AlignmentKind.SPLITS not in asked_kinds(heard)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.attack(
    by="a party",
    tries="answers for 2 of 108 entries with each other's point, which misses the 8 decoys",
    outcome="the run ends with its name: its list is another; it has received places of its own, no id and no split",
)
def test_a_swap_that_misses_the_decoys_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi, "shuffled", lambda entries: entries)  # decoys are at the end
    ids = ids_of()
    with Meeting(tmp_path, config("north"), ids) as meeting:
        meeting.kinds["north"] = deviating({AlignmentKind.BLINDED: on_points(COUNT, swapped)})
        ended = meeting.run_until_ended("north")
        heard = meeting.heard["north"]
    assert re.search(ANOTHER, str(ended))
    assert leaks(heard, ids[""]) == []
    assert AlignmentKind.SPLITS not in asked_kinds(heard)
    assert not list(tmp_path.rglob("*.parquet"))


# Guesses: sizes are shown, and capped where the files announce them.


def announcing(holder: int, north: int, rows: int = 0) -> RunConfig:
    return replace(config("north", ids=holder), party=(PartyConfig("north", limits=LimitConfig(rows=rows), ids=north),))


@pytest.mark.attack(
    by="a party",
    tries="enumerates 10,000 four-digit ids where 300 were announced",
    outcome="refused before it receives a single point",
)
def test_a_party_that_enumerates_ids_is_refused(tmp_path: Path) -> None:
    ids = {"": [f"{i:04d}" for i in range(0, 9000, 30)], "north": [f"{i:04d}" for i in range(10_000)]}
    with Meeting(tmp_path, announcing(0, 300), ids) as meeting:
        meeting.run_until_ended("north")
        refused = meeting.wait("north")
        heard = meeting.heard["north"]
    assert "expected about 300 ids from north, as `ids` of [[party]] 'north' says, got 10,000" in str(refused)
    assert asked_kinds(heard) == {AlignmentKind.SIZE}


@pytest.mark.attack(
    by="the label holder",
    tries="enumerates 10,000 four-digit ids where 300 were announced, with and without saying so",
    outcome="the party refuses before it sends a single point",
)
def test_a_label_holder_that_enumerates_ids_is_refused(tmp_path: Path) -> None:
    party = AlignmentParty(announcing(300, 0), "north", ["0007", "0042"], tmp_path, 1)
    holder = Holder(party, [f"{i:04d}" for i in range(10_000)])
    text = "expected about 300 ids from the label holder, as data.ids says, got 10,000"
    with pytest.raises(ProtocolError, match=text):
        holder.size()
    points = (bytes((9,)) + bytes(31)) * 10_500
    with pytest.raises(ProtocolError, match=text):
        holder.ask(holder.question(points=points).to_bytes())
    with pytest.raises(ProtocolError, match=r"expected 315 points in each of 1 shards, .* got 10,500 in one of 1"):
        holder.ask(holder.question(points=points, count=300).to_bytes())
    with pytest.raises(ProtocolError, match="expected 315 points in each of 1 shards"):
        holder.ask(holder.question(points=points[: 315 * POINT], count=300, shards=33, shard=4).to_bytes())
    assert holder.heard == b""


def test_a_tenth_more_than_announced_is_no_harm() -> None:
    sizes.check(announcing(300, 0), "", 330)
    sizes.check(announcing(0, 9), "north", 9)
    with pytest.raises(ProtocolError, match="got 331"):
        sizes.check(announcing(300, 0), "", 331)


def test_the_label_holders_number_is_announced_in_one_place() -> None:
    chosen = replace(announcing(0, 5), label_holder="north")
    with pytest.raises(ConfigError, match=r"it is the label holder: announce its number as data\.ids"):
        sizes.all_announced(chosen)


def test_both_sides_see_the_sizes_before_anything_is_revealed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "efvfl")
    ids = {"": ["b-1", "b-2"], "north": [f"b-{i}" for i in range(21)]}
    with Meeting(tmp_path, config("north", validation=0.0, test=0.0), ids) as meeting:
        meeting.kinds["north"] = deviating({AlignmentKind.BLINDED: lambda answer: b""})  # so that there is no more
        meeting.run_until_ended("north")
    said = [record.getMessage() for record in caplog.records]
    assert "north brings 21 ids, you bring 2." in said
    assert "the label holder brings 2 ids, you bring 21." in said
    assert len([text for text in said if "may be guessing" in text]) == 2


# A label holder that deviates: a list with places that it cannot have learnt, or ids that it guesses.

HELD = [f"held-{i}" for i in range(20)]


def place_of(holder: Holder, name: str) -> tuple[int, int]:
    return holder.matches()[name]


def guessed_place(holder: Holder) -> None:
    """A place that it learnt nothing about, with an id that it guesses."""
    assert not holder.send_list(["held-77"], [(0, (place_of(holder, "held-3")[1] + 1) % 20)])
    holder.send_splits(1)


def known_place(holder: Holder) -> None:
    """The list is sent to confirm one guessed id, as a set of one: the party's answer must not tell."""
    assert not holder.send_list(["nobody"], [place_of(holder, "held-3")])
    holder.send_splits(1, confirmation=bytes(16))


def repeated_places(holder: Holder) -> None:
    place = place_of(holder, "held-3")
    holder.send_list(["held-3", "held-3"], [place, place])


def out_of_range(holder: Holder) -> None:
    place_of(holder, "held-3")
    holder.send_list(["held-3"], [(0, 20)])


def another_shard(holder: Holder) -> None:
    holder.send_list(["held-3"], [(1, place_of(holder, "held-3")[1])])


def another_salt(holder: Holder) -> None:
    place = place_of(holder, "held-3")
    holder.send_list(["held-3"], [place], salt=bytes(16))


def a_shard_twice(holder: Holder) -> None:
    holder.matches()
    holder.ids[0] = "another-guess"
    holder.matches()


def longer_list(holder: Holder) -> None:
    place = place_of(holder, "held-3")
    holder.send_list(["held-3"], [place])
    holder.send_splits(2)


def splits_first(holder: Holder) -> None:
    part = holder.places(["held-3", "held-4"], [place_of(holder, "held-3")])
    holder.ask(part.to_bytes())
    holder.send_splits(2)


def no_such_split(holder: Holder) -> None:
    assert holder.send_list(["held-3"], [place_of(holder, "held-3")])
    holder.send_splits(1, splits=b"\x03")


NOT_KNOWN = "expected the splits of the list that is held here, got those of another"
NO_ID = "the list of shared rows has places where north has no id"
HOLDERS: dict[str, tuple[Callable[[Holder], None], str]] = {
    "guessed place": (guessed_place, NOT_KNOWN),
    "known place, other id": (known_place, NOT_KNOWN),
    "repeated places": (repeated_places, "expected the places of shared rows in increasing order, each once"),
    "out of range": (out_of_range, NO_ID),
    "another shard": (another_shard, NO_ID),
    "another salt": (another_salt, NO_ID),
    "a shard twice": (a_shard_twice, "expected every shard once, got shard 0 twice"),
    "more splits than rows": (longer_list, "expected 1 splits, one for each row, got 2"),
    "splits before the list": (splits_first, NOT_KNOWN),
    "no such split": (no_such_split, "expected splits from 0 to 2, got 3"),
}


@pytest.mark.attack(
    by="the label holder",
    tries="sends guessed, repeated or impossible places, a false salt, a shard twice, splits of another list",
    outcome="the party refuses, writes no list, and has sent no id in any form",
)
@pytest.mark.parametrize("what", HOLDERS)
def test_a_label_holder_that_deviates_is_refused(tmp_path: Path, what: str) -> None:
    deviate, text = HOLDERS[what]
    party = AlignmentParty(config("north"), "north", HELD, tmp_path, 1)
    holder = Holder(party, ["held-3", "x-1", "x-2"])
    with pytest.raises(ProtocolError, match=text) as caught:
        deviate(holder)
    assert leaks([holder.heard, str(caught.value).encode()], HELD) == []
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.attack(
    by="the label holder",
    tries="tests 200 ids through the final list with limits.rows = 1",
    outcome="a list has no ids, and the test of a whole list counts: the second one is refused",
)
def test_the_final_list_is_no_way_around_the_limit(tmp_path: Path) -> None:
    chosen = replace(
        config("north", align="hash"), party=(PartyConfig("north", limits=LimitConfig(rows=len(HELD) + 1)),)
    )
    party = AlignmentParty(chosen, "north", HELD, tmp_path, 1)
    first, second = Holder(party, HELD), Holder(party, HELD)
    first.ask(write(AlignmentKind.DIGESTS, first.salt, 0))
    assert not first.send_list(["guess-1"], [(0, 4)])
    with pytest.raises(LimitError, match="tests 22 ids in total"):
        second.send_list(["guess-2"], [(0, 4)])


@pytest.mark.attack(
    by="the label holder",
    tries="asks for a list of one unknown place, to try guesses of its id against the answer at leisure",
    outcome="the answer depends on a fresh key: two answers to the same question have nothing in common",
)
def test_the_answer_to_a_list_is_nothing_to_try_guesses_against(tmp_path: Path) -> None:
    holder = Holder(AlignmentParty(config("north"), "north", HELD, tmp_path, 1), ["x-1"])
    holder.matches()
    question = holder.places(["guess"], [(0, 4)]).to_bytes()
    answers = [holder.ask(question)]
    holder.party = AlignmentParty(config("north"), "north", HELD, tmp_path, 1)  # the same ids and places, another life
    answers.append(holder.ask(question))
    assert answers[0][2:34] != answers[1][2:34]
    assert answers[0][34:] != answers[1][34:]
