"""Whole numbers among columns: ids, tokens and codes stay exact, or are refused where a float would round them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from efvfl.core.local_model import evaluating
from efvfl.errors import ConfigError


def as_taken(x: Tensor, model: nn.Module, what: str) -> Tensor:
    """Return columns of whole numbers as they are where the model takes such, as an embedding does, else as float32."""
    return x if x.is_floating_point() or _takes(model, x) else converted(x, torch.float32, what)


def _takes(model: nn.Module, x: Tensor) -> bool:
    """Whether a model works on one row as it is; it is left as it was."""
    try:
        with torch.no_grad(), evaluating([model]):
            return isinstance(model(x[:1].clone()), Tensor)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return False


def converted(x: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """Return columns in another dtype; refuse whole numbers that it would change, and others where it has none."""
    made = x.to(dtype)
    if x.is_floating_point() and dtype.is_floating_point:
        return made  # float64 as float32: the usual rounding of measurements
    wrong = made.to(x.dtype) != x
    if bool(wrong.any()):
        example = x[wrong].flatten()[0].item()
        advice = (
            "give whole numbers, as in training"
            if x.is_floating_point()
            else "use a model that takes whole numbers, such as an embedding, cut them into columns, or give float64"
        )
        raise ConfigError(f"the {what}: expected numbers that {dtype} holds exactly, got {example:,}: {advice}.")
    return made
