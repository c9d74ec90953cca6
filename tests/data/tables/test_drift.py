"""Later rows that differ from the training rows are counted, and their owner is told; nobody else is."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import polars
import pytest

from efvfl.config import run_file
from efvfl.config.run_file import RunConfig
from efvfl.data.tables.drift import ColumnChange, changes, warnings_about
from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.network.align.aligned_rows import Aligned
from efvfl.network.align.alignments import Alignments
from efvfl.network.training import participant_data
from efvfl.runs import report
from efvfl.runs.run import train
from efvfl.runs.run_folder import COLUMNS

ROWS = 40
TRAIN = polars.DataFrame(
    {
        "x": [float(i) for i in range(ROWS)],
        "town": ["Bonn", "Kiel"] * 20,
        "day": [date(2024, 1, 1) + timedelta(days=i) for i in range(ROWS)],
        "truth": [True, False] * 20,
    }
)
ENCODER = Encoder.from_json(Encoder.fit(TRAIN, TableSettings()).to_json())  # what a later process knows


def test_the_training_rows_themselves_have_not_changed() -> None:
    assert warnings_about(changes(ENCODER, TRAIN)) == []
    assert warnings_about(changes(ENCODER, TRAIN.head(0))) == []


def test_everything_is_counted() -> None:
    later = TRAIN.with_columns(
        x=polars.Series([-1.0, 500.0, None, 1e300, *TRAIN["x"][4:]]),
        town=polars.Series(["Ulm", None, "\x1b[2J", "Ulm", *TRAIN["town"][4:]]),
        day=polars.col("day") + timedelta(days=5),
        truth=polars.Series([None] * 5 + [True] * 35),
    )
    x, town, day, truth = found = changes(ENCODER, later)
    assert x == ColumnChange("x", ROWS, 2, 0.0, outside=2, far=1)
    assert (town.missing, town.unseen, town.levels) == (1, 3, ("'Ulm'", r"'\x1b[2J'"))
    assert (day.outside, day.far) == (5, 0)
    assert truth.missing == 5
    assert warnings_about(found) == [
        "column 'x': 2 of 40 rows have a value outside the range of the training rows, 1 far outside.",
        "column 'town': 3 of 40 rows have a level that no training row had: 'Ulm', '\\x1b[2J'.",
        "column 'day': 5 of 40 rows have a value outside the range of the training rows, 0 far outside.",
        "column 'truth': 12% of the values are missing, 0% in the training rows.",
    ]
    assert "levels" not in x.counts()


def test_a_few_odd_rows_are_no_drift() -> None:
    few = polars.DataFrame({"x": [-1.0, None], "town": [None, "Bonn"], "day": [date(2024, 3, 1), None], "truth": None})
    assert warnings_about(changes(ENCODER, few)) == []
    assert [change.missing for change in changes(ENCODER, few)] == [1, 1, 1, 2]


def test_a_column_that_lost_its_gaps_has_changed() -> None:
    encoder = Encoder.fit(polars.DataFrame({"x": [None, 1.0, 2.0, None], "c": ["a", None, None, "a"]}), TableSettings())
    later = polars.DataFrame({"x": [1.0] * 20, "c": ["a"] * 20})
    assert [text.partition(": ")[2] for text in warnings_about(changes(encoder, later))] == [
        "0% of the values are missing, 50% in the training rows."
    ] * 2


def written(folder: Path) -> RunConfig:
    """Two tables; at the shop, rows to predict later have another unit, a new level and a cell that is no number."""
    ids = [f"p{i:02}" for i in range(ROWS)]
    TRAIN.select(id=polars.Series(ids), x="x", y=polars.Series([0, 1] * 20)).write_csv(folder / "bank.csv")
    shop = TRAIN.select("x", "town").insert_column(0, polars.Series("id", ids))
    shop.write_csv(folder / "shop.csv")
    (folder / "new.csv").write_text("id,x,town\nn1,3900,Ulm\nn2,oops,Bonn\n", encoding="utf-8")
    table = {
        "epochs": 1,
        "loss": "binary_cross_entropy",
        "label_holder": "bank",
        "data": {"validation": 0.1, "test": 0.1},
        "party": [
            {"name": "bank", "data": {"path": "bank.csv", "id": "id", "label": "y"}},
            {"name": "shop", "data": {"path": "shop.csv", "id": "id", "new": "new.csv"}},
        ],
    }
    return run_file.read(RunConfig, table, "fed")


def test_a_party_is_told_about_its_own_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = written(tmp_path)
    for home in ("shop", "server"):
        (tmp_path / home).mkdir()
        Alignments(tmp_path / home).save(1, Aligned([f"p{i:02}" for i in range(ROWS)], bytes([0] * 36 + [1, 2] * 2)))
    participant_data.load(config, tmp_path, "shop", tmp_path / "shop")
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.partition("new.csv, ")[2] for text in said] == [
        "column 'x': 1 value is no number, and read as missing: row 2 'oops'.",
        "column 'x': 1 of 2 rows has a value outside the range of the training rows, 1 far outside.",
        "column 'town': 1 of 2 rows has a level that no training row had: 'Ulm'.",
    ]
    (found,) = json.loads((tmp_path / "shop" / COLUMNS).read_text()).values()
    assert [change["unseen"] for change in found["new"]] == [0, 1]
    assert "Ulm" not in (tmp_path / "shop" / COLUMNS).read_text()
    caplog.clear()
    participant_data.load(config, tmp_path, "", tmp_path / "server")
    assert "shop" not in (tmp_path / "server" / COLUMNS).read_text()
    assert "town" not in caplog.text


def test_a_report_has_the_counts_of_test_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = written(tmp_path)
    data = replace(config.data, test=0.4)
    table = polars.read_csv(tmp_path / "shop.csv").with_columns(town=polars.Series([f"t{i // 2}" for i in range(ROWS)]))
    table.write_csv(tmp_path / "shop.csv")
    train(replace(config, data=data), tmp_path / "run", base=tmp_path)
    assert "rows have a level that no training row had: 't" in caplog.text
    page = report.page(tmp_path / "run")
    assert "Columns of later rows that differ" in page
    assert "<td>town</td>" in page
    (tmp_path / "run" / COLUMNS).write_text("[]")
    with pytest.raises(Exception, match="expected what a run wrote about its columns"):
        report.page(tmp_path / "run")
