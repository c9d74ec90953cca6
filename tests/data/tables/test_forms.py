"""Numbers and dates are read as people write them, and what was assumed is said."""

from __future__ import annotations

import io
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pandas
import polars
import pytest
from rich.console import Console

from efvfl.config import run_file
from efvfl.config.run_file import DataConfig, OwnData, RunConfig
from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.data.tables.inspect import inspect_file, show_inspection
from efvfl.data.tables.load import Table, open_new
from efvfl.data.tables.table import as_frame, read
from efvfl.data.tables.values import moments, numbers_of
from efvfl.errors import ConfigError, DataError

CSV = TableSettings(typed=False)


def fit(*values: str | None, settings: TableSettings = CSV, times: int = 1) -> Encoder:
    return Encoder.fit(polars.DataFrame({"x": list(values) * times}), settings)


def read_as(encoder: Encoder, *values: str | None) -> list[float | None]:
    """What the only column's texts mean to the encoder."""
    (column,) = encoder.columns
    numbers = numbers_of(polars.Series("x", list(values)), column.kind, column.form)  # type: ignore[union-attr]
    return [None if np.isnan(n) else float(n) for n in numbers]


@pytest.mark.parametrize(
    ("texts", "form", "numbers"),
    [
        (("1,234.5", "7"), "1,234.5", [1234.5, 7]),
        (("1,234,567", "-12"), "1,234.5", [1234567, -12]),
        (("1.234,5", "7"), "1.234,5", [1234.5, 7]),
        (("12,5", "1.234", "3"), "1.234,5", [12.5, 1234, 3]),
        (("1.234.567", "12"), "1.234,5", [1234567, 12]),
        (("0,123", "1,234"), "1.234,5", [0.123, 1.234]),
        (("1 234,5", "1\u202f234\u00a0567,25"), "1 234,5", [1234.5, 1234567.25]),
        (("1 234.5", "9"), "1 234.5", [1234.5, 9]),
        (("1'234.50", "1\u2019000"), "1'234.5", [1234.5, 1000]),
        (("12 %", "7.5%"), " %", [12, 7.5]),
        (("12,5 %", "7%"), "1.234,5 %", [12.5, 7]),
        (("$1,200", "-$3.50", "$-7", "8"), "1,234.5 $", [1200, -3.5, -7, 8]),
        (("1.200 €", "€ 7,50", "\u22123€"), "1.234,5 €", [1200, 7.5, -3]),
        (("CHF 50", "1'200.25 CHF"), "1'234.5 CHF", [50, 1200.25]),
        (("R$ 5", "R$7"), " R$", [5, 7]),
        (("\u22125", "3"), "", [-5, 3]),
        (("1e3", "2"), "", [1000, 2]),
    ],
)
def test_numbers_as_they_are_written(texts: tuple[str, ...], form: str, numbers: list[float]) -> None:
    encoder = fit(*texts)
    assert [(c.kind, c.form) for c in encoder.columns] == [("number", form)]  # type: ignore[union-attr]
    assert read_as(encoder, *texts) == numbers
    assert Encoder.from_json(encoder.to_json()) == encoder


@pytest.mark.parametrize(
    ("texts", "form", "first"),
    [
        (("31.01.2024", "1.2.2024"), "", datetime(2024, 1, 31)),
        (("31/01/2024", "01/02/2024"), "d/m/Y", datetime(2024, 1, 31)),
        (("01/31/2024", "02/01/2024"), "m/d/Y", datetime(2024, 1, 31)),
        (("05/06/2024", "06/07/2024"), "d/m/Y", datetime(2024, 6, 5)),
        (("31-01-2024", "01-02-2024"), "d-m-Y", datetime(2024, 1, 31)),
        (("31.12.99", "1.2.24"), "d.m.y", datetime(1999, 12, 31)),
        (("12/31/99 11:30 PM", "1/2/24"), "m/d/y", datetime(1999, 12, 31, 23, 30)),
        (("31/01/2024 10:30", "01/02/2024"), "d/m/Y", datetime(2024, 1, 31, 10, 30)),
        (("2024-01-31", "2024-02-01T10:00:00+02:00"), "", datetime(2024, 1, 31)),
        (("31 Jan 2024", "1 Feb 2024"), "", datetime(2024, 1, 31)),
        (("Jan 31, 2024", "Feb 1, 2024"), "", datetime(2024, 1, 31)),
    ],
)
def test_dates_as_they_are_written(texts: tuple[str, ...], form: str, first: datetime) -> None:
    for settings in (CSV, TableSettings()):  # in a table with types too, where texts are not dates otherwise
        (column,) = fit(*texts, settings=settings).columns
        assert (column.kind, column.form) == ("date", form)  # type: ignore[union-attr]
        assert moments(polars.Series(texts), form)[0] == first


