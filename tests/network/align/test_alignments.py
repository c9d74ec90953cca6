"""Aligning again: every list keeps its number at all participants, and none is ever lost."""

from dataclasses import replace
from pathlib import Path

import pytest
from alignments import Meeting, config
from malicious_alignment import Holder

from efvfl.errors import ProtocolError
from efvfl.network.align import handshake
from efvfl.network.align.aligned_rows import Aligned
from efvfl.network.align.alignments import BARE, Alignments
from efvfl.network.align.messages import MOST_LISTS
from efvfl.network.align.party import AlignmentParty

FIRST = Aligned(["a", "b", "c"], b"\0\1\0")
SECOND = Aligned(["b", "c", "d", "e"], b"\1\0\0\2")
NAMES = ("north", "south")


def align(folder: Path, ids: dict[str, list[str]]) -> tuple[int, bool]:
    """Align once; return the number of the list, and whether it was a new one, which all must agree on."""
    names = [name for name in ids if name]
    chosen = config(*names, align="hash", validation=0.0, test=0.0)
    limits = tuple(replace(party, limits=replace(party.limits, rows=0)) for party in chosen.party)
    with Meeting(folder, replace(chosen, party=limits), ids) as meeting:
        meeting.run()
        assert [meeting.wait(name) for name in names] == [None] * len(names)
        server = meeting.server
    assert server is not None
    assert {member.number for member in meeting.members.values()} == {server.number}
    lists = [Alignments(folder / name).load(server.number) for name in ("server", *names)]
    assert all(found == lists[0] for found in lists)
    return server.number, server.added


def test_lists_are_kept_under_numbers_that_all_share(tmp_path: Path) -> None:
    march = {"": ["a", "b", "c", "x"], "north": ["a", "b", "c", "y"], "south": ["c", "b", "a"]}
    april = {"": ["b", "c", "d", "x"], "north": ["b", "c", "d"], "south": ["c", "b", "d"]}
    assert align(tmp_path, march) == (1, True)
    assert align(tmp_path, march) == (1, False)  # nothing has changed
    assert align(tmp_path, april) == (2, True)
    with_west = april | {"west": ["d", "c", "b"]}
    assert align(tmp_path, with_west) == (2, False)  # a new party learns the number of the others
    assert Alignments(tmp_path / "west").numbers() == [2]
    for name in ("server", *NAMES):
        found = Alignments(tmp_path / name)
        assert found.numbers() == [1, 2]
        assert (found.load(1).ids, found.load(2).ids) == (["a", "b", "c"], ["b", "c", "d"])


def test_a_number_that_somebody_has_used_is_not_used_again(tmp_path: Path) -> None:
    """As after a crash of the label holder, or an old copy of its folder."""
    Alignments(tmp_path / "north").save(3, SECOND)
    assert align(tmp_path, {"": ["a", "b"], "north": ["a", "b"]}) == (4, True)
    assert Alignments(tmp_path / "north").load(3) == SECOND


def test_the_only_list_of_an_older_release_is_the_first(tmp_path: Path) -> None:
    FIRST.save(tmp_path / BARE)
    found = Alignments(tmp_path)
    assert (found.numbers(), found.newest, found.load(1)) == ([1], 1, FIRST)
    assert not found.save(1, FIRST)
    assert found.save(2, SECOND)
    assert (found.numbers(), found.before(2), found.before(1)) == ([1, 2], 1, 0)
    assert SECOND.compared(FIRST) == (2, 1)


def test_no_list_is_replaced_by_another(tmp_path: Path) -> None:
    found = Alignments(tmp_path)
    found.save(2, FIRST)
    for number in (1, 2):
        with pytest.raises(ProtocolError, match=f"above 2 for a new list of shared rows, got {number}"):
            found.save(number, SECOND)
    assert (found.numbers(), found.load(2)) == ([2], FIRST)
    (tmp_path / "alignments" / "notes.parquet").write_bytes(b"")
    assert found.newest == 2


@pytest.mark.attack(
    by="the label holder",
    tries="sends a list under the number of an older one, which a trained model needs",
    outcome="the party refuses and keeps the older list",
)
def test_a_label_holder_cannot_replace_a_list(tmp_path: Path) -> None:
    Alignments(tmp_path).save(1, Aligned(["a", "c"], b"\0\2"))
    party = AlignmentParty(config("north"), "north", ["a", "b", "c"], tmp_path, 1)
    holder = Holder(party, ["a", "b"])
    assert holder.send_list(["a", "b"], sorted(holder.matches().values()))
    with pytest.raises(ProtocolError, match="expected a number above 1 for a new list"):
        holder.send_splits(2)
    assert Alignments(tmp_path).load(1) == Aligned(["a", "c"], b"\0\2")
    party.close()


def test_parts_of_a_list_have_one_number(tmp_path: Path) -> None:
    party = AlignmentParty(config("north"), "north", ["a", "b", "c"], tmp_path, 1)
    holder = Holder(party, ["a", "b"])
    assert holder.send_list(["a", "b"], sorted(holder.matches().values()))
    assert holder.send_splits(1) == 1
    with pytest.raises(ProtocolError, match="expected splits of alignment 1 as before, got some of 2"):
        holder.send_splits(1, start=1, number=2)
    party.close()


@pytest.mark.parametrize("newest", [None, -1, True, "3", 1.0, MOST_LISTS])
def test_a_hello_without_a_number_is_refused(newest: object) -> None:
    with pytest.raises(ProtocolError, match="expected the number of the newest list in HELLO"):
        handshake.newest({"newest": newest})
    assert handshake.newest({"newest": 7}) == 7
