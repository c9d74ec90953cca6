"""What is odd about a table is said before training."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from datetime import date, time, timedelta
from pathlib import Path

import polars
import pytest
from rich.console import Console

from efvfl.cli.main import main
from efvfl.data.tables.encode import TableSettings
from efvfl.data.tables.inspect import Finding, inspect, inspect_file, show_inspection
from efvfl.errors import ConfigError, DataError

ROWS = 100
LABEL = [int(i % 5 == 0) for i in range(ROWS)]
HARMLESS = [float((i * 37) % 89) for i in range(ROWS)]


def found(values: Sequence[object], label: Sequence[object] | None = None, **settings: object) -> Finding:
    frame = polars.DataFrame({"x": values, "y": label or LABEL})
    return inspect(frame, TableSettings(label="y", **settings))[0]  # type: ignore[arg-type]


def test_a_harmless_column_has_no_warning() -> None:
    assert found(HARMLESS) == Finding("x", "number", True, "chosen", 0.0, 89, "0 to 88", ())
    assert found([None, *HARMLESS[1:]]).missing == 0.01


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ([3] * ROWS, "constant: "),
        ([3] * 99 + [4], r"nearly constant: 99\.0%"),
        (["a"] * 99 + [None], "constant: "),
        (list(range(1000, 1000 + ROWS)), "all values are different"),
        (LABEL, "equal to the label"),
        ([float(y) for y in LABEL], "equal to the label"),
        ([7 - 3 * y for y in LABEL], "determines the label exactly"),
        (["yes" if y else "no" for y in LABEL], "determines the label exactly"),
        ([i + 1000.0 * y for i, y in enumerate(LABEL)], "separates the two labels"),
        ([i - 1000.0 * y for i, y in enumerate(LABEL)], "separates the two labels"),
        ([date(2020, 1, 1) + timedelta(days=i + 1000 * y) for i, y in enumerate(LABEL)], "separates the two labels"),
        ([None if y else float(i % 7) for i, y in enumerate(LABEL)], "missing for one of the two labels"),
    ],
)
def test_what_is_wrong_with_a_column_is_said_once(values: list[object], warning: str) -> None:
    finding = found(values)
    assert finding.used
    assert [bool(re.search(warning, said)) for said in finding.warnings] == [True]


def test_many_levels_are_said() -> None:
    values = [f"{i % 101}" for i in range(ROWS * 3)]
    finding = found(values, LABEL * 3)
    assert [w.startswith("101 levels") for w in finding.warnings] == [True]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([None] * ROWS, "no value"),
        ([f"{i}" for i in range(ROWS)], "looks like an id"),
        ([[1]] * ROWS, "expected numbers, dates or strings in column"),
    ],
)
def test_what_training_would_refuse_is_said_in_its_words(values: list[object], complaint: str) -> None:
    finding = found(values)
    assert (finding.used, finding.why) == (False, "refused")
    assert len(finding.warnings) == 1
    assert complaint in finding.warnings[0]


def test_a_number_that_follows_a_number_to_predict_is_said() -> None:
    label = [float(i * i) for i in range(ROWS)]
    for values in ([3.0 * y + 1 for y in label], [-y for y in label]):
        assert "determines the label exactly" in found(list(values), list(label)).warnings[0]
    assert found([((i * 37) % 101) / 7 for i in range(ROWS)], list(label)).warnings == ()


def test_a_few_rows_are_not_judged() -> None:
    assert found(list(range(10)), list(range(10))).warnings == ()


def test_why_a_column_is_not_used_is_said() -> None:
    frame = polars.DataFrame({"id": ["a", "b"], "y": [0, 1], "w": [1, 2], "x": [1, 3], "z": [4, 5]})
    findings = inspect(frame, TableSettings(columns=("x",), leave_out=("w",), id="id", label="y"))
    assert [f.why for f in findings] == ["the id", "the label", "left out", "chosen", "not among `columns`"]
    assert [f.used for f in findings] == [False, False, False, True, False]
    with pytest.raises(DataError, match="no column 'target'"):
        inspect(frame, TableSettings(label="target"))
    with pytest.raises(ConfigError, match="no column 'xx'"):
        inspect(frame, TableSettings(columns=("xx",)))


@pytest.mark.parametrize(
    ("values", "kind", "example"),
    [
        ([date(1969, 5, 1), date(2024, 1, 31)], "date", "1969-05-01 to 2024-01-31"),
        ([time(6, 30), time(18)], "time", "06:30:00 to 18:00:00"),
        (["b", "a", "b"], "category", "'b', 'a'"),
        ([True, False], "boolean", "0 to 1"),
        (["\x1b[31m" + "r" * 50, "\x1b[31m" + "r" * 50], "category", "'\\x1b[31mrrrrrrrrrrrrrrr'"),
    ],
)
def test_a_range_or_the_most_common_values_are_shown(values: list[object], kind: str, example: str) -> None:
    (finding,) = inspect(polars.DataFrame({"x": values}), TableSettings())
    assert (finding.kind, finding.example) == (kind, example)


def printed(path: Path, id: str, label: str) -> str:
    console = Console(file=io.StringIO(), width=200)
    show_inspection(inspect_file(path, id, label), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (["1", "0", "2.5"], "w: 1 of 3 rows have weight 0 and are left out."),
        (["1", "-1", "2"], "expected numbers of 0 or more as the weight 'w', got -1"),
        (["1", "", "2"], "the weight 'w' is missing in 1 of 3 rows"),
        (["1", "2", "2"], "no: the weight"),
    ],
)
def test_weights_are_looked_at(
    weights: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop.csv"
    path.write_text("y,w,x\n" + "".join(f"{i % 2},{w},{i}\n" for i, w in enumerate(weights)), encoding="utf-8")
    assert main(["inspect", str(path), "--label", "y", "--weight", "w"]) == 0
    assert text in " ".join(capsys.readouterr().out.split())
    assert main(["inspect", str(path), "--label", "y", "--weight", "weight"]) == 2
    assert main(["inspect", str(path), "--weight", "w"]) == 2


def test_the_command_prints_ids_columns_and_warnings(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    rows = "".join(f"{i:03},{y},{y},{h}\n" for i, (y, h) in enumerate(zip(LABEL, HARMLESS, strict=True)))
    path.write_text(f"id,bad,paid [late],x\n{rows},0,0,1\n", encoding="utf-8")
    text = printed(path, "id", "bad")
    assert "101 rows, 4 columns" in text
    assert "100 of 101 rows have a unique id; 1 without an id" in text
    assert "no: the label" in text
    assert "paid [late]: equal to the label" in text
    assert "0 to 88" in text


def test_a_table_of_labels_alone_can_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("id,y\n1,0\n2,1\n", encoding="utf-8")
    assert "no: the label" in printed(path, "id", "y")
    assert "id" in printed(path, "", "")


def test_the_credit_table_is_clean() -> None:
    folder = os.environ.get("EFVFL_DATA")
    if not folder:
        pytest.skip("EFVFL_DATA does not name the folder of shared data")
    text = printed(Path(folder) / "credit" / "default_credit_hetero_guest.csv.gz", "id", "y")
    assert "30,000 of 30,000 rows have a unique id" in text
    assert text.count(" yes ") == 13
    assert text.rstrip().endswith("┘")  # no warning below the table
