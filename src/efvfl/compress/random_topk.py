"""Randomised top-k (Zheng et al. 2023, arXiv 2305.18469): a few of the kept entries are not among the largest.

Top-k may leave out the same entries of a representation for ever, and what leads to them then hardly learns. Here every
one of the k picks is, with a small probability, one of the other entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from efvfl.compress.base import Shape, entries, register
from efvfl.compress.positions import Positions
from efvfl.compress.topk import TopK, kept_count
from efvfl.errors import ConfigError, describe
from efvfl.util.jit import kernel
from efvfl.util.rng import mix, permute, uniform
from efvfl.wire.packet import FloatArray

_TURN: Final = np.uint64(0x9E3779B97F4A7C15)  # keys of different purposes are far from each other


@kernel
def _exchange(top: NDArray[np.int64], width: int, others: float, key: np.uint64, kept: NDArray[np.bool_]) -> None:
    """Mark what is kept of rows of `width` entries; `top` has for every row the places of its k largest, increasing."""
    k = top.shape[1]
    for row in range(top.shape[0]):
        draws = np.uint64(mix(key + np.uint64(3 * row + 1) * _TURN))
        count = 0  # of picks that go to other entries
        for pick in range(k):
            count += uniform(draws, np.uint64(pick)) < others
        count = min(count, width - k)
        for pick in range(k):
            kept[top[row, pick]] = True
        chosen = np.empty(count, dtype=np.int64)
        permute(np.uint64(mix(key + np.uint64(3 * row + 2) * _TURN)), k, 0, chosen)
        for place in chosen:
            kept[top[row, place]] = False
        permute(np.uint64(mix(key + np.uint64(3 * row + 3) * _TURN)), width - k, 0, chosen)
        for place in chosen:  # the one that so many of the others come before: the largest ones are skipped
            low, high = 0, k
            while low < high:
                middle = (low + high) // 2
                if top[row, middle] - row * width - middle <= place:
                    low = middle + 1
                else:
                    high = middle
            kept[row * width + place + low] = True


@register("random_topk", 9)
@dataclass(frozen=True)
class RandomTopK(TopK):
    """Keep k entries: each pick is one of the largest k that are left, or with probability `others` any other one.

    So J of the others are kept, binomial(k, others) but at most d - k, and k - J of the largest, each of its kind with
    the same probability. With b = E[J] / k and t the share that the largest have of the block's energy, what is
    kept has in expectation the share

        (1 - b) t + b k / (d - k) (1 - t),    where t is from k/d to 1.

    It is linear in t, k/d at t = k/d and 1 - b at t = 1: alpha = min(k/d, 1 - b), the same k/d as that of top-k for all
    ratios below 1 - others. So the guarantee costs nothing; blocks whose largest entries matter most cost the share b.

    Body: that of topk.

    >>> from efvfl.compress import decode
    >>> block = np.float32([1, -3, 2, 0, 4, 5])
    >>> [decode(RandomTopK(k=2, others=0.3).encode(block, key)).tolist() for key in (1, 2)]
    [[0.0, -3.0, 0.0, 0.0, 4.0, 0.0], [0.0, 0.0, 0.0, 0.0, 4.0, 5.0]]
    """

    others: float = 0.1  # probability of each pick to be an entry that is not among the largest: 0.05 to 0.3

    def __post_init__(self) -> None:
        """Check the parameters."""
        super().__post_init__()
        if not isinstance(self.others, int | float) or not 0 <= self.others < 1:
            raise ConfigError(f"random_topk's others: expected a number from 0, below 1, got {describe(self.others)}.")

    def places(self, block: FloatArray, flat: FloatArray, key: int = 0) -> Positions:
        """Return the positions of the entries to keep, of which the key decides."""
        top = super().places(block, flat, key)
        if not top.size:
            return top
        rows, width = (flat.size // block.shape[-1], block.shape[-1]) if self.by_row(block.shape) else (1, flat.size)
        kept = np.zeros(flat.size, dtype=np.bool_)
        _exchange(top.reshape(rows, -1), width, float(self.others), np.uint64(key), kept)
        return np.flatnonzero(kept)

    def alpha(self, shape: Shape) -> float:
        """Return min(k / d, 1 - b), of a row if rows are ranked; b is at most `others` and (d - k) / k."""
        if not entries(shape):
            return 1.0
        share = kept_count(self.ratio, self.k, self.per, shape) / entries(shape)
        return min(share, 1 - min(self.others, (1 - share) / share))
