"""Weights of rows, further fits, threads and types in the estimators."""

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars
import pytest
import torch
from sklearn.utils.class_weight import compute_sample_weight

from efvfl import VerticalClassifier, VerticalRegressor
from efvfl.errors import ConfigError, DataWarning, InputError

pytestmark = pytest.mark.system

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4))
Y = np.where(X[:, 0] + X[:, 3] > 0, "yes", "no")
TARGET = X[:, 0] - 2 * X[:, 3]
QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 32}


# Weights of rows.


def test_equal_weights_are_no_weights() -> None:
    plain = VerticalClassifier(**QUICK).fit(X, Y)
    equal = VerticalClassifier(**QUICK).fit(X, Y, sample_weight=np.full(90, 0.3))
    assert np.array_equal(plain.predict_proba(X), equal.predict_proba(X))


@pytest.mark.parametrize("shares", [{}, {"validation_fraction": 0.2, "early_stopping": True}])
def test_a_row_of_weight_zero_is_as_if_it_were_not_there(shares: dict[str, Any]) -> None:
    weights = RNG.random(90) * (np.arange(90) % 4 > 0)
    kept = weights > 0
    whole = VerticalClassifier(**QUICK, **shares).fit(X, Y, sample_weight=weights)
    without = VerticalClassifier(**QUICK, **shares).fit(X[kept], Y[kept], sample_weight=5 * weights[kept])
    assert np.allclose(whole.predict_proba(X), without.predict_proba(X), rtol=1e-6)
    number = VerticalRegressor(**QUICK, **shares).fit(X, TARGET, sample_weight=weights)
    fewer = VerticalRegressor(**QUICK, **shares).fit(X[kept], TARGET[kept], sample_weight=weights[kept])
    assert np.array_equal(number.predict(X), fewer.predict(X))


def test_rows_of_weight_decide() -> None:
    """Half of the rows say the opposite of the others."""
    y = np.where(np.arange(90) % 2, Y == "yes", Y == "no").astype(int)
    for side in (0, 1):
        weights = np.where(np.arange(90) % 2 == side, 1.0, 0.01)
        model = VerticalClassifier(model="linear", epochs=40, batch_size=0, optimizer={"name": "Adam", "lr": 0.01}).fit(
            X, y, sample_weight=weights
        )
        assert model.score(X, y, sample_weight=weights) > 0.85
        assert model.score(X, y) < 0.7


def test_balanced_classes_are_weights_of_rows() -> None:
    rare = np.where(np.arange(90) % 6, "no", Y)
    as_rows = VerticalClassifier(**QUICK).fit(X, rare, sample_weight=compute_sample_weight("balanced", rare))
    as_classes = VerticalClassifier(class_weight="balanced", **QUICK).fit(X, rare)
    assert np.allclose(as_rows.predict_proba(X), as_classes.predict_proba(X), rtol=1e-5)