@pytest.mark.parametrize(
    ("texts", "doubt"),
    [
        (("1,234", "5,678"), "'1,234' is read as number '1,234.5', and no value decides against '1.234,5'"),
        (("1.234", "5.678"), "'1.234' is read as number '1234.5', and no value decides against '1.234,5'"),
        (("05/06/2024", "07/07/2024"), "'05/06/2024' is read as date 'd/m/Y', and no value decides against 'm/d/Y'"),
    ],
)
def test_what_a_column_does_not_decide_is_said(texts: tuple[str, ...], doubt: str) -> None:
    (said,) = fit(*texts).doubts
    assert said.startswith(f"column 'x': {doubt}: set types = {{ x = ")
    assert fit(*texts, "1,2" if "," in texts[0] else "1.2" if "." in texts[0] else "31/01/2024").doubts == ()


@pytest.mark.parametrize(
    ("declared", "numbers"),
    [("number 1.234,5", [1234.0, 5678.0]), ("number 1234.5", [1.234, 5.678]), ("number", [1.234, 5.678])],
)
def test_types_decide(declared: str, numbers: list[float]) -> None:
    own = run_file.read(OwnData, {"path": "a.csv", "types": {"x": declared}}, "data")
    encoder = fit("1.234", "5.678", settings=TableSettings.of(own))
    assert read_as(encoder, "1.234", "5.678") == numbers
    day = fit("05/06/2024", "07/07/2024", settings=TableSettings(types={"x": "date m/d/Y"}))
    assert moments(polars.Series(["05/06/2024"]), day.columns[0].form)[0] == datetime(2024, 5, 6)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"Did you mean 'number 1\.234,5'"):
        run_file.read(OwnData, {"path": "a.csv", "types": {"x": "number 1.234,56"}}, "data")


def test_a_number_but_for_a_few_cells_is_a_number_and_the_cells_are_named() -> None:
    values = [*map(str, range(20)), "unknown\x1b[2J", "twelve"]
    for settings in (CSV, TableSettings()):
        encoder = fit(*values, settings=settings)
        assert encoder.names == ["x", "x is missing"]
        (cells,) = encoder.unreadable(polars.DataFrame({"x": values}))
        assert cells.text() == (
            "column 'x': 2 values are no number, and read as missing: row 21 'unknown\\x1b[2J', row 22 'twelve'."
        )
    (cells,) = encoder.unreadable(polars.DataFrame({"x": [*values, "a", "b" * 100]}))
    assert cells.text().endswith("row 23 'a', ...")
    assert encoder.transform(polars.DataFrame({"x": ["?", "oops", "0"]}))[:, 1].tolist() == [1, 1, 0]


def test_dates_and_times_but_for_a_few_cells_too() -> None:
    days = [f"{d}/01/2024" for d in range(10, 30)]
    assert fit(*days, "soon").columns[0].kind == "date"  # type: ignore[union-attr]
    assert fit(*(f"{h}:30" for h in range(10, 22)), "noon").columns[0].kind == "time"  # type: ignore[union-attr]


def test_a_column_that_is_nearly_numbers_is_a_category_but_not_in_silence() -> None:
    encoder = fit(*"123456789", "1", "many", "few")
    assert encoder.names[0] == "x = 1"
    (doubt,) = encoder.doubts
    assert doubt.startswith("column 'x': 10 of 12 values are numbers, the others, such as 'many', 'few', are not")
    assert fit("1", "2", "low", "high", "1").doubts == ()
    assert fit(*"123456789", "many", "1", "few", settings=TableSettings(types={"x": "category"})).doubts == ()


def test_digits_that_a_typed_table_stores_as_text_stay_categories() -> None:
    assert fit("1", "2", "1", settings=TableSettings()).names == ["x = 1", "x = 2"]
    zips = [f"0{n}" for n in range(1000, 1020)]
    encoder = fit(*zips, "D-80331", settings=TableSettings(), times=2)
    assert len(encoder.names) == 21
    assert "some begin with a zero, such as '01000'" in encoder.doubts[0]


def test_more_than_a_few_cells_of_a_declared_number_are_an_error() -> None:
    number = TableSettings(types={"x": "number"})
    assert fit(*map(str, range(18)), "?", "x", settings=number).columns[0].kind == "number"  # type: ignore[union-attr]
    with pytest.raises(DataError, match="expected numbers in column 'x', got 'two'"):
        fit(*map(str, range(8)), "two", settings=number)


