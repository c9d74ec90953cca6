"""Private alignment: what comes out is a plain join, and nobody hears more than that."""

import secrets
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import alignments
import numpy as np
import polars
import pytest
from alignments import Meeting, config, leaks
from hypothesis import given, settings
from hypothesis import strategies as st
from malicious_alignment import Holder, deviating, points_in

from efvfl.config.run_file import LimitConfig, PartyConfig, RunConfig
from efvfl.data.tables.ids import read_ids
from efvfl.data.tables.splits import split_of, split_seed, stratified
from efvfl.errors import DataError, EfvflError, LimitError, ProtocolError, RefusedError
from efvfl.network import handshake
from efvfl.network.align import messages, points, psi
from efvfl.network.align.aligned_rows import SPLITS, Aligned, shapes
from efvfl.network.align.alignments import Alignments
from efvfl.network.align.handshake import about
from efvfl.network.align.messages import (
    MOST_SHARDS,
    POINT,
    SALT,
    AlignmentKind,
    PlacesPart,
    ShardQuestion,
    SplitsPart,
    VoidReason,
    write,
)
from efvfl.network.align.party import AlignmentParty
from efvfl.network.align.same_list import ListChallenge, ListResponse
from efvfl.network.align.saved_orders import FOLDER
from efvfl.network.links.frame import Frame, FrameKind, json_frame

NAMES = ("north", "south", "west")


def table_of(frame: polars.DataFrame) -> list[tuple[str, str]]:
    return list(frame.iter_rows())


def expected(shared: list[str], chosen: RunConfig) -> list[tuple[str, str]]:
    """The plain join: ids ordered by their bytes, each with the split of its hash."""
    shared = sorted(shared, key=str.encode)
    places = split_of(shared, chosen.seed, (chosen.data.validation, chosen.data.test))
    split = {int(place): name for name, rows in places.items() for place in rows}
    return [(name, split[place]) for place, name in enumerate(shared)]


def files(folder: Path, names: tuple[str, ...]) -> list[list[tuple[str, str]]]:
    """The newest list of everybody, which has the same number at all."""
    found = [Alignments(folder / name) for name in ("server", *names)]
    assert len({each.newest for each in found}) == 1
    return [table_of(polars.read_parquet(each.path(each.newest))) for each in found]


