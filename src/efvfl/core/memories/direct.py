"""Direct compression, as in CVFL: nothing is remembered."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from efvfl.core.memories.base import Before, Memory, register


@register("direct")
@dataclass(frozen=True)
class Direct(Memory):
    """Send C(h), which is the surrogate.

    >>> Direct().surrogate
    False
    """

    surrogate = False

    def residual(self, before: Before, value: Tensor) -> Tensor:
        """Compress the value itself."""
        return value
