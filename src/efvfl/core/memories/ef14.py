"""Error feedback with an accumulated error (EF14): what was lost of a row is added to what is sent of it next.

After Seide et al. (2014), per row of a link: e starts at zero and p = h + e is compressed. The receiver uses the
decoded packet alone and remembers nothing; e <- p - C(p) at the sender. So what arrived of a row over all its visits is
the sum of its values but for the last e, which is what a sum of gradients needs. A representation is not summed: at
every single visit its surrogate C(h + e) is off by what is lost of h + e, and by e.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from efvfl.core.memories.base import Before, Memory, register


@register("ef14")
@dataclass(frozen=True)
class EF14(Memory):
    """Send C(h + e), which is the surrogate; e <- h + e - C(h + e) at the sender.

    >>> EF14().surrogate, EF14().own
    (False, ('e',))
    """

    surrogate = False
    own = ("e",)

    def residual(self, before: Before, value: Tensor) -> Tensor:
        """H + e."""
        return value + before.own["e"]

    def remember(self, before: Before, value: Tensor, surrogate: Tensor) -> Mapping[str, Tensor]:
        """E <- h + e - C(h + e)."""
        return {"e": value + before.own["e"] - surrogate}
