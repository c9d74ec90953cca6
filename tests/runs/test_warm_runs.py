"""A run that starts from a trained one: more rows, another column, one more party."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.errors import CheckpointError, ConfigError
from efvfl.runs.run import CHECKPOINT, open_trained, train
from efvfl.util import checkpoint

TELCO = {"name": "telco", "data": {"path": "telco.csv", "id": "person"}}
SHOP = {"name": "shop", "data": {"path": "shop.csv", "id": "person"}}


def settings(*more: dict[str, Any], **changes: Any) -> RunConfig:
    table: dict[str, Any] = {
        "epochs": 1,
        "batch_size": 16,
        "loss": "binary_cross_entropy",
        "label_holder": "bank",
        "model": {"width": 4, "hidden": [6]},
        "fusion": {"combine": "mean", "hidden": []},
        "method": {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.2}},
        "optimizer": {"name": "Adam", "lr": 0.01},
        "observe_gradient": False,
        "party": [{"name": "bank", "data": {"path": "bank.csv", "id": "person", "label": "paid"}}, TELCO, *more],
    }
    return configs.read(RunConfig, table | changes, "warm")


def write(folder: Path, rows: int, telco: tuple[str, ...] = ("calls",)) -> None:
    chance = np.random.default_rng(3)
    person = [f"p{i:03}" for i in range(200)]
    numbers = {name: chance.normal(size=200) for name in ("age", "calls", "abroad", "bought")}
    paid = np.where(numbers["age"] + numbers["calls"] > 0, "yes", "no")
    tables = {"bank": ("age",), "telco": telco, "shop": ("bought",)}
    for name, columns in tables.items():
        frame = pl.DataFrame({"person": person, **{column: numbers[column] for column in columns}})
        frame = frame.with_columns(paid=pl.Series(paid)) if name == "bank" else frame
        frame.head(rows).write_csv(folder / f"{name}.csv")


def state_of(folder: Path) -> dict[str, Any]:
    return dict(checkpoint.load(folder / CHECKPOINT)["federation"])


def start_of(folder: Path, config: RunConfig, said: list[str] | None = None) -> dict[str, Any]:
    """Where a warm start begins: the state before its first step."""
    seen: list[dict[str, Any]] = []

    def watch(federation: Any, records: Any) -> Any:
        seen.append(federation.state_dict())
        return records

    say = said.append if said is not None else None
    train(config, folder / "warm", start_from=folder / "old", base=folder, watch=watch, say=say)
    return seen[0]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    write(tmp_path, 120)
    train(settings(), tmp_path / "old", base=tmp_path)
    return tmp_path


def module(state: dict[str, Any], party: str = "") -> dict[str, torch.Tensor]:
    return dict((state["parties"][party] if party else state["server"])["block"]["module"])


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def test_more_rows_keep_every_parameter_and_nothing_else(old: Path) -> None:
    write(old, 180)
    said: list[str] = []
    began, ended = start_of(old, settings(), said), state_of(old / "old")
    for name in ("", "bank", "telco"):
        assert equal(module(began, name), module(ended, name))
    for party in ("bank", "telco"):
        now, then = (state["parties"][party] for state in (began, ended))
        assert (now["step"], then["step"] > 0) == (0, True)
        if party == "telco":  # the other is next to the server
            assert (now["up"]["memory"]["g"].any(), then["up"]["memory"]["g"].any()) == (False, True)
        assert (now["block"]["optimizer"]["state"], bool(then["block"]["optimizer"]["state"])) == ({}, True)
    assert began["batches"]["rows"] > ended["batches"]["rows"]
    assert f"Warm start from {old / 'old'}: bank: kept; telco: kept; fusion model: kept." in said


def test_known_columns_keep_their_scales(old: Path) -> None:
    before = (old / "old" / "encoders" / "telco.json").read_text()
    write(old, 180)
    train(settings(), old / "fresh", base=old)
    train(settings(), old / "warm", start_from=old / "old", base=old)
    assert (old / "warm" / "encoders" / "telco.json").read_text() == before
    assert (old / "fresh" / "encoders" / "telco.json").read_text() != before


def test_another_column_and_one_more_party_start_fresh(old: Path) -> None:
    write(old, 180, ("abroad", "calls"))
    said: list[str] = []
    began, ended = start_of(old, settings(SHOP), said), state_of(old / "old")
    text = "bank: kept; telco: kept, 1 new column starts fresh; fusion model: kept; shop: new."
    assert any(line.endswith(text) for line in said)
    assert equal(module(began), module(ended))  # of a mean, whoever takes part
    now, then = (module(state, "telco")["layers.layers.1.weight"] for state in (began, ended))
    assert torch.equal(now[:, 0], then[:, 0])  # known columns come first
    assert now.shape == (6, 2 + 2 * 8)  # the numbers, and eight for the bins of each


def test_a_concatenation_keeps_the_columns_of_old_parties(tmp_path: Path) -> None:
    write(tmp_path, 120)
    fusion = {"combine": "concat", "hidden": []}
    train(settings(fusion=fusion), tmp_path / "old", base=tmp_path)
    said: list[str] = []
    began, ended = start_of(tmp_path, settings(SHOP, fusion=fusion), said), state_of(tmp_path / "old")
    assert any("fusion model: kept, the columns of shop start fresh; shop: new" in line for line in said)
    now, then = (module(state)["head.1.weight"] for state in (began, ended))
    assert torch.equal(now[:, :8], then)
    assert torch.equal(module(began)["head.1.bias"], module(ended)["head.1.bias"])


def test_what_does_not_fit_starts_fresh_and_a_party_that_left_is_named(old: Path) -> None:
    said: list[str] = []
    bank = {"name": "bank", "data": {"path": "bank.csv", "id": "person", "label": "paid"}}
    start_of(old, settings(model={"width": 5}, party=[bank, SHOP]), said)
    text = "bank: starts fresh, because its model does not fit the trained one; "
    text += "fusion model: starts fresh, because it does not fit the trained one; shop: new; telco: gone."
    assert any(line.endswith(text) for line in said)


def test_a_column_that_is_gone_is_named(tmp_path: Path) -> None:
    write(tmp_path, 120, ("abroad", "calls"))
    train(settings(), tmp_path / "old", base=tmp_path)
    write(tmp_path, 120)
    said: list[str] = []
    start_of(tmp_path, settings(), said)
    assert any("telco: kept, 1 column is gone;" in line for line in said)


def test_a_party_with_none_of_its_columns_starts_fresh(old: Path) -> None:
    write(old, 120, ("abroad",))
    said: list[str] = []
    began, ended = start_of(old, settings(), said), state_of(old / "old")
    assert any("telco: starts fresh, because it has no column of before;" in line for line in said)
    assert not equal(module(began, "telco"), module(ended, "telco"))


def test_all_rows_are_compared_with_those_of_the_trained_run(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    telco = pl.read_csv(old / "telco.csv")
    telco.with_columns(pl.col("calls") * 60).write_csv(old / "telco.csv")
    start_of(old, settings())
    assert "column 'calls': " in caplog.text
    assert "a value outside the range of the training rows" in caplog.text
    caplog.clear()
    train(settings(), old / "fresh", base=old)
    assert "outside the range" not in caplog.text


def test_a_warm_start_that_was_killed_goes_on_bit_for_bit(old: Path) -> None:
    write(old, 180, ("calls", "abroad"))
    whole = train(settings(SHOP, epochs=3), old / "whole", start_from=old / "old", base=old)
    train(settings(SHOP, epochs=1), old / "parts", start_from=old / "old", base=old)
    for name in ("checkpoint", "records"):  # of a run that went on, it has all it needs itself
        for path in (old / "old").glob(f"{name}*"):
            path.unlink()
    parts = train(settings(SHOP, epochs=3), old / "parts", True, base=old)
    assert [record.surrogate_loss for record in parts] == [record.surrogate_loss for record in whole]
    for name in ("", "bank", "telco", "shop"):
        assert equal(module(state_of(old / "parts"), name), module(state_of(old / "whole"), name))


def test_a_run_of_arrays_is_a_start_too(tmp_path: Path) -> None:
    config = configs.read(RunConfig, {"epochs": 1, "data": {"subset": 100}, "observe_gradient": False}, "digits")
    train(config, tmp_path / "old")
    began, ended = start_of(tmp_path, config), state_of(tmp_path / "old")
    assert all(equal(module(began, name), module(ended, name)) for name in ("", *ended["parties"]))


def test_a_folder_that_is_no_start_is_refused(old: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot read the checkpoint"):
        open_trained(old / "nowhere")
    (old / "old" / "settings.json").unlink()
    with pytest.raises(ConfigError, match="is not finished: give --resume to go on with it first"):
        open_trained(old / "old")
    checkpoint.save(old / "old" / CHECKPOINT, {"version": 2, "party": {}})
    with pytest.raises(CheckpointError, match="was not left by `efvfl run`"):
        open_trained(old / "old")
