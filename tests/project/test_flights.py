"""The example of flights, on made-up tables of the same shape: rows that some lack, from tables to predictions."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest
from paths import ROOT
from warm_examples import tell_story

EXAMPLE = ROOT / "examples" / "flights"


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that makes the tables, which takes made-up flights in place of the package's."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(sys.modules, "make_tables", raising=False)  # another example has one as well
    module = importlib.import_module("make_tables")
    monkeypatch.setattr(module, "package_tables", module.made_up_tables)
    monkeypatch.setitem(sys.modules, "make_tables", module)
    return module


def test_flights_without_a_record_are_rows_that_are_not_there(tables: ModuleType) -> None:
    own = tables.own_tables(tables.made_up_tables(400), flights=300)
    assert {name: table.columns[0] for name, table in own.items()} == dict.fromkeys(own, "flight")
    ids = {name: table["flight"] for name, table in own.items()}
    assert all(each.is_unique().all() for each in ids.values())
    assert len(ids["airline"]) == 300
    for name in ("planes", "weather"):
        assert 0 < len(ids[name]) < 300
        assert set(ids[name]) < set(ids["airline"])
    assert 0 < own["airline"]["late"].null_count() < 30  # these never arrived


@pytest.mark.slow
def test_three_tables_become_predictions_with_all_and_without_one(
    tables: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "flights"
    assert tell_story(EXAMPLE / "run.py", folder, monkeypatch) == 0, capsys.readouterr().out[-3000:]
    said = capsys.readouterr().out
    assert "airline + planes + weather" in said
    assert "what each party is worth" in said
    worth = json.loads((folder / "airline" / "run" / "values.json").read_text())
    assert set(worth["values"]) == {"airline", "planes", "weather"}
    told = json.loads((folder / "airline" / "run" / "column_values.json").read_text())["parties"]
    assert set(told) == {"airline", "planes"}  # the weather service keeps the names of its columns to itself
    assert set(told["planes"]) == {"built", "manufacturer", "seats"}
    own = json.loads((folder / "weather" / "run" / "column_values.json").read_text())["parties"]
    assert set(own) == {"weather"}
    files = {name: pl.read_csv(folder / "airline" / f"{name}.csv") for name in ("predictions", "without_planes")}
    parties = {name: set(table["parties"]) for name, table in files.items()}
    assert parties["without_planes"] == {"airline", "airline, weather"}
    assert "airline, planes, weather" in parties["predictions"]
    assert files["predictions"]["id"].equals(files["without_planes"]["id"])
    assert files["predictions"]["status"].unique().to_list() == ["ok"]
