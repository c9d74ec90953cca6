"""Bins of numbers: a column is cut at quantiles of its training rows (Gorishniy, Rubachev and Babenko, 2022)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import isfinite

import numpy as np
from numpy.typing import NDArray

MOST_BINS = 16  # unless settings say otherwise


def edges_of(values: NDArray[np.float64], most: int = MOST_BINS) -> tuple[float, ...]:
    """Return the increasing edges of at most so many bins with about equally many of these values each.

    Values that are frequent are an edge once, so such columns have fewer bins; equal values have none.

    >>> edges_of(np.array([1.0, 2.0, 3.0, 4.0, 100.0]), most=2)
    (1.0, 3.0, 100.0)
    """
    if not most:
        return ()
    # An edge is a value of the column, not a mean of two: it is the same number on every machine.
    found = np.unique(np.quantile(values, np.linspace(0, 1, most + 1), method="nearest"))
    return tuple(found.tolist()) if len(found) > 1 else ()


def valid(edges: Sequence[float]) -> bool:
    """Whether these can be edges of bins: none, or two or more that are finite and increase."""
    return len(edges) != 1 and all(map(isfinite, edges)) and all(a < b for a, b in itertools.pairwise(edges))
