"""What people give to `federate` and `predict`: taken in every usual form, or refused with the right call."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch
from problems import classes, columns, federate_flat, head, local_models, problem
from torch import nn

from efvfl import (
    QSGD,
    Agreement,
    Federation,
    Loss,
    Optimizer,
    Ramp,
    Setup,
    SharedLabels,
    TopK,
    cvfl,
    efvfl,
    federate,
    svfl,
)
from efvfl.errors import ConfigError, describe, whole_number

NAMES = ("bank", "telco", "shop")


def given(**options: Any) -> Federation:
    """A federation in float32, for tables that are not tensors."""
    x = columns(torch.float32)
    parts: dict[str, Any] = {
        "features": x,
        "labels": classes(x),
        "models": local_models(torch.float32),
        "head": head(dtype=torch.float32),
    }
    return federate_flat(**(parts | options))


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


class Frame:
    """What pandas and polars have in common."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    def to_numpy(self) -> np.ndarray[Any, Any]:
        return self.values


def frozen(x: torch.Tensor) -> np.ndarray[Any, Any]:
    array = x.numpy().copy()
    array.flags.writeable = False
    return array


FORMS = {
    "numpy": lambda x: x.numpy(),
    "reversed twice": lambda x: x.numpy()[::-1].copy()[::-1],
    "read only": frozen,
    "big endian": lambda x: x.numpy().astype(x.numpy().dtype.newbyteorder(">")),
    "frame": lambda x: Frame(x.numpy()),
}


@pytest.mark.parametrize("form", FORMS)
def test_tables_of_every_form_train_alike(form: str) -> None:
    x, make = columns(torch.float32), FORMS[form]
    y = classes(x)
    held = ([make(v[:20]) for v in x], make(y[:20]))
    run = given(features=[make(v) for v in x], labels=make(y), validation=held)
    assert run.fit(2)[-1].train == given(validation=([v[:20] for v in x], y[:20])).fit(2)[-1].train
    assert torch.equal(run.predict([make(v[:7]) for v in x]), run.predict([v[:7] for v in x]))


def test_polars_lists_and_narrow_numbers() -> None:
    x = [v.round() for v in columns(torch.float32)]
    y = classes(x)
    expected = given(features=x, labels=y).fit(1)[-1].train
    frames = [polars.DataFrame(v.numpy()) for v in x]
    assert given(features=frames, labels=polars.Series(y.numpy())).fit(1)[-1].train == expected
    whole_numbers = [v.numpy().astype(np.int16) for v in x]
    assert given(features=whole_numbers, labels=y.tolist()).fit(1)[-1].train == expected
    assert given(features=x, labels=y.to(torch.int32)).fit(1)[-1].train == expected


def test_models_may_be_named() -> None:
    named = dict(zip(NAMES, columns(), strict=True))
    models = dict(zip(NAMES, local_models(), strict=True))
    turned = {name: models[name] for name in reversed(NAMES)}
    assert problem(features=named, models=turned).models == list(models.values())
    with pytest.raises(ConfigError, match=r"expected models of .* got those of \['bank', 'telco'\]"):
        problem(features=named, models={name: models[name] for name in NAMES[:2]})


def far(labels: torch.Tensor, to: int = 7) -> torch.Tensor:
    """Labels with one out of range, behind the first rows."""
    changed = labels.clone()
    changed[50] = to
    return changed


