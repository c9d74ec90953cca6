"""Tables as the rows of a federation: joined in one process, held by each alone, and the same numbers either way."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from networks import assert_same, networked, reference

from efvfl.cli.sessions.serve import PredictionFile
from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.core import losses
from efvfl.data.tables.labels import Labels
from efvfl.errors import ConfigError, DataError
from efvfl.network.align.aligned_rows import SPLITS, Aligned
from efvfl.network.align.alignments import Alignments
from efvfl.network.training import participant_data
from efvfl.network.training.autosave import CHECKPOINT
from efvfl.network.training.participant_data import ENCODER
from efvfl.runs.build import load_data, make_federation


def write(folder: Path, rows: int = 60) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Two tables of the same people, in another order, with ids written in other ways."""
    rng = np.random.default_rng(0)
    ids = [f"P{i:03d}" for i in range(rows)]
    debt = rng.normal(size=rows)
    bank = pl.DataFrame(
        {
            "person": ids,
            "debt": debt,
            "job": rng.choice(["cook", "nurse"], rows),
            "paid": np.where(debt + 0.3 * rng.normal(size=rows) > 0, "no", "yes"),
        }
    )
    shop = pl.DataFrame(
        {"who": [i.lower() for i in ids], "bought": rng.normal(size=rows), "visits": rng.poisson(3, rows)}
    )
    bank = bank.head(rows - 5)
    shop = shop.tail(rows - 5).reverse()
    bank.write_csv(folder / "bank.csv")
    shop.write_parquet(folder / "shop.parquet")
    return bank, shop


def settings(**changes: Any) -> RunConfig:
    table: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 16,
        "loss": "binary_cross_entropy",
        "label_holder": "bank",
        "data": {"id_format": ["case"], "validation": 0.1, "test": 0.2},
        "model": {"width": 4},
        "party": [
            {"name": "bank", "data": {"path": "bank.csv", "id": "person", "label": "paid"}},
            {"name": "shop", "data": {"path": "shop.parquet", "id": "who"}},
        ],
    }
    for key, value in changes.items():
        table[key] = table[key] | value if key in ("data", "model") else value
    return configs.read(RunConfig, table, "tables")


def aligned(config: RunConfig, folder: Path) -> Path:
    """Leave what `efvfl align` would leave, in one folder for all."""
    ids = load_data(config, folder).ids
    pairs = sorted((name.encode(), SPLITS.index(split)) for split, names in ids.items() for name in names)
    Alignments(folder).save(1, Aligned([name.decode() for name, _ in pairs], bytes(code for _, code in pairs)))
    return folder


def test_rows_are_joined_by_id_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    bank, shop = write(tmp_path)
    data = load_data(settings(), tmp_path)
    everyone = sorted(name for names in data.ids.values() for name in names)
    assert everyone == sorted({name.lower() for name in bank["person"]} & set(shop["who"]))
    assert all(names == sorted(names) for names in data.ids.values())
    assert data.class_names == ("no", "yes")
    said = dict(zip(bank["person"].str.to_lowercase(), bank["paid"], strict=True))
    for split in ("train", "validation", "test"):
        labels = getattr(data, split).labels.tolist()
        assert [data.class_names[y] for y in labels] == [said[name] for name in data.ids[split]]


def test_what_training_rows_teach_is_used_for_the_others(tmp_path: Path) -> None:
    write(tmp_path)
    data = load_data(settings(), tmp_path)
    columns = data.train.features[1][:].double()
    assert torch.allclose(columns.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-6)
    assert data.test is not None
    assert not torch.allclose(data.test.features[1][:].double().mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-3)