def sets(count: int = 90, seed: int = 0) -> dict[str, list[str]]:
    """Shuffled ids of a label holder and two parties, of which each shares 60 % with it."""
    chance = Random(seed)
    common = [f"customer-{i:05d}" for i in range(count * 6 // 10)]
    alone = range(count * 4 // 10)
    made = {name: common + [f"{name or 'holder'}-{i:05d}-alone" for i in alone] for name in ("", *NAMES[:2])}
    for ids in made.values():
        chance.shuffle(ids)
    return made


# The result.

BASE = st.text("abcdefgh123456789é", min_size=1, max_size=6)


@st.composite
def federations(draw: st.DrawFn) -> tuple[RunConfig, dict[str, polars.Series], list[str]]:
    """Tables of two to four participants, dirty and with duplicates, and the ids that all share."""
    forms = draw(st.lists(st.sampled_from(["strip", "case", "zeros"]), unique=True))
    duplicates = draw(st.sampled_from(["first", "drop"]))
    names = NAMES[: draw(st.integers(1, 3))]
    every = draw(st.lists(BASE, unique=True, min_size=8, max_size=25))
    tables, common = {}, set(every)
    for name in ("", *names):
        rows = draw(st.lists(st.sampled_from(every), min_size=1, max_size=40)) + every[:6]
        rows = draw(st.permutations(rows))
        counts = Counter(rows)
        common &= {one for one in counts if duplicates == "first" or counts[one] == 1}
        tables[name] = polars.Series([_dirty(one, forms, draw) for one in rows], dtype=polars.String)
    if duplicates == "drop":  # somebody must have something
        for name in tables:
            tables[name] = polars.concat([tables[name], polars.Series([f"only{name}"])])
    chosen = config(*names, id_format=forms, duplicates=duplicates, validation=0.2, test=0.2)
    return chosen, tables, sorted(common)


def _dirty(one: str, forms: list[str], draw: st.DrawFn) -> str:
    if "zeros" in forms:
        one = "0" * draw(st.integers(0, 2)) + one
    if "case" in forms and draw(st.booleans()):
        one = one.upper()
    return " " * draw(st.integers(0, 1)) + one + " " * draw(st.integers(0, 2)) if "strip" in forms else one


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(federations())
def test_the_result_is_a_plain_join(made: tuple[RunConfig, dict[str, polars.Series], list[str]]) -> None:
    chosen, tables, common = made
    data = chosen.data
    ids = {name: read_ids(values, data.id_format, data.duplicates, name).ids for name, values in tables.items()}
    names = tuple(name for name in tables if name)
    with TemporaryDirectory() as folder, Meeting(Path(folder), chosen, ids) as meeting:
        try:
            wanted = expected(common, chosen) if common else []
        except DataError:  # no row is left to train
            wanted = []
        if not wanted:
            with pytest.raises(DataError):
                meeting.run()
            for name in names:
                assert meeting.wait(name) is None
                assert meeting.members[name].void == (VoidReason.UNCUT if common else VoidReason.EMPTY)
            return
        meeting.run()
        assert [meeting.wait(name) for name in names] == [None] * len(names)
        assert files(Path(folder), names) == [wanted] * (1 + len(names))


@pytest.mark.parametrize("align", ["psi", "hash"])
def test_modes_that_search_agree(tmp_path: Path, align: str) -> None:
    chosen, ids = config(*NAMES[:2], align=align), sets()
    with Meeting(tmp_path, chosen, ids) as meeting:
        found = meeting.run()
        assert [meeting.wait(name) for name in NAMES[:2]] == [None, None]
    assert len(found.ids) == 54
    assert files(tmp_path, NAMES[:2]) == [expected(found.ids, chosen)] * 3
    assert set(found.ids) == set(ids[""]) & set(ids["north"]) & set(ids["south"])


def test_without_alignment_the_tables_order_is_kept(tmp_path: Path) -> None:
    chosen, ids = config(*NAMES[:2], align="none"), sets()["north"]
    with Meeting(tmp_path, chosen, dict.fromkeys(("", *NAMES[:2]), ids)) as meeting:
        meeting.run()
        assert [meeting.wait(name) for name in NAMES[:2]] == [None, None]
        heard = [data for name in NAMES[:2] for data in meeting.heard[name]] + meeting.heard[""]
    split = dict(expected(ids, chosen))
    assert files(tmp_path, NAMES[:2]) == [[(name, split[name]) for name in ids]] * 3
    assert leaks(heard, ids) == []


def test_without_alignment_another_order_is_refused(tmp_path: Path) -> None:
    chosen, ids = config("north", align="none"), sets()["north"]
    with Meeting(tmp_path, chosen, {"": ids, "north": ids[::-1]}) as meeting:
        server = meeting.server = meeting.serve()
        meeting.join("north")
        look = server.requests.hooks.on_tick

        def until_refused() -> None:
            look()
            if meeting.ended("north"):
                server.requests.stopping.set()

        server.requests.hooks = replace(server.requests.hooks, on_tick=until_refused)
        with pytest.raises(Exception, match="stopped as asked"):
            server.run()
        error = meeting.wait("north")
    assert isinstance(error, RefusedError)
    assert "north 90, not the same ids in the same order" in str(error)


def test_stratified_splits_are_those_of_the_shared_labels(tmp_path: Path) -> None:
    chosen, ids = config(*NAMES[:2], stratify=True, validation=0.25, test=0.25), sets()
    chosen = replace(chosen, private_seed=71)
    labels = np.array([len(name) % 2 + (name[-1] in "123") for name in ids[""]])
    with Meeting(tmp_path, chosen, ids, labels) as meeting:
        found = meeting.run()
        meeting.wait("north"), meeting.wait("south")
    of = dict(zip(ids[""], labels, strict=True))
    places = stratified(found.ids, np.array([of[name] for name in found.ids]), split_seed(chosen), (0.25, 0.25))
    assert {split: len(rows) for split, rows in places.items()} == found.counts()
    for split, rows in places.items():
        assert [SPLITS[found.splits[row]] for row in rows] == [split] * len(rows)


def test_threads_and_shards_find_what_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "CHUNK", 7)
    ids, results = sets(60), []
    for threads, shard in ((1, 100), (2, 12)):
        monkeypatch.setattr(psi, "SHARD", shard)
        monkeypatch.setattr(psi, "LEAST", shard)
        with Meeting(tmp_path / str(threads), config(*NAMES[:2]), ids, threads=threads) as meeting:
            results.append(meeting.run())
            assert [meeting.wait(name) for name in NAMES[:2]] == [None, None]
            assert meeting.members["north"].shards == meeting.members["north"].shards_done == (1 if threads == 1 else 5)
    assert results[0] == results[1]
    assert len(results[0].ids) == 36


def test_a_long_list_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "ROWS", 7)
    monkeypatch.setattr(messages, "DIGESTS", 10)
    monkeypatch.setattr("efvfl.network.align.server.DIGESTS", 10)
    monkeypatch.setattr("efvfl.network.align.party.DIGESTS", 10)
    chosen = config(*NAMES[:2], align="hash")
    with Meeting(tmp_path, chosen, sets()) as meeting:
        found = meeting.run()
        meeting.wait("north"), meeting.wait("south")
        asked = [data for data in meeting.heard["north"] if Frame.from_bytes(data).kind == FrameKind.ASK]
    assert len(asked) == 1 + 9 + 8 + 8  # the size, 90 digests, and 54 places and splits
    assert files(tmp_path, NAMES[:2]) == [expected(found.ids, chosen)] * 3


# Who hears what.


def test_nobody_receives_an_id_not_even_a_shared_one(tmp_path: Path) -> None:
    forms = ["strip", "case", "zeros"]
    raw = {name: [f" 00{one.upper()} " for one in ids] for name, ids in sets().items()}
    ids = {name: read_ids(polars.Series(values), forms, "refuse", name).ids for name, values in raw.items()}
    assert ids == sets()
    with Meeting(tmp_path, config(*NAMES[:2], id_format=forms), ids) as meeting:
        meeting.run()
        assert [meeting.wait(name) for name in NAMES[:2]] == [None, None]
        heard = meeting.heard
    assert sum(map(len, heard[""])) > 2 * 2 * 90 * POINT  # the points of both, and the label holder's under both keys
    everything = sorted({one for other in ids.values() for one in other})
    written = [f" 00{one.upper()} " for one in everything]
    assert len(everything) == 54 + 3 * 36
    for received in heard.values():
        assert leaks(received, everything + written + [one.strip() for one in written]) == []


@pytest.mark.parametrize(
    "how", ["utf-8 in hex", "utf-16-be in base64", "sha256 of utf-8 in HEX", "md5 of utf-8 in hex"]
)
def test_the_search_finds_what_a_party_lets_slip(tmp_path: Path, how: str) -> None:
    ids = sets()
    secret = ids["north"][3]
    with Meeting(tmp_path, config("north"), {"": ids[""], "north": ids["north"]}) as meeting:
        meeting.join("north")
        meeting.members["north"].about["note"] = dict(alignments.forms(secret))[how].decode()
        meeting.run()
        found = leaks(meeting.heard[""], ids["north"])
    assert found == [f"{secret!r} as {how}"]


def test_the_search_finds_what_the_label_holder_lets_slip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {"": ["0123456789abcdef", "shared-by-both-1"], "north": ["shared-by-both-1"]}
    random = secrets.token_bytes
    monkeypatch.setattr(secrets, "token_bytes", lambda n: ids[""][0].encode() if n == SALT else random(n))
    with Meeting(tmp_path, config("north", validation=0.0, test=0.0), ids) as meeting:
        meeting.run()
        meeting.wait("north")
        assert leaks(meeting.heard["north"], ids[""][:1]) == [f"{ids[''][0]!r} as utf-8"]


def test_who_has_the_salt_can_test_guesses_in_hash_mode(tmp_path: Path) -> None:
    """What docs/alignment.md warns of."""
    ids = sets()
    with Meeting(tmp_path, config("north", align="hash"), {"": ids[""], "north": ids["north"]}) as meeting:
        meeting.run()
        meeting.wait("north")
        frames = [Frame.from_bytes(data) for data in meeting.heard["north"]]
        question = next(f.body for f in frames if f.kind == FrameKind.ASK and f.body[0] == AlignmentKind.DIGESTS)
        digest = psi.keyed(question[1 : 1 + SALT])
        received = b"".join(meeting.heard[""])
    assert leaks([received], ids["north"]) == []
    assert digest("north-00003-alone") in received
    assert digest("north-99999-alone") not in received


def test_shards_have_a_size_that_follows_from_the_number_of_ids_alone() -> None:
    ids = [f"id-{i}" for i in range(400)]
    parts = psi.split_into_shards(ids, b"s" * SALT, 7)
    assert sorted(index for part in parts for index in part) == list(range(400))
    assert psi.split_into_shards(ids, b"t" * SALT, 7)[0].tolist() != parts[0].tolist()
    sizes = {len(psi.filled(part, psi.party_points(400, 7))) for part in parts}
    assert sizes == {psi.party_points(400, 7)}
    assert psi.party_points(400, 7) == 121
    assert [psi.holder_points(count, 1) for count in (3, 300, 10_000)] == [11, 315, 10_500]  # with decoys
    with pytest.raises(EfvflError, match="expected at most 3 ids in a shard, got 4: start the alignment again"):
        psi.filled(np.arange(4, dtype=np.uint32), 3)
    texts = psi.texts_of(ids, psi.filled(np.array([0], dtype=np.uint32), 3))
    assert texts[0] == b"+id-0"
    assert len(set(texts)) == 3
    assert [psi.shards_for(*sizes) for sizes in ((300, 300), (300, 800_000), (99_999, 99_999), (300, 1_800_001))] == [
        1, 1, 1, 3
    ]  # fmt: skip
    assert (psi.shards_for(500_000, 50_000), psi.shards_for(10**9, 10**9)) == (10, MOST_SHARDS)


def test_a_party_computes_ahead_and_a_label_holder_keeps_no_more_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi, "SHARD", 12)
    monkeypatch.setattr(psi, "LEAST", 12)
    ids, orders = sets(60), []
    with ThreadPoolExecutor(2) as workers:
        holder = psi.HolderSide(ids[""], "north", 60, workers, lambda work: None)
        party = psi.PartySide(ids["north"], holder.salt, 5, workers)
        for shard in range(5):
            question = holder.blind()
            entries = holder._asked[0].entries.tolist()
            assert entries != sorted(entries)  # the table's order stays here, and decoys are anywhere
            order, own, both = party.answer(shard, question)
            assert (party._ahead[0] if party._ahead else 5) == shard + 1
            assert points_in(own) == sorted(points_in(own))
            holder.take(own, both)
            assert len(holder._asked) <= 1
            assert len(holder._answers) <= 2
            orders.append(order)
        places = holder.matches()
    found = {row: place for row, place in enumerate(places.tolist()) if place != [-1, -1]}
    assert {ids[""][row] for row in found} == set(ids[""]) & set(ids["north"])
    assert all(ids["north"][orders[shard][place]] == ids[""][row] for row, (shard, place) in found.items())


