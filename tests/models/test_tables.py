"""Models of tables: sized by the data, able to learn from categories, linear ones readable."""

from __future__ import annotations

import numpy as np
import polars
import pytest
import torch
from torch import nn

from efvfl.data.tables.encode import Encoder, Layout, TableSettings
from efvfl.errors import ConfigError
from efvfl.models.mlp import mlp, seeded_model
from efvfl.models.tables import TableModel, coefficients, embedding_width, linear_model, table_model


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int = 150) -> float:
    """Fit to logits of 0 and 1, and return the accuracy."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y).backward()
        optimizer.step()
    return float(((model(x)[:, 0] > 0) == (y > 0.5)).float().mean())


def shops() -> tuple[polars.DataFrame, torch.Tensor]:
    """A label that follows from the shop alone, and not from the order of its name."""
    rng = np.random.default_rng(0)
    shop = rng.integers(0, 40, 800)
    good = rng.random(40) < 0.5
    frame = polars.DataFrame({"shop": [f"shop {i:02}" for i in shop], "noise": rng.normal(size=800)})
    return frame, torch.from_numpy(good[shop].astype(np.float32))


@pytest.mark.parametrize("categories", ["onehot", "embed"])
@pytest.mark.parametrize("kind", ["table", "linear"])
def test_a_model_learns_from_a_category(kind: str, categories: str) -> None:
    frame, y = shops()
    encoder = Encoder.fit(frame, TableSettings(categories=categories))  # type: ignore[arg-type]
    x = torch.from_numpy(encoder.transform(frame))
    layout = encoder.layout
    model = seeded_model(
        1, lambda: table_model(layout, 1, last="identity") if kind == "table" else linear_model(layout, 1)
    )
    assert train(model, x, y) == 1.0
    assert train(seeded_model(1, lambda: linear_model(Layout(1, ()), 1)), x[:, :1] * 0, y, 20) < 0.7


def test_looked_up_numbers_are_about_the_square_root() -> None:
    assert [embedding_width(levels) for levels in (2, 4, 5, 100, 257, 10**6)] == [2, 2, 3, 10, 16, 16]


@pytest.mark.parametrize(
    ("layout", "size"),
    [(Layout(3, ()), 16), (Layout(17, ()), 32), (Layout(32, ()), 32), (Layout(31, (5,)), 64), (Layout(5000, ()), 128)],
)
def test_the_hidden_layer_is_the_next_power_of_two(layout: Layout, size: int) -> None:
    hidden = [layer.out_features for layer in table_model(layout, 7).modules() if isinstance(layer, nn.Linear)]
    assert hidden == [size, 7]
    assert len([m for m in table_model(layout, 7, (4, 5)).modules() if isinstance(m, nn.Linear)]) == 3


def test_a_linear_path_adds_what_is_linear() -> None:
    """Without its hidden units the model is a linear map of the inputs; the last activation is that of the sum."""
    model = table_model(Layout(3, ()), 2, (4,), last="sigmoid", skip=True)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".linear." not in name:
                parameter.zero_()
    weight, bias = (model.get_parameter(f"layers.linear.{name}") for name in ("weight", "bias"))
    assert torch.allclose(model(x), (x @ weight.T + bias).sigmoid())
    assert not any(
        "linear" in name for name, _ in mlp(3, 2, skip=True).named_parameters()
    )  # it would be the same again


@pytest.mark.parametrize("layout", [Layout(2, (3, 4)), Layout(0, (3, 4)), Layout(2, ())])
def test_codes_out_of_range_are_brought_back(layout: Layout) -> None:
    inside, outside = torch.zeros(2, layout.width), torch.zeros(2, layout.width)
    outside[:, layout.numbers :] = torch.tensor([-5.0, 1e9]).unsqueeze(1)
    for i, levels in enumerate(layout.codes):
        inside[1, layout.numbers + i] = levels - 1
    for model in (table_model(layout, 3), linear_model(layout, 3)):
        assert model(inside).shape == (2, 3)
        assert torch.equal(model(inside), model(outside))


def test_a_level_that_never_trained_adds_nothing() -> None:
    model = linear_model(Layout(0, (3,)), 2)
    assert torch.equal(model(torch.zeros(1, 1)), torch.zeros(1, 2))
    table = TableModel(Layout(0, (3,)), 2, (), "relu", "identity").tables[0]
    assert torch.equal(table(torch.tensor([0])), torch.zeros(1, 2))


@pytest.mark.parametrize("categories", ["onehot", "embed"])
def test_coefficients_explain_every_output(categories: str) -> None:
    frame = polars.DataFrame({"c": ["b", "a", "b", None], "x": [1.0, 2.0, None, 4.0]})
    encoder = Encoder.fit(frame, TableSettings(categories=categories))  # type: ignore[arg-type]
    model = seeded_model(0, lambda: linear_model(encoder.layout, 2))
    shown = coefficients(model, encoder)
    assert shown.columns == ["name", "weight_0", "weight_1"]
    weight = {name: np.array(rest) for name, *rest in shown.iter_rows()}
    x = encoder.transform(frame)
    scaled = x[:, encoder.names.index("x")].astype(np.float64)
    bias = model.get_parameter("bias").detach().numpy()
    gap = "c is missing" if categories == "onehot" else "c is unseen or missing"
    expected = [
        scaled[0] * weight["x"] + weight["c = b"],
        scaled[1] * weight["x"] + weight["c = a"],
        scaled[2] * weight["x"] + weight["x is missing"] + weight["c = b"],
        scaled[3] * weight["x"] + weight[gap],
    ]
    np.testing.assert_allclose(model(torch.from_numpy(x)).detach().numpy(), np.array(expected) + bias, atol=1e-6)


def test_coefficients_of_something_else_are_refused() -> None:
    encoder = Encoder.fit(polars.DataFrame({"x": [1.0, 2.0]}), TableSettings())
    with pytest.raises(ConfigError, match="expected a linear model, which has coefficients, got a TableModel"):
        coefficients(table_model(encoder.layout, 1), encoder)
    with pytest.raises(ConfigError, match="expected the encoder of this model, got one with different columns"):
        coefficients(linear_model(Layout(2, ()), 1), encoder)
