"""Ids of two organisations meet, and a split never moves them."""

from __future__ import annotations

import hashlib

import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efvfl.data.tables.ids import FORMS, normalise, normalise_texts, read_ids
from efvfl.data.tables.splits import split_of, stratified
from efvfl.errors import ConfigError, DataError

steady = settings(deadline=None, derandomize=True, max_examples=200)
dirty = st.text(alphabet=st.sampled_from(" 0012.-aAßİǅé٠\t\u00a0"), max_size=8) | st.text(max_size=8)
forms = st.lists(st.sampled_from(FORMS), unique=True)
names = st.lists(st.text(min_size=1, max_size=6), unique=True, min_size=30, max_size=60)


@steady
@given(st.lists(dirty | st.none()), forms)
def test_normalising_twice_changes_nothing_more(values: list[str | None], chosen: list[str]) -> None:
    once = normalise(polars.Series(values, dtype=polars.String), chosen)
    assert len(once) == len(values)
    assert normalise(polars.Series(once, dtype=polars.String), chosen) == once
    assert "" not in once


@steady
@given(st.lists(dirty), forms)
def test_the_order_of_forms_does_not_matter(values: list[str], chosen: list[str]) -> None:
    series = polars.Series(values, dtype=polars.String)
    assert normalise(series, chosen) == normalise(series, chosen[::-1])


def test_each_form_does_what_its_name_says() -> None:
    values = polars.Series([" 007 ", "Ab", "000", "0-1", "0.5", "", "  ", None])
    assert normalise(values, ()) == [" 007 ", "Ab", "000", "0-1", "0.5", None, "  ", None]
    assert normalise(values, ("strip",)) == ["007", "Ab", "000", "0-1", "0.5", None, None, None]
    assert normalise(values, ("case",)) == [" 007 ", "ab", "000", "0-1", "0.5", None, "  ", None]
    assert normalise(values, ("zeros",)) == [" 007 ", "Ab", "0", "0-1", "0.5", None, "  ", None]
    assert normalise(values, FORMS) == ["7", "ab", "0", "0-1", "0.5", None, None, None]
    with pytest.raises(ConfigError, match="Did you mean 'strip'"):
        normalise(values, ("stripe",))


@pytest.mark.parametrize("kind", [polars.Int8, polars.Int64, polars.UInt32, polars.Float32, polars.Float64])
def test_whole_numbers_are_written_alike(kind: type[polars.DataType]) -> None:
    assert normalise(polars.Series([12, None, 0], dtype=kind), ()) == ["12", None, "0"]
    assert normalise(polars.Series(["12.0", None, "0"]), ()) == ["12", None, "0"]


def test_numbers_that_are_no_ids_are_missing() -> None:
    assert normalise(polars.Series([float("nan"), float("inf"), 2.5, 2.0**62]), ()) == [None, None, "2.5", str(2**62)]


def test_lists_are_no_ids() -> None:
    with pytest.raises(DataError, match=r"expected numbers or strings in column 'who', got List\(Int64\)"):
        normalise(polars.Series("who", [[1], [2]]), ())


def test_ids_keep_their_rows_and_the_report_counts() -> None:
    found = read_ids(polars.Series([None, " a", "b", "", "a", "c"]), ("strip",), "first", "customers.csv")
    assert found.ids == ["a", "b", "c"]
    assert found.rows.dtype == np.int64
    assert found.rows.tolist() == [1, 2, 5]
    report = found.report
    assert (report.total, report.missing, report.duplicates, report.changed) == (6, 2, 1, 1)
    assert report.examples == ["' a' as 'a'"]
    assert "3 of 6 rows" in report.text()
    assert "2 without an id" in report.text()
    assert "1 that share an id" in report.text()
    assert "' a' as 'a'" in report.text()


def test_all_rows_of_a_shared_id_can_be_dropped() -> None:
    found = read_ids(polars.Series(["a", "b", "A"]), ("case",), "drop", "t")
    assert (found.ids, found.rows.tolist(), found.report.duplicates) == (["b"], [1], 2)


def test_shared_ids_are_refused_with_an_example_and_the_way_out() -> None:
    with pytest.raises(
        DataError, match=r"t: expected a unique id for every row, but 2 rows share 1 ids, such as 'a'.*data\.duplicates"
    ):
        read_ids(polars.Series(["a", "b", "A"]), ("case",), "refuse", "t")


@pytest.mark.parametrize("values", [["", None], ["x", "x"]])
def test_a_table_without_any_id_of_its_own_is_refused(values: list[str | None]) -> None:
    with pytest.raises(DataError, match="no row has a unique id"):
        read_ids(polars.Series(values), (), "drop", "t")