@pytest.mark.parametrize("asked", [(0, 1, 2), (2, 0, 1), (1, 1, 2)])
def test_shards_may_be_asked_about_in_any_order(asked: tuple[int, ...]) -> None:
    ids, salt, key = sets(60)["north"], b"s" * SALT, points.new_key()
    parts = psi.split_into_shards(ids, salt, 3)
    with ThreadPoolExecutor(1) as workers:
        party = psi.PartySide(ids, salt, 3, workers)
        for shard in asked:
            order, own, both = party.answer(shard, points.blinded(key, psi.texts_of(ids, parts[shard])))
            places = {point: place for place, point in enumerate(points_in(points.multiply(key, own)))}
            assert [order[places[point]] for point in points_in(both)] == parts[shard].tolist()


def test_points_match_under_both_keys_only() -> None:
    texts = [b"+a", b"+b", "+\u00e9".encode()]
    ours, theirs, other = (points.new_key() for _ in range(3))
    both = points.multiply(theirs, points.blinded(ours, texts))
    assert both == points.multiply(ours, points.blinded(theirs, texts))
    assert not set(points_in(both)) & set(points_in(points.multiply(ours, points.blinded(other, texts))))
    assert len(both) == 3 * POINT
    # Known from the definition, so that two releases find the same points.
    known = "7191d764dbb2f765e51a3faa64e38ed7e25559497c404c3211f9f41335e4036e"
    assert points.blinded(bytes(range(32)), [b"+a"]).hex() == known


