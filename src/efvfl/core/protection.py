"""What the label holder may do so that cotangents say less about single labels: to them, or to the labels first.

It is the server's own choice and no part of the plan: parties need not know of it. What it buys, measured, and what it
does not: docs/security.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from efvfl.core import ranges
from efvfl.core.noise import normal
from efvfl.core.visit_noise import VisitNoise
from efvfl.errors import ConfigError

LEAST = 1e-3  # epsilon of labels that are randomised: with less nothing can be learnt


@dataclass(frozen=True)
class Protection:
    """Clip every row of a cotangent, then add Gaussian noise; 0 is off.

    The loss is a mean over the batch, so a row of its cotangent shrinks as the batch grows. Both knobs are about the
    row times the number of rows, the derivative of that row's *own* loss: they mean the same at any batch size.

    >>> cotangent = torch.tensor([[3.0, 4.0], [0.3, 0.4]]) / 2  # of a batch of two rows
    >>> Protection(clip=1.0).apply(cotangent, key=0) * 2  # rows of norm 5 and 0.5
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """

    clip: float = 0.0  # largest L2 norm of a row's derivative; smaller => rows differ less in norm
    noise: float = 0.0  # standard deviation in every entry, in units of clip; larger => less is told, slower learning
    visits: VisitNoise = field(default_factory=VisitNoise)  # in place of both: noise at every visit, accounted for
    label_epsilon: float = 0.0  # in place of all: every label is randomised once, before anything is computed from it
    label_range: tuple[float, ...] = ()  # of a regression with label_epsilon: low and high, to which labels are clipped
    label_correction: bool = True  # whether the loss accounts for the known probabilities of that

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        ranges.check_fields(self, "protect")
        if self.noise and not self.clip:
            raise ConfigError(
                f"protect.noise = {self.noise} needs protect.clip: noise is in units of it, and hides nothing of a row "
                "that may be of any size. Set clip to a norm that most rows exceed, such as 0.1."
            )
        if 0 < self.label_epsilon < LEAST:
            raise ConfigError(f"protect.label_epsilon: expected 0 or at least {LEAST}, got {self.label_epsilon:g}.")
        if not self.label_epsilon and (self.label_range or not self.label_correction):
            raise ConfigError(
                "protect.label_range and label_correction are about labels that are randomised: set label_epsilon, or "
                "leave them out."
            )

    @property
    def on(self) -> bool:
        """Whether anything is done to what leaves at a step."""
        return self.clip > 0 or self.visits.on

    @property
    def releases(self) -> bool:
        """Whether labels are randomised before the first step."""
        return self.label_epsilon > 0

    def for_epochs(self, epochs: int) -> Protection:
        """Return the same for a run of so many epochs."""
        return replace(self, visits=self.visits.for_epochs(epochs))

    def apply(self, cotangent: Tensor, key: int) -> Tensor:
        """Return the cotangent as it may be sent, shape (batch, width). The key is secret and of this step alone."""
        if not self.clip:
            return cotangent
        limit = self.clip / max(1, len(cotangent))
        # In double precision, where the square of a float32 neither overflows nor vanishes.
        norms: Tensor = torch.linalg.vector_norm(cotangent, dim=1, keepdim=True, dtype=torch.float64)
        excess = (norms / limit).clamp(min=1)  # exactly 1 for rows within the limit, which stay as they are
        clipped = cotangent * excess.reciprocal().to(cotangent.dtype)
        if not self.noise:
            return clipped
        return clipped.add_(normal(key, tuple(cotangent.shape)).to(cotangent.dtype), alpha=self.noise * limit)
