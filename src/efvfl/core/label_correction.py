"""Forward correction: the loss of randomised labels by the probabilities that they have, not those of the true ones.

A model that says p of the classes says T' p of what is told of them, where T has the known probabilities of the draw.
Its log loss on the labels that are told has, in expectation, the same minimum as the log loss on the true ones (Patrini
et al., *Making Deep Neural Networks Robust to Label Noise*). Noise on numbers has mean 0, and needs no correction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from efvfl.core.label_mechanism import WHOLE, Mechanism, RandomisedResponse
from efvfl.core.losses import LOSSES, Loss, class_weights_of, weighted
from efvfl.errors import ConfigError


def corrected(loss: Loss, mechanism: Mechanism) -> Loss:
    """Return a loss for labels that were randomised like this; what is measured on true ones stays the loss itself."""
    if not isinstance(mechanism, RandomisedResponse):
        return loss
    inner, weights = class_weights_of(loss)
    if inner not in (LOSSES["cross_entropy"], LOSSES["binary_cross_entropy"]):
        raise ConfigError(
            f"protect.label_correction: expected loss 'cross_entropy' or 'binary_cross_entropy', got {loss.name!r}, "
            "for which it is not known: set label_correction to false."
        )
    each = _Forward(mechanism, inner.labels == "shares")
    made = replace(inner, function=each.mean, each=each, like=None)
    return replace(made if weights is None else weighted(made, weights), truth=loss)


@dataclass(frozen=True)
class _Forward:
    """The losses of rows: the log probability of the label that is told, b + (a - b) p of the class itself.

    It is a where the class is kept, and b what each other class has.
    """

    mechanism: RandomisedResponse
    binary: bool

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        if self.binary:
            shaped = output.reshape(target.shape)
            own = F.logsigmoid(torch.where(target > 0.5, shaped, -shaped))
        else:
            own = F.log_softmax(output, dim=1).gather(1, target.long().unsqueeze(1)).squeeze(1)
        other, gain = self.mechanism.other, self.mechanism.same - self.mechanism.other
        if not gain:
            return 0 * own - math.log(other / WHOLE)
        floor = torch.full_like(own, math.log(other / WHOLE))
        return -torch.logaddexp(floor, own + math.log(gain / WHOLE))

    def mean(self, output: Tensor, target: Tensor) -> Tensor:
        return self(output, target).mean()
