"""Tables and a label holder, nothing else: a file, the estimator as it is and three processes train one model."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor
from warm_processes import Process, Stage

from efvfl import VerticalClassifier, VerticalRegressor, train
from efvfl.network.identity import authority, certificates
from efvfl.network.training import trained_folder
from efvfl.runs.run import open_trained
from efvfl.runs.run_folder import load_settings

# `test = 0`, because the estimator is given the rows to train on and no others. The rest is what a network needs.
FILE = """
label_holder = "bank"
data = { test = 0.0 }
network = { address = "127.0.0.1:0" }
[[party]]
name = "bank"
data = { path = "bank.csv", id = "row", label = "y" }
[[party]]
name = "telco"
data = { path = "telco.csv", id = "row" }
[[party]]
name = "shop"
data = { path = "shop.csv", id = "row" }
"""
COLUMNS = {"bank": ["age", "city"], "telco": ["calls", "since"], "shop": ["spent"]}
ROWS = 400

States = dict[str, Mapping[str, Tensor]]


def write_tables(folder: Path, classes: int) -> pl.DataFrame:
    """Numbers, gaps, a category and a date; a label that follows from two parties' columns, as words."""
    chance = np.random.default_rng(5)
    age, calls, spent = chance.normal(size=(3, ROWS)).round(3)
    score = age * np.where(calls > 0, 1, -1) + spent + chance.normal(0, 0.5, ROWS)
    cuts = np.quantile(score, np.arange(1, classes) / classes)
    table = pl.DataFrame(
        {
            "row": [str(i) for i in range(ROWS)],
            "age": pl.Series(age).set(pl.Series(chance.random(ROWS) < 0.1), None),
            "city": np.array(["Bern", "Chur", "Sion"])[chance.integers(0, 3, ROWS)],
            "calls": calls,
            "since": pl.Series(chance.integers(9_000, 12_000, ROWS)).cast(pl.Date),
            "spent": spent,
            "y": [("low", "middle", "high")[i] for i in np.searchsorted(cuts, score)],
        }
    )
    for name, columns in COLUMNS.items():
        order = table.sample(ROWS, shuffle=True, seed=len(name))  # nobody's table is in the order of another's
        order.select("row", *columns, *(["y"] if name == "bank" else [])).write_csv(folder / f"{name}.csv")
    (folder / "run.toml").write_text(FILE)
    return table


def of_file(folder: Path) -> tuple[States, str]:
    train(folder / "run.toml", folder / "one")
    found, settings = open_trained(folder / "one"), load_settings(folder / "one")
    assert settings is not None
    return {**found.models, "": found.fusion}, settings.config["loss"]


def of_estimator(table: pl.DataFrame, kind: type[VerticalClassifier] | type[VerticalRegressor]) -> States:
    model = kind(COLUMNS, label_holder="bank").fit(table, table["y"].to_numpy())
    assert model.records_[-1].epoch < 100  # validation rows have decided
    made = model.federation_
    states = {name: x.state_dict() for name, x in zip(COLUMNS, made.models, strict=True)}
    return {**states, "": made.fusion.state_dict()}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    found = Stage(tmp_path_factory.mktemp("three"))
    authority.make(found.folder / "certs", [certificates.SERVER, "telco", "shop"])
    yield found
    found.close()


def of_processes(stage: Stage) -> States:
    others = ("telco", "shop")
    processes: list[Process] = []
    for lead, follow in (("align", "align"), ("serve", "join")):
        words = {name: f"{follow} run.toml --dir {name}" for name in others}
        processes += stage.together(f"{lead} run.toml --dir bank", words).values()
    assert [process.code for process in processes] == [0] * 6, [process.errors for process in processes]
    bank = trained_folder.open_trained(stage.folder / "bank", "")
    parties = {name: trained_folder.open_trained(stage.folder / name, name).models for name in others}
    return {"bank": bank.models["bank"], **{name: models[name] for name, models in parties.items()}, "": bank.fusion}


def assert_same(one: States, other: States) -> None:
    assert one.keys() == other.keys()
    for name, state in one.items():
        assert state.keys() == other[name].keys()
        assert all(torch.equal(tensor, other[name][key]) for key, tensor in state.items()), name


def test_three_processes_a_file_and_the_estimator_give_one_model(stage: Stage) -> None:
    table = write_tables(stage.folder, classes=2)
    (found, loss), estimated = of_file(stage.folder), of_estimator(table, VerticalClassifier)
    assert loss == "binary_cross_entropy"
    assert_same(found, estimated)
    assert_same(found, of_processes(stage))


def test_so_it_is_with_more_classes(tmp_path: Path) -> None:
    table = write_tables(tmp_path, classes=3)
    (found, loss), estimated = of_file(tmp_path), of_estimator(table, VerticalClassifier)
    assert loss == "cross_entropy"
    assert_same(found, estimated)


def test_so_it_is_with_a_regression_whose_targets_are_standardised(tmp_path: Path) -> None:
    """An estimator brings its targets to a scale of one by itself, a file takes them as they are."""
    table = write_tables(tmp_path, classes=2)
    y = 1000 + 200 * np.random.default_rng(3).normal(size=ROWS) + 50 * table["calls"].to_numpy()
    standard = pl.DataFrame({"row": table["row"], "y": (y - y.mean()) / y.std()})
    bank = pl.read_csv(tmp_path / "bank.csv", schema_overrides={"row": pl.String}).drop("y").join(standard, on="row")
    bank.write_csv(tmp_path / "bank.csv")
    found, loss = of_file(tmp_path)
    assert loss == "mse"
    assert_same(found, of_estimator(table.with_columns(y=pl.Series(y)), VerticalRegressor))