X, Y = columns(), classes(columns())
HOLE = [v.clone().index_fill_(1, torch.tensor([0]), torch.nan) for v in X]
GAP = [torch.where(torch.arange(60)[:, None] == 50, torch.nan, v) for v in X]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"features": X[0]}, "expected a table for each party, got .*: give a list"),
        ({"features": []}, "expected at least one party, got none"),
        ({"features": {1: X[0], 2: X[1], 3: X[2]}}, "expected a text as the name of a party, got 1"),
        ({"features": [np.array([["a"]] * 60), *X[1:]]}, "columns of 'party1': expected numbers, got dtype <U1"),
        ({"features": [[[1.0], [1.0, 2.0]], *X[1:]]}, "cannot be read as a table of numbers"),
        ({"labels": 3}, "the labels: expected a row for each sample, got the one number 3"),
        ({"labels": Y[:0], "features": [v[:0] for v in X]}, "expected at least one label, got none"),
        ({"labels": far(Y)}, "Target 7 is out of bounds.*The labels go up to 7"),
        (
            {"labels": Y > 0, "loss": "mse", "head": nn.Linear(4, 1).double()},
            r"loss 'mse': expected numbers .*torch\.bool",
        ),
        ({"validation": X}, r"expected validation=\(features, labels\), got "),
        ({"validation": (X, far(Y))}, "The validation labels go up to 7"),
        ({"test": (X, Y.double())}, "the test labels are torch.float64"),
        ({"test": (HOLE, Y)}, "'party1' in the test rows hold NaN"),
        ({"test": (GAP, Y)}, "the test rows: expected all parties to have all rows.*fill rows of nothing but NaN"),
        (
            {"test": ([v[:, :2] for v in X], Y)},
            r"test columns of 'party1': expected torch.float64 of shape \(rows, 5\)",
        ),
        ({"test": ([v.float() for v in X], Y)}, "test columns of 'party1': .* got torch.float32"),
        ({"test": ([v[:50] for v in X], Y)}, "'party1' holds 50 test rows, but there are 60 labels"),
        ({"models": nn.Sequential(*local_models())}, "expected a list of models, .* got an instance of Sequential"),
        (
            {"models": [nn.Linear] * 3},
            "expected a torch module as the local model of 'party1', .* got the class Linear",
        ),
        ({"models": [Pair(), *local_models()[1:]]}, "expected one tensor of shape .* got the class tuple"),
        ({"models": local_models(torch.float32)}, r"Columns are torch\.float64, the model is torch\.float32"),
        ({"head": None}, "expected a torch module as the head, .* got None"),
        (
            {"loss": nn.CrossEntropyLoss()},
            r"expected a loss, got an instance of CrossEntropyLoss\. Give a name \('cross_entropy'",
        ),
        ({"loss": nn.functional.cross_entropy}, "expected a loss, got the function cross_entropy"),
        ({"loss": Loss("own", lambda o, t: o, "m", lambda o, t: 0.0)}, "expected one number, the mean over rows"),
        ({"optimizer": "Adam"}, r"optimizer: expected an Optimizer, got 'Adam'. Write Optimizer\('Adam'"),
        ({"optimizer": {"name": "SGD"}}, r"Write Optimizer\("),
        (
            {"optimizer": torch.optim.SGD([nn.Parameter(X[0])])},
            "optimizer: expected an Optimizer, got an instance of SGD",
        ),
        ({"method": "efvfl"}, r"method: got 'efvfl'. Write method=svfl\(\)"),
        ({"method": svfl}, "method: got the function svfl"),
        ({"agreement": {"labels": "shared"}}, r"Write agreement=Agreement\(SharedLabels\(\)\)"),
        ({"protect": 0.5}, r"Write protect=Protection"),
        ({"batch_size": 1.5}, "batch_size: expected a whole number, got 1.5"),
        ({"batch_size": "16"}, "batch_size: expected a whole number, got '16'"),
        ({"seed": None}, "seed: expected a whole number, got None"),
        ({"private_seeds": {"prty1": 3}}, "private_seeds has 'prty1'.*Did you mean 'party1'"),
        ({"private_seeds": {"party1": "x"}}, r"private_seeds\['party1'\]: expected a whole number, got 'x'"),
        ({"private_seeds": 3}, "private_seeds: expected a dict, .* got 3"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], error: str) -> None:
    parts: dict[str, Any] = {"features": X, "labels": Y, "models": local_models(), "head": head()}
    with pytest.raises(ConfigError, match=error):
        federate_flat(**(parts | options))


