"""EF21 with momentum, after Fatkhullin, Tyurin and Richtárik (2023, arXiv 2305.15155): an average is tracked, not h.

Per row of a link: v <- (1 - eta) v + eta h at the sender, from v = h at the row's first visit, and then EF21 on v:
C(v - G) is sent, and both ends add it to G. The average is over a row's own visits, and of what the link carries:
representations going up, cotangents coming down. It smooths what is random in them (dropout, augmentation, noise on
rows), and it lags behind the model by about 1 / eta - 1 visits. With eta = 1 this is EF21, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from efvfl.core import ranges
from efvfl.core.memories.base import Before, Memory, register


@register("momentum")
@dataclass(frozen=True)
class Momentum(Memory):
    """Send C(v - G) of an average v over a row's visits.

    >>> Momentum(eta=0.2).own
    ('v',)
    """

    own = ("v",)

    eta: float = 0.5  # weight of a visit in the average; 1: EF21. Smaller => smoother, and farther behind

    def __post_init__(self) -> None:
        """Refuse a weight that is out of range."""
        ranges.check_fields(self, self.name)

    def residual(self, before: Before, value: Tensor) -> Tensor:
        """V - G."""
        return self._average(before, value) - before.g

    def begin(self, value: Tensor) -> Mapping[str, Tensor]:
        """V = h."""
        return {"v": value}

    def remember(self, before: Before, value: Tensor, surrogate: Tensor) -> Mapping[str, Tensor]:
        """V <- (1 - eta) v + eta h."""
        return {"v": self._average(before, value)}

    def _average(self, before: Before, value: Tensor) -> Tensor:
        return before.own["v"].lerp(value, self.eta)  # exact where v = h, and for eta = 1
