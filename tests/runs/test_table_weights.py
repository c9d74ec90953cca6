"""A column of weights beside the labels: one process and a network give the same model, and zero leaves a row out."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from networks import Network, assert_same, networked, reference

from efvfl.cli.sessions.align import read_tables
from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.data.tables.labels import Labels
from efvfl.errors import CheckpointError, ConfigError, DataError, ProtocolError
from efvfl.network.handshake import about, compare
from efvfl.runs.build import load_data, make_federation

ROWS = 40


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tables of the same people; three of them count for nothing."""
    rng = np.random.default_rng(0)
    debt = rng.normal(size=ROWS)
    bank = pl.DataFrame(
        {
            "person": [f"p{i:02d}" for i in range(ROWS)],
            "debt": debt,
            "paid": np.where(debt + 0.3 * rng.normal(size=ROWS) > 0, "no", "yes"),
            "counts": [0.0 if i % 15 == 7 else 0.1 + i / 7 for i in range(ROWS)],
        }
    )
    shop = pl.DataFrame({"who": bank["person"], "bought": rng.normal(size=ROWS), "paid": bank["paid"]})
    bank.write_csv(tmp_path / "bank.csv")
    counting = pl.Series(bank["counts"] > 0)
    shop.with_columns(bank["counts"]).filter(counting).write_parquet(tmp_path / "shop.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(labels: str = "private", weight: str = "counts", **changes: Any) -> RunConfig:
    bank = {"path": "bank.csv", "id": "person", "label": "paid", "weight": weight}
    shop: dict[str, Any] = {"path": "shop.parquet", "id": "who", "columns": ["bought"]}
    if labels == "shared":
        shop |= {"label": "paid", "weight": weight}
    table: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 16,
        "loss": "binary_cross_entropy",
        "label_holder": "bank",
        "observe_gradient": False,
        "data": {"align": "none", "validation": 0.1, "test": 0.1},
        "model": {"width": 4},
        "method": {"compressor": {"name": "topk", "ratio": 0.1}, "down": {}},  # of a size that no value changes
        "agreement": {"labels": labels},
        "party": [{"name": "bank", "data": bank}, {"name": "shop", "data": shop}],
    }
    return configs.read(RunConfig, table | changes, "weights")


@pytest.mark.parametrize("class_weights", [[], "balanced"])
@pytest.mark.parametrize("labels", ["private", "shared"])
def test_a_network_gives_the_weighted_model_bit_for_bit(labels: str, class_weights: Any, folder: Path) -> None:
    config = settings(labels, class_weights=class_weights)
    assert_same(reference(config), networked(config, folder / "net"))


def test_every_split_has_weights_with_a_mean_of_one_and_no_row_without(folder: Path) -> None:
    data = load_data(settings(), folder)
    given = dict(pl.read_csv(folder / "bank.csv").select("person", "counts").iter_rows())
    for split in ("train", "validation", "test"):
        part = getattr(data, split)
        raw = torch.tensor([given[name] for name in data.ids[split]], dtype=torch.float64)
        assert float(raw.min()) > 0
        assert torch.allclose(part.weights, raw / raw.mean())
    assert data.participation["bank"].weightless == 3
    assert data.participation["bank"].text().endswith("Left out: 3 with a weight of 0.")
    assert [column.name for column in data.encoders["bank"].columns] == ["debt"]
    subset = load_data(settings(data={"align": "none", "subset": 10}), folder).train
    assert subset.weights is not None
    assert float(subset.weights.mean()) == pytest.approx(1)


def test_a_table_of_labels_alone_has_its_weights(folder: Path) -> None:
    expected = load_data(settings(), folder).train
    pl.read_csv(folder / "bank.csv").select("person", "paid", "counts").write_csv(folder / "labels.csv")
    counting = pl.read_csv(folder / "bank.csv").filter(pl.col("counts") > 0).select("person", "debt")
    counting.write_csv(folder / "bank.csv")
    labels = {"path": "labels.csv", "id": "person", "label": "paid", "weight": "counts"}
    config = settings(
        data={"align": "none", "validation": 0.1, "test": 0.1, **labels},
        party=[
            {"name": "bank", "data": {"path": "bank.csv", "id": "person"}},
            {"name": "shop", "data": {"path": "shop.parquet", "id": "who", "columns": ["bought"]}},
        ],
    )
    found = load_data(config, folder).train
    assert expected.weights is not None
    assert found.weights is not None
    assert torch.equal(found.weights, expected.weights)
    assert_same(reference(config), networked(config, folder / "net"))


def test_weights_reach_the_server_and_send_nothing_more(folder: Path) -> None:
    weighted = make_federation(settings(), load_data(settings(), folder))
    data = pl.read_csv(folder / "bank.csv").filter(pl.col("counts") > 0).with_columns(counts=pl.lit(2.5))
    data.write_csv(folder / "bank.csv")
    equal = make_federation(settings(), load_data(settings(), folder))
    assert weighted.server.targets.weights is not None
    assert equal.server.targets.weights is None  # all count alike
    first, second = weighted.fit(2, gradient=False)[-1], equal.fit(2, gradient=False)[-1]
    assert (first.bytes_up, first.bytes_down) == (second.bytes_up, second.bytes_down)
    assert first.train["loss"] != second.train["loss"]


def test_a_checkpoint_is_refused_with_other_weights(folder: Path) -> None:
    before = (folder / "bank.csv").read_bytes()
    with Network(settings(), folder / "net") as network:
        network.run()
    table = pl.read_csv(before)
    table.with_columns(counts=pl.col("counts").replace(table["counts"][3], 9.0)).write_csv(folder / "bank.csv")
    with pytest.raises(CheckpointError, match=r"server/checkpoint.*\(weights\)"):
        Network(settings(), folder / "net")
    (folder / "bank.csv").write_bytes(before)
    with Network(settings(), folder / "net"):
        pass