@pytest.mark.parametrize("stratify", [False, True])
def test_each_alone_holds_what_the_join_gives(tmp_path: Path, stratify: bool) -> None:
    write(tmp_path)
    config = settings(data={"stratify": stratify})
    joined, home = load_data(config, tmp_path), aligned(config, tmp_path)
    server, shop = (participant_data.load(config, tmp_path, name, home) for name in ("", "shop"))
    assert server.trained_ids == shop.trained_ids == joined.ids
    assert server.class_names == ("no", "yes")
    assert shop.labels == {}
    for split in joined.ids:
        part = getattr(joined, split)
        assert torch.equal(server.columns[split][:], part.features[0][:])
        assert torch.equal(shop.columns[split][:], part.features[1][:])
        assert torch.equal(server.labels[split], part.labels)


def test_the_encoder_of_the_first_start_is_kept_with_the_checkpoint(tmp_path: Path) -> None:
    _, shop = write(tmp_path)
    config = settings()
    home = aligned(config, tmp_path)
    before = participant_data.load(config, tmp_path, "shop", home).columns["train"]
    (home / CHECKPOINT).write_bytes(b"")
    shop.with_columns(bought=pl.col("bought") * 100).write_parquet(tmp_path / "shop.parquet")
    after = participant_data.load(config, tmp_path, "shop", home).columns["train"]
    assert float(after[:][:, 0].std()) > 50 * float(before[:][:, 0].std())  # not standardised again
    (home / CHECKPOINT).unlink()
    assert torch.allclose(
        participant_data.load(config, tmp_path, "shop", home).columns["train"][:], before[:], atol=1e-5
    )
    assert (home / ENCODER).exists()


def test_a_column_that_is_left_out_later_is_not_used_in_silence(tmp_path: Path) -> None:
    _, shop = write(tmp_path)
    config = settings()
    home = aligned(config, tmp_path)
    participant_data.load(config, tmp_path, "shop", home)
    (home / CHECKPOINT).write_bytes(b"")
    own = replace(config.party[1], data=replace(config.party[1].data, leave_out=("bought",)))  # type: ignore[type-var]
    changed = replace(config, party=(config.party[0], own))
    with pytest.raises(ConfigError, match="began with 'bought', which the file leaves out now"):
        participant_data.load(changed, tmp_path, "shop", home)
    shop.with_columns(later=pl.lit(1)).write_parquet(tmp_path / "shop.parquet")
    assert participant_data.load(config, tmp_path, "shop", home).columns["train"].shape[1] == 2


def test_rows_that_came_later_need_no_label(tmp_path: Path) -> None:
    bank, _ = write(tmp_path)
    bank.drop("paid").head(3).with_columns(person=pl.Series(["N1", "N2", "N3"])).write_csv(tmp_path / "new.csv")
    config = settings()
    party = replace(config.party[0], data=replace(config.party[0].data, new="new.csv"))  # type: ignore[type-var]
    config = replace(config, party=(party, config.party[1]))
    held = participant_data.load(config, tmp_path, "", aligned(config, tmp_path))
    assert held.ids["new"] == ["n1", "n2", "n3"]
    assert held.columns["new"].shape == (3, held.columns["train"].shape[1])


def test_predictions_of_a_split_have_the_ids_of_the_label_holders_table(tmp_path: Path) -> None:
    bank, _ = write(tmp_path)
    config = settings()
    home = aligned(config, tmp_path)
    server = participant_data.load(config, tmp_path, "", home)
    of_split = PredictionFile(None, "test", Path("a.csv"))
    ids = of_split.read_ids(server)
    assert ids[0].startswith("p")
    assert set(of_split.spelt(ids, server)) <= set(bank["person"])
    assert PredictionFile(Path("ids.txt"), None, Path("a.csv")).spelt(["p001"], server) == ["p001"]  # as it was typed
    assert participant_data.load(config, tmp_path, "shop", home).spelling == {}


