"""How many rows take part is always said, why the others do not, and how more would."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import polars
import pytest
from rich.console import Console

from efvfl import train
from efvfl.cli.main import main
from efvfl.config import run_file
from efvfl.config.run_file import RunConfig
from efvfl.data.participation import Participation
from efvfl.data.tables.id_hints import better_format, own_format
from efvfl.data.tables.inspect import compare_ids, show_ids
from efvfl.errors import ConfigError, DataError
from efvfl.network.align.aligned_rows import Aligned
from efvfl.network.align.alignments import Alignments
from efvfl.network.training import participant_data
from efvfl.runs import report
from efvfl.runs.build import load_data

ROWS = 40


def write(folder: Path, shop: list[str] | None = None) -> Path:
    """Two tables of the same people; the bank writes most ids with a capital letter."""
    ids = [f"{'P' if i >= 10 else 'p'}{i:02}" for i in range(ROWS)]
    bank = [f"{name},{i % 7},{i % 2}\n" for i, name in enumerate(ids)] + ["p40,1,\n", ",2,1\n", "p01,3,1\n"]
    (folder / "bank.csv").write_text(f"person,debt,paid\n{''.join(bank)}", encoding="utf-8")
    polars.DataFrame({"who": shop or [name.lower() for name in ids], "bought": range(ROWS)}).write_parquet(
        folder / "shop.parquet"
    )
    text = """
epochs = 1
label_holder = "bank"
loss = "binary_cross_entropy"
data = { validation = 0.1, test = 0.1, duplicates = "first" }
[[party]]
name = "bank"
data = { path = "bank.csv", id = "person", label = "paid" }
[[party]]
name = "shop"
data = { path = "shop.parquet", id = "who" }
"""
    (folder / "fed.toml").write_text(text, encoding="utf-8")
    return folder / "fed.toml"


BANK = "bank: 10 of 43 rows take part. Left out: 30 whose id is not in all tables, 1 without a label, 1 without an id, "
SHOP = "shop: 10 of 40 rows take part. Left out: 30 whose id is not in all tables."
HINT = "data.id_format = ['strip', 'case'] would match 40 rows in place of 10: set it if ids that differ only in upper"


def test_a_run_says_which_rows_take_part_and_how_more_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    assert main(["run", str(write(tmp_path)), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"{BANK}1 that share an id." in said
    assert SHOP in said
    assert HINT in caplog.text
    counts = json.loads((out / "settings.json").read_text())["participation"]["bank"]
    assert counts == Participation(43, 1, 1, 1, 30).counts()
    assert "id not in all tables" in report.page(out)


def test_from_python_the_log_has_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path)
    train(path, tmp_path / "out")
    assert (SHOP, logging.WARNING) in [(r.getMessage(), r.levelno) for r in caplog.records]
    said: list[str] = []
    path.write_text(path.read_text().replace('duplicates = "first"', 'duplicates = "first", id_format = ["case"]'))
    caplog.clear()
    train(path, tmp_path / "all", say=said.append)
    assert said[1] == "shop: all 40 rows take part."
    assert "id_format" not in caplog.text


def test_without_a_common_id_the_error_says_which_format_would_match(tmp_path: Path) -> None:
    path = write(tmp_path, [f"00P{i:02}" for i in range(ROWS)])
    config = run_file.load(path)
    with pytest.raises(DataError, match=r"no id in common.*data.id_format = \['strip', 'case', 'zeros'\] would match"):
        load_data(config, tmp_path)
    path = write(tmp_path, [f"q{i:02}" for i in range(ROWS)])
    with pytest.raises(DataError, match=r"no id in common.*ignores spaces, case and leading zeros"):
        load_data(config, tmp_path)


def test_each_alone_says_it_of_its_own_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = run_file.load(write(tmp_path))
    Alignments(tmp_path).save(1, Aligned([f"p{i:02}" for i in range(10)], bytes([0] * 8 + [1, 2])))
    with caplog.at_level(logging.INFO):
        held = participant_data.load(config, tmp_path, "shop", tmp_path)
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"{tmp_path / 'shop.parquet'}: {SHOP[6:]} Splits: 8 train, 1 validation, 1 test, of alignment 1."]
    assert held.participation == {"shop": Participation(40, 0, 0, 0, 30)}
    assert set(participant_data.load(config, tmp_path, "", tmp_path).participation) == {"bank"}


def test_a_table_of_labels_alone_is_counted_too(tmp_path: Path) -> None:
    write(tmp_path)
    table: dict[str, Any] = {
        "data": {"path": "labels.csv", "id": "i", "label": "y", "test": 0.0, "validation": 0.0},
        "party": [{"name": "shop", "data": {"path": "shop.parquet", "id": "who"}}],
    }
    polars.DataFrame({"i": ["p01", "p02", "x"], "y": [0, 1, 1]}).write_csv(tmp_path / "labels.csv")
    data = load_data(run_file.read(RunConfig, table, "a"), tmp_path)
    assert data.participation == {"shop": Participation(40, 0, 0, 0, 38), "[data]": Participation(3, 0, 0, 0, 1)}


def test_a_format_that_makes_ids_equal_is_no_better() -> None:
    one, two = polars.Series(["a", "A", "b"]), polars.Series(["a", "B", "c"])
    assert better_format({"one": one, "two": two}, (), 1) == ""  # b is won, and a lost
    assert better_format({"one": one, "two": polars.Series(["B"])}, (), 0).startswith("data.id_format = ['case']")


def test_what_a_format_would_do_to_ones_own_ids() -> None:
    values = polars.Series(["a", "A", "B", "007", "7", None])
    assert own_format(values, ("strip",)) == (
        "Of the ids here, 'case' would change 2 and make 2 equal, 'zeros' would change 1 and make 2 equal. If others "
        "write them differently, agree on it in data.id_format."
    )
    assert own_format(polars.Series(["a", "b"]), ("strip", "case")) == ""


def test_two_tables_are_compared_before_any_training(tmp_path: Path) -> None:
    write(tmp_path)
    console = Console(file=io.StringIO(), width=200)
    show_ids(compare_ids({tmp_path / "bank.csv": "person", tmp_path / "shop.parquet": "who"}), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "bank.csv: 10 of 41 ids are in both tables." in text
    assert HINT in text
    with pytest.raises(ConfigError, match="--against needs --id"):
        compare_ids({tmp_path / "bank.csv": ""})
    both = ["inspect", str(tmp_path / "bank.csv"), "--against", str(tmp_path / "shop.parquet")]
    assert main([*both, "--id", "person", "--against-id", "who"]) == 0
