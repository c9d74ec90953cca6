"""Rows computed alone: the same bits for a row, whatever it is computed with."""

import pytest
import torch
from torch import nn

from efvfl.core.fusion import Fusion, predict_alone
from efvfl.core.local_model import represent

SIZES = (1, 2, 3, 7, 17, 31, 33, 50)


@pytest.mark.parametrize("columns", [1, 7, 16, 33, 257])
def test_a_row_alone_is_the_same_in_any_company(columns: int) -> None:
    chance = torch.Generator().manual_seed(columns)
    model = nn.Sequential(nn.Linear(columns, 10), nn.BatchNorm1d(10), nn.Tanh(), nn.Linear(10, 4))
    rows = torch.randn(50, columns, generator=chance)
    whole = represent(model, rows, alone=True)
    for size in SIZES:
        chosen = torch.randperm(50, generator=chance)[:size]
        assert torch.equal(represent(model, rows[chosen], alone=True), whole[chosen]), size
    assert torch.allclose(whole, represent(model, rows), atol=1e-6)
    assert model.training  # it is left as it was


@pytest.mark.parametrize("combine", ["sum", "mean", "concat"])
def test_a_prediction_alone_is_the_same_in_any_company(combine: str) -> None:
    chance = torch.Generator().manual_seed(1)
    width = 21 if combine == "concat" else 7
    fusion = Fusion(nn.Sequential(nn.Linear(width, 33), nn.Dropout(), nn.Linear(33, 3)), combine)  # type: ignore[arg-type]
    parts = [torch.randn(50, 7, generator=chance) for _ in range(3)]
    whole = predict_alone(fusion, parts)
    for size in SIZES:
        chosen = torch.randperm(50, generator=chance)[:size]
        assert torch.equal(predict_alone(fusion, [part[chosen] for part in parts]), whole[chosen]), size
    assert torch.allclose(whole, fusion.eval()(parts), atol=1e-6)
