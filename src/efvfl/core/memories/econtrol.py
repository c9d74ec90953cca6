"""Error control, after Gao, Islamov and Stich (2023, arXiv 2311.05645): EF21 that is also sent what it missed, in part.

Per row of a link: the sender adds up by how much the surrogates fell short, e <- e + h - G at every visit, and a share
eta of that sum is sent besides the change: C(eta e + h - G), which both ends add to G. With eta near 0 this is EF21,
whose shortfall is never made up for; with eta = 1 the whole sum is sent each time. In the paper h is a gradient, and
h - G is summed over steps; here it is the value of a row, and the sum is over the visits of that row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from efvfl.core import ranges
from efvfl.core.memories.base import Before, Memory, register


@register("econtrol")
@dataclass(frozen=True)
class EControl(Memory):
    """Send C(eta e + h - G); e <- e + h - G at the sender.

    >>> EControl(eta=0.1).own
    ('e',)
    """

    own = ("e",)

    eta: float = 0.1  # share of the accumulated error that is sent; smaller => closer to EF21

    def __post_init__(self) -> None:
        """Refuse a share that is out of range."""
        ranges.check_fields(self, self.name)

    def residual(self, before: Before, value: Tensor) -> Tensor:
        """Eta e + h - G."""
        return self.eta * before.own["e"] + value - before.g

    def remember(self, before: Before, value: Tensor, surrogate: Tensor) -> Mapping[str, Tensor]:
        """E <- e + h - G, with the new G."""
        return {"e": before.own["e"] + value - surrogate}