def test_a_category_of_digits_is_known_again_in_rows_that_came_later(tmp_path: Path) -> None:
    bank, _ = write(tmp_path)
    bank.with_columns(job=pl.when(pl.col("job") == "cook").then(pl.lit("01")).otherwise(pl.lit("nurse"))).write_csv(
        tmp_path / "bank.csv"
    )
    pl.DataFrame({"person": ["N1"], "debt": [0.0], "job": ["01"]}).write_csv(tmp_path / "new.csv")
    config = settings()
    party = replace(config.party[0], data=replace(config.party[0].data, new="new.csv"))  # type: ignore[type-var]
    config = replace(config, party=(party, config.party[1]))
    held = participant_data.load(config, tmp_path, "", aligned(config, tmp_path))
    assert held.columns["new"][0][1:].sum() == 1  # one of the levels, not an unseen one


@pytest.mark.parametrize("labels", ["private", "shared"])
@pytest.mark.parametrize("categories", ["onehot", "embed"])
def test_over_wires_as_in_one_process(
    tmp_path: Path, labels: str, categories: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank, shop = write(tmp_path)
    shop = shop.with_columns(pl.col("who").str.to_uppercase()).sort("who")
    both = bank.join(shop, left_on="person", right_on="who").sort("person")
    bank.filter(pl.col("person").is_in(both["person"].to_list())).write_csv(tmp_path / "bank.csv")
    shared = shop.filter(pl.col("who").is_in(both["person"].to_list()))
    if labels == "shared":
        shared = shared.with_columns(owes=both["paid"])
    shared.write_parquet(tmp_path / "shop.parquet")
    monkeypatch.chdir(tmp_path)
    parties: list[dict[str, Any]] = [
        {"name": "bank", "data": {"path": "bank.csv", "id": "person", "label": "paid", "categories": categories}},
        {"name": "shop", "data": {"path": "shop.parquet", "id": "who"}, "model": {"name": "linear", "width": 4}},
    ]
    if labels == "shared":
        parties[1]["data"]["label"] = "owes"
    config = settings(
        data={"align": "none", "id_format": []},
        party=parties,
        agreement={"labels": labels},
        class_weights="balanced",
        observe_gradient=False,
    )
    assert_same(reference(config), networked(config, tmp_path / "net"))


def test_balanced_classes_count_alike() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    weights = losses.class_weights("balanced", labels, 2)
    assert torch.allclose(weights[labels].mean(), torch.tensor(1.0, dtype=torch.float64))
    assert float(3 * weights[0]) == pytest.approx(float(weights[1]))
    output = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    plain, weighted = losses.lookup("cross_entropy"), losses.weighted(losses.lookup("cross_entropy"), weights)
    each = torch.nn.functional.cross_entropy(output, labels, reduction="none")
    assert torch.allclose(weighted(output, labels), (each * weights[labels].float()).mean())
    assert not torch.allclose(weighted(output, labels), plain(output, labels))
    with pytest.raises(ConfigError, match="2 positive numbers"):
        losses.class_weights((1.0, -1.0), labels, 2)


@pytest.mark.parametrize("weights", ["balanced", [1.0, 3.0]])
def test_class_weights_reach_the_server(tmp_path: Path, weights: object) -> None:
    write(tmp_path)
    config = settings(class_weights=weights)
    made = make_federation(config, load_data(config, tmp_path))
    y, plain = made.splits["train"].labels, losses.lookup("binary_cross_entropy")
    even, tilted = torch.zeros(len(y), 1), torch.ones(len(y), 1)
    assert torch.allclose(made.server.loss(even, y), plain(even, y))  # the mean weight is 1
    assert not torch.allclose(made.server.loss(tilted, y), plain(tilted, y))


def test_labels_of_any_form() -> None:
    assert Labels.of(pl.Series("y", [0, 1, 2, 1]), "cross_entropy").names == ()
    assert Labels.of(pl.Series("y", [1, 2, 2]), "cross_entropy").names == ("1", "2")
    assert Labels.of(pl.Series("y", [10.0, 9.0]), "cross_entropy").names == ("9", "10")
    assert Labels.of(pl.Series("y", [True, False]), "cross_entropy").names == ("false", "true")
    assert Labels.of(pl.Series("y", [0.5, 1.5]), "mse").names == ()
    assert Labels.of(pl.Series("y", ["b", "a"]), "cross_entropy").encode(pl.Series(["a", "b"])).tolist() == [0, 1]
    for series, loss, text in (
        (pl.Series("y", [1, None]), "cross_entropy", "missing in 1 of 2"),
        (pl.Series("y", ["a", "a"]), "cross_entropy", "expected two or more classes as the label 'y', got"),
        (pl.Series("y", ["a", "b"]), "mse", "loss 'mse': expected numbers as the label 'y', got 2 other values"),
        (pl.Series("y", [True, False]), "mse", "loss 'mse': expected numbers as the label 'y', got Boolean"),
        (pl.Series("y", ["1,5", "NA"]), "huber", "got 1 other values, such as 'NA'"),
        (
            pl.Series("y", [f"{n},5 %" for n in range(101)]),
            "cross_entropy",
            "101 different numbers, too many for classes",
        ),
        (
            pl.Series("y", np.linspace(0.1, 0.9, 200)),
            "cross_entropy",
            "too many for classes: for a regression target",
        ),
    ):
        with pytest.raises(DataError, match=text):
            Labels.of(series, loss)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        (
            {"data": {"path": "bank.csv", "id": "person", "label": "paid"}},
            ConfigError,
            r"labels are in \[data\] and at 'bank': remove one of them",
        ),
        ({"label_holder": ""}, ConfigError, "bank has a label column, but labels are private"),
        ({"data": {"id_format": []}}, DataError, "no id in common"),
        ({"data": {"align": "none"}}, DataError, "needs the same ids in the same order in all tables"),
        ({"class_weights": "even"}, ConfigError, "'balanced' or a list"),
        ({"loss": "mse", "class_weights": [1.0]}, ConfigError, "has no classes"),
        ({"model": {"name": "resnet18"}}, ConfigError, "needs images"),
        ({"model": {"name": "lineal"}}, ConfigError, "Did you mean 'linear'"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    write(tmp_path)
    with pytest.raises(error, match=text):  # noqa: PT012
        config = settings(**changes)
        make_federation(config, load_data(config, tmp_path))


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (
            {"path": "bank.csv", "label": "paid"},
            ConfigError,
            "expected the name of the id column of bank.csv, got none",
        ),
        ({"path": "bank.csv", "id": "persn", "label": "paid"}, DataError, "Did you mean 'person'"),
        ({"path": "bank.csv", "id": "person", "label": "paied"}, DataError, "Did you mean 'paid'"),
        ({"path": "bank.csv", "id": "person"}, ConfigError, "no participant has labels"),
        (
            {"path": "bank.csv", "id": "person", "label": "paid", "columns": ["detb"]},
            ConfigError,
            "Did you mean 'debt'",
        ),
        ({"path": "none.csv", "id": "person", "label": "paid"}, DataError, "cannot read"),
    ],
)
def test_a_wrong_word_is_met_with_the_nearest(
    tmp_path: Path, data: dict[str, Any], error: type[Exception], text: str
) -> None:
    write(tmp_path)
    parties = [{"name": "bank", "data": data}, {"name": "shop", "data": {"path": "shop.parquet", "id": "who"}}]
    with pytest.raises(error, match=text):
        load_data(settings(party=parties), tmp_path)


def test_a_table_that_lost_rows_since_the_alignment_is_refused(tmp_path: Path) -> None:
    _, shop = write(tmp_path)
    config = settings()
    home = aligned(config, tmp_path)
    shop.head(30).write_parquet(tmp_path / "shop.parquet")
    with pytest.raises(DataError, match="it has changed since"):
        participant_data.load(config, tmp_path, "shop", home)
    with pytest.raises(DataError, match="Run `efvfl align` first"):
        participant_data.load(config, tmp_path, "shop", tmp_path / "elsewhere")
