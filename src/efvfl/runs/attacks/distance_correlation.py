"""Distance correlation of two samples (Szekely, Rizzo and Bakirov, 2007): 0 if they are independent, 1 if similar."""

from __future__ import annotations

from torch import Tensor

TINY = 1e-12


def distance_correlation(x: Tensor, y: Tensor) -> Tensor:
    """Return the distance correlation of rows of two tables; gradients flow through it.

    >>> import torch
    >>> x = torch.arange(6.0).reshape(-1, 1)
    >>> round(float(distance_correlation(x, 3 * x)), 4)
    1.0
    """
    a, b = _centred(x), _centred(y)
    shared = (a * b).mean().clamp(min=TINY)
    return (shared / (a.square().mean() * b.square().mean()).clamp(min=TINY**2).sqrt()).sqrt()


def _centred(x: Tensor) -> Tensor:
    """Return the distances between all rows, without the means of rows and columns."""
    lengths = x.square().sum(dim=1)
    squares = (lengths[:, None] + lengths[None, :] - 2 * x @ x.T).clamp(min=0)
    distances = (squares + TINY).sqrt()  # its slope at 0 is finite
    by_row = distances.mean(dim=0, keepdim=True)
    return distances - by_row - by_row.T + distances.mean()
