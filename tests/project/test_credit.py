"""The example of a bank and a telephone company: from two files to predictions, and the notebook."""

import importlib
import json
import sys
from pathlib import Path

import polars as pl
import pytest
from paths import ROOT
from warm_examples import tell_story

from efvfl.cli.main import main

EXAMPLE = ROOT / "examples" / "credit"


@pytest.fixture(autouse=True)
def few_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the people: what is checked does not depend on how many there are."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(sys.modules, "make_tables", raising=False)  # another example has one as well
    module = importlib.import_module("make_tables")
    monkeypatch.setitem(sys.modules, "make_tables", module)
    for name in ("PEOPLE", "AT_BANK", "AT_TELCO"):
        monkeypatch.setattr(module, name, getattr(module, name) // 5)


@pytest.mark.slow
def test_two_tables_become_predictions_and_equal_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "credit"
    assert tell_story(EXAMPLE / "run.py", folder, monkeypatch) == 0, capsys.readouterr().out[-3000:]
    aligned = [pl.read_parquet(folder / name / "run" / "alignments" / "1.parquet") for name in ("bank", "telco")]
    assert aligned[0].equals(aligned[1])
    tables = [pl.read_csv(folder / "tables" / f"{name}.csv") for name in ("bank", "telco")]
    names = [t.to_series(0).str.strip_chars().str.to_lowercase() for t in tables]
    assert aligned[0]["id"].to_list() == sorted(set(names[0]) & set(names[1]))
    predicted = pl.read_csv(folder / "bank" / "predictions.csv")
    asked = predicted["id"].str.strip_chars().str.to_lowercase()  # ids are as the bank writes them
    assert asked.to_list() == aligned[0].filter(pl.col("split") == "test")["id"].to_list()
    assert "the label holder alone has" in (folder / "bank" / "run" / "report.html").read_text(encoding="utf-8")

    (folder / "tables" / "federation.toml").write_text((EXAMPLE / "federation.toml").read_text(encoding="utf-8"))
    out = folder / "one_process"
    assert main(["run", str(folder / "tables" / "federation.toml"), "--out", str(out)]) == 0
    capsys.readouterr()
    here, there = (
        json.loads((place / "records.jsonl").read_text().splitlines()[-1]) for place in (out, folder / "bank" / "run")
    )
    for key in ("step", "surrogate_loss", "validation", "test", "bytes_up", "bytes_down"):
        assert here[key] == there[key], key
    outputs = [pl.read_parquet(place / "outputs.parquet") for place in (out, folder / "bank" / "run")]
    assert outputs[0].equals(outputs[1])


@pytest.mark.slow
def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from notebook import run  # type: ignore[import-not-found]

    path = EXAMPLE / "credit.ipynb"
    before = json.loads(path.read_text(encoding="utf-8"))
    after = run(path)
    printed = [[o["text"] for o in cell.get("outputs", ())] for cell in after["cells"]]
    assert [bool(p) for p in printed] == [bool(cell.get("outputs")) for cell in before["cells"]]
    assert any("EF-VFL" in line for p in printed for text in p for line in text)
