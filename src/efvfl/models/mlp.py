"""Small models by name, for files; in Python any torch module will do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from efvfl.config import user_code
from efvfl.errors import ConfigError, nearest
from efvfl.util.rng import seeded

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}


def mlp(
    inputs: int, outputs: int, hidden: Sequence[int] = (), activation: str = "relu", last: str = "identity"
) -> nn.Module:
    """Return linear layers with an activation between them, and one after the last.

    `mlp(196, 16, last="sigmoid")` is the paper's shallow local model.
    """
    for name in (activation, last):
        if name not in ACTIVATIONS:
            raise ConfigError(f"there is no activation {name!r}. {nearest(name, ACTIVATIONS)}")
    sizes = [inputs, *hidden, outputs]
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (before, after) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(before, after), ACTIVATIONS[last if i == len(hidden) else activation]()]
    return nn.Sequential(*(layer for layer in layers if not isinstance(layer, nn.Identity)))


def imported(path: str, options: Mapping[str, Any]) -> nn.Module:
    """Return `attribute(**options)` for a path 'package.module:attribute' of your own."""
    try:
        factory: Any = user_code.attribute(path)
        made: object = factory(**options)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"cannot make the model {path!r} with {dict(options)}: {error}") from error
    if not isinstance(made, nn.Module):
        raise ConfigError(f"{path!r} gave a {type(made).__name__}, a torch.nn.Module is expected.")
    return made


def seeded_model(key: int, make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a model whose initial parameters depend on the key alone."""
    with seeded(key):
        return make().to(dtype)
