"""The estimators keep scikit-learn's contract, and are the same engine as a run."""

import os
import pickle
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from benchmarks.tables import rivals
from benchmarks.tables.problems import Problem, breast, credit, mfeat
from benchmarks.tables.rivals import Model, estimator
from benchmarks.tables.training import one_place
from paths import ROOT
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from efvfl import VerticalClassifier, VerticalRegressor
from efvfl.config.run_file import RunConfig, read
from efvfl.core.losses import LOSSES, weighted
from efvfl.data import Dataset
from efvfl.data.tables.encode import Encoder, Layout, TableSettings
from efvfl.errors import ConfigError, DataError, DataWarning, InputError
from efvfl.models.tables import coefficients
from efvfl.runs.build import make_federation
from efvfl.training.measure import Split

pytestmark = pytest.mark.system

BREAST = load_breast_cancer()
DATA = os.environ.get("EFVFL_DATA", "")
NEEDS_DATA = pytest.mark.skipif(not DATA, reason="EFVFL_DATA is not set: these tables are not part of the project")
QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 128}
STEEP = {"name": "Adam", "lr": 0.02}


def mixed(rows: int = 240, seed: int = 0) -> polars.DataFrame:
    """Numbers, texts, booleans and dates with gaps; the label follows from a text and from a number of each party."""
    rng = np.random.default_rng(seed)
    town = rng.choice(["Bern", "Basel", "Chur"], rows)
    income, debt = rng.normal(size=rows), rng.normal(size=rows)
    seen = [None if gap else value for gap, value in zip(rng.random(rows) < 0.1, income.tolist(), strict=True)]
    return polars.DataFrame(
        {
            "town": town,
            "income": polars.Series(seen, dtype=polars.Float64),
            "debt": debt,
            "since": polars.Series(np.datetime64("2020-01-01") + rng.integers(0, 900, rows)),
            "married": rng.random(rows) < 0.5,
            "y": np.where((town == "Bern") + income - debt > 0.3, "yes", "no"),
        }
    )


PARTIES = {"bank": ["town", "income"], "telco": ["debt", "since", "married"]}


# These checks are about types and shapes: what they want learnt is learnt in two epochs of many large steps.
SOON: dict[str, Any] = {"epochs": 2, "batch_size": 32, "optimizer": {"name": "Adam", "lr": 0.1}}
SOON_NUMBERS: dict[str, Any] = SOON | {"batch_size": 16, "optimizer": {"name": "Adam", "lr": 0.05}}


