"""A memory that decays: both ends shrink it by a factor at each visit of a row, before the difference is taken.

It lies between direct compression (keep = 0) and EF21 (keep = 1). What a packet said is forgotten after about
1 / (1 - keep) visits, and so is a surrogate that has gone wrong; the price is a share 1 - keep of h that is sent anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from efvfl.core import ranges
from efvfl.core.memories.base import Before, Memory, register


@register("decay")
@dataclass(frozen=True)
class Decay(Memory):
    """Send C(h - keep G); G <- keep G + C(h - keep G).

    >>> Decay(keep=1.0).surrogate
    True
    """

    keep: float = 0.9  # factor at each visit; 1: EF21. Smaller => forgets sooner

    def __post_init__(self) -> None:
        """Refuse a factor that is out of range."""
        ranges.check_fields(self, self.name)

    def residual(self, before: Before, value: Tensor) -> Tensor:
        """H - keep G."""
        return value - self.keep * before.g

    def after(self, g: Tensor, decoded: Tensor) -> Tensor:
        """Keep G + C."""
        return self.keep * g + decoded
