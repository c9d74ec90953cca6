"""Error feedback (EF21), the paper's Section 2.1: the change against a surrogate that both ends hold is compressed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from efvfl.core.memories.base import Before, Memory, register


@register("error_feedback")
@dataclass(frozen=True)
class ErrorFeedback(Memory):
    """Send C(h - G); G <- G + C(h - G). G starts at zero, so that the first report of a row is C(h).

    >>> ErrorFeedback().surrogate
    True
    """

    def residual(self, before: Before, value: Tensor) -> Tensor:
        """H - G."""
        return value - before.g
