"""Estimators whose parties lack rows: those in which all their values are missing."""

import pickle
from typing import Any

import numpy as np
import polars
import pytest
import torch

from efvfl import VerticalClassifier, VerticalRegressor
from efvfl.errors import ConfigError, DataWarning, InputError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = X[:, 0] + X[:, 2] > 0
COLUMNS = {"bank": [0, 1], "shop": [2, 3]}
OPTIONS: dict[str, Any] = {"epochs": 12, "label_holder": "bank", "validation_fraction": 0.3, "subsets": True}


def without_shop(x: Any, rows: Any) -> Any:
    x = x.copy()
    x[rows, 2:] = np.nan
    return x


@pytest.fixture(scope="module")
def model() -> VerticalClassifier:
    return VerticalClassifier(COLUMNS, **OPTIONS).fit(without_shop(X, np.arange(0, 120, 2)), Y)


def test_a_party_sends_the_rows_it_has(model: VerticalClassifier) -> None:
    shop = model.federation_.parties["shop"]
    assert 0 < shop.batches.samples < model.federation_.parties["bank"].batches.samples
    whole = VerticalClassifier(COLUMNS, **OPTIONS).fit(X, Y)
    assert model.bytes_up_ < 0.7 * whole.bytes_up_


def test_predictions_rest_on_those_who_have_the_row(model: VerticalClassifier) -> None:
    alone = model.decision_function(without_shop(X, slice(None)))
    h = model._models[0](model._features(model._table(X, fitting=False))["bank"].double())
    expected = model._fusion([h, torch.zeros_like(h)], torch.tensor([[1.0, 0.0]] * len(X)).double())
    assert np.allclose(alone, expected[:, 0].numpy())
    assert not np.allclose(alone, model.decision_function(X))
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(alone, again.decision_function(without_shop(X, slice(None))))
    frame = polars.DataFrame(X, schema=["a", "b", "c", "d"])
    named = VerticalClassifier({"bank": ["a", "b"], "shop": ["c", "d"]}, **OPTIONS).fit(frame, Y)
    nulls = frame.with_columns(c=polars.lit(None, polars.Float64), d=polars.lit(None, polars.Float64))
    assert np.isfinite(named.decision_function(nulls)).all()


def test_what_each_party_is_worth(model: VerticalClassifier) -> None:
    found = model.party_values_
    total = sum(estimate.value for estimate in found.values.values())
    assert total == pytest.approx(found.subsets["bank", "shop"].value - found.subsets[()].value, abs=1e-12)
    assert set(found.values) == set(COLUMNS)


def test_every_prediction_says_whose_columns_it_rests_on(model: VerticalClassifier) -> None:
    assert model.parties_used(without_shop(X[:3], [1])) == [("bank", "shop"), ("bank",), ("bank", "shop")]
    plain = VerticalClassifier(COLUMNS, epochs=1).fit(X, Y)
    assert plain.parties_used(X[:2]) == [("bank", "shop")] * 2


def test_parties_that_were_never_trained_together_do_not_predict_together() -> None:
    apart = X.copy()
    apart[:60, 2:] = np.nan
    apart[60:, :2] = np.nan
    options = OPTIONS | {"label_holder": "", "epochs": 1}
    model = VerticalClassifier(COLUMNS, **options).fit(apart, Y)
    assert np.isfinite(model.decision_function(apart)).all()
    for each in (model, pickle.loads(pickle.dumps(model))):
        with pytest.raises(InputError, match="got 120 rows of others, such as bank, shop: leave these rows out"):
            each.predict(X)


def test_which_columns_matter(model: VerticalClassifier) -> None:
    found = model.column_values_
    assert {name: list(columns) for name, columns in found.items()} == {"bank": ["x0", "x1"], "shop": ["x2", "x3"]}
    value = {name: estimate.value for columns in found.values() for name, estimate in columns.items()}
    assert value["x0"] + value["x2"] > value["x1"] + value["x3"]  # the label follows from x0 and x2 alone


def test_rows_without_a_value_and_models_for_all_alone_are_refused(model: VerticalClassifier) -> None:
    empty = X.copy()
    empty[:3] = np.nan
    with pytest.raises(InputError, match="expected a value in every row of X, got 3 rows without any"):
        model.predict(empty)
    plain = VerticalRegressor(COLUMNS, epochs=1, validation_fraction=0.3).fit(X, X[:, 0])
    with pytest.warns(DataWarning, match="values are missing"):  # they are filled like any other gaps
        assert np.isfinite(plain.predict(without_shop(X, slice(None)))).all()
    with pytest.raises(ConfigError, match="trained for all parties together"):
        _ = plain.party_values_
