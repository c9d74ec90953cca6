"""What the label holder may do to cotangents before they leave it, so that they say less about single labels.

It is the server's own choice and no part of the plan: parties need not know of it. What it buys, measured, and what it
does not: docs/security.md.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from efvfl.core import ranges
from efvfl.errors import ConfigError


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

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        ranges.check_fields(self, "protect")
        if self.noise and not self.clip:
            raise ConfigError(
                f"protect.noise = {self.noise} needs protect.clip: noise is in units of it, and hides nothing of a row "
                "that may be of any size. Set clip to a norm that most rows exceed, such as 0.1."
            )

    @property
    def on(self) -> bool:
        """Whether anything is done."""
        return self.clip > 0

    def apply(self, cotangent: Tensor, key: int) -> Tensor:
        """Return the cotangent as it may be sent, shape (batch, width). The key is secret and of this step alone."""
        if not self.on:
            return cotangent
        limit = self.clip / max(1, len(cotangent))
        # In double precision, where the square of a float32 neither overflows nor vanishes.
        norms: Tensor = torch.linalg.vector_norm(cotangent, dim=1, keepdim=True, dtype=torch.float64)
        excess = (norms / limit).clamp(min=1)  # exactly 1 for rows within the limit, which stay as they are
        clipped = cotangent * excess.reciprocal().to(cotangent.dtype)
        if not self.noise:
            return clipped
        return clipped.add_(normal(key, tuple(cotangent.shape)).to(cotangent.dtype), alpha=self.noise * limit)


def normal(key: int, shape: tuple[int, ...]) -> Tensor:
    """Return standard normal draws that are a pure function of the key: SHAKE-128, then Box and Muller, in float64.

    Not torch's generator: it takes 32 bits of a seed and no more, so a party could try all of them and subtract the
    noise. Nor any other generator whose next draws follow from the last: a row whose derivative is known would do.
    """
    count = int(np.prod(shape, dtype=np.int64))
    pairs = -(-count // 2)
    data = hashlib.shake_128(f"efvfl protect {key}".encode()).digest(16 * pairs)
    bits = np.frombuffer(data, dtype="<u8").reshape(2, pairs) >> np.uint64(11)
    radius = np.sqrt(-2 * np.log((bits[0] + np.uint64(1)) * 2.0**-53))  # of (0, 1]: the logarithm is finite
    angle = bits[1] * (2 * np.pi * 2.0**-53)
    draws = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return torch.from_numpy(draws[:count]).reshape(shape)
