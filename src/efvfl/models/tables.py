"""Models for encoded tables: a small network with embeddings, and a linear one with interpretable weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2, sqrt

import torch
from torch import Tensor, nn

from efvfl.data.tables.columns import Category
from efvfl.data.tables.encode import Encoder, Layout
from efvfl.errors import ConfigError
from efvfl.models.mlp import mlp
from efvfl.models.piecewise import PiecewiseLinear
from efvfl.models.warm_start import LabelledTensor, State
from efvfl.util.extras import optional

with optional("tables", "a model of tables"):
    import polars

LEAST_HIDDEN, MOST_HIDDEN = 16, 128
BIN_WIDTH = 8  # numbers that stand for the bins of a column


def embedding_width(levels: int) -> int:
    """Return the embedding width of a category: the square root of its number of levels, rounded up, at most 16."""
    return min(16, ceil(sqrt(levels)))


class TableModel(nn.Module):
    """Linear layers over the numbers, what was learnt of their bins, and the embeddings of the codes."""

    def __init__(
        self, layout: Layout, width: int, hidden: Sequence[int], activation: str, last: str, skip: bool = False
    ) -> None:
        super().__init__()
        self.layout = layout
        self.binned = _binned(layout)
        self.bins = PiecewiseLinear([layout.edges[i] for i in self.binned], BIN_WIDTH) if self.binned else None
        self.tables = nn.ModuleList(nn.Embedding(levels, embedding_width(levels)) for levels in layout.codes)
        for table in self.tables:
            _zero_unseen(table)
        self.layers = mlp(inputs_of(layout), width, hidden, activation, last, skip)

    def forward(self, x: Tensor) -> Tensor:
        """Return representations, shape (rows, width), of encoded rows, shape (rows, layout.width)."""
        parts = [x[:, : self.layout.numbers]]
        if self.bins is not None:
            parts.append(self.bins(x[:, self.binned]).relu())
        parts += [table(codes) for table, codes in zip(self.tables, _codes(x, self.layout), strict=True)]
        out: Tensor = self.layers(torch.cat(parts, dim=1))
        return out

    @staticmethod
    def labelled_tensors(encoder: Encoder, state: State) -> dict[str, LabelledTensor]:
        """Return the tensors of a state with labels: inputs have those of columns, codes of levels, units their places.

        More columns may mean more hidden units; then the old ones are kept, and the others are new.
        """
        embedded = [(c.name, i) for c in _coded(encoder) for i in range(embedding_width(len(c.levels) + 1))]
        layers = [key.removesuffix(".weight") for key in state if key.startswith("layers.") and state[key].dim() == 2]
        straight = [layer for layer in layers if layer.endswith(".linear")]  # of the inputs, beside the others
        layers = [layer for layer in layers if layer not in straight]
        found = _codes_by_level(encoder)
        columns = [encoder.names[place] for place in _binned(encoder.layout)]
        binned = [(name, "bin", i) for name in columns for i in range(BIN_WIDTH)]
        if columns and "bins.weight" in state:  # not in that of another kind of model
            bins = range(state["bins.weight"].shape[1])
            found["bins.weight"] = LabelledTensor("bins.weight", (columns, bins, None))
            found["bins.bias"] = LabelledTensor("bins.bias", (columns, None))
        columns_in = [*encoder.names[: encoder.layout.numbers], *binned, *embedded]
        for layer in (*layers, *straight):
            outputs, inputs = state[f"{layer}.weight"].shape
            units = None if layer in (layers[-1], *straight) else range(outputs)
            names = columns_in if layer in (layers[0], *straight) else range(inputs)
            found[f"{layer}.weight"] = LabelledTensor(f"{layer}.weight", (units, names))
            found[f"{layer}.bias"] = LabelledTensor(f"{layer}.bias", (units,))
        return found


class LinearModel(nn.Module):
    """A weighted sum of the numbers plus a weight per code: one weight for each name and output."""

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

    @staticmethod
    def labelled_tensors(encoder: Encoder, state: State) -> dict[str, LabelledTensor]:
        """Return the tensors of a state with labels: weights have those of columns and levels."""
        numbers = encoder.names[: encoder.layout.numbers]
        return {"weight": LabelledTensor("weight", (numbers, None))} | _codes_by_level(encoder)


def table_model(
    layout: Layout,
    width: int,
    hidden: Sequence[int] = (),
    activation: str = "relu",
    last: str = "sigmoid",
    skip: bool = False,
) -> TableModel:
    """Return a network; by default with one hidden layer of 2 ** ceil(log2(inputs)) units, between 16 and 128.

    With `skip` a linear map of all inputs is added to the last layer.
    """
    size = min(MOST_HIDDEN, max(LEAST_HIDDEN, 2 ** ceil(log2(inputs_of(layout)))))
    return TableModel(layout, width, tuple(hidden) or (size,), activation, last, skip)


def linear_model(layout: Layout, width: int) -> LinearModel:
    """Return a linear model."""
    return LinearModel(layout, width)


def coefficients(model: nn.Module, encoder: Encoder) -> polars.DataFrame:
    """Return the weights of a linear model: a row per number and level, a column per output.

    Numbers and dates are in standard deviations of the training rows, so the weights are comparable.
    """
    if not isinstance(model, LinearModel):
        raise ConfigError(f"expected a linear model, which has coefficients, got a {type(model).__name__}.")
    if model.layout != encoder.layout:
        raise ConfigError("expected the encoder of this model, got one with different columns.")
    names = encoder.names[: encoder.layout.numbers] + [name for c in _coded(encoder) for name in c.level_names]
    parts = [model.weight, *(table.get_parameter("weight") for table in model.tables)]
    weights = torch.cat([part.detach().double() for part in parts]).T.numpy()
    return polars.DataFrame({"name": names, **{f"weight_{i}": row for i, row in enumerate(weights)}})


def inputs_of(layout: Layout) -> int:
    """Return the number of inputs of the first layer."""
    return layout.numbers + len(_binned(layout)) * BIN_WIDTH + sum(embedding_width(levels) for levels in layout.codes)


def _binned(layout: Layout) -> list[int]:
    """Return the places of the numbers that have bins."""
    return [place for place, edges in enumerate(layout.edges) if edges]


def _coded(encoder: Encoder) -> list[Category]:
    """Return the categories that a model looks up, in the order of their codes."""
    return [c for c in encoder.columns if isinstance(c, Category) and c.embed]


def _codes_by_level(encoder: Encoder) -> dict[str, LabelledTensor]:
    found = enumerate(_coded(encoder))
    return {
        f"levels of {c.name}": LabelledTensor(f"tables.{place}.weight", (c.level_names, None)) for place, c in found
    }


def _codes(x: Tensor, layout: Layout) -> list[Tensor]:
    """Return the codes of each category, clamped to their range."""
    places = enumerate(layout.codes, layout.numbers)  # no unbind: without codes, torch.export could not load it again
    return [x[:, place].round().clamp(0, levels - 1).long() for place, levels in places]


@torch.no_grad()
def _zero_unseen(table: nn.Module) -> None:
    """Set the weights of unseen levels, which are never trained, to zero."""
    table.get_parameter("weight")[0] = 0