def test_points_of_small_order_are_refused() -> None:
    for point in (bytes(32), b"\x01" + bytes(31)):
        with pytest.raises(ProtocolError, match="expected points of the curve's large subgroup, got others"):
            points.multiply(points.new_key(), point)


# Ends that come too early.


@pytest.mark.parametrize("at", range(1, 13))
@pytest.mark.parametrize("name", ["", "north"])
def test_who_is_killed_starts_again_and_all_ends_well(tmp_path: Path, name: str, at: int) -> None:
    ids, chosen = sets(20), config(*NAMES[:2])
    with Meeting(tmp_path, chosen, ids, killed=(name, at if name else 2 * at)) as meeting:
        meeting.run()
        assert meeting.lives[name] == 2 or at == 12  # the twelfth frame of a party is its BYE
        assert [meeting.wait(one) for one in NAMES[:2] if one != name] == [None] * (1 if name else 2)
        assert not (tmp_path / "server" / "align.done").exists()
    assert files(tmp_path, NAMES[:2]) == [expected([f"customer-{i:05d}" for i in range(12)], chosen)] * 3


def test_a_label_holder_killed_at_the_very_end_does_not_wait_for_those_who_are_gone(tmp_path: Path) -> None:
    ids, chosen = sets(20), config(*NAMES[:2])
    with Meeting(tmp_path, chosen, ids) as meeting:
        found = meeting.run()
    server = meeting.serve()
    server._mark.write_bytes(server._mark_of(found))  # as if it had been killed before its last act
    assert (server.run(), server.uninformed) == (found, set(NAMES[:2]))
    assert not server._mark.exists()


