"""Private alignment: what comes out is a plain join, and nobody hears more than that."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import alignments
import numpy as np
import polars
import pytest
from alignments import SECONDS, Meeting, config, leaks
from hypothesis import given, settings
from hypothesis import strategies as st

from efvfl.config.run_file import LimitConfig, PartyConfig, RunConfig
from efvfl.data.tables.ids import read_ids
from efvfl.data.tables.splits import split_of, stratified
from efvfl.errors import DataError, EfvflError, LimitError, ProtocolError, RefusedError
from efvfl.network.align import messages, psi
from efvfl.network.align.aligned_rows import SPLITS, Aligned, shapes
from efvfl.network.align.messages import MOST_SHARDS, POINT, SALT, AlignmentKind, ListPart, VoidReason, parts_of, write
from efvfl.network.align.party import AlignmentParty
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
    return [table_of(polars.read_parquet(folder / name / "aligned.parquet")) for name in ("server", *names)]


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
    labels = np.array([len(name) % 2 + (name[-1] in "123") for name in ids[""]])
    with Meeting(tmp_path, chosen, ids, labels) as meeting:
        found = meeting.run()
        meeting.wait("north"), meeting.wait("south")
    of = dict(zip(ids[""], labels, strict=True))
    places = stratified(found.ids, np.array([of[name] for name in found.ids]), chosen.seed, (0.25, 0.25))
    assert {split: len(rows) for split, rows in places.items()} == found.counts()
    for split, rows in places.items():
        assert [SPLITS[found.splits[row]] for row in rows] == [split] * len(rows)


@pytest.mark.slow
def test_several_processes_find_what_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi, "SMALL", 20)
    monkeypatch.setattr(psi, "SHARD", 12)
    ids, results = sets(60), []
    for processes in (1, 2):
        with Meeting(tmp_path / str(processes), config(*NAMES[:2]), ids, processes=processes) as meeting:
            results.append(meeting.run())
            assert [meeting.wait(name) for name in NAMES[:2]] == [None, None]
            assert meeting.members["north"].shards == meeting.members["north"].shards_done == 5
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
    assert len(asked) == 9 + 8  # of 90 digests, and of 54 rows
    assert files(tmp_path, NAMES[:2]) == [expected(found.ids, chosen)] * 3


def test_parts_end_by_rows_or_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "ROWS", 3)
    monkeypatch.setattr(messages, "BYTES", 6)
    ids = ["a", "b", "c", "d" * 9, "e", "f" * 5, "g"]
    parts = list(parts_of(bytes(16), ids, bytes(7), named=True))
    assert [part.ids for part in parts] == [["a", "b", "c"], ["d" * 9], ["e", "f" * 5], ["g"]]
    assert [part.start for part in parts] == [0, 3, 4, 6]
    assert [len(part.splits) for part in parts_of(bytes(16), ids, bytes(7), named=False)] == [3, 3, 1]


# Who hears what.


def test_nobody_receives_an_id_that_is_not_shared(tmp_path: Path) -> None:
    forms = ["strip", "case", "zeros"]
    raw = {name: [f" 00{one.upper()} " for one in ids] for name, ids in sets().items()}
    ids = {name: read_ids(polars.Series(values), forms, "refuse", name).ids for name, values in raw.items()}
    assert ids == sets()
    shared = set.intersection(*map(set, ids.values()))
    with Meeting(tmp_path, config(*NAMES[:2], id_format=forms), ids) as meeting:
        meeting.run()
        assert [meeting.wait(name) for name in NAMES[:2]] == [None, None]
        heard = meeting.heard
    assert sum(map(len, heard[""])) > 2 * 2 * 90 * POINT  # the points of both, and the label holder's under both keys
    for hearer, received in heard.items():
        secret = sorted({one for other in ids.values() for one in other} - set(ids[hearer]) - shared)
        written = [f" 00{one.upper()} " for one in secret]
        assert len(secret) == 72
        assert leaks(received, secret + written + [one.strip() for one in written]) == []
    assert leaks(heard[""], ids["north"]) == []  # the list goes one way only
    found = leaks(heard["north"], sorted(shared)[:5])  # and the search finds what is there
    assert found == [f"{one!r} as utf-8" for one in sorted(shared)[:5]]


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
    monkeypatch.setattr(secrets, "token_bytes", lambda count: ids[""][0].encode())
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


def test_shards_are_of_one_size_and_fill_matches_nothing() -> None:
    ids = [f"id-{i}" for i in range(40)]
    mine, theirs = (psi.split_into_shards(ids, b"s" * SALT, 7) for _ in range(2))
    assert len({len(part) for part in mine}) == 1
    assert sorted(entry[1:] for part in mine for entry in part if entry[0] == "+") == sorted(ids)
    assert len({entry for part in mine + theirs for entry in part}) == 40 + 2 * (7 * len(mine[0]) - 40)
    assert all(
        {e for e in a if e[0] == "+"} == {e for e in b if e[0] == "+"} for a, b in zip(mine, theirs, strict=True)
    )
    assert psi.split_into_shards(ids, b"t" * SALT, 7) != mine


def test_an_answer_under_another_key_matches_nothing() -> None:
    entries = ["+a", "+b"]
    key, points = psi.blind(entries)
    own, other = psi.new_key(), psi.new_key()
    assert sorted(psi.match(key, psi.encrypt(own, entries), psi.encrypt_again(own, points))) == [0, 1]
    assert psi.match(key, psi.encrypt(own, entries), psi.encrypt_again(other, points)) == []


# Ends that come too early.


@pytest.mark.parametrize("at", range(1, 11))
@pytest.mark.parametrize("name", ["", "north"])
def test_who_is_killed_starts_again_and_all_ends_well(tmp_path: Path, name: str, at: int) -> None:
    ids, chosen = sets(20), config(*NAMES[:2])
    with Meeting(tmp_path, chosen, ids, killed=(name, at if name else 2 * at)) as meeting:
        meeting.run()
        assert meeting.lives[name] == 2 or at == 10  # the tenth frame of a party is its BYE
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
        (tmp_path / "server" / "aligned.parquet").unlink()
    other = ids | {"": [*ids[""], "one-more"]} if changed == "table" else ids
    with Meeting(tmp_path, replace(chosen, seed=6) if changed == "settings" else chosen, other) as meeting:
        meeting.run()
        assert [meeting.wait(name) for name in NAMES[:2]] == [None, None]  # they were asked again


@pytest.mark.slow
def test_workers_go_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, sys, time\n"
        "from efvfl.network.align import psi\n"
        "if __name__ == '__main__':\n"
        "    pool = psi.workers(2)\n"
        "    print(pool.submit(os.getpid).result(), flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        os.kill(worker, 0)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    ends = time.monotonic() + SECONDS
    while Path(f"/proc/{worker}").exists() and "Z" not in Path(f"/proc/{worker}/stat").read_text():
        assert time.monotonic() < ends, "a worker outlived its parent"
        time.sleep(0.02)


def test_a_worker_that_was_ended_from_outside_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    made = AlignmentParty(config("north"), "north", ["a", "b"], tmp_path, 2)
    workers = made._pool(shards=2)
    with pytest.raises(Exception, match="terminated abruptly"):
        workers.submit(os._exit, 1).result()
    with pytest.raises(EfvflError, match=r"a worker process was ended from outside \(out of memory\?\)"):
        ask(made, messages.write_blinded(bytes(16), 1, {0: psi.blind(["+a"])[1]}))
    made.close()


# A party refuses.


def member(folder: Path, chosen: RunConfig | None = None, ids: list[str] | None = None) -> AlignmentParty:
    return AlignmentParty(chosen or config("north"), "north", ids or ["a", "b", "c"], folder, 1)


def ask(made: AlignmentParty, question: bytes) -> bytes:
    answer = made.respond(Frame(FrameKind.ASK, 3, 0, question))
    assert (answer.kind, answer.number) == (FrameKind.ANSWER, 3)
    return answer.body


def listed(whole: list[str], **changes: Any) -> bytes:
    digest = Aligned(whole, bytes(len(whole))).digest()
    return replace(ListPart(digest, len(whole), 0, bytes(len(whole)), whole), **changes).to_bytes()


def test_a_list_with_an_id_the_party_lacks_is_refused(tmp_path: Path) -> None:
    made = member(tmp_path)
    with pytest.raises(ProtocolError, match="has ids that north does not hold"):
        ask(made, listed(["a", "x"]))
    assert not (tmp_path / "aligned.parquet").exists()
    assert ask(made, listed(["a", "c"])) == write(AlignmentKind.ROWS, 2)
    assert polars.read_parquet(tmp_path / "aligned.parquet")["id"].to_list() == ["a", "c"]


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (listed(["b", "a"]), "expected the list of shared rows in the order of its ids, each once"),
        (listed(["a", "a"]), "expected the list of shared rows in the order of its ids, each once"),
        (listed(["a", "b"], splits=b"\x00\x03"), "expected splits from 0 to 2, got 3"),
        (listed(["a", "b"], digest=bytes(16)), "the list of shared rows does not match its digest"),
        (listed(["a", "b"], ids=[]), "expected an id for every split, got 0 ids and 2 splits"),
        (listed(["a", "b"], ids=["a"]), "expected one id for each of 2 splits, got 1"),
        (listed(["a", "b"], start=1), "expected a part's length from 1 to 1, got 2"),
        (listed(["a", "b"]) + b"x", "got 1 more bytes"),
        (listed(["a", "b"])[:-2], "cut short"),
        (write(AlignmentKind.ROWS, bytes(16), 1, 0, 1, b"\0", 1, 1, b"\xff"), "expected ids in UTF-8, got other bytes"),
        (b"", "got 0: the bytes were cut short"),
        (b"{}", "expected a kind of question that belongs to an alignment, got 123"),
        (write(AlignmentKind.DIGESTS, bytes(16), 0), "expected a question for align = 'psi', got DIGESTS"),
        (write(AlignmentKind.ORDER, bytes(16)), "expected a question for align = 'psi', got ORDER"),
        (write(AlignmentKind.VOID, 3), "expected a reason from 1 to 2, got 3"),
        (messages.write_blinded(bytes(16), 1, {0: bytes(POINT)}), "expected points of the curve, got other bytes"),
        (
            messages.write_blinded(bytes(16), 1, {0: b"\x02" + b"\xff" * 32}),
            "expected points of the curve, got other bytes",
        ),
        (messages.write_blinded(bytes(16), 1, {1: bytes(POINT)}), "expected a shard's index from 0 to 0, got 1"),
        (
            messages.write_blinded(bytes(16), MOST_SHARDS + 1, {0: bytes(POINT)}),
            "expected the number of shards from 1 to 1,024, got 1,025",
        ),
        (
            messages.write_blinded(bytes(16), 1, {0: b""}),
            "expected the number of a shard's points from 1 to 508,400, got 0",
        ),
        (messages.write_blinded(bytes(16), 1, {0: bytes(POINT)})[:-1], "cut short"),
        (
            write(AlignmentKind.BLINDED, bytes(16), 1, 2, 0, 1, bytes(POINT), 0, 1, bytes(POINT)),
            "expected every shard once, got shard 0 twice",
        ),
        (
            write(AlignmentKind.BLINDED, bytes(16), 1024, 65),
            "expected the number of shards in a question from 1 to 64, got 65",
        ),
    ],
)
def test_a_question_that_cannot_be_is_refused(tmp_path: Path, question: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        ask(member(tmp_path), question)
    assert not (tmp_path / "aligned.parquet").exists()


def test_a_party_with_many_ids_refuses_few_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi, "SMALL", 2)
    monkeypatch.setattr(psi, "SHARD", 1)
    with pytest.raises(ProtocolError, match="expected at least 3 shards for the ids of north, got 2"):
        ask(member(tmp_path), messages.write_blinded(bytes(16), 2, {0: bytes(POINT)}))


def test_a_question_that_comes_twice_gets_the_same_answer_and_counts_once(tmp_path: Path) -> None:
    chosen = replace(config("north"), party=(PartyConfig("north", limits=LimitConfig(rows=3)),))
    made = member(tmp_path, chosen)
    question = messages.write_blinded(bytes(16), 1, {0: psi.blind(["+a", "+x"])[1]})
    assert ask(made, question) == ask(made, question)
    with pytest.raises(LimitError, match=r"tests 4 ids in total, but limits\.rows of north allows 3"):
        ask(made, messages.write_blinded(bytes(16), 1, {0: psi.blind(["+b", "+y"])[1]}))
    again = member(tmp_path, chosen)  # it has not forgotten
    with pytest.raises(LimitError, match="tests 4 ids in total"):
        ask(again, question)


def test_limits_count_digests_too(tmp_path: Path) -> None:
    chosen = replace(config("north", align="hash"), party=(PartyConfig("north", limits=LimitConfig(rows=2)),))
    with pytest.raises(LimitError, match="tests 3 ids in total"):
        ask(member(tmp_path, chosen), write(AlignmentKind.DIGESTS, bytes(16), 0))


def test_a_list_that_starts_over_replaces_what_had_come(tmp_path: Path) -> None:
    made = member(tmp_path)
    assert ask(made, listed(["a", "b", "c"], splits=b"\0\0", ids=["a", "b"])) == write(AlignmentKind.ROWS, 2)
    assert ask(made, listed(["b", "c"])) == write(AlignmentKind.ROWS, 2)
    assert made.aligned == Aligned(["b", "c"], b"\0\0")
    late = listed(["a", "b"], start=1, splits=b"\0", ids=["b"])  # a part whose start this process never saw
    assert ask(made, late) == write(AlignmentKind.ROWS, 0)


def test_stop_without_a_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="it sent no list of rows"):
        member(tmp_path).respond(Frame(FrameKind.STOP))
    Aligned(["a", "z"], b"\0\0").save(tmp_path)
    with pytest.raises(ProtocolError, match="the list here is of another table"):
        member(tmp_path).respond(Frame(FrameKind.STOP))
    Aligned(["a", "c"], b"\0\2").save(tmp_path)
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
    "no answer": b"",
    "another kind": write(AlignmentKind.VOID),
    "another protocol": b"\x00\x01",
    "too few points": write(AlignmentKind.BLINDED, 20, bytes(20 * POINT)),
    "a count that is a lie": write(AlignmentKind.BLINDED, 1 << 40, bytes(POINT)),
    "bytes after the end": write(AlignmentKind.BLINDED, 1, bytes(POINT), bytes(20 * POINT), b"x"),
    "no shards": write(AlignmentKind.SIZE, 0, 1),
    "too many shards": write(AlignmentKind.SIZE, MOST_SHARDS + 1, 1),
    "no processes": write(AlignmentKind.SIZE, 1, 0),
    "rows that were never sent": write(AlignmentKind.ROWS, 11),
}


@pytest.mark.parametrize("what", JUNK)
def test_a_party_that_answers_junk_is_refused(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {name: sets(20)[name] for name in ("", "north")}
    answer = AlignmentParty._answer
    word = {
        "no shards": AlignmentKind.SIZE,
        "too many shards": AlignmentKind.SIZE,
        "no processes": AlignmentKind.SIZE,
    }.get(what, AlignmentKind.BLINDED)
    word = AlignmentKind.ROWS if what.startswith("rows") else word
    with Meeting(tmp_path, config("north"), ids) as meeting:
        monkeypatch.setattr(
            AlignmentParty,
            "_answer",
            lambda made, body: JUNK[what] if meeting.lives["north"] == 1 and body[0] == word else answer(made, body),
        )
        refused(meeting, "the server refuses north")


def test_points_that_are_none_end_the_alignment_with_the_partys_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {name: sets(20)[name] for name in ("", "north")}
    monkeypatch.setattr(psi, "encrypt_again", lambda key, points: bytes(len(points)))
    with (
        Meeting(tmp_path, config("north"), ids) as meeting,
        pytest.raises(ProtocolError, match="north sent an answer that cannot be matched: expected points of the curve"),
    ):
        meeting.run()
    assert not (tmp_path / "server" / "aligned.parquet").exists()


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


# Words about it.


def test_nothing_shared_shows_the_own_format_only(tmp_path: Path) -> None:
    ids = {"": ["1234", "567890"], "north": ["ab-1", "CD"]}
    with Meeting(tmp_path, config("north"), ids) as meeting:
        with pytest.raises(DataError, match="no row is shared by all") as caught:
            meeting.run()
        assert meeting.wait("north") is None
        assert meeting.members["north"].void == VoidReason.EMPTY
    assert "The ids here have 4 to 6 characters: 100% digits only." in str(caught.value)
    assert not list(tmp_path.glob("*/aligned.parquet"))


def test_shapes_of_ids() -> None:
    assert shapes(["12", "345", "ab", "a1", "b-2"]) == (
        "2 to 3 characters: 40% digits only, 20% letters only, 20% digits and letters, 20% with other characters"
    )


def test_a_list_that_is_none_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Run `efvfl align` first, all together"):
        Aligned.load(tmp_path)
    for frame in (polars.DataFrame({"id": ["a"]}), polars.DataFrame({"id": ["a"], "split": ["holdout"]})):
        frame.write_parquet(tmp_path / "aligned.parquet")
        with pytest.raises(DataError, match="was not written by `efvfl align`"):
            Aligned.load(tmp_path)