def test_with_shared_labels_all_files_say_whether_rows_have_weights() -> None:
    ids: dict[str, list[str]] = {}
    with_weights, without = (about(settings("shared", w), "shop", ["bank", "shop"], ids) for w in ("counts", ""))
    with pytest.raises(ProtocolError, match="weighted: the server has True, shop has None"):
        compare(with_weights, without)
    private = (about(settings("private", w), "shop", ["bank", "shop"], ids) for w in ("counts", ""))
    compare(*private)  # with private labels they are nobody else's business


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["1"] * (ROWS - 1) + [""], "the weight 'counts' is missing in 1 of 40 rows: fill it, with 0 where"),
        (["0"] * ROWS, "the weight 'counts' is zero in all rows"),
        (["1"] * (ROWS - 1) + ["-2"], "expected numbers of 0 or more as the weight 'counts', got -2"),
        (["1"] * (ROWS - 1) + ["much"], "expected numbers as the weight 'counts', got 1 other values, such as 'much'"),
    ],
)
def test_what_is_no_weight_is_refused(values: list[str], text: str, folder: Path) -> None:
    table = pl.read_csv(folder / "bank.csv").with_columns(counts=pl.Series(values))
    table.write_csv(folder / "bank.csv")
    with pytest.raises(DataError, match=text):
        load_data(settings(), folder)


def test_weights_may_be_written_as_other_numbers_are(folder: Path) -> None:
    table = pl.read_csv(folder / "bank.csv")
    written = [f"{count:.6f} %".replace(".", ",") for count in table["counts"]]
    expected = load_data(settings(), folder).train.weights
    table.with_columns(counts=pl.Series(written)).write_csv(folder / "bank.csv")
    found = load_data(settings(), folder).train.weights
    assert expected is not None
    assert found is not None
    assert torch.allclose(found, expected, atol=1e-5)


def test_weights_without_labels_or_tables_are_refused(folder: Path) -> None:
    alone = settings(
        party=[
            {"name": "bank", "data": {"path": "bank.csv", "id": "person", "weight": "counts"}},
            {"name": "shop", "data": {"path": "shop.parquet", "id": "who"}},
        ]
    )
    with pytest.raises(ConfigError, match="weight = 'counts' needs `label`"):
        load_data(alone, folder)
    with pytest.raises(ConfigError, match=r"\[data\] has weight = 'counts' but no label"):
        load_data(settings(weight="", data={"align": "none", "weight": "counts"}), folder)
    with pytest.raises(ConfigError, match="`weight` names a column of a table, but the data are arrays"):
        load_data(configs.read(RunConfig, {"data": {"weight": "counts"}}, "digits"), folder)


# Labels that are numbers, written in other ways.


def test_targets_are_read_as_columns_are() -> None:
    values = pl.Series("y", ["1.234,5", "-7", "12,25"])
    labels = Labels.of(values, "mse")
    assert labels.encode(values).tolist() == [1234.5, -7.0, 12.25]
    amounts = pl.Series("y", ["$1,200", "$3.50"])
    assert Labels.of(amounts, "huber").encode(amounts).tolist() == [1200, 3.5]


def test_classes_that_are_numbers_are_in_their_order_and_keep_their_names() -> None:
    values = pl.Series("y", ["12 %", "5 %", "100 %", "5%", "12 %"])
    labels = Labels.of(values, "cross_entropy")
    assert labels.names == ("5 %", "12 %", "100 %")
    assert labels.encode(values).tolist() == [1, 0, 2, 0, 1]


def test_what_a_label_does_not_decide_is_said_and_types_decide(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = pl.read_csv(folder / "bank.csv").with_columns(paid=pl.Series([f"{i},250" for i in range(1, ROWS + 1)]))
    table.write_csv(folder / "bank.csv")
    found = {}
    for kind in ("", "number 1.234,5"):
        bank = {"path": "bank.csv", "id": "person", "label": "paid", "weight": "counts"}
        party = [
            {"name": "bank", "data": bank | ({"types": {"paid": kind}} if kind else {})},
            {"name": "shop", "data": {"path": "shop.parquet", "id": "who", "columns": ["bought"]}},
        ]
        caplog.clear()
        found[kind] = load_data(settings(loss="mse", party=party), folder).train.labels.sort().values
        assert ("label 'paid': '1,250' is read as number '1,234.5'" in caplog.text) == (not kind)
    assert torch.allclose(found[""], 1000 * found["number 1.234,5"])


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ([1.5, -2.0, 0.5], ""),
        ([3.0, 3.0, 3.0], ""),  # nothing to learn, at any scale
        ([210_000.0, 180_500.0, 99_900.0], "a mean of 1.635e+05 and a standard deviation of 4.653e+04"),
        (["1,004", "1,005", "1,006"], "a mean of 1005 and a standard deviation of 0.8165"),
        ([0.001, 0.002, 0.003], "a mean of 0.002"),
    ],
)
def test_targets_that_a_model_is_slow_to_reach_are_said(targets: list[Any], said: str) -> None:
    doubt = Labels.of(pl.Series("y", targets, strict=False), "mse").doubt
    assert said in doubt
    assert ("training may be slow" in doubt) == bool(said)


def test_alignment_cuts_the_same_classes(folder: Path) -> None:
    table = pl.read_csv(folder / "bank.csv")
    table.with_columns(paid=pl.Series(["5%", "5 %", "12 %", "12%"] * (ROWS // 4))).write_csv(folder / "bank.csv")
    found = read_tables(settings(), folder, "")
    assert found.labels is not None
    assert sorted(set(found.labels.tolist())) == [0, 1]