@pytest.mark.parametrize("changed", ["table", "list", "settings"])
def test_a_mark_of_another_alignment_does_not_count(tmp_path: Path, changed: str) -> None:
    ids, chosen = sets(20), config(*NAMES[:2])
    with Meeting(tmp_path, chosen, ids) as meeting:
        found = meeting.run()
    server = meeting.serve()
    server._mark.write_bytes(server._mark_of(found))
    if changed == "list":
        (tmp_path / "server" / "alignments" / "1.parquet").unlink()
    other = ids | {"": [*ids[""], "one-more"]} if changed == "table" else ids
    with Meeting(tmp_path, replace(chosen, seed=6) if changed == "settings" else chosen, other) as meeting:
        meeting.run()
        assert [meeting.wait(name) for name in NAMES[:2]] == [None, None]  # they were asked again


# A party refuses.


def member(folder: Path, chosen: RunConfig | None = None, ids: list[str] | None = None) -> AlignmentParty:
    return AlignmentParty(chosen or config("north"), "north", ids or ["a", "b", "c"], folder, 1)


def limited(align: str, rows: int) -> RunConfig:
    return replace(config("north", align=align), party=(PartyConfig("north", limits=LimitConfig(rows=rows)),))


POINTS = (bytes((9,)) + bytes(POINT - 1)) * 9
ASKED = ShardQuestion(bytes(SALT), 1, 1, 0, POINTS)
PART = PlacesPart(bytes(SALT), POINTS[:POINT], 2, 0, [(0, 0), (0, 1)])


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (replace(PART, start=1).to_bytes(), "expected a part's length from 0 to 1, got 2"),
        (replace(PART, total=4).to_bytes(), "expected a list that fits the 3 rows of north, got one of 4 rows"),
        (replace(PART, places=[(MOST_SHARDS, 0)]).to_bytes(), "expected a shard's index from 0 to 1,023, got 1,024"),
        (PART.to_bytes() + b"x", "got 1 more bytes"),
        (PART.to_bytes()[:-2], "cut short"),
        (SplitsPart(bytes(SALT), bytes(16), 1, 0, b"").to_bytes(), "expected a part's length from 1 to 65,536, got 0"),
        (b"", "got 0: the bytes were cut short"),
        (b"{}", "expected a kind of question that belongs to an alignment, got 123"),
        (write(AlignmentKind.DIGESTS, bytes(16), 0), "expected a question for align = 'psi', got DIGESTS"),
        (write(AlignmentKind.SIZE, 0), "expected the number of ids from 1 to 1,073,741,824, got 0"),
        (write(AlignmentKind.VOID, 3), "expected a reason from 1 to 2, got 3"),
        (replace(ASKED, points=bytes(9 * POINT)).to_bytes(), "expected points of the curve's large subgroup"),
        (replace(ASKED, points=POINTS[POINT:]).to_bytes(), "expected 9 points in each of 1 shards, .* got 8 in one"),
        (replace(ASKED, points=POINTS * 2).to_bytes(), "expected 9 points in each of 1 shards, .* got 18 in one of 1"),
        (replace(ASKED, shards=5).to_bytes(), "expected 9 points in each of 1 shards, .* got 9 in one of 5"),
        (replace(ASKED, shard=1).to_bytes(), "expected a shard's index from 0 to 0, got 1"),
        (
            replace(ASKED, shards=MOST_SHARDS + 1).to_bytes(),
            "expected the number of shards from 1 to 1,024, got 1,025",
        ),
        (
            replace(ASKED, points=b"").to_bytes(),
            "expected the number of a shard's points from 1 to 1,048,576, got 0",
        ),
        (ASKED.to_bytes()[:-1], "cut short"),
    ],
)  # fmt: skip
def test_a_question_that_cannot_be_is_refused(tmp_path: Path, question: bytes, text: str) -> None:
    made = member(tmp_path)
    with pytest.raises(ProtocolError, match=text):
        Holder(made, []).ask(question)
    assert not Alignments(tmp_path).numbers()
    made.close()


