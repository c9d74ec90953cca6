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

[[party]]
name = "bank"
data = { path = "bank.csv", id = "person", label = "paid" }

[[party]]
name = "shop"
data = { path = "shop.csv", id = "person" }
"""
Run = tuple[Path, list[Record]]


def run(folder: Path, noise: float, first: str = "") -> Run:
    """Train with the defaults of tables: compressor, width, shares of held-out rows, and when records are made."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6))
    ids, paid = [f"P{i}" for i in range(300)], x[:, 0] + x[:, 3] * x[:, 1] + noise * rng.normal(size=300) > 0
    for name, place, more in (("bank", 0, {"paid": paid}), ("shop", 3, {})):
        columns = {f"{name}{i}": x[:, place + i] for i in range(3)}
        pl.DataFrame({"person": ids} | columns | more).write_csv(folder / f"{name}.csv")
    (folder / "run.toml").write_text(first + FILE, encoding="utf-8")
    return folder / "out", train(folder / "run.toml", folder / "out")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All epochs."""
    return run(tmp_path_factory.mktemp("whole"), 0.0, "patience = 100")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Nothing but noise to learn, so that it stops as early as a run can: what is sent at the end weighs most."""
    return run(tmp_path_factory.mktemp("stopped"), 100.0)


def test_a_run_that_learns_nothing_stops_soon(stopped: Run) -> None:
    last = stopped[1][-1]
    assert last.epoch == last.kept + 10 <= 16


@pytest.mark.parametrize("case", ["whole", "stopped"])
def test_evaluation_sends_at_most_a_fifth_of_what_training_does(case: str, request: pytest.FixtureRequest) -> None:
    last = request.getfixturevalue(case)[1][-1]
    sent = last.ledger["up"]["shop"]
    assert 0 < sent["evaluation"] <= sent["report"] / 5
    assert sum(sent.values()) == last.bytes_up  # and all of it is in the bytes of the record


def test_test_rows_are_sent_once_and_validation_rows_at_every_record(whole: Run) -> None:
    found = whole[1]
    assert [record.epoch for record in found] == list(range(2, 101, 2))
    assert all(record.validation for record in found)
    assert [bool(record.test) for record in found] == [False] * 49 + [True]
    sent = [record.ledger["up"]["shop"]["evaluation"] for record in found]
    steps = np.diff([0, *sent])
    rows = pl.read_parquet(whole[0] / "outputs.parquet").height  # held out
    assert max(steps[:-1]) < steps[-1] / 4  # the last one has all held-out rows
    assert 0.7 * 16 * rows < steps[-1] < 1.4 * 16 * rows  # about a byte a number, and once more the validation rows


def test_the_report_has_the_scores_of_the_rows_as_they_were_sent(stopped: Run) -> None:
    folder, records = stopped
    outputs = pl.read_parquet(folder / "outputs.parquet").filter(split="test")
    right = (outputs["output_0"] > 0) == (outputs["label"] == 1)
    assert right.mean() == pytest.approx(records[-1].test["accuracy"])
    loss = np.log1p(np.exp(-outputs["output_0"].to_numpy() * (2 * outputs["label"].to_numpy() - 1))).mean()
    assert loss == pytest.approx(records[-1].test["loss"], rel=1e-6)


def test_the_report_says_what_was_for_held_out_rows_and_which_model_is_kept(whole: Run) -> None:
    folder, found = whole
    page = report.page(folder)
    sent = found[-1].ledger["up"]["shop"]["evaluation"]
    assert f"{sent:,} of the bytes up are of validation and test rows." in page