def test_a_regressor_standardises_targets_by_weight() -> None:
    weights = np.where(np.arange(90) < 45, 1.0, 3.0)
    model = VerticalRegressor(**QUICK).fit(X, TARGET, sample_weight=weights)
    assert model._mean == pytest.approx(np.average(TARGET, weights=weights))
    repeated = np.concatenate([TARGET[:45], *[TARGET[45:]] * 3])
    assert model._scale == pytest.approx(repeated.std())


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (np.ones(80), r"expected one number for each of 90 rows, got \(80,\)"),
        (-np.ones(90), "expected finite numbers of 0 or more"),
        (np.zeros(90), "all zero"),
        (np.eye(90)[0], "at least 2 rows with a weight above zero"),
        (["much"] * 90, "sample_weight: expected a number for each row"),
    ],
)
def test_what_is_no_weight_is_refused(weights: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        VerticalRegressor(**QUICK).fit(X, TARGET, sample_weight=weights)


# Further fits.


def states(model: Any) -> list[torch.Tensor]:
    modules = [model.federation_.fusion, *model.federation_.models]
    return [value.clone() for module in modules for value in module.state_dict().values()]


@pytest.mark.parametrize("saved", [False, True])
def test_a_warm_start_goes_on_from_the_last_parameters(saved: bool) -> None:
    model = VerticalClassifier(warm_start=True, optimizer={"name": "SGD", "lr": 1e-12}, **QUICK).fit(X, Y)
    before, encoders = model.predict_proba(X), model.encoders_
    if saved:
        model = pickle.loads(pickle.dumps(model))
    model.fit(0.8 * X[:60], Y[:60])  # with steps of nearly nothing the parameters stay; other rows teach no encoder
    assert np.allclose(model.predict_proba(X), before, atol=1e-7)
    assert model.encoders_ == encoders
    model.set_params(warm_start=False).fit(0.8 * X[:60], Y[:60])
    assert not np.allclose(model.predict_proba(X), before, atol=1e-4)


def test_a_further_fit_goes_on_learning() -> None:
    model = VerticalRegressor(warm_start=True, epochs=4, batch_size=32).fit(X, TARGET)
    losses = [model.records_[-1].train["loss"]]
    for _ in range(2):
        scale = model._scale
        model.fit(X, TARGET)
        losses.append(model.records_[-1].train["loss"])
        assert model._scale == scale
    assert losses == sorted(losses, reverse=True)


def test_without_a_warm_start_nothing_is_left_of_the_last_fit() -> None:
    model = VerticalClassifier(**QUICK).fit(X, Y)
    first = states(model)
    model.fit(X, Y)
    assert all(torch.equal(a, b) for a, b in zip(first, states(model), strict=True))


def test_a_warm_start_says_what_differs() -> None:
    model = VerticalClassifier({"bank": [0, 1], "shop": [2, 3]}, warm_start=True, **QUICK).fit(X, Y)
    before = model.predict_proba(X)
    with pytest.raises(ConfigError, match=r"expected classes of the last fit, \['no', 'yes'\], got also \['maybe'\]"):
        model.fit(X, np.where(np.arange(90) % 3, Y, "maybe"))
    with pytest.raises(ValueError, match="X has 3 features, but VerticalClassifier is expecting 4"):
        model.fit(X[:, :3], Y)
    model.set_params(columns={"bank": [0, 2], "shop": [1, 3]})
    with pytest.raises(ConfigError, match=r"columns of 'bank' in the last fit, \['x0', 'x1'\], got \['x0', 'x2'\]"):
        model.fit(X, Y)
    model.set_params(columns={"bank": [0, 1], "mill": [2, 3]})
    with pytest.raises(ConfigError, match=r"parties of the last fit, \['bank', 'shop'\], got \['bank', 'mill'\]"):
        model.fit(X, Y)
    model.set_params(columns={"bank": [0, 1], "shop": [2, 3]}, width=8)
    with pytest.raises(ConfigError, match=r"the model of 'bank' is not the one of the last fit: .* had shape"):
        model.fit(X, Y)
    assert np.array_equal(model.predict_proba(X), before)  # what was refused has changed nothing
    model.set_params(width=16).fit(X[:40], np.where(np.arange(40) < 40, "yes", "no"))  # known classes are enough
    assert model.classes_.tolist() == ["no", "yes"]


def test_a_warm_start_warns_of_columns_that_changed() -> None:
    model = VerticalClassifier(warm_start=True, **QUICK).fit(X, Y)
    with pytest.warns(DataWarning, match="outside the range of the training rows"):
        model.fit(X * 100, Y)


# Threads.


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("threads", "seen"), [(None, 1), (1, 1), (3, 3), (0, 2)])
def test_threads_are_those_asked_for_and_then_the_callers_again(threads: int | None, seen: int) -> None:
    found = []

    class Watching(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found.append(torch.get_num_threads())
            return super().forward(x)

    chosen = {} if threads is None else {"threads": threads}
    model = VerticalClassifier(model=lambda layout, width: Watching(layout.width, width), epochs=1, **chosen)  # type: ignore[arg-type]
    model.fit(X, Y)
    assert set(found) == {seen}
    found.clear()
    model.predict(X)
    assert set(found) == {seen}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_leaves_the_callers_threads() -> None:
    def fails(*_: object) -> torch.nn.Module:
        assert torch.get_num_threads() == 1
        raise LookupError("no model today")

    with pytest.raises(LookupError, match="no model today"):
        VerticalClassifier(model=fails).fit(X, Y)
    assert torch.get_num_threads() == 2
    with pytest.raises(ConfigError, match="threads: expected at least 0, got -1"):
        VerticalClassifier(threads=-1).fit(X, Y)


# Types and missing values.


def amounts(rows: int = 60) -> polars.DataFrame:
    return polars.DataFrame(
        {
            "code": [str(1 + i % 3) for i in range(rows)],
            "sum": [f"{i % 7},250" for i in range(rows)],
            "age": ["unknown" if i % 2 else str(i) for i in range(rows)],
            "x": RNG.normal(size=rows),
        }
    )


def test_types_and_missing_texts_are_those_of_run_files() -> None:
    table, y = amounts(), np.arange(60) % 2
    model = VerticalClassifier(
        {"bank": ["code", "sum"], "shop": ["age", "x"]},
        types={"code": "number", "sum": "number 1.234,5", 2: "number"},
        missing=["unknown"],
        **QUICK,
    ).fit(table, y)
    assert model.encoders_["bank"].names == ["code", "sum"]
    assert model.encoders_["bank"].columns[1].high == 6.25  # type: ignore[union-attr]
    assert model.encoders_["shop"].names == ["age", "age is missing", "x"]
    shown = model.predict_proba(table[:2])
    gaps = table[:2].with_columns(age=polars.Series(["0", None]))
    assert np.array_equal(shown, model.predict_proba(gaps))  # later rows are read in the same way


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"types": {"cod": "number"}}, "there is no column 'cod' for types. Did you mean 'code'"),
        ({"types": {"code": "numeral"}}, "unknown type 'numeral' of 'code'"),
        ({"types": {7: "number"}}, "expected column indices of types from 0 to 3, got 7"),
        ({"types": {"x": "number"}, "columns": {"bank": ["code"]}}, "'x' is no party's column"),
        ({"missing": "NA"}, "missing: expected a list of texts"),
        ({"missing": [3]}, "missing: expected a list of texts"),
    ],
)
def test_types_that_fit_no_column_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        VerticalClassifier(**QUICK, **options).fit(amounts(), np.arange(60) % 2)


def test_a_column_that_is_not_of_its_type_is_refused() -> None:
    with pytest.raises(InputError, match="expected numbers in column 'age'"):
        VerticalClassifier(types={"age": "number"}, **QUICK).fit(amounts(), np.arange(60) % 2)