def test_a_question_that_comes_twice_gets_the_same_answer_and_counts_once(tmp_path: Path) -> None:
    made = member(tmp_path, limited("psi", 19))
    holder = Holder(made, ["a", "x"])
    question = holder.question().to_bytes()
    assert holder.ask(question) == holder.ask(question)
    with pytest.raises(LimitError, match=r"tests 20 ids in total, but limits\.rows of north allows 19"):
        Holder(made, ["b", "y"]).matches()
    again = member(tmp_path, limited("psi", 19))  # it has not forgotten
    with pytest.raises(LimitError, match="tests 20 ids in total"):
        Holder(again, ["b", "y"]).matches()


def test_limits_count_digests_too(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="tests 3 ids in total"):
        Holder(member(tmp_path, limited("hash", 2)), []).ask(write(AlignmentKind.DIGESTS, bytes(16), 0))


def test_a_list_that_starts_over_replaces_what_was_there(tmp_path: Path) -> None:
    made = member(tmp_path)
    first, second = Holder(made, ["a", "b", "c", "x"]), Holder(made, ["b", "c"])
    found = first.matches()
    assert set(found) == {"a", "b", "c"}
    half = first.places(["a", "b", "c"], sorted(found.values())[:2])
    assert first.ask(half.to_bytes()) == write(AlignmentKind.ROWS, 2)
    found = second.matches()  # a label holder that was started again
    assert second.send_list(["b", "c"], sorted(found.values()))
    assert second.send_splits(2) == 2
    assert made.aligned == Aligned(["b", "c"], b"\0\0")
    assert first.send_splits(3) == 0  # this list is not known any more
    late = replace(half, start=2, places=half.places[:1])
    assert first.ask(late.to_bytes()) == write(AlignmentKind.ROWS, 0)


def test_a_party_that_was_killed_finds_its_ids_by_their_places(tmp_path: Path) -> None:
    holder = Holder(member(tmp_path), ["c", "a", "x"])
    places = holder.matches()
    holder.party = member(tmp_path)
    assert list((tmp_path / FOLDER).iterdir())
    assert holder.send_list(["a", "c"], sorted(places.values()))
    assert holder.send_splits(2, splits=b"\0\2") == 2
    holder.party.respond(Frame(FrameKind.STOP))
    assert Alignments(tmp_path).load(1) == Aligned(["a", "c"], b"\0\2")
    assert not (tmp_path / FOLDER).exists()


def test_a_new_alignment_deletes_the_orders_of_the_one_before(tmp_path: Path) -> None:
    made = member(tmp_path)
    for _ in range(2):
        holder = Holder(made, ["a"])
        holder.matches()
        assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [f"{holder.salt.hex()}-0"]


def test_two_lists_are_the_same_or_not_and_nobody_learns_more() -> None:
    challenge = ListChallenge(["a", "b"], b"salt")
    same, other = ListResponse(["a", "b"], b"salt", challenge.point), ListResponse(["a", "c"], b"salt", challenge.point)
    assert challenge.check(same.point, same.tag)
    assert same.confirms(challenge.confirmation)
    assert not challenge.check(other.point, other.tag)
    assert not other.confirms(challenge.confirmation)
    assert not ListResponse(["a", "b"], b"another", challenge.point).confirms(same.tag)
    assert not challenge.check(challenge.point, same.tag)