@pytest.mark.slow
@parametrize_with_checks(
    [VerticalClassifier(**SOON), VerticalRegressor(**SOON_NUMBERS)],
    expected_failed_checks=lambda estimator: {
        "check_sample_weight_equivalence_on_dense_data": "a row that is repeated is compressed and encoded as several"
    },
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def scores(make: Callable[[], Problem], *models: Model) -> list[float]:
    problem = make()
    return [model(problem, problem.split(5), 5).auc for model in models]


@pytest.mark.slow
def test_two_parties_are_within_a_point_of_one_place() -> None:
    central, vertical = scores(breast, one_place, estimator("efvfl"))
    assert central > 0.98
    assert vertical > central - 0.01


@NEEDS_DATA
@pytest.mark.slow
def test_credit_default_is_predicted_as_well_as_in_one_place_and_better_than_alone() -> None:
    central, vertical, alone = scores(credit, one_place, estimator("efvfl"), rivals.alone)
    assert abs(vertical - central) < 0.005
    assert min(vertical, central) > alone + 0.04
    assert central > 0.76


@NEEDS_DATA
@pytest.mark.slow
def test_six_parties_are_within_a_point_of_one_place() -> None:
    whole = mfeat()
    third = replace(whole, frame=whole.frame[::3], classes=whole.classes[::3])  # all that a test has time for
    central, vertical = scores(lambda: third, one_place, estimator("efvfl"))
    assert central > 0.99
    assert vertical > central - 0.01


def test_the_scores_of_two_classes_are_those_of_the_second() -> None:
    x, y = BREAST.data, BREAST.target
    model = VerticalClassifier(**QUICK).fit(x, y)
    logits = model.decision_function(x)
    assert logits.shape == y.shape
    assert np.allclose(model.predict_proba(x), np.stack([1 / (1 + np.exp(logits)), 1 / (1 + np.exp(-logits))], axis=1))
    assert np.array_equal(model.predict(x), (logits > 0).astype(int))


@pytest.mark.slow
def test_digits_in_two_halves_are_learnt() -> None:
    x, y = load_digits(return_X_y=True)
    x, held, y, truth = train_test_split(x[:900], y[:900], random_state=0, stratify=y[:900])
    model = VerticalClassifier({"upper": range(32), "lower": range(32, 64)}, epochs=25).fit(x, y)
    assert model.score(held, truth) > 0.95
    assert model.predict_proba(held).shape == (len(held), 10)
    assert np.allclose(model.predict_proba(held).sum(axis=1), 1)
    sent = VerticalClassifier({"upper": range(32), "lower": range(32, 64)}, method="svfl", epochs=1).fit(x, y)
    last = model.records_[-1]
    assert last.bytes_up / last.epoch < 0.15 * sent.bytes_up_


@pytest.mark.slow
@pytest.mark.parametrize(("model", "epochs"), [("table", 30), ("linear", None)])  # None: as many as by default
def test_numbers_are_predicted_in_their_own_units(model: str, epochs: int | None) -> None:
    x = np.random.default_rng(0).normal(size=(400, 4))
    y = 1000 + 50 * x[:, 0] - 30 * x[:, 3]  # a column of each party
    regressor = VerticalRegressor(model=model, epochs=epochs).fit(x[:300], y[:300])
    assert regressor.score(x[300:], y[300:]) > 0.95
    assert np.abs(regressor.predict(x[300:]) - y[300:]).mean() < 12


def test_it_is_the_federation_that_a_run_file_makes() -> None:
    """With nothing but the data and the label holder: the same model and bytes, bit for bit."""
    frame = polars.DataFrame(BREAST.data[:200], schema=[f"x{i}" for i in range(30)])
    y = BREAST.target[:200]
    order = sorted(range(200), key=str)  # a file has rows in the order of their ids, as texts
    parties = {"party1": frame[order, :15], "party2": frame[order, 15:]}
    encoders = {name: Encoder.fit(table, TableSettings()) for name, table in parties.items()}
    columns = [torch.from_numpy(encoders[name].transform(table)) for name, table in parties.items()]
    none = Split([x[:0] for x in columns], torch.zeros(0, dtype=torch.int64))
    data = Dataset(list(parties), Split(columns, torch.from_numpy(y[order])), none, none, 2, encoders=encoders)
    table = {"data": {"name": "table"}, "label_holder": "party1", "loss": "binary_cross_entropy", "epochs": 3}
    run = make_federation(read(RunConfig, table, "test"), data)
    theirs = list(run.train(3, gradient=False))
    model = VerticalClassifier(label_holder="party1", epochs=3, early_stopping=False).fit(frame, y)
    assert [r.train for r in model.records_] == [r.train for r in theirs]
    assert [(r.bytes_up, r.bytes_down) for r in model.records_] == [(r.bytes_up, r.bytes_down) for r in theirs]
    for ours, other in zip(model.federation_.models, run.models, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("labels", ["private", "shared"])
@pytest.mark.parametrize("method", ["svfl", "cvfl", "efvfl"])
def test_every_method_and_both_kinds_of_labels_train(method: str, labels: str) -> None:
    model = VerticalClassifier(method=method, labels=labels, epochs=4, batch_size=64, optimizer=STEEP).fit(
        BREAST.data, BREAST.target
    )
    assert model.score(BREAST.data, BREAST.target) > 0.85
    assert model.records_[-1].bytes_up == model.bytes_up_ > 0
    assert model.records_[-1].bytes_down == model.bytes_down_ > 0
    assert set(model.federation_.parties) == {"party1", "party2"}


def test_the_compressor_is_what_was_asked_for() -> None:
    x, y = BREAST.data, BREAST.target
    few, more = (VerticalClassifier(compressor={"name": "topk", "ratio": r}, **QUICK).fit(x, y) for r in (0.05, 0.5))
    assert few.bytes_up_ < 0.2 * more.bytes_up_
    assert few.federation_.parties["party1"].up.compressor.name == "topk"
    quantised = VerticalClassifier(compressor={"name": "qsgd", "bits": 4}, **QUICK).fit(x, y)
    assert quantised.federation_.parties["party1"].up.compressor.name == "qsgd"


def test_the_label_holder_sends_nothing() -> None:
    model = VerticalClassifier(label_holder="party1", **QUICK).fit(BREAST.data, BREAST.target)
    assert set(model.records_[-1].ledger["up"]) == {"party2"}


@cache
def of_polars() -> Any:
    """What is predicted of a polars table, with the labels in a list."""
    frame = mixed()
    twin = VerticalClassifier(PARTIES, epochs=10, optimizer=STEEP).fit(frame.drop("y"), frame["y"].to_list())
    return twin.predict_proba(frame.drop("y"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["polars", "pandas", "pyarrow"])
def test_tables_with_texts_dates_and_gaps_are_encoded_by_party(kind: str) -> None:
    frame = mixed()
    x: Any = frame.drop("y")
    if kind == "pandas":
        x = x.to_pandas()
    elif kind == "pyarrow":
        x = x.to_arrow()
    model = VerticalClassifier(PARTIES, epochs=10, optimizer=STEEP).fit(x, frame["y"])
    assert list(model.classes_) == ["no", "yes"]
    assert list(model.feature_names_in_) == ["town", "income", "debt", "since", "married"]
    assert model.n_features_in_ == 5
    assert set(model.encoders_) == {"bank", "telco"}
    assert "town=Bern" in " ".join(model.encoders_["bank"].names).replace(": ", "=").replace(" = ", "=")
    assert model.score(x, frame["y"]) > 0.85
    assert np.array_equal(of_polars(), model.predict_proba(x))


def test_a_town_never_seen_and_an_infinite_number_are_no_obstacle() -> None:
    frame = mixed()
    model = VerticalClassifier(PARTIES, **QUICK).fit(frame.drop("y"), frame["y"])
    strange = frame.drop("y")[:2].with_columns(town=polars.lit("Genf"), debt=polars.lit(float("inf")))
    with pytest.warns(DataWarning, match="bank, column 'town': 2 of 2 rows have a level that no training row had: 'Ge"):
        assert np.isfinite(model.predict_proba(strange)).all()


def test_later_rows_that_differ_are_one_warning() -> None:
    frame = mixed()
    model = VerticalClassifier(PARTIES, **QUICK).fit(frame.drop("y"), frame["y"])
    later = frame.drop("y").with_columns(town=polars.lit("Genf"), debt=polars.col("debt") * 1e6)
    with pytest.warns(DataWarning) as caught:
        model.predict(later)
    (said,) = caught
    assert len(str(said.message).splitlines()) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(frame.drop("y"))


def test_text_dates_and_decimal_commas_of_pandas_are_read_and_what_is_not_is_named() -> None:
    rows = 60
    table = pandas.DataFrame(
        {
            "day": [f"{d % 28 + 1}.{d % 12 + 1}.2024" for d in range(rows)],
            "amount": [f"{n},5" for n in range(rows - 1)] + ["lots"],
        }
    )
    labels = [n % 2 for n in range(rows)]
    with pytest.warns(DataWarning, match="column 'amount': 1 value is no number, and read as missing: row 60 'lots'"):
        model = VerticalClassifier(epochs=1).fit(table, labels)
    names = [name for encoder in model.encoders_.values() for name in encoder.names]
    assert names[:2] == ["day", "day: month sine"]
    assert names[-2:] == ["amount", "amount is missing"]


def test_missing_numbers_in_an_array_are_filled_in() -> None:
    x = BREAST.data.copy()
    x[::7, 3] = np.nan
    model = VerticalClassifier(**QUICK).fit(x, BREAST.target)
    assert np.isfinite(model.predict_proba(x)).all()
    assert model.encoders_["party1"].layout.numbers == 16  # 15 columns, and one that says where numbers are missing


def test_a_column_of_gaps_is_refused_by_name() -> None:
    frame = mixed().drop("y").with_columns(debt=polars.lit(None, dtype=polars.Float64))
    with pytest.raises(InputError, match="debt") as caught:
        VerticalClassifier(PARTIES, **QUICK).fit(frame, mixed()["y"])
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DataError)
    assert "leave_out" not in str(caught.value)  # no parameter of an estimator


def test_the_same_seed_gives_the_same_predictions_bit_for_bit() -> None:
    x, y = BREAST.data, BREAST.target
    first, again, other = (
        VerticalClassifier(random_state=s, **QUICK).fit(x, y).decision_function(x) for s in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
    drawn = [VerticalClassifier(random_state=np.random.RandomState(3), **QUICK).fit(x, y) for _ in range(2)]
    assert np.array_equal(drawn[0].decision_function(x), drawn[1].decision_function(x))


def test_fitting_leaves_torchs_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    VerticalClassifier(**QUICK).fit(BREAST.data, BREAST.target)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("save", ["pickle", "joblib"])
def test_a_fitted_estimator_is_saved_without_anyones_rows(save: str, tmp_path: Path) -> None:
    x = np.concatenate([*[BREAST.data] * 5, np.full((1, 30), 12345.678)])
    y = np.append(np.tile(BREAST.target, 5), 1)
    model = VerticalClassifier(class_weight="balanced", epochs=1, batch_size=256).fit(x, y)
    path = tmp_path / "model"
    if save == "pickle":
        path.write_bytes(pickle.dumps(model))
        loaded = pickle.loads(path.read_bytes())
    else:
        joblib.dump(model, path)
        loaded = joblib.load(path)
    assert np.array_equal(loaded.predict_proba(x), model.predict_proba(x))
    assert loaded.bytes_up_ == model.bytes_up_
    assert not hasattr(loaded, "federation_")
    assert path.stat().st_size < 0.5 * x.nbytes


def test_grid_search_cross_validation_and_pipelines_work() -> None:
    x, y = BREAST.data, BREAST.target
    grid = {"compressor": [{"name": "topk", "ratio": 0.1}, {"name": "qsgd", "bits": 4}], "width": np.array([4, 8])}
    search = GridSearchCV(VerticalClassifier(epochs=3, batch_size=64, optimizer=STEEP), grid, cv=2).fit(x, y)
    assert len(search.cv_results_["params"]) == 4
    assert search.best_estimator_.score(x, y) > 0.85
    scores = cross_val_score(
        make_pipeline(StandardScaler(), VerticalClassifier(**QUICK, optimizer=STEEP)), x, y, cv=3, scoring="roc_auc"
    )
    assert scores.min() > 0.9
    copy = clone(search.best_estimator_).set_params(epochs=7)
    assert copy.get_params()["epochs"] == 7
    assert not hasattr(copy, "classes_")


@pytest.mark.slow
def test_class_weights_move_the_border_towards_the_rare_class() -> None:
    rng = np.random.default_rng(0)
    y = (rng.random(280) < 0.1).astype(int)
    x = rng.normal(size=(280, 4)) + y[:, None]
    shares = {}
    for name, weight in (("none", None), ("balanced", "balanced"), ("dict", {0: 1, 1: 9})):
        model = VerticalClassifier(class_weight=weight, model="linear", epochs=15, optimizer=STEEP).fit(x, y)
        shares[name] = model.predict(x)[y == 1].mean()
    assert shares["none"] < 0.6
    assert shares["balanced"] > shares["none"] + 0.15
    assert shares["dict"] == pytest.approx(shares["balanced"], abs=0.1)


@pytest.mark.parametrize("name", ["binary_cross_entropy", "cross_entropy"])
def test_a_weighted_loss_by_hand(name: str) -> None:
    output, target = torch.randn(5, 1 if name.startswith("binary") else 2), torch.tensor([0, 1, 1, 0, 1])
    plain = LOSSES[name]
    each = torch.stack([plain(output[i : i + 1], target[i : i + 1]) for i in range(5)])
    heavy = weighted(plain, torch.tensor([0.5, 3.0]))
    assert float(heavy(output, target)) == pytest.approx(float((each * torch.tensor([0.5, 3, 3, 0.5, 3])).mean()))
    assert float(weighted(plain, torch.ones(2))(output, target)) == pytest.approx(float(plain(output, target)))


def test_early_stopping_keeps_the_best_validation_loss() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 20))
    y = (x[:, 0] + rng.normal(size=300) * 2 > 0).astype(int)  # mostly noise: it overfits soon
    model = VerticalClassifier(early_stopping=True, validation_fraction=0.3, epochs=80, batch_size=32).fit(x, y)
    losses, last = [record.validation["loss"] for record in model.records_], model.records_[-1]
    assert len(losses) < 80
    assert np.argmin(losses[:-1]) + 1 == last.kept == len(losses) - 10  # ten epochs without a better one
    exact = model.federation_.record(gradient=False).validation["loss"]
    assert exact == pytest.approx(last.validation["loss"], rel=1e-3)  # the kept model is in place
    assert exact != pytest.approx(losses[-2], rel=1e-3)
    assert 70 < len(model.federation_.splits["validation"].labels) < 110


def test_validation_rows_teach_the_encoder_nothing() -> None:
    x = np.random.default_rng(0).normal(size=(100, 2))
    y = (x[:, 0] > 0).astype(int)
    model = VerticalClassifier(validation_fraction=0.2, **QUICK).fit(x, y)
    trained = model.federation_.splits["train"].features[0][:].double()
    assert float(trained.mean()) == pytest.approx(0, abs=1e-6)
    assert float(model.federation_.splits["validation"].features[0][:].double().mean()) != pytest.approx(0, abs=1e-3)
    assert "loss" in model.records_[-1].validation


def test_your_own_model_is_made_for_every_party() -> None:
    asked: list[tuple[int, int]] = []

    def make(layout: Layout, width: int) -> nn.Module:
        asked.append((layout.width, width))
        return nn.Sequential(nn.Linear(layout.width, width), nn.Tanh())

    model = VerticalClassifier({"a": [0, 1, 2], "b": [3]}, model=make, width=5, **QUICK)
    model.fit(BREAST.data, BREAST.target)
    assert asked == [(3, 5), (1, 5)]
    assert isinstance(model.federation_.models[0][1], nn.Tanh)  # type: ignore[index]


def test_a_linear_model_shows_its_coefficients() -> None:
    model = VerticalClassifier({"a": [0, 1], "b": [2]}, model="linear", width=1, **QUICK).fit(
        BREAST.data, BREAST.target
    )
    shown = coefficients(model.federation_.models[0], model.encoders_["a"])
    assert shown.shape == (2, 2)


@pytest.mark.slow
def test_the_documented_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/estimators.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(source, "docs", "exec"), {})
    told = capsys.readouterr().out.splitlines()
    assert "bytes up" in told[1]
    assert float(told[2]) > 0.9


