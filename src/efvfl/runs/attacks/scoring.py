"""How good a guess is: the area under the ROC curve for labels, the share of the spread that is left for columns."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from efvfl.errors import ConfigError


def auc(positive: Tensor, scores: Tensor) -> float:
    """Return the probability that a positive row scores higher than another; NaN if all rows are alike.

    >>> auc(torch.tensor([False, True, True]), torch.tensor([0.1, 0.1, 0.9]))
    0.75
    """
    truth, values = positive.numpy().astype(bool), scores.detach().double().numpy()
    ones, zeros = int(truth.sum()), int((~truth).sum())
    if not ones or not zeros:
        return float("nan")
    ordered = np.sort(values)
    ranks = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") + 1) / 2
    return float((ranks[truth].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def either_end(positive: Tensor, scores: Tensor) -> float:
    """Return the AUC, 0.5 to 1: which end is positive is one bit, which is taken to be known."""
    value = auc(positive, scores)
    return max(value, 1 - value)


def mean_auc(labels: Tensor, scores: Tensor) -> float:
    """Return the mean over classes of the AUC of one against the rest; `scores` has a column for each class."""
    if scores.shape[1] == 2:
        return auc(labels == 1, scores[:, 1] - scores[:, 0])
    found = [auc(labels == k, scores[:, k]) for k in range(scores.shape[1]) if bool((labels == k).any())]
    return float(np.mean(found))


def best(values: Iterable[float]) -> float:
    """Return the largest: an attacker with several ways is taken to know which is the best."""
    return max(values)


def classes_of(labels: Tensor, loss: str) -> int:
    """Return how many classes labels have; 0: they are no classes."""
    whole = labels.dim() == 1 and bool((labels == labels.round()).all())
    if loss == "cross_entropy" or (loss == "binary_cross_entropy" and whole):
        return max(2, int(labels.max()) + 1)
    return 0


def some_of_each(labels: Tensor, count: int, seed: int) -> Tensor:
    """Return the places of `count` rows of each class, chosen by a seed: those whose labels an attacker knows."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    found = [order[labels[order] == k][:count] for k in torch.unique(labels)]
    return torch.cat(found)


def others(count: int, known: Tensor) -> Tensor:
    """Return a mask of all rows but the known ones."""
    mask = torch.ones(count, dtype=torch.bool)
    mask[known] = False
    if not bool(mask.any()):
        raise ConfigError(f"all {count:,} rows are known to the attacker: give it fewer, or take more rows.")
    return mask


def left_over(truth: Tensor, guess: Tensor) -> float:
    """Return the squared error of a guess, relative to that of guessing every column's mean: 0 is exact, 1 nothing."""
    spread = (truth - truth.mean(dim=0)).double().square().sum()
    return float((truth - guess).double().square().sum() / spread) if float(spread) else float("nan")
