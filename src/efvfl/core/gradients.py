"""Backward passes, straight to torch's engine.

`Tensor.backward` and `torch.autograd.grad` look for tensor subclasses, symbolic shapes and a compiler's settings first,
at every call; at a batch of 128 that took two fifths of a backward pass. The engine checks shapes by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ENGINE = torch.autograd.Variable._execution_engine


def backward(output: Tensor, slope: Tensor | None = None) -> None:
    """Add to the gradients of all that an output was computed from; `slope` is the loss's derivative by the output.

    None: the output is the loss.
    """
    slopes = (torch.ones_like(output) if slope is None else slope,)
    _ENGINE.run_backward((output,), slopes, False, False, (), allow_unreachable=True, accumulate_grad=True)


def slope_by(loss: Tensor, leaf: Tensor) -> Tensor:
    """Return the derivative of a loss by one of the tensors that it was computed from, and add to no gradient."""
    found: tuple[Tensor, ...] = _ENGINE.run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (leaf,), allow_unreachable=False, accumulate_grad=False
    )
    return found[0]