@pytest.mark.parametrize("wrong", [0.1, "topk", TopK, lambda x: x, None])
def test_what_is_no_compressor_is_refused(wrong: Any) -> None:
    for make in (efvfl, cvfl):
        with pytest.raises(
            ConfigError, match=re.escape(f"expected a compressor with its knobs, got {describe(wrong)}:")
        ):
            make(wrong)
    for direction in ("down", "fusion"):
        with pytest.raises(ConfigError, match="expected a compressor with its knobs, got 0:"):
            efvfl(TopK(0.1), **{direction: 0})  # type: ignore[arg-type]


def test_knobs_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'exact'"):
        efvfl(TopK(0.1), start="exakt")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"qsgd's bits to be a whole number from 1 to 16, got 4\.5"):
        QSGD(4.5)
    with pytest.raises(ConfigError, match=r"steps: expected a whole number of at least 1, got 2\.5"):
        Ramp(0.1, 1.0, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"local_steps: expected a whole number, got 1\.5"):
        Agreement(SharedLabels(local_steps=1.5))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"options: expected a dict, got 0\.1"):
        Optimizer("SGD", 0.1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected the name of an optimiser, got the class SGD"):
        Optimizer(torch.optim.SGD)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "agreement", "error"),
    [
        (
            efvfl(TopK(0.1), down=TopK(0.1)),
            Agreement(labels="shared"),
            "method.down does not go with shared labels: .* no effect",
        ),
        (efvfl(TopK(0.1), fusion=TopK(0.1)), Agreement(labels="shared"), "method.fusion does not go with .* no effect"),
        (cvfl(TopK(0.1), fusion=TopK(0.1)), Agreement(), "method.fusion does not go with"),
        (
            efvfl(TopK(0.1)),
            Agreement(SharedLabels(fusion="compress")),
            r"fusion = 'compress' does not go with .*fusion=TopK\(0.1\)",
        ),
        (
            cvfl(TopK(0.1)),
            Agreement(memory_dtype="bfloat16"),
            "memory_dtype does not go with a method without surrogates",
        ),
    ],
)
def test_settings_without_effect_are_refused_as_in_run_files(method: Any, agreement: Agreement, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        federate(X, Y, local_models(), head(), method=method, agreement=agreement)


def test_mapped_memories_need_a_memory(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"memory = 'mapped' does not go with a method without a memory: .* no effect"
    ):
        federate(X, Y, local_models(), head(), method=cvfl(TopK(0.1)), setup=Setup(mapped=tmp_path))


def test_the_uncompressed_method_goes_with_every_agreement_it_is_compared_in() -> None:
    federate(X, Y, local_models(), head(), agreement=Agreement(SharedLabels(fusion="compress"))).step()


@pytest.mark.parametrize(
    ("features", "error"),
    [
        ([X[0][:3], X[1][:1], X[2][:3]], "new rows: expected the same rows of all .*'party2': 1"),
        ([v[:0] for v in X], "expected at least one row to predict, got none"),
        (X[:2], "the new rows: expected 3 parties, .* got 2"),
        ({"party1": X[0], "party2": X[1], "party4": X[2]}, "the new rows: expected the parties .* got .*'party4'"),
        ([X[0][:, :2], *X[1:]], r"new columns of 'party1': .* \(60, 2\)"),
        ([v.float() for v in X], "got torch.float32"),
        (HOLE, "in the new rows hold NaN"),
        (GAP, "trained for all parties together, .* Rows of nothing but NaN are missing ones"),
        (X[0], "expected a table for each party"),
    ],
)
def test_rows_that_cannot_be_predicted_are_refused(features: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        problem(svfl()).predict(features)


@pytest.mark.parametrize("options", [{"epochs": 2.5}, {"epochs": -1}, {"epochs": 2, "observe_every": 0}])
def test_training_refuses_numbers_at_once_and_not_when_records_are_asked_for(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a whole number of at least"):
        problem().train(**options)


def test_numpys_whole_numbers_are_whole() -> None:
    assert whole_number("n", np.int32(3), 1) == 3
    for wrong in (True, 3.0, "3"):
        with pytest.raises(ConfigError, match="n: expected a whole number, got "):
            whole_number("n", wrong)
