"""Models for encoded tables: a small network that looks up categories, and a linear one whose weights can be read."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2, sqrt

import polars
import torch
from torch import Tensor, nn

from efvfl.data.tables.columns import Category
from efvfl.data.tables.encode import Encoder, Layout
from efvfl.errors import ConfigError
from efvfl.models.mlp import mlp

LEAST_HIDDEN, MOST_HIDDEN = 16, 128


def look_up_width(levels: int) -> int:
    """Return how many numbers stand for a category with so many levels: about the square root, 16 at most."""
    return min(16, ceil(sqrt(levels)))


class TableModel(nn.Module):
    """Linear layers over the numbers and what is looked up for each code."""

    def __init__(self, layout: Layout, width: int, hidden: Sequence[int], activation: str, last: str) -> None:
        super().__init__()
        self.layout = layout
        self.tables = nn.ModuleList(nn.Embedding(levels, look_up_width(levels)) for levels in layout.codes)
        for table in self.tables:
            _zero_unseen(table)
        self.layers = mlp(inputs_of(layout), width, hidden, activation, last)

    def forward(self, x: Tensor) -> Tensor:
        """Return representations, shape (rows, width), of encoded rows, shape (rows, layout.width)."""
        looked_up = [table(codes) for table, codes in zip(self.tables, _codes(x, self.layout), strict=True)]
        out: Tensor = self.layers(torch.cat([x[:, : self.layout.numbers], *looked_up], dim=1))
        return out


class LinearModel(nn.Module):
    """A weighted sum of the numbers, plus the weights of each code: one weight for each name and output."""

    def __init__(self, layout: Layout, width: int) -> None:
        super().__init__()
        self.layout = layout
        bound = 1 / sqrt(max(1, layout.width))
        self.weight = nn.Parameter(torch.empty(layout.numbers, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(width))
        self.tables = nn.ModuleList(nn.Embedding(levels, width) for levels in layout.codes)
        for table in self.tables:
            nn.init.uniform_(table.weight, -bound, bound)  # type: ignore[arg-type]
            _zero_unseen(table)

    def forward(self, x: Tensor) -> Tensor:
        """Return representations, shape (rows, width), of encoded rows, shape (rows, layout.width)."""
        out: Tensor = x[:, : self.layout.numbers] @ self.weight + self.bias
        for table, codes in zip(self.tables, _codes(x, self.layout), strict=True):
            out = out + table(codes)
        return out


def table_model(
    layout: Layout, width: int, hidden: Sequence[int] = (), activation: str = "relu", last: str = "sigmoid"
) -> TableModel:
    """Return a network; without `hidden`, one hidden layer of 2 ** ceil(log2(inputs)), between 16 and 128."""
    size = min(MOST_HIDDEN, max(LEAST_HIDDEN, 2 ** ceil(log2(inputs_of(layout)))))
    return TableModel(layout, width, tuple(hidden) or (size,), activation, last)


def linear_model(layout: Layout, width: int) -> LinearModel:
    """Return a linear model."""
    return LinearModel(layout, width)


def coefficients(model: nn.Module, encoder: Encoder) -> polars.DataFrame:
    """Return the weights of a linear model: a row for each number and each level, a column for each output.

    Numbers and dates are in standard deviations of the training rows, so weights can be compared.
    """
    if not isinstance(model, LinearModel):
        raise ConfigError(f"a {type(model).__name__} has no coefficients to show: a linear model is expected.")
    if model.layout != encoder.layout:
        raise ConfigError("this model is for another encoder: its columns differ.")
    coded = [c for c in encoder.columns if isinstance(c, Category) and c.embed]
    names = encoder.names[: encoder.layout.numbers] + [name for c in coded for name in c.level_names]
    parts = [model.weight, *(table.get_parameter("weight") for table in model.tables)]
    weights = torch.cat([part.detach().double() for part in parts]).T.numpy()
    return polars.DataFrame({"name": names, **{f"weight_{i}": row for i, row in enumerate(weights)}})


def inputs_of(layout: Layout) -> int:
    """Return how many numbers reach the first layer."""
    return layout.numbers + sum(look_up_width(levels) for levels in layout.codes)


def _codes(x: Tensor, layout: Layout) -> list[Tensor]:
    """Return the codes of each category; one out of range is brought back into it."""
    parts = x[:, layout.numbers :].unbind(1)
    return [part.round().clamp(0, levels - 1).long() for part, levels in zip(parts, layout.codes, strict=True)]


@torch.no_grad()
def _zero_unseen(table: nn.Module) -> None:
    """Let a level that never trains add nothing, instead of whatever it was initialised with."""
    table.get_parameter("weight")[0] = 0
