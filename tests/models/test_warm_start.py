"""Starting a model from a trained one: what fits is kept, and it means what it meant."""

from functools import partial
from typing import Literal

import polars as pl
import pytest
import torch
from torch import Tensor, nn

from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.models.mlp import seeded_model
from efvfl.models.tables import LinearModel, TableModel, linear_model, table_model
from efvfl.models.warm_start import LabelledTensor, start_from

Categories = Literal["onehot", "embed"]

FRAME = pl.DataFrame(
    {"age": [20.0, 40.0, 30.0, 55.0], "town": ["Bonn", "Kiel", "Kiel", "Ulm"], "debt": [1.0, 0.0, 3.0, 2.0]}
)
TARIFF = pl.Series("tariff", ["flat", "daily", "flat", "none"])


def fit(frame: pl.DataFrame, categories: Categories = "onehot") -> Encoder:
    return Encoder.fit(frame, TableSettings(categories=categories))


def extended(before: Encoder, frame: pl.DataFrame, categories: Categories = "onehot") -> Encoder:
    return before.extended(frame, TableSettings(categories=categories))


def make(kind: str, encoder: Encoder, seed: int, hidden: int = 8) -> TableModel | LinearModel:
    layout = encoder.layout
    model = seeded_model(
        seed, lambda: linear_model(layout, 4) if kind == "linear" else table_model(layout, 4, (hidden,))
    )
    assert isinstance(model, TableModel | LinearModel)
    return model


def give(model: TableModel | LinearModel, now: Encoder, old: TableModel | LinearModel, before: Encoder) -> str:
    mine, theirs = model.state_dict(), old.state_dict()
    return start_from(model, theirs, model.labelled_tensors(now, mine), model.labelled_tensors(before, theirs))


def outputs(model: nn.Module, encoder: Encoder, frame: pl.DataFrame) -> Tensor:
    return model(torch.from_numpy(encoder.transform(frame))).detach()  # type: ignore[no-any-return]


BOTH = pytest.mark.parametrize("kind", ["linear", "mlp"])
EACH = pytest.mark.parametrize("categories", ["onehot", "embed"])


@BOTH
@EACH
def test_the_same_columns_in_another_order_give_the_same_representations(kind: str, categories: Categories) -> None:
    before = fit(FRAME, categories)
    now = extended(before, FRAME.select("debt", "town", "age"), categories)
    shuffled = Encoder(tuple(reversed(now.columns)))
    old = make(kind, before, 1)
    for encoder in (now, shuffled):
        model = make(kind, encoder, 2)
        assert give(model, encoder, old, before) == "kept"
        assert torch.allclose(outputs(model, encoder, FRAME), outputs(old, before, FRAME), atol=1e-6)


@BOTH
@EACH
def test_a_new_column_starts_fresh_and_the_others_are_kept(kind: str, categories: Categories) -> None:
    before = fit(FRAME, categories)
    frame = FRAME.select(pl.lit(7.0).alias("calls"), pl.all())  # constant: it becomes zeros, so only the others count
    now = extended(before, frame, categories)
    old, model, fresh = make(kind, before, 1), make(kind, now, 2), make(kind, now, 2)
    assert give(model, now, old, before) == "partly"
    assert torch.allclose(outputs(model, now, frame), outputs(old, before, FRAME), atol=1e-6)
    place = now.names.index("calls")
    for key, axis in (("weight", 0),) if kind == "linear" else (("layers.1.weight", 1),):
        assert torch.equal(model.state_dict()[key].select(axis, place), fresh.state_dict()[key].select(axis, place))


def test_embeddings_stay_with_their_columns() -> None:
    before = fit(FRAME, "embed")
    frame = FRAME.with_columns(TARIFF)
    now = Encoder(tuple(reversed(extended(before, frame, "embed").columns)))  # the new category comes first
    old, model, fresh = make("mlp", before, 1), make("mlp", now, 2), make("mlp", now, 2)
    assert give(model, now, old, before) == "partly"
    assert torch.equal(model.state_dict()["tables.1.weight"], old.state_dict()["tables.0.weight"])
    assert torch.equal(model.state_dict()["tables.0.weight"], fresh.state_dict()["tables.0.weight"])


