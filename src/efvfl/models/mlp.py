"""Models that run files can name; in Python any torch module can be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from efvfl.config import user_code
from efvfl.errors import ConfigError, describe, nearest
from efvfl.util.rng import seeded

MOST_WEIGHTS = 1 << 30  # of one layer: 4 GiB

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}


class Skipping(nn.Module):
    """Layers, and beside them a linear map of their inputs: what is linear need not pass through the hidden units."""

    def __init__(self, layers: nn.Sequential, linear: nn.Linear, last: nn.Module) -> None:
        """Add the two, and apply the last activation to the sum."""
        super().__init__()
        self.layers = layers
        self.linear = linear
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        """Return shape (rows, outputs)."""
        out: Tensor = self.last(self.layers(x) + self.linear(x.flatten(1)))
        return out


def mlp(
    inputs: int,
    outputs: int,
    hidden: Sequence[int] = (),
    activation: str = "relu",
    last: str = "identity",
    skip: bool = False,
) -> nn.Module:
    """Return linear layers with an activation between them, and another one after the last layer.

    With `skip` a linear map of the inputs is added to the last layer; without hidden layers it would be the same again.

    The module maps shape (rows, ...) with `inputs` numbers per row to (rows, outputs). The paper's shallow local model:

    >>> mlp(196, 16, last="sigmoid")(torch.zeros(5, 196)).shape
    torch.Size([5, 16])
    """
    for name in (activation, last):
        if name not in ACTIVATIONS:
            raise ConfigError(f"there is no activation {name!r}. {nearest(name, ACTIVATIONS)}")
    if skip and hidden:
        inner = mlp(inputs, outputs, hidden, activation)
        assert isinstance(inner, nn.Sequential)
        return Skipping(inner, nn.Linear(inputs, outputs), ACTIVATIONS[last]())
    sizes = [inputs, *hidden, outputs]
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (before, after) in enumerate(pairwise(sizes)):
        if before * after > MOST_WEIGHTS:  # refused here: the machine may run out of memory before torch says so
            raise ConfigError(
                f"a layer from {before:,} to {after:,} numbers: expected at most {MOST_WEIGHTS:,} weights, got "
                f"{before * after:,}: choose a smaller width or hidden layer."
            )
        layers += [nn.Linear(before, after), ACTIVATIONS[last if i == len(hidden) else activation]()]
    return nn.Sequential(*(layer for layer in layers if not isinstance(layer, nn.Identity)))


def imported(path: str, options: Mapping[str, Any]) -> nn.Module:
    """Return `attribute(**options)` for a user's path 'package.module:attribute'."""
    try:
        factory: Any = user_code.attribute(path)
        with user_code.on_path():
            model: object = factory(**options)
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        given = describe(dict(options))
        raise ConfigError(f"cannot create the model {path!r} with {given}: {error}.") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"expected {path!r} to return a torch.nn.Module, got a {type(model).__name__}.")
    return model


def seeded_model(key: int, make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a model whose initial parameters depend on the key alone."""
    try:
        with seeded(key):
            return make().to(dtype)
    except (RuntimeError, MemoryError) as error:  # of torch, about sizes
        raise ConfigError(f"the model cannot be made, its layers may be too large: {error}") from error