def places(ids: list[str], split: dict[str, np.ndarray]) -> dict[str, str]:
    return {ids[i]: name for name, part in split.items() for i in part}


@pytest.mark.slow
@steady
@given(names, st.integers(0, 2**31), st.randoms(use_true_random=False))
def test_a_split_does_not_move_with_more_rows_or_another_order(ids: list[str], seed: int, random: object) -> None:
    shares = (0.2, 0.2)
    first = places(ids, split_of(ids, seed, shares))
    assert set(first) == set(ids)
    other = [*ids, *(f"new {i}" for i in range(10))]
    random.shuffle(other)  # type: ignore[attr-defined]
    split = split_of(other, seed, shares)
    assert all(np.all(np.diff(part) > 0) for part in split.values())
    second = places(other, split)
    assert all(second[name] == first[name] for name in ids)


def test_the_hash_of_a_split_is_fixed_for_good() -> None:
    key = hashlib.blake2b(b"3\x1fsplit", digest_size=8).digest()
    ids = [f"customer {i}" for i in range(200)]
    split = places(ids, split_of(ids, 3, (0.25, 0.5)))
    for name in ids:
        digest = hashlib.blake2b(name.encode(), key=key, digest_size=8).digest()
        share = int.from_bytes(digest, "little") / 2**64
        assert split[name] == ("test" if share < 0.5 else "validation" if share < 0.75 else "train")
    assert split != places(ids, split_of(ids, 4, (0.25, 0.5)))


def test_shares_come_out_about_right() -> None:
    split = split_of([str(i) for i in range(20_000)], 0, (0.1, 0.3))
    assert {name: round(len(part) / 20_000, 1) for name, part in split.items()} == {
        "train": 0.6,
        "validation": 0.1,
        "test": 0.3,
    }


@pytest.mark.slow
@steady
@given(names, st.integers(0, 100), st.data())
def test_stratified_shares_of_every_class_are_exact_to_a_row(ids: list[str], seed: int, data: st.DataObject) -> None:
    labels = np.array(data.draw(st.lists(st.sampled_from("abc"), min_size=len(ids), max_size=len(ids))))
    split = stratified(ids, labels, seed, (0.15, 0.25))
    assert sorted(np.concatenate(list(split.values())).tolist()) == list(range(len(ids)))
    for name, share in (("train", 0.6), ("validation", 0.15), ("test", 0.25)):
        assert np.all(np.diff(split[name]) > 0)
        for label in np.unique(labels):
            assert abs((labels[split[name]] == label).sum() - share * (labels == label).sum()) <= 1
    order = np.random.default_rng(seed).permutation(len(ids))
    shuffled = [ids[i] for i in order]
    assert places(shuffled, stratified(shuffled, labels[order], seed, (0.15, 0.25))) == places(ids, split)


def test_stratified_shares_are_rounded_so_a_class_of_one_row_trains() -> None:
    ids = [f"{i}" for i in range(11)]
    split = stratified(ids, np.array(["rare"] + ["common"] * 10), 0, (0.2, 0.3))
    assert {name: len(part) for name, part in split.items()} == {"train": 6, "validation": 2, "test": 3}
    assert 0 in split["train"]


def test_splits_that_cannot_be_are_refused() -> None:
    with pytest.raises(DataError, match=r"none of .* rows is left for training"):
        split_of(["a"], 0, (0.0, 0.999999))
    with pytest.raises(DataError, match=r"none of .* rows is left for training"):
        split_of([], 0, (0.1, 0.1))
    with pytest.raises(ConfigError, match=r"with a sum below 1, got 0\.5 and 0\.5"):
        split_of(["a"], 0, (0.5, 0.5))
    with pytest.raises(ConfigError, match=r"expected data\.validation and data.test to be 0 or more"):
        split_of(["a"], 0, (-0.1, 0.5))
    with pytest.raises(DataError, match=r"expected classes as labels for data\.stratify"):
        stratified(["a", "b"], np.array([0.5, 1.0]), 0, (0.1, 0.1))
    with pytest.raises(DataError, match="expected 2 labels, one per id, got 1"):
        stratified(["a", "b"], np.array([1]), 0, (0.1, 0.1))


def test_ids_that_people_type_meet_those_of_tables() -> None:
    typed = [" K0100", "k0100 ", "0042", "", "  "]
    assert normalise_texts(typed, ["strip", "case", "zeros"]) == ["k0100", "k0100", "42", "", "  "]
    assert normalise_texts(typed, ["strip"])[:3] == ["K0100", "k0100", "0042"]
    assert normalise_texts([], ["strip"]) == []
