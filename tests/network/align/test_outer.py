"""Alignment by the label holder's ids: each party finds its own rows among them, and hears of no other."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alignments import Meeting, config, leaks
from malicious_alignment import Holder, deviating, neighbours, on_points

from efvfl.config.run_file import RunConfig
from efvfl.data.tables.splits import SPLITS, split_of
from efvfl.errors import ConfigError, DataError, ProtocolError
from efvfl.network.align import messages
from efvfl.network.align.aligned_rows import Aligned, OuterPlaces
from efvfl.network.align.alignments import Alignments
from efvfl.network.align.list_targets import ListTargets
from efvfl.network.align.messages import AlignmentKind, EverybodyPart, NumbersPart, SplitsPart
from efvfl.network.align.party import AlignmentParty
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.wire.packet import Reader

NAMES = ("north", "south")
HOLDER = [f"customer-{i:03d}" for i in range(40)]
IDS = {
    "": HOLDER[::-1],
    "north": [*HOLDER[5:30], *(f"north-{i}" for i in range(9))],
    "south": [*(f"south-{i}" for i in range(9)), *HOLDER[20:36]],
}


def outer(private_seed: int = 7, **data: Any) -> RunConfig:
    chosen = config(*NAMES, align="outer", **data)
    unlimited = tuple(replace(party, limits=replace(party.limits, rows=0)) for party in chosen.party)
    return replace(chosen, private_seed=private_seed, party=unlimited)


def aligned(folder: Path, chosen: RunConfig, ids: Mapping[str, list[str]] = IDS, **options: Any) -> Meeting:
    """Align, and return what was heard; all parties must end well."""
    with Meeting(folder, chosen, ids, **options) as meeting:
        meeting.run()
        assert [meeting.wait(name) for name in NAMES] == [None, None]
    return meeting


def lists(folder: Path) -> dict[str, Aligned]:
    """The newest list of everybody, which has the same number at all."""
    found = {name: Alignments(folder / name) for name in ("server", *NAMES)}
    assert len({each.newest for each in found.values()}) == 1
    return {name: each.load(each.newest) for name, each in found.items()}


def rows(listed: Aligned) -> list[str | None]:
    """The ids of a list by row; None: not held there."""
    assert listed.outer
    own = iter(listed.ids)
    return [next(own) if held else None for held in listed.outer.held]


def check_lists(folder: Path, chosen: RunConfig, ids: Mapping[str, list[str]] = IDS) -> list[str]:
    """See that all lists are those of an outer join, computed in another way; return the rows."""
    found = lists(folder)
    server = found["server"]
    every = [one for one in rows(server) if one]
    has = {name: set(ids[name]) for name in NAMES}
    least = chosen.data.min_parties
    assert sorted(every) == sorted(one for one in ids[""] if sum(one in own for own in has.values()) >= least)
    places = split_of(every, chosen.seed, (chosen.data.validation, chosen.data.test))
    assert [i for split in SPLITS for i in places[split].tolist()] == list(range(len(every)))  # split by split
    for name in NAMES:
        assert rows(found[name]) == [one if one in has[name] else None for one in every]
        assert found[name].splits == bytes(server.splits[i] for i, one in enumerate(every) if one in has[name])
        mask = bytes(one in has[name] for one in every)
        assert found[name].outer == OuterPlaces(server.outer.totals, mask, {name: mask})  # type: ignore[union-attr]
        assert server.outer.masks[name] == mask  # type: ignore[union-attr]
    return every


@pytest.mark.parametrize("least", [1, 2])
def test_everybody_has_its_part_of_the_label_holders_list(tmp_path: Path, least: int) -> None:
    chosen = outer(min_parties=least)
    aligned(tmp_path, chosen)
    every = check_lists(tmp_path, chosen)
    assert len(every) == (31 if least == 1 else 10)  # nobody has columns of the other nine: the label holder has none
    aligned(tmp_path / "other", outer(8, min_parties=least))
    other = check_lists(tmp_path / "other", chosen)
    assert sorted(every) == sorted(other)
    assert every != other  # the order is the label holder's secret


def test_a_label_holder_with_columns_counts_as_one_that_has_the_row(tmp_path: Path) -> None:
    mine: Any = {"name": "mine"}
    for least, expected in ((1, 40), (2, 31), (3, 10)):
        chosen = replace(outer(min_parties=least), label_holder="mine")
        chosen = replace(chosen, party=(type(chosen.party[0])(**mine), *chosen.party))
        aligned(tmp_path / str(least), chosen)
        found = lists(tmp_path / str(least))["server"]
        assert len(found.ids) == expected
        assert found.outer
        assert found.outer.masks["mine"] == bytes([1]) * expected


def test_min_parties_that_no_row_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.min_parties: expected at most 2, the number of parties, got 3"):
        Meeting(tmp_path, outer(min_parties=3), IDS).serve()
    with pytest.raises(ConfigError, match=r"data.min_parties is set, but it would have no effect.*align = 'outer'"):
        config(*NAMES, min_parties=2)
    apart = IDS | {"south": HOLDER[30:]}
    with (
        Meeting(tmp_path, outer(min_parties=2), apart) as meeting,
        pytest.raises(DataError, match=r"expected rows that 2 parties have, as data.min_parties says, got none of 40"),
    ):
        meeting.run()


# Who hears what.


def heard_by(meeting: Meeting, name: str) -> list[tuple[AlignmentKind, Reader]]:
    """The questions that a party was asked, in order."""
    frames = [Frame.from_bytes(data) for data in meeting.heard[name]]
    return [messages.read_kind(frame.body) for frame in frames if frame.kind == FrameKind.ASK]


def test_a_party_hears_the_numbers_of_its_own_rows_and_nothing_of_other_parties(tmp_path: Path) -> None:
    """Another party that has quite other rows changes nothing of what it is told."""
    told = []
    for name, south in (("one", ["south-1"]), ("two", HOLDER[5:12])):
        meeting = aligned(tmp_path / name, outer(), IDS | {"south": [*HOLDER[:5], *HOLDER[30:], *south]})
        asked = heard_by(meeting, "north")
        kinds = [kind.name for kind, _ in asked]
        assert kinds == ["SIZE", "BLINDED", "ROWS", "NUMBERS"]
        part = NumbersPart.read(asked[-1][1], len(HOLDER))
        own = lists(tmp_path / name)["north"]
        assert own.outer
        assert part.rows == [rows(own).index(one) for one in sorted(own.ids)]
        told.append((part.totals, part.rows, [len(data) for data in meeting.heard["north"]]))
    assert told[0] == told[1]


def test_the_label_holder_hears_points_and_counts_and_nobody_an_id(tmp_path: Path) -> None:
    meeting = aligned(tmp_path, outer())
    frames = [Frame.from_bytes(data) for data in meeting.heard[""]]
    kinds = sorted(AlignmentKind(frame.body[0]).name for frame in frames if frame.kind == FrameKind.ANSWER)
    assert kinds == sorted(2 * ["SIZE", "BLINDED", "ROWS", "NUMBERS"])
    everything = sorted({one for ids in IDS.values() for one in ids})
    for received in meeting.heard.values():
        assert leaks(received, everything) == []


def test_with_shared_labels_all_hear_who_has_which_rows_and_the_labels(tmp_path: Path) -> None:
    chosen = replace(outer(), agreement=replace(outer().agreement, labels="shared"))
    with Meeting(tmp_path, chosen, IDS) as meeting:
        meeting.targets_of = lambda parts: ListTargets(
            [int(one[-1]) % 3 for ids in parts.values() for one in ids],
            [0.5 for ids in parts.values() for _ in ids],
            ("a", "b", "c"),
            "cross_entropy",
        )
        meeting.run()
        assert [meeting.wait(name) for name in NAMES] == [None, None]
        kinds = [kind.name for kind, _ in heard_by(meeting, "north")]
    assert kinds == ["SIZE", "BLINDED", "ROWS", "NUMBERS", "EVERYBODY"]
    found = lists(tmp_path)
    server = found["server"].outer
    assert server
    for name in NAMES:
        own = found[name].outer
        assert own
        assert (own.masks, own.targets, own.totals) == (server.masks, server.targets, server.totals)
        assert own.targets
        assert own.targets.names == ("a", "b", "c")
    everything = sorted({one for ids in IDS.values() for one in ids})
    for received in meeting.heard.values():
        assert leaks(received, everything) == []


# Again, in parts, and after ends that come too early.


def test_aligning_again_adds_rows_and_keeps_the_order_of_those_that_were_there(tmp_path: Path) -> None:
    first, more = {name: [one for one in ids if one != HOLDER[8]] for name, ids in IDS.items()}, IDS
    chosen = outer()
    for number, ids in ((1, first), (1, first), (2, more)):
        meeting = aligned(tmp_path, chosen, ids)
        assert meeting.server
        assert Alignments(tmp_path / "north").newest == meeting.server.number == number
        check_lists(tmp_path, chosen, ids)
    now, before = (rows(Alignments(tmp_path / "server").load(number)) for number in (2, 1))
    assert [one for one in now if one != HOLDER[8]] == before
    assert Alignments(tmp_path / "north").load(2).compared(Alignments(tmp_path / "north").load(1)) == (1, 0)


@pytest.mark.parametrize(("name", "at"), [("north", 5), ("north", 7), ("north", 10), ("", 14), ("", 22)])
def test_who_is_killed_starts_again_and_all_ends_well(
    tmp_path: Path, name: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "ROWS", 16)  # so the list comes in parts
    with Meeting(tmp_path, outer(), IDS, killed=(name, at)) as meeting:
        meeting.run()
        assert meeting.lives[name] == 2
        assert [meeting.wait(one) for one in NAMES] == [None, None]
    check_lists(tmp_path, outer())


# What cannot be, and who does not follow the protocol.


def test_a_party_that_shares_nothing_ends_it_for_all_and_is_named_to_the_label_holder_alone(tmp_path: Path) -> None:
    with Meeting(tmp_path, outer(), IDS | {"south": ["Customer-001", "customer-2"]}) as meeting:
        with pytest.raises(DataError, match="expected 'south' to have some of the label holder's 40 ids, got none"):
            meeting.run()
        assert [meeting.wait(name) for name in NAMES] == [None, None]
        reasons = {name: meeting.members[name].void for name in NAMES}
    assert reasons == {"north": messages.VoidReason.UNCUT, "south": messages.VoidReason.EMPTY}
    assert not any(Alignments(tmp_path / name).numbers() for name in ("server", *NAMES))


def test_a_party_without_a_training_row_is_named(tmp_path: Path) -> None:
    held = [HOLDER[i] for i in split_of(HOLDER, 5, (0.15, 0.15))["test"]]
    with (
        Meeting(tmp_path, outer(), IDS | {"south": held}) as meeting,
        pytest.raises(DataError, match=r"expected 'south' to have some of the \d+ training rows, got none"),
    ):
        meeting.run()


@pytest.mark.attack(
    by="a party",
    tries="answers, with align = 'outer', for every id of the label holder with the point of another",
    outcome="it claims to hold decoys; the run ends with its name before anything is sent",
)
def test_decoys_catch_a_party_that_claims_the_rows_of_another(tmp_path: Path) -> None:
    with Meeting(tmp_path, outer(), IDS | {"north": HOLDER}) as meeting:
        meeting.kinds["north"] = deviating({AlignmentKind.BLINDED: on_points(40, neighbours)})
        with pytest.raises(ProtocolError, match="north claims to hold an id that was made up here at random"):
            meeting.run()


def told(folder: Path, chosen: RunConfig | None = None) -> Holder:
    """A label holder that has sent a party the places of its rows, and has shown that it knows them."""
    party = AlignmentParty(chosen or outer(), "north", IDS["north"], folder, 1)
    holder = Holder(party, HOLDER)
    places = holder.matches()
    assert holder.send_list(sorted(places), sorted(places.values()))
    return holder


def numbers(holder: Holder, **changes: Any) -> bytes:
    part = NumbersPart(holder.salt, holder.challenge.confirmation, 1, (28, 6, 6), 0, list(range(25)))
    return replace(part, **changes).to_bytes()


@pytest.mark.attack(
    by="the label holder",
    tries="with align = 'outer' sends row numbers of its own invention, or of a list that it has not shown to hold",
    outcome="refused, and no list is kept",
)
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rows": [3] * 25}, "expected 25 numbers of rows, each once"),
        ({"rows": list(range(26))}, "expected 25 numbers of rows, each once"),
        ({"rows": [*range(24), 40]}, "expected a row's number from 0 to 39, got 40"),
        ({"totals": (41, 0, 0)}, "expected the rows of a split from 0 to 40, got 41"),
        ({"totals": (20, 20, 20)}, "expected a list of at most 40 rows, got one of 60"),
        ({"totals": (0, 0, 0), "rows": [0]}, "expected a list of at most 40 rows, got one of 0"),
        ({"confirmation": bytes(16)}, "the label holder sent places whose ids it does not know"),
    ],
)
def test_false_numbers_are_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    holder = told(tmp_path)
    with pytest.raises(ProtocolError, match=text):
        holder.ask(numbers(holder, **changes))
    assert not Alignments(tmp_path).numbers()
    holder.ask(numbers(holder))
    assert Alignments(tmp_path).load(1).ids == sorted(IDS["north"][:25])
    holder.party.close()


def test_a_party_is_told_only_what_its_own_file_says(tmp_path: Path) -> None:
    holder = told(tmp_path)
    head = (holder.salt, holder.challenge.confirmation, 1, 0)
    with pytest.raises(ProtocolError, match="expected a question for align = 'outer', got SPLITS"):
        holder.ask(SplitsPart(*head, bytes(25)).to_bytes())
    with pytest.raises(ProtocolError, match="expected nothing of other parties with private labels, got 1 rows"):
        holder.ask(EverybodyPart(*head, 1, {}).to_bytes())
    holder.party.close()
    inner = AlignmentParty(config("north"), "north", IDS["north"], tmp_path / "inner", 1)
    with pytest.raises(ProtocolError, match="expected a question for align = 'psi', got NUMBERS"):
        Holder(inner, HOLDER).ask(numbers(holder))
    inner.close()


GOOD = {
    "has": {"north": "ff" * 4 + "80", "south": "00" * 5},
    "labels": [0] * 40,
    "weights": [None] * 40,
    "names": ["a", "b"],
    "loss": "cross_entropy",
}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"has": {"north": "ff" * 5}}, "expected the rows of north, south, got those of others"),
        ({"has": {"north": "ff" * 4, "south": "00" * 5}}, "expected a bit for each of 40 rows of north"),
        ({"has": {"north": "zz" * 5, "south": "00" * 5}}, "expected a bit for each of 40 rows of north"),
        ({"has": {"north": "ff" * 5, "south": "00" * 5}}, "expected the own rows among those of all, got others"),
        ({"labels": [0] * 39}, "expected 40 labels that are all classes or all numbers"),
        ({"labels": [2] * 40}, "expected 40 labels that are all classes or all numbers"),
        ({"labels": [float("nan")] * 40}, "expected 40 labels that are all classes or all numbers"),
        ({"weights": [-1.0] * 40}, "expected 40 weights of 0 or more"),
        ({"names": [3]}, "expected the names of the classes as texts"),
        ({"loss": None}, "expected the name of a loss, got None"),
    ],
)
def test_false_rows_of_all_are_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    chosen = outer()
    holder = told(tmp_path, replace(chosen, agreement=replace(chosen.agreement, labels="shared")))
    part = EverybodyPart(holder.salt, holder.challenge.confirmation, 1, 0, 40, GOOD | changes)
    with pytest.raises(ProtocolError, match="expected the numbers of the own rows first"):
        holder.ask(part.to_bytes())
    holder.ask(numbers(holder))
    assert not Alignments(tmp_path).numbers()
    with pytest.raises(ProtocolError, match=text):
        holder.ask(part.to_bytes())
    assert not Alignments(tmp_path).numbers()
    holder.party.close()