def test_missing_markers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("y,n,c,sign\n+,1, ?,+\n-,-,b,-\n-,n/a,-,?\n?,3,b,+\n", encoding="utf-8")
    frame = read(path, label="y")
    assert frame["y"].to_list() == ["+", "-", "-", None]
    assert frame["n"].to_list() == [1, None, None, 3]
    assert frame["c"].to_list() == [None, "b", None, "b"]
    assert frame["sign"].to_list() == ["+", "-", None, "+"]
    own = read(path, missing=("b", "n/a"), label="y")
    assert own["c"].to_list() == [" ?", None, "-", None]
    assert own["n"].to_list() == ["1", "-", None, "3"]
    frame.write_parquet(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", missing=("b",))["c"].null_count() == 4
    assert read(tmp_path / "a.parquet")["sign"].to_list() == ["+", "-", None, "+"]


def test_the_form_of_the_training_rows_reads_later_rows(tmp_path: Path) -> None:
    """Later files do not decide anew: alone, 1.500 would be one and a half, and 05/06 a day in June."""
    rows = "".join(f"c{i},1.{i:03},{i % 9},{i % 12 + 1:02}/{i % 28 + 1:02}/2024,none\n" for i in range(100, 140))
    (tmp_path / "old.csv").write_text(f'id,debt,half,day,town\n{rows}c1,"2,5",n,01/31/2024,x\n', encoding="utf-8")
    (tmp_path / "new.csv").write_text('id,debt,half,day,town\nn1,1.500,2,05/06/2024,none\nn2,x,"2,5",1,none\n')
    own = OwnData("old.csv", new="new.csv", id="id", missing=("none",), leave_out=("town",))
    table = Table.open(tmp_path / "old.csv", TableSettings.of(own), DataConfig())
    encoder = Encoder.from_json(Encoder.fit(table.rows(table.ids[:40]), table.settings).to_json())
    assert [c.form for c in encoder.columns] == ["", "", "m/d/Y"]  # type: ignore[union-attr]
    encoder = Encoder.from_json(Encoder.fit(table.frame, table.settings).to_json())
    assert [c.form for c in encoder.columns] == ["1.234,5", "", "m/d/Y"]  # type: ignore[union-attr]
    new = open_new(own, tmp_path, DataConfig(), encoder)
    debt, _, day = encoder.columns
    assert numbers_of(new.frame["debt"], "number", debt.form)[0] == 1500  # type: ignore[union-attr]
    assert moments(new.frame["day"], day.form)[0] == datetime(2024, 5, 6)  # type: ignore[union-attr]
    assert new.frame["town"].null_count() == 2
    (tmp_path / "new.csv").write_text("id,debt,half,day,town\nn1,1.500,2,05/06/2024,none\n", encoding="utf-8")
    alone = open_new(own, tmp_path, DataConfig(), encoder)  # all its cells would pass for plain numbers
    assert numbers_of(alone.frame["debt"], "number", debt.form).tolist() == [1500]  # type: ignore[union-attr]
    said = new.notices(encoder, {})
    assert [text.partition("new.csv, ")[2] for text in said] == [
        "column 'debt': 1 value is no number, and read as missing: row 2 'x'.",
        "column 'half': 1 value is no number, and read as missing: row 2 '2,5'.",
        "column 'day': 1 value is no date, and read as missing: row 2 '1'.",
    ]


def test_rows_are_named_by_their_place_in_the_file(tmp_path: Path) -> None:
    rows = "".join(f"c{i},{i},{'' if i < 5 else i % 2}\n" for i in range(40))
    (tmp_path / "a.csv").write_text(f"id,x,y\n{rows}c40,oops,1\n,oops,1\n", encoding="utf-8")
    table = Table.open(tmp_path / "a.csv", TableSettings(id="id", label="y"), DataConfig())
    (said,) = table.notices(Encoder.fit(table.frame, table.settings), {})
    assert said.endswith("a.csv, column 'x': 1 value is no number, and read as missing: row 41 'oops'.")


def test_pandas_texts_are_numbers_and_dates() -> None:
    rows = 20
    table = pandas.DataFrame(
        {
            "day": [f"{d + 1}/01/2024" for d in range(rows)],
            "amount": ["1.234,50", "7,25"] * 10,
            "mixed": pandas.Series([*range(rows - 1), "?"], dtype=object),
            "word": pandas.Series([*[1.5] * (rows - 1), "lots"], dtype=object),
        }
    )
    encoder = Encoder.fit(as_frame(table), TableSettings())
    assert [(c.kind, c.form) for c in encoder.columns] == [  # type: ignore[union-attr]
        ("date", "d/m/Y"),
        ("number", "1.234,5"),
        ("number", ""),
        ("number", ""),
    ]
    assert [c.column for c in encoder.unreadable(as_frame(table))] == ["word"]


def test_inspect_shows_what_was_assumed(tmp_path: Path) -> None:
    rows = "".join(f'{i},"1.{i:03},5",{i % 12 + 1}/{i % 12 + 1}/2024,{i}.125,{i}\n' for i in range(100, 130))
    path = tmp_path / "shop.csv"
    path.write_text(f'id,debt,day,ratio,n\n{rows}1,"7,5",1/2/2024,1.125,often\n', encoding="utf-8")
    console = Console(file=io.StringIO(), width=300)
    show_inspection(inspect_file(path, "id", ""), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "number as 1.234,5" in text
    assert "date as d/m/Y" in text
    assert "day: '1/2/2024' is read as date 'd/m/Y', and no value decides against 'm/d/Y'" in text
    assert "ratio: '100.125' is read as number '1234.5', and no value decides against '1.234,5'" in text
    assert "n: 1 value is no number, and read as missing: row 31 'often'." in text


def test_a_run_says_which_cells_it_could_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from efvfl.runs.build import load_data

    rows = "".join(f"c{i},{i},{i % 2}\n" for i in range(40))
    (tmp_path / "bank.csv").write_text(f"id,x,y\n{rows}c40,oops,1\n", encoding="utf-8")
    polars.DataFrame({"id": [f"c{i}" for i in range(41)], "z": range(41)}).write_parquet(tmp_path / "shop.parquet")
    table = {
        "label_holder": "bank",
        "party": [
            {"name": "bank", "data": {"path": "bank.csv", "id": "id", "label": "y"}},
            {"name": "shop", "data": {"path": "shop.parquet", "id": "id"}},
        ],
    }
    data = load_data(run_file.read(RunConfig, table, "a"), tmp_path)
    assert data.encoders["bank"].names[0] == "x"
    assert "column 'x': 1 value is no number, and read as missing: row 41 'oops'." in caplog.text


def test_typed_tables_of_before_give_the_same_numbers() -> None:
    frame = polars.DataFrame({"d": [date(2024, 1, 1), None], "c": ["-", "-"], "n": ["NA", "NA"]})
    assert Encoder.fit(frame, TableSettings(types={"n": "category"})).names[-2:] == ["c = -", "n = NA"]


def test_rows_read_by_the_encoder_give_the_bits_of_rows_whose_types_were_guessed(tmp_path: Path) -> None:
    """A run that goes on reads its table so; it must see the numbers that it began with."""
    rows = "".join(
        f"{i}{'0' * 16},{i / 7!r},{bool(i % 2)},2024-01-{i + 10},3{i % 2}.01.2024,2024-01-{i + 10}T10:00:0{i}Z,"
        f"1{i}:30,w{i % 2}\n"
        for i in range(9)
    )
    path = tmp_path / "a.csv"
    path.write_text(f"whole,float,truth,day,german,moment,time,word\n{rows},,,,,,,\n", encoding="utf-8")
    frame = read(path)
    encoder = Encoder.fit(frame, CSV)
    again = read(path, encoder.texts, raw=[c.name for c in encoder.columns])
    assert set(again.dtypes) == {polars.String}
    assert encoder.transform(again).tobytes() == encoder.transform(frame).tobytes()
    assert encoder.unreadable(again) == []


def test_amounts_in_another_currency_are_not_read_as_if_they_were_in_this_one() -> None:
    encoder = fit("$5", "$6", "€7", times=10)
    assert encoder.names == ["x = $5", "x = $6", "x = €7"]  # a third is another currency: no number at all
    values = [f"${n}" for n in range(20)] + ["€7"]
    encoder = fit(*values)
    assert encoder.names == ["x", "x is missing"]
    (cells,) = encoder.unreadable(polars.DataFrame({"x": values}))
    assert "row 21 '€7'" in cells.text()


def test_names_that_end_in_a_number_are_no_amounts() -> None:
    assert fit("ROW 12", "ROW 13", "ROW 12").names == ["x = ROW 12", "x = ROW 13"]
    assert fit("12 kg", "13 kg", "12 kg").names == ["x = 12 kg", "x = 13 kg"]


def test_inspect_shows_the_currency(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('fee,x\n"$1,200",1\n$3.50,2\n', encoding="utf-8")
    out = io.StringIO()
    show_inspection(inspect_file(tmp_path / "a.csv", "", ""), Console(file=out, width=200))
    assert "number as 1,234.5 $" in out.getvalue()


def test_the_advice_for_an_undecided_percentage_can_be_followed() -> None:
    (said,) = fit("1,234 %", "5,678 %").doubts
    advised = said.partition("x = '")[2].partition("'")[0]
    assert advised == "number 1.234,5"
    settings = TableSettings(types={"x": advised}, typed=False)  # type: ignore[dict-item]
    assert read_as(fit("1,234 %", "5,678 %", settings=settings), "1,234 %") == [1.234]