def test_stop_without_a_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="it sent no list of rows"):
        member(tmp_path).respond(Frame(FrameKind.STOP))
    Alignments(tmp_path).save(1, Aligned(["a", "z"], b"\0\0"))
    with pytest.raises(ProtocolError, match="the list here is of another table"):
        member(tmp_path).respond(Frame(FrameKind.STOP))
    Alignments(tmp_path).save(2, Aligned(["a", "c"], b"\0\2"))
    made = member(tmp_path)
    assert made.respond(Frame(FrameKind.STOP)).kind == FrameKind.BYE
    assert made.aligned == Aligned(["a", "c"], b"\0\2")


def test_a_server_that_trains_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="does it train already"):
        member(tmp_path).respond(Frame(FrameKind.REQUEST))


# The label holder refuses.


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seed": 6}, "seed: the server has 5, north has 6"),
        ({"id_format": ["zeros"]}, "id_format: the server has ['strip'], north has ['zeros']"),
        ({"align": "hash"}, "align: the server has 'psi', north has 'hash'"),
        ({"test": 0.3}, "shares: the server has [0.15, 0.15], north has [0.15, 0.3]"),
        ({"stratify": True}, "stratify: the server has False, north has True"),
        ({"ids": 30}, "ids.: the server has 0, north has 30"),
    ],
)
def test_a_party_with_other_settings_is_refused(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    ids = {name: sets(20)[name] for name in ("", "north")}
    other = replace(config("north"), seed=6) if "seed" in change else config("north", **change)
    with Meeting(tmp_path, config("north"), ids) as meeting:
        meeting.configs["north"] = other
        refused(meeting, text)


def refused(meeting: Meeting, text: str) -> None:
    """The first life of north is refused with this text; a second one, with the right settings, is welcome."""
    ends: list[BaseException | None] = []
    server = meeting.server = meeting.serve()
    meeting.join("north")
    look = server.requests.hooks.on_tick

    def watch() -> None:
        look()
        if not ends and meeting.ended("north"):
            ends.append(meeting.wait("north"))
            meeting.configs.clear()
            meeting.join("north")

    server.requests.hooks = replace(server.requests.hooks, on_tick=watch)
    found = server.run()
    assert meeting.wait("north") is None
    assert isinstance(ends[0], RefusedError)
    assert text in str(ends[0])
    assert len(found.ids) == 12


def test_who_computes_other_points_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases before this one had no version, and points that would match none of today's."""
    ids, hello = {name: sets(20)[name] for name in ("", "north")}, AlignmentParty.hello
    with Meeting(tmp_path, config("north"), ids) as meeting:

        def older(made: AlignmentParty) -> Frame:
            shared = {key: value for key, value in made.about["shared"].items() if key != "version"}
            first = meeting.lives["north"] == 1
            return json_frame(FrameKind.HELLO, made.about | {"shared": shared}) if first else hello(made)

        monkeypatch.setattr(AlignmentParty, "hello", older)
        refused(meeting, "by version 3 of the alignment, north by 'an older one': install the same release of efvfl")
    # A label holder of such a release compares digests, and shows what differs.
    today = about(config("north"), "north")
    before = {key: value for key, value in today["shared"].items() if key != "version"}
    with pytest.raises(ProtocolError, match="version: the server has None, north has 3"):
        handshake.compare(today | {"shared": before, "digest": handshake.digest(before)}, today)


def test_a_party_that_would_train_is_told_to_align(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {name: sets(20)[name] for name in ("", "north")}
    hello = AlignmentParty.hello
    with Meeting(tmp_path, config("north"), ids) as meeting:

        def as_if_to_train(made: AlignmentParty) -> Frame:
            first = meeting.lives["north"] == 1
            return json_frame(FrameKind.HELLO, made.about | {"shared": {"seed": 5}}) if first else hello(made)

        monkeypatch.setattr(AlignmentParty, "hello", as_if_to_train)
        refused(meeting, "the server aligns tables: run `efvfl align` with --party first")


JUNK = {
    "no answer": (AlignmentKind.BLINDED, b""),
    "another kind": (AlignmentKind.BLINDED, write(AlignmentKind.VOID)),
    "another protocol": (AlignmentKind.BLINDED, b"\x00\x01"),
    "too few points": (AlignmentKind.BLINDED, write(AlignmentKind.BLINDED, 20, bytes(20 * POINT))),
    "a count that is a lie": (AlignmentKind.BLINDED, write(AlignmentKind.BLINDED, 1 << 40, bytes(POINT))),
    "bytes after the end": (AlignmentKind.BLINDED, write(AlignmentKind.BLINDED, 20, bytes(48 * POINT), b"x")),
    "no ids": (AlignmentKind.SIZE, write(AlignmentKind.SIZE, 0)),
    "too many ids": (AlignmentKind.SIZE, write(AlignmentKind.SIZE, (1 << 30) + 1)),
    "rows that were never sent": (AlignmentKind.ROWS, write(AlignmentKind.ROWS, 11)),
    "no response": (AlignmentKind.ROWS, write(AlignmentKind.ROWS, 12)),
    "splits that were never sent": (AlignmentKind.SPLITS, write(AlignmentKind.SPLITS, 13)),
}


@pytest.mark.parametrize("what", JUNK)
def test_a_party_that_answers_junk_is_refused(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {name: sets(20)[name] for name in ("", "north")}
    answer, (kind, junk) = AlignmentParty._answer, JUNK[what]
    with Meeting(tmp_path, config("north"), ids) as meeting:
        monkeypatch.setattr(
            AlignmentParty,
            "_answer",
            lambda made, body: junk if meeting.lives["north"] == 1 and body[0] == kind else answer(made, body),
        )
        refused(meeting, "the server refuses north")


def test_digests_of_a_table_that_changed_meanwhile_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("messages", "server", "party"):
        monkeypatch.setattr(f"efvfl.network.align.{module}.DIGESTS", 8)
    ids = {name: sets(20)[name] for name in ("", "north")}
    answer = AlignmentParty._answer

    def changed(made: AlignmentParty, body: bytes) -> bytes:
        found = answer(made, body)
        if meeting.lives["north"] == 1 and body[0] == AlignmentKind.DIGESTS and body[-1] == 8:
            return write(AlignmentKind.DIGESTS, 19, found[2:])
        return found

    monkeypatch.setattr(AlignmentParty, "_answer", changed)
    with Meeting(tmp_path, config("north", align="hash"), ids) as meeting:
        refused(meeting, "expected 20 ids of north as before, got 19")


def test_digests_that_are_not_ordered_are_refused(tmp_path: Path) -> None:
    ids = {name: sets(20)[name] for name in ("", "north")}
    with Meeting(tmp_path, config("north", align="hash"), ids) as meeting:
        meeting.kinds["north"] = deviating({AlignmentKind.DIGESTS: lambda answer: answer[:2] + answer[2:][::-1]})
        meeting.run_until_ended("north")
        refused = meeting.wait("north")
    assert "expected digests of north in increasing order, each once, got another order" in str(refused)


# Words about it.


def test_nothing_shared_shows_the_own_format_only(tmp_path: Path) -> None:
    ids = {"": ["1234", "567890"], "north": ["ab-1", "CD"]}
    with Meeting(tmp_path, config("north"), ids) as meeting:
        with pytest.raises(DataError, match="no row is shared by all") as caught:
            meeting.run()
        assert meeting.wait("north") is None
        assert meeting.members["north"].void == VoidReason.EMPTY
    assert "The ids here have 4 to 6 characters: 100% digits only." in str(caught.value)
    assert not list(tmp_path.rglob("*.parquet"))


def test_shapes_of_ids() -> None:
    assert shapes(["12", "345", "ab", "a1", "b-2"]) == (
        "2 to 3 characters: 40% digits only, 20% letters only, 20% digits and letters, 20% with other characters"
    )


def test_a_list_that_is_none_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Run `efvfl align` first, all together"):
        Alignments(tmp_path).load(1)
    for frame in (polars.DataFrame({"id": ["a"]}), polars.DataFrame({"id": ["a"], "split": ["holdout"]})):
        frame.write_parquet(tmp_path / "list.parquet")
        with pytest.raises(DataError, match="was not written by `efvfl align`"):
            Aligned.load(tmp_path / "list.parquet")
