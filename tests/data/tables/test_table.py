"""Tables come in whole, from any format, or with an error that names the line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas
import polars
import pyarrow
import pytest

from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.data.tables.table import as_frame, column, read
from efvfl.errors import DataError

MIXED = polars.DataFrame(
    {
        "id": ["007", "8", "9", "10"],
        "age": [31, 45, None, 62],
        "income": [1.5, 2.25, -3.0, None],
        "colour": ["red", "blue", None, "red"],
        "member": [True, False, None, True],
        "since": polars.Series(["2020-01-31", "2021-06-01", None, "1969-12-31"]).str.to_date(),
    }
)


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def written(folder: Path) -> dict[str, polars.DataFrame]:
    """The same table by every way in."""
    MIXED.write_csv(folder / "a.csv")
    MIXED.write_csv(folder / "a.tsv", separator="\t")
    (folder / "a.csv.gz").write_bytes(gzip.compress((folder / "a.csv").read_bytes()))
    MIXED.write_parquet(folder / "a.parquet")
    MIXED.write_ipc(folder / "a.arrow")
    MIXED.write_ipc(folder / "a.feather")
    MIXED.write_ipc_stream(folder / "a.ipc")
    MIXED.to_pandas().to_csv(folder / "pandas.csv", index=False)
    frames = {path.name: read(path, texts=("id",)) for path in sorted(folder.iterdir())}
    arrow = MIXED.to_arrow()
    assert isinstance(arrow, pyarrow.Table)
    return {**frames, "polars": as_frame(MIXED), "pandas": as_frame(MIXED.to_pandas()), "pyarrow": as_frame(arrow)}


def test_every_way_in_gives_the_same_numbers(tmp_path: Path) -> None:
    settings = TableSettings(id="id")
    encoder = Encoder.fit(MIXED, settings)
    expected = encoder.transform(MIXED)
    frames = written(tmp_path)
    assert len(frames) == 11
    for name, frame in frames.items():
        assert frame["id"].to_list() == MIXED["id"].to_list(), name
        assert Encoder.fit(frame, settings) == encoder, name
        np.testing.assert_array_equal(encoder.transform(frame), expected, err_msg=name)


def test_ids_read_as_text_keep_their_zeros(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "customer,x\n007,1\n08,2\n")
    assert read(path, texts=("customer",))["customer"].to_list() == ["007", "08"]
    assert read(path)["customer"].to_list() == [7, 8]


def test_numbers_read_as_text_are_written_alike_in_every_format(tmp_path: Path) -> None:
    polars.DataFrame({"customer": [12.0, None, 7.0]}).write_parquet(tmp_path / "a.parquet")
    polars.DataFrame({"customer": [12.0, None, 7.0], "x": 1}).write_csv(tmp_path / "a.csv")
    for name in ("a.parquet", "a.csv"):
        assert read(tmp_path / name, texts=("customer",))["customer"].to_list() == ["12", None, "7"]


def test_a_csv_says_numbers_booleans_dates_and_times(tmp_path: Path) -> None:
    text = (
        "whole,float,truth,day,german,moment,zoned,time,word,none\n"
        "1,1e3,True,2024-01-31,31.01.2024,2024-01-31 10:00:00,2024-01-31T10:00:00+02:00,10:30:00,2024,NA\n"
        " 2 ,-.5,false,2024-02-01,1.2.2024,2024-01-31 10:00:00.5,2024-01-31T10:00:00Z,23:59:59,x,\n"
        "NA,NaN,,null,,,,,N/A,NULL\n"
    )
    frame = read(write(tmp_path, "a.csv", text))
    assert frame.dtypes == [
        polars.Int64,
        polars.Float64,
        polars.Boolean,
        polars.Date,
        polars.Date,
        polars.Datetime("us"),
        polars.Datetime("us", "UTC"),
        polars.Time,
        polars.String,
        polars.String,
    ]
    assert frame["day"].to_list() == frame["german"].to_list()
    assert frame["zoned"].dt.hour().to_list() == [8, 10, None]
    assert frame.null_count().row(0) == (1, 1, 1, 1, 1, 1, 1, 1, 1, 3)


def test_a_column_that_turns_to_text_in_its_last_row_is_text(tmp_path: Path) -> None:
    rows = "".join(f"{i}\n" for i in range(5000))
    assert read(write(tmp_path, "a.csv", f"x\n{rows}none\n"))["x"].dtype == polars.String


def test_spreadsheets_mark_and_line_ends_are_no_data(tmp_path: Path) -> None:
    frame = read(write(tmp_path, "a.csv", b"\xef\xbb\xbfx,y\r\n1,2\r\n3,4\r\n\r\n\r\n"))
    assert frame.to_dict(as_series=False) == {"x": [1, 3], "y": [2, 4]}


def test_quoted_fields_may_hold_separators_and_lines(tmp_path: Path) -> None:
    frame = read(write(tmp_path, "a.csv", 'x,y\n"a,b","two\nlines"\nc,"say ""so"""\n'))
    assert frame.rows() == [("a,b", "two\nlines"), ("c", 'say "so"')]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x,y\n1,2\n3\n5,6\n", r"line 3: expected 2 fields, as in the header, got 1"),
        ("x,y\n1,2\n3,4,5\n", r"line 3: expected 2 fields, as in the header, got 3"),
        ('x,y\n1,"two\nlines"\n3,4,5\n', r"line 4: expected 2 fields, as in the header, got 3"),
        ("x,y\n1,2\n\n5,6\n", r"line 3: expected 2 fields, as in the header, got 0"),
        ('x,y\n1,2\n3,"open\n', r"line 3: .*quotes"),
        (b"x,y\n1,2\n3,\xff\n", r"line 3: these bytes are not UTF-8"),
        ("x,y\n".encode("utf-16"), r"line 1: these bytes are not UTF-8"),
        ("", r"expected a header with column names, then rows in .*, got an empty file"),
        ("\n\n", r"got an empty file"),
        ("x,y\n", r"0 rows"),
        ("1,2\n3,4\n", r"no header"),
        ("x,y,x\n1,2,3\n", r"more than one column 'x'"),
        ("\ufeffx,x\n1,2\n", r"more than one column 'x'"),
        (",x\n0,1\n", r"column 1 has no name"),
    ],
)
def test_a_broken_csv_names_its_line_or_what_is_missing(tmp_path: Path, text: str | bytes, complaint: str) -> None:
    path = write(tmp_path, "rows.csv", text)
    with pytest.raises(DataError, match=complaint) as caught:
        read(path)
    assert "rows.csv" in str(caught.value)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather", "a.ipc", "a.csv.gz"])