def test_progress_is_told_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    VerticalClassifier(**QUICK).fit(BREAST.data, BREAST.target)
    assert capsys.readouterr().out == ""
    VerticalClassifier(verbose=True, **QUICK).fit(BREAST.data, BREAST.target)
    assert capsys.readouterr().out.startswith("epoch 1 of 3: loss ")


def test_stopping_is_left_to_validation_rows_where_there_are_enough() -> None:
    x = np.random.default_rng(0).normal(size=(300, 2))
    y = (x[:, 0] > 0).astype(int)
    few, many = (VerticalClassifier(epochs=1).fit(x[:n], y[:n]).federation_.splits for n in (299, 300))
    assert "validation" not in few or not len(few["validation"].labels)
    assert len(many["validation"].labels) == 33  # a tenth, more or less: rows are cut by their hashes
    told = VerticalClassifier(epochs=1, early_stopping=False).fit(x, y).federation_.splits
    assert len(told["train"].labels) == 300
    with pytest.raises(ConfigError, match="early_stopping: expected True, False or 'auto', got 'yes'"):
        VerticalClassifier(early_stopping="yes").fit(x, y)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"columns": {"a": ["income"], "b": ["debts"]}}, "no column 'debts' for 'b'. Did you mean 'debt'"),
        ({"columns": {"a": [0], "b": [5]}}, "expected column indices of 'b' from 0 to 4, got 5"),
        ({"columns": {"a": [0], "b": []}}, r"expected one or more different columns of 'b', got \[\]"),
        ({"columns": {"a": [0, "town"]}}, "expected one or more different columns of 'a', got"),
        ({"method": "evfl"}, "unknown method 'evfl'. Did you mean 'efvfl'"),
        ({"labels": "secret"}, "labels: unknown value 'secret'"),
        ({"label_holder": "shop"}, "label_holder: expected one of the parties .*, got 'shop'"),
        ({"model": "tabel"}, "no model 'tabel'. Did you mean 'table'"),
        ({"model": "linear", "hidden": [8]}, r"hidden = \[8\] needs model = 'table'"),
        ({"width": 0}, "width"),
        ({"epochs": 0}, "epochs: expected a whole number of at least 1, got 0"),
        ({"batch_size": -1}, "batch_size: expected at least 0, got -1"),
        ({"compressor": {"name": "topkk"}}, "topkk"),
        ({"optimizer": {"name": "Adm"}}, "no optimiser 'Adm'"),
        ({"early_stopping": True, "validation_fraction": 0.0}, "validation_fraction"),
        ({"validation_fraction": 0.001}, "is less than one row"),
        ({"validation_fraction": 1.5}, "1.5"),
    ],
)
def test_a_parameter_that_cannot_work_is_refused(given: dict[str, Any], message: str) -> None:
    frame = mixed(100)
    with pytest.raises(ConfigError, match=message):
        VerticalClassifier(**(QUICK | given)).fit(frame.drop("y"), frame["y"])