@BOTH
def test_a_column_that_is_gone_takes_its_weights_along(kind: str) -> None:
    before = fit(FRAME)
    now = extended(before, FRAME.drop("town"))
    old, model = make(kind, before, 1), make(kind, now, 2)
    assert give(model, now, old, before) == "kept"
    neither = FRAME.with_columns(town=pl.lit("nowhere"))  # all zeros
    assert torch.allclose(outputs(model, now, FRAME), outputs(old, before, neither), atol=1e-6)


def test_more_hidden_units_are_added_to_the_old_ones() -> None:
    encoder = fit(FRAME)
    old, model = make("mlp", encoder, 1), make("mlp", encoder, 2, hidden=16)
    assert give(model, encoder, old, encoder) == "partly"
    with torch.no_grad():
        model.get_parameter("layers.3.weight")[:, 8:] = 0
    assert torch.allclose(outputs(model, encoder, FRAME), outputs(old, encoder, FRAME), atol=1e-6)


def test_the_linear_path_goes_along() -> None:
    """Weights that lead past the hidden units belong to columns as those of the first layer do."""
    before = fit(FRAME)
    now = extended(before, FRAME.drop("town"))
    old, model = (
        seeded_model(seed, partial(table_model, encoder.layout, 4, (8,), skip=True))
        for seed, encoder in ((1, before), (2, now))
    )
    assert isinstance(old, TableModel)
    assert isinstance(model, TableModel)
    assert give(model, now, old, before) == "kept"
    neither = FRAME.with_columns(town=pl.lit("nowhere"))  # all zeros
    assert torch.allclose(outputs(model, now, FRAME), outputs(old, before, neither), atol=1e-6)


def test_another_kind_of_model_starts_fresh() -> None:
    encoder = fit(FRAME)
    model, untouched = make("mlp", encoder, 2), make("mlp", encoder, 2)
    assert give(model, encoder, make("linear", encoder, 1), encoder) == "fresh"
    wider = seeded_model(1, lambda: table_model(encoder.layout, 5, (8,)))
    assert isinstance(wider, TableModel)
    assert give(model, encoder, wider, encoder) == "fresh"
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), untouched.parameters(), strict=True))


def test_known_columns_are_encoded_as_before_and_new_ones_are_learnt() -> None:
    before = fit(FRAME)
    later = FRAME.with_columns(pl.col("age") * 10, TARIFF, town=pl.Series(["Bonn", "Jena", "Jena", "Ulm"]))
    now = extended(before, later)
    assert now.columns[:3] == before.columns
    assert now.columns[3] == fit(later).columns[3]
    assert now.transform(later)[:, : before.layout.width].tolist() == before.transform(later).tolist()
    assert extended(before, FRAME) == before
    assert Encoder.from_json(now.to_json()) == now


# Any torch module.


def test_a_module_whose_entries_nobody_names_is_kept_as_a_whole_or_not_at_all() -> None:
    def module(inputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(inputs, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))

    old, same, other = module(2), module(2), module(4)
    old(torch.randn(9, 2))  # running statistics, and a count without dimensions
    assert start_from(same, old.state_dict()) == "kept"
    assert all(torch.equal(same.state_dict()[key], value) for key, value in old.state_dict().items())
    untouched = {key: value.clone() for key, value in other.state_dict().items()}
    assert start_from(other, old.state_dict()) == "fresh"
    assert all(torch.equal(other.state_dict()[key], value) for key, value in untouched.items())


def test_names_that_do_not_fit_the_tensor_are_not_trusted() -> None:
    model, old = nn.Linear(2, 1, bias=False), {"weight": torch.ones(1, 2)}
    now, before = LabelledTensor("weight", (None, ["a", "b"])), LabelledTensor("weight", (None, ["a"]))
    assert start_from(model, old, {"w": now}, {"w": before}) == "fresh"
    assert start_from(model, old, {"w": now}, {"w": LabelledTensor("weight", (None,))}) == "fresh"
    assert start_from(model, old, {"w": now}, {"w": LabelledTensor("weight", (None, ["c", "d"]))}) == "fresh"
    assert start_from(model, old, {"w": now}, {"w": LabelledTensor("weight", (None, ["b", "a"]))}) == "kept"