@pytest.mark.parametrize("cut", [0, 5, 100])
def test_a_file_cut_short_is_refused(tmp_path: Path, name: str, cut: int) -> None:
    written(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:cut])
    with pytest.raises(DataError, match=name):
        read(tmp_path / name)


def test_other_formats_and_absent_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a file name that ends in \.csv"):
        read(tmp_path / "a.xlsx")
    with pytest.raises(DataError, match="No such file"):
        read(tmp_path / "a.csv")
    with pytest.raises(DataError, match="got a dict"):
        as_frame({"x": [1]})
    with pytest.raises(DataError, match="pandas table cannot be read"):
        as_frame(pandas.DataFrame([[1, 2]], columns=["x", "x"]))


def test_a_pandas_table_that_needs_pyarrow_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(table: object) -> None:
        raise ModuleNotFoundError("pyarrow")

    monkeypatch.setattr(polars, "from_pandas", without)
    with pytest.raises(DataError, match="pip install pyarrow"):
        as_frame(pandas.DataFrame({"x": ["a"]}))


def test_a_column_that_is_not_there_is_an_error_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "customer,x\n1,2\n")
    with pytest.raises(DataError, match="Did you mean 'customer'"):
        read(path, texts=("custmer",))
    with pytest.raises(DataError, match="here has no column 'z'"):
        column(MIXED, "z", "here")
