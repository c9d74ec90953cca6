"""Tables become numbers that are learnt from training rows alone, and come back the same from JSON."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import cos, pi, sin

import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efvfl.config.run_file import OwnData
from efvfl.data.tables.drift import changes
from efvfl.data.tables.encode import Encoder, Layout, TableSettings
from efvfl.errors import ConfigError, DataError

steady = settings(deadline=None, derandomize=True, max_examples=100)
thousandths = st.integers(-(10**9), 10**9).map(lambda n: n / 1000)


def fit(settings: TableSettings | None = None, **columns: object) -> Encoder:
    return Encoder.fit(polars.DataFrame(columns), settings or TableSettings())


def unseen(encoder: Encoder, frame: polars.DataFrame) -> dict[str, int]:
    return {change.column: change.unseen for change in changes(encoder, frame) if change.unseen}


@steady
@given(st.lists(thousandths | st.none() | st.just(float("inf")), min_size=2, max_size=40))
def test_training_numbers_have_mean_0_and_spread_1(values: list[float | None]) -> None:
    there = [v for v in values if v is not None and v < float("inf")]
    frame = polars.DataFrame({"x": values}, schema={"x": polars.Float64})
    if not there:
        with pytest.raises(DataError, match="'x' has no value"):
            Encoder.fit(frame, TableSettings())
        return
    encoder = Encoder.fit(frame, TableSettings())
    x = encoder.transform(frame)
    assert encoder.names == ["x", "x is missing"][: 1 + (len(there) < len(values))]
    assert x.dtype == np.float32
    assert abs(x[:, 0].mean(dtype=np.float64)) < 1e-4
    assert x[:, 0].std(dtype=np.float64) == pytest.approx(float(len(set(there)) > 1), abs=1e-4)
    if len(there) < len(values):
        assert x[:, 1].tolist() == [float(v is None or v == float("inf")) for v in values]


@st.composite
def tables(draw: st.DrawFn) -> polars.DataFrame:
    rows = draw(st.integers(2, 20))

    def some(values: st.SearchStrategy[object]) -> list[object]:
        # At least one value, and one of them twice: otherwise the column is all missing or looks like an id.
        first = draw(values)
        return [first, first] + [draw(values | st.none()) for _ in range(rows)]

    days = st.dates(date(1900, 1, 1), date(2100, 1, 1))
    columns = {
        "float": some(st.floats(allow_nan=False, allow_infinity=False, width=32)),
        "whole": some(st.integers(-(2**62), 2**62)),
        "truth": some(st.booleans()),
        "text": some(st.text(min_size=1, max_size=3)),
        "day": some(days),
        "moment": some(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1))),
        "time": some(st.times()),
    }
    return polars.DataFrame(columns)


@pytest.mark.slow
@steady
@given(tables(), st.sampled_from(["onehot", "embed"]))
def test_an_encoder_comes_back_from_json_to_the_bit(frame: polars.DataFrame, categories: str) -> None:
    encoder = Encoder.fit(frame, TableSettings(categories=categories))  # type: ignore[arg-type]
    again = Encoder.from_json(encoder.to_json())
    assert again == encoder
    x = encoder.transform(frame)
    assert x.tobytes() == again.transform(frame).tobytes()
    assert x.shape == (frame.height, encoder.layout.width) == (frame.height, len(encoder.names))
    assert np.isfinite(x).all()
    assert unseen(encoder, frame) == {}


def test_only_training_rows_teach() -> None:
    encoder = fit(x=[1.0, 3.0])
    later = polars.DataFrame({"x": [2.0, 4.0, None, float("nan"), float("-inf"), 1e300]})
    assert encoder.transform(later).tolist() == [[0.0], [2.0], [0.0], [0.0], [0.0], [0.0]]


def test_missing_numbers_become_the_median_and_say_so() -> None:
    encoder = fit(x=[0.0, 1.0, 100.0, None])
    x = encoder.transform(polars.DataFrame({"x": [1.0, None]}))
    assert x[0, 0] == x[1, 0]
    assert x[:, 1].tolist() == [0.0, 1.0]


def test_a_constant_column_is_zeros() -> None:
    encoder = fit(x=[0.1] * 7)
    assert encoder.transform(polars.DataFrame({"x": [0.1, 5.0]})).tolist() == [[0.0], [0.0]]


def test_far_off_numbers_stay_finite() -> None:
    encoder = fit(x=[1.0, 1.0 + 1e-9])
    assert np.isfinite(encoder.transform(polars.DataFrame({"x": [1e99, -1e99]}))).all()


def test_kinds_of_numbers_are_all_numbers() -> None:
    encoder = fit(
        decimal=[Decimal("1.50"), Decimal("2.50")], length=[timedelta(hours=12), timedelta(days=1)], small=[1, 2]
    )
    frame = polars.DataFrame({"decimal": [2.0], "length": [timedelta(hours=18)], "small": [True]})
    assert encoder.transform(frame).tolist() == [[0.0, 0.0, -1.0]]


def test_booleans_are_0_and_1() -> None:
    encoder = fit(x=[True, False, None], y=[True, True, False])
    assert encoder.names == ["x", "x is missing", "y"]
    frame = polars.DataFrame({"x": [None, True, False], "y": [None, 1, 0]})
    assert encoder.transform(frame).tolist() == [[0, 1, 0], [1, 0, 1], [0, 0, 0]]


def test_dates_are_days_months_and_weekdays() -> None:
    encoder = fit(d=[date(2024, 1, 1), date(2024, 1, 3), None])
    assert encoder.names == [
        "d",
        "d: month sine",
        "d: month cosine",
        "d: weekday sine",
        "d: weekday cosine",
        "d is missing",
    ]
    april, thursday = 2 * pi * 3 / 12, 2 * pi * 3 / 7
    frame = polars.DataFrame({"d": [date(2024, 4, 4), None]})
    row, gap = encoder.transform(frame)
    assert row[1:] == pytest.approx([sin(april), cos(april), sin(thursday), cos(thursday), 0], abs=1e-6)
    assert gap[1:].tolist() == [0, 0, 0, 0, 1]
    moments = polars.DataFrame({"d": [datetime(2024, 4, 4), None]})
    zoned = moments.with_columns(polars.col("d").dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo"))
    for same in (
        moments,
        zoned,
        polars.DataFrame({"d": ["2024-04-04", None]}),
        polars.DataFrame({"d": [20240404, None]}),
    ):
        np.testing.assert_array_equal(encoder.transform(same), encoder.transform(frame))


def test_times_of_day_go_round() -> None:
    encoder = fit(t=[time(0), time(12)])
    assert encoder.names == ["t", "t: day sine", "t: day cosine"]
    assert encoder.transform(polars.DataFrame({"t": [time(6)]}))[0] == pytest.approx([0, 1, 0], abs=1e-6)


def test_categories_are_a_column_for_each_level_sorted_by_text() -> None:
    encoder = fit(c=["b", "a", "b", None])
    assert encoder.names == ["c = a", "c = b", "c is missing"]
    frame = polars.DataFrame({"c": ["a", "b", None, "new", ""]})
    assert encoder.transform(frame).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 1]]
    assert unseen(encoder, frame) == {"c": 1}
    assert fit(c=["b", "a", "b"]).transform(polars.DataFrame({"c": [None, "b"]})).tolist() == [[0, 0], [0, 1]]


def test_embedded_categories_are_codes_after_the_numbers() -> None:
    encoder = fit(TableSettings(categories="embed"), c=["b", "a", "b"], x=[1.0, 3.0, 2.0], d=["u", "u", None])
    assert (encoder.layout.numbers, encoder.layout.codes) == (1, (3, 2))
    assert encoder.names == ["x", "c", "d"]
    assert encoder.texts == ("c", "d")
    frame = polars.DataFrame({"x": [2.0] * 3, "c": ["a", "new", None], "d": ["u", "u", "new"]})
    assert encoder.transform(frame).tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]
    assert unseen(encoder, frame) == {"c": 1, "d": 1}


def test_whole_numbers_are_categories_only_when_declared() -> None:
    frame = polars.DataFrame({"x": [1, 2, 2], "y": [1.0, None, 2.5]})
    assert Encoder.fit(frame, TableSettings()).names == ["x", "y", "y is missing"]
    declared = TableSettings(types={"x": "category", "y": "category"})
    assert Encoder.fit(frame, declared).names == ["x = 1", "x = 2", "y = 1", "y = 2.5", "y is missing"]


def test_declared_texts_are_numbers_booleans_and_dates() -> None:
    texts = polars.DataFrame({"n": ["1", " 3"], "b": ["Yes", "n"], "d": ["31.12.2023", "2.1.2024"]})
    plain = polars.DataFrame({"n": [1, 3], "b": [True, False], "d": [date(2023, 12, 31), date(2024, 1, 2)]})
    encoder = Encoder.fit(texts, TableSettings(types={"n": "number", "b": "boolean", "d": "date"}))
    assert encoder == Encoder.fit(plain, TableSettings())
    np.testing.assert_array_equal(encoder.transform(texts), encoder.transform(plain))


def test_the_id_the_label_and_what_is_left_out_are_not_used() -> None:
    frame = polars.DataFrame({"id": ["a", "b"], "y": [0, 1], "w": [1, 2], "x": [1, 3], "z": [4, 5]})
    own = OwnData("t.csv", id="id", label="y", leave_out=("w",), types={"x": "category"})
    chosen = TableSettings.of(own)
    assert Encoder.fit(frame, chosen).names == ["x = 1", "x = 3", "z"]
    assert chosen.texts == ("id", "x")
    assert Encoder.fit(frame, TableSettings(columns=("z", "w"), id="id")).names == ["z", "w"]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"types": {"x": "text"}}, r"types: unknown type 'text' of 'x'\. Known: boolean"),
        ({"columns": ("y",), "label": "y"}, "'y' is also the id, the label"),
        ({"columns": ("x",), "leave_out": ("x",)}, "'x' is also"),
        ({"columns": ("agee",)}, "columns: the table has no column 'agee'. Did you mean 'age'"),
        ({"leave_out": ("agee",)}, "leave_out: the table has no column 'agee'"),
        ({"types": {"agee": "number"}}, "types: the table has no column 'agee'"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        fit(TableSettings(**wrong), age=[1, 2], x=[1, 2], y=[0, 1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "types", "complaint"),
    [
        ([None, None], {}, "'x' has no value in any training row"),
        ([float("nan"), float("inf")], {}, "'x' has no value in any training row"),
        (["", None], {}, "'x' has no value in any training row"),
        (["a", "b", "c"], {}, "3 different values in 3 training rows, such as 'a'"),
        ([f"{i}" for i in range(1001)] * 2, {}, r"1,001 different values in 2,002 training rows.*leave_out"),
        ([f"{i}" for i in range(1001)], {"x": "category"}, "'x' has too many levels, 1,001.*'embed'"),
        (["1", "two"], {"x": "number"}, "expected numbers in column 'x', got 'two'"),
        (["yes", "maybe"], {"x": "boolean"}, "expected true or false in column 'x', got 'maybe'"),
        (
            ["2024-01-31", "02/30/24"],
            {"x": "date"},
            "expected dates, all written as .* in column 'x', got '02/30/24'",
        ),
        ([[1], [2]], {}, r"expected numbers, dates or strings in column 'x', got List\(Int64\)"),
    ],
)
def test_a_column_nobody_can_learn_from_is_refused(values: list[object], types: dict[str, str], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        fit(TableSettings(types=types), x=values)  # type: ignore[arg-type]


def test_a_declared_category_may_have_many_levels_if_they_are_embedded() -> None:
    values = [f"{i:04}" for i in range(1001)]
    encoder = fit(TableSettings(types={"x": "category"}, categories="embed"), x=values)
    assert encoder.layout == Layout(0, (1002,))
    assert encoder.transform(polars.DataFrame({"x": values[::-1]}))[:, 0].tolist() == list(range(1001, 0, -1))


def test_tables_without_rows_or_columns_are_refused() -> None:
    with pytest.raises(DataError, match="expected training rows to fit an encoder to, got none"):
        fit(x=[])
    with pytest.raises(DataError, match="expected a column to train on"):
        fit(TableSettings(id="x"), x=["a", "b"])


@pytest.mark.parametrize(
    ("later", "complaint"),
    [
        ({"other": [1]}, "no column 'number'"),
        ({"number": ["many"] * 10}, "expected numbers in column 'number', got 'many'"),
        ({"number": [date(2024, 1, 1)]}, "expected numbers in column 'number', got .*2024"),
        ({"number": [1] * 10, "truth": ["perhaps"] * 10}, "expected true or false in column 'truth', got 'perhaps'"),
        ({"number": [1] * 10, "truth": [2] * 10}, "expected true or false in column 'truth', got '2'"),
        ({"number": [1], "truth": [1], "day": [True]}, "expected dates in column 'day', got True"),
        (
            {"number": [1] * 10, "truth": [1] * 10, "day": [date(2024, 1, 1)] * 10, "time": ["noon"] * 10},
            "expected times of day in column 'time', got 'noon'",
        ),
    ],
)
def test_a_column_that_is_gone_or_another_is_refused(later: dict[str, object], complaint: str) -> None:
    encoder = fit(number=[1, 2], truth=[True, False], day=[date(2024, 1, 1)] * 2, time=[time(1), time(2)])
    with pytest.raises(DataError, match=complaint):
        encoder.transform(polars.DataFrame(later))


@pytest.mark.parametrize("kind", [polars.Null, polars.String, polars.Date, polars.Int8, polars.Boolean, polars.Time])
def test_a_later_column_without_any_value_passes_for_any_kind(kind: polars.DataType) -> None:
    encoder = fit(n=[1, None], b=[True, None], d=[date(2024, 1, 1), None], t=[time(1), None], c=["a", None])
    gaps = polars.DataFrame({name: polars.Series([None] * 3, dtype=kind) for name in "nbdtc"})
    x = encoder.transform(gaps)
    assert x[:, [name.endswith("missing") for name in encoder.names]].min() == 1
    assert np.isfinite(x).all()


def test_no_rows_are_encoded_as_no_rows() -> None:
    encoder = fit(x=[1, 2], c=["a", "a"], d=[date(2024, 1, 1)] * 2)
    frame = polars.DataFrame({"x": [1], "c": ["a"], "d": [date(2024, 1, 1)]}).head(0)
    assert encoder.transform(frame).shape == (0, 7)


GOOD = json.loads(fit(x=[1, 2], c=["a", "a"]).to_json())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t.update(version=2),
        lambda t: t.pop("columns"),
        lambda t: t.update(columns=[]),
        lambda t: t.update(columns=3),
        lambda t: t.update(columns=[3]),
        lambda t: t["columns"].append(t["columns"][0]),
        lambda t: t["columns"][0].pop("type"),
        lambda t: t["columns"][0].update(type="picture"),
        lambda t: t["columns"][0].update(kind="category"),
        lambda t: t["columns"][0].update(extra=1),
        lambda t: t["columns"][0].update(form="1-2"),
        lambda t: t.pop("missing"),
        lambda t: t.update(missing=3),
        lambda t: t["columns"][0].update(mean="1"),
        lambda t: t["columns"][0].update(scale=-1.0),
        lambda t: t["columns"][0].update(mean=float("nan")),
        lambda t: t["columns"][1].update(levels=[]),
        lambda t: t["columns"][1].update(levels=["b", "a"]),
        lambda t: t["columns"][1].update(levels=["a", "a"]),
        lambda t: t["columns"][1].update(levels=[1]),
        lambda t: t["columns"][1].update(embed=1),
    ],
)
def test_json_that_no_encoder_wrote_is_refused(spoil: object) -> None:
    table = json.loads(json.dumps(GOOD))
    spoil(table)  # type: ignore[operator]
    with pytest.raises(DataError, match="encoder"):
        Encoder.from_json(json.dumps(table))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 2, "columns": "ab"}', "[" * 100_000])
def test_text_that_is_no_encoder_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="encoder"):
        Encoder.from_json(text)


def test_huge_numbers_in_json_are_refused() -> None:
    text = fit(x=[1, 2]).to_json()
    assert '"mean": 1.5' in text
    with pytest.raises(DataError, match="expected finite statistics of column 'x'"):
        Encoder.from_json(text.replace('"mean": 1.5', '"mean": 1e999'))


@pytest.mark.attack(
    by="a disk",
    tries="one flipped bit in encoder.json, such as in a digit of a mean",
    outcome="refused: the file differs from its digest, or is no JSON",
)
def test_a_flipped_bit_is_found() -> None:
    encoder = fit(x=[1.5, 2.25, 4.0], c=["a", "b", "a"])
    data = encoder.to_json().encode()
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1
        try:
            found = Encoder.from_json(flipped.decode())
        except (DataError, ConfigError, UnicodeDecodeError):
            continue
        assert found == encoder, place  # white space
