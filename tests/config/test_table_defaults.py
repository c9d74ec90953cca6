"""Defaults of tables: one set, whoever asks; what a file sets wins; arrays have the paper's."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from efvfl import VerticalClassifier
from efvfl.config import table_defaults
from efvfl.config.run_file import RunConfig, read
from efvfl.errors import ConfigError

PARTIES: list[dict[str, Any]] = [
    {"name": "bank", "data": {"path": "bank.csv", "id": "id", "label": "y"}},
    {"name": "shop", "data": {"path": "shop.csv", "id": "id"}},
]


def run(**settings: Any) -> RunConfig:
    return read(RunConfig, {"label_holder": "bank", "party": PARTIES, **settings}, "run.toml")


def test_arrays_have_the_defaults_of_before() -> None:
    arrays = [{"name": "bank", "data": {"path": "bank.npz"}}]
    for table in ({}, {"party": arrays, "data": {"name": "npz"}}, {"data": {"name": "mnist"}}):
        config, plain = read(RunConfig, table, "run.toml"), RunConfig()
        for name in ("epochs", "batch_size", "model", "fusion", "method", "optimizer"):
            assert getattr(config, name) == getattr(plain, name), name


def test_file_network_and_estimator_have_the_same() -> None:
    """Also a participant whose copy of the file has its own table alone."""
    own = [{"name": "bank"}, PARTIES[1]]
    holder = {"data": {"name": "table", "path": "labels.csv"}, "party": [{"name": "bank"}, {"name": "shop"}]}
    x = np.random.default_rng(0).normal(size=(40, 2))
    fitted = VerticalClassifier()._run(0, "cross_entropy")
    assert VerticalClassifier(epochs=1).fit(x, x[:, 0] > 0).federation_.fusion.kind == run().fusion.combine
    for config in (run(party=own), run(**holder), fitted):
        for name in ("epochs", "batch_size", "model", "fusion", "method", "optimizer"):
            assert asdict(config)[name] == asdict(run())[name], name
    assert run().optimizer == table_defaults.OPTIMIZER
    assert run().method.down == table_defaults.DOWN
    assert run().optimizer != RunConfig().optimizer


def test_what_a_file_sets_wins() -> None:
    config = run(
        epochs=3,
        optimizer={"name": "SGD"},
        model={"width": 5},
        fusion={"combine": "mean"},
        method={"down": {}},
        party=[PARTIES[0] | {"model": {"hidden": [9]}}, PARTIES[1] | {"model": {"name": "linear", "width": 4}}],
    )
    assert (config.epochs, config.optimizer, config.model.width) == (3, {"name": "SGD"}, 5)
    assert (config.batch_size, list(config.model.hidden)) == (run().batch_size, list(run().model.hidden))
    assert (config.fusion.combine, config.fusion.hidden) == ("mean", run().fusion.hidden)
    assert (config.method.down, config.method.compressor) == ({}, table_defaults.COMPRESSOR)
    bank, shop = (party.model for party in config.party)
    assert bank is not None
    assert shop is not None
    assert (bank.hidden, bank.last, shop.last) == ((9,), run().model.last, RunConfig().model.last)


def test_defaults_go_with_what_else_is_set() -> None:
    shared = run(agreement={"labels": "shared", "downlink": "aggregate"})
    assert shared.method.down == {}
    assert shared.fusion.combine == "mean"
    linear = run(model={"name": "linear"})
    assert linear.fusion == RunConfig().fusion  # linear to the end
    own = run(model={"name": "mine.nets:Net", "options": {"size": 3}}, fusion={"name": "mine.nets:Head"})
    assert own.model.hidden == ()
    assert own.fusion.hidden == ()


@pytest.mark.parametrize("odd", [{"party": 3}, {"party": [3]}, {"model": 1}, {"data": []}, {"party": [{"data": 1}]}])
def test_a_table_that_is_no_run_is_refused_as_before(odd: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        read(RunConfig, {"data": {"name": "table"}, **odd}, "run.toml")
