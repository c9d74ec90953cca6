"""Evaluation must not cost more than training: what a run on tables sends for its held-out rows, by the ledger."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from efvfl import train
from efvfl.runs import report
from efvfl.training.record import Record

FILE = """
observe_gradient = false
label_holder = "bank"
patience = 100  # so that it does not end before all epochs are done, which would make evaluation a larger part

[[party]]
name = "bank"
data = { path = "bank.csv", id = "person", label = "paid" }

[[party]]
name = "shop"
data = { path = "shop.csv", id = "person" }
"""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A run with the defaults of tables: compressor, width, shares of held-out rows, and when records are made."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    x = rng.normal(size=(300, 6))
    ids, paid = [f"P{i}" for i in range(300)], (x[:, 0] + x[:, 3] * x[:, 1] > 0).astype(int)
    for name, place, more in (("bank", 0, {"paid": paid}), ("shop", 3, {})):
        columns = {f"{name}{i}": x[:, place + i] for i in range(3)}
        pl.DataFrame({"person": ids} | columns | more).write_csv(folder / f"{name}.csv")
    (folder / "run.toml").write_text(FILE, encoding="utf-8")
    return folder / "out", train(folder / "run.toml", folder / "out")


def test_evaluation_sends_at_most_a_fifth_of_what_training_does(records: tuple[Path, list[Record]]) -> None:
    sent = records[1][-1].ledger["up"]["shop"]
    assert 0 < sent["evaluation"] <= sent["report"] / 5
    assert sum(sent.values()) == records[1][-1].bytes_up  # and all of it is in the bytes of the record


def test_test_rows_are_sent_once_and_validation_rows_at_every_record(records: tuple[Path, list[Record]]) -> None:
    found = records[1]
    assert [record.epoch for record in found] == list(range(5, 101, 5))
    assert all(record.validation for record in found)
    assert [bool(record.test) for record in found] == [False] * 19 + [True]
    sent = [record.ledger["up"]["shop"]["evaluation"] for record in found]
    steps = np.diff([0, *sent])
    assert max(steps[:-1]) < steps[-1] / 5  # the last one has all held-out rows exactly, 4 bytes a number
    assert steps[-1] > 4 * 16 * 80


def test_the_report_says_what_was_for_held_out_rows_and_which_model_is_kept(records: tuple[Path, list[Record]]) -> None:
    folder, found = records
    page = report.page(folder)
    sent = found[-1].ledger["up"]["shop"]["evaluation"]
    assert f"{sent:,} of the bytes up are of validation and test rows." in page