def test_labels_that_cannot_be_learnt_are_refused() -> None:
    x = BREAST.data
    with pytest.raises(ValueError, match="only one class, 1"):
        VerticalClassifier(**QUICK).fit(x, np.ones(len(x), dtype=int))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        VerticalClassifier(**QUICK).fit(x, BREAST.target[:-1])
    with pytest.raises(ValueError, match="NaN"):
        VerticalRegressor(**QUICK).fit(x, np.where(BREAST.target == 1, np.nan, 1.0))
    with pytest.raises(ValueError, match="1 sample"):
        VerticalRegressor(**QUICK).fit(polars.DataFrame({"a": [1.0]}), [1.0])


def test_what_is_predicted_has_the_columns_of_the_fit() -> None:
    frame = mixed()
    x = frame.drop("y")
    model = VerticalClassifier(PARTIES, **QUICK)
    with pytest.raises(NotFittedError):
        model.predict(x)
    with pytest.raises(NotFittedError):
        _ = model.bytes_up_
    model.fit(x, frame["y"])
    with pytest.raises(ValueError, match="feature names"):
        model.predict(x.rename({"debt": "depth"}))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(x.select(reversed(x.columns)))
    with pytest.raises(ValueError, match=r"expected numbers in column 'debt', got 'much'.*\. Correct this column of X"):
        model.predict(x.with_columns(debt=polars.lit("much")))


def test_pandas_columns_without_names_are_numbers() -> None:
    frame = pandas.DataFrame(BREAST.data)
    model = VerticalClassifier({"a": range(10), "b": range(10, 30)}, **QUICK).fit(frame, BREAST.target)
    plain = VerticalClassifier({"a": range(10), "b": range(10, 30)}, **QUICK).fit(BREAST.data, BREAST.target)
    assert np.array_equal(model.predict(frame), plain.predict(BREAST.data))
    assert pyarrow.Table.from_pandas(frame.rename(columns=str)).num_columns == model.n_features_in_
