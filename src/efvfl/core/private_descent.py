"""DP-SGD in a party's local model: the gradient of every row is clipped, and their sum gets noise.

With it, and with noise on all representations that leave, what a party tells is differentially private in the *columns*
of a row: the model of the next step is a Gaussian mechanism given all that was before, and so is every representation
given the model. Both kinds compose (Abadi et al., *Deep Learning with Differential Privacy*, 2016, of which no
amplification by sampling is claimed: everybody knows the batches).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from efvfl.core.batches import Rows, columns_of
from efvfl.core.local_model import LocalModel, PlainModel
from efvfl.core.noise import digest_of, normal
from efvfl.core.plan import Plan
from efvfl.core.row_protection import RowProtection
from efvfl.errors import ConfigError
from efvfl.util.rng import derive

CHUNK = 256  # rows whose gradients are there at a time


class PrivateDescent:
    """Takes a step of a party's model from cotangents, by the gradients of single rows."""

    def __init__(self, plan: Plan, name: str, model: LocalModel, chosen: RowProtection, key: int) -> None:
        """Protect the columns of a party; the key is its secret."""
        self.plan = plan
        self.chosen = chosen
        self.key = key
        self.model = _checked(plan, name, model)

    def descend(self, rows: Rows, cotangent: Tensor, step: int, turn: int) -> None:
        """x_k <- x_k - eta (sum of clipped gradients of rows + noise) / rows of the batch."""
        block = self.model.block
        count = self.plan.batches.count(step)  # as everybody knows it, and the mean that a cotangent is of
        parameters: dict[str, Tensor] = {name: p for name, p in block.module.named_parameters() if p.requires_grad}
        x = columns_of(self.model.features, rows, step)
        sums = clipped_sums(block.module, parameters, x, cotangent * count, self.chosen.gradient_clip)
        block.zero_grad()
        for place, (parameter, exact) in enumerate(zip(parameters.values(), sums, strict=True)):
            # As with rows: the same step has the same noise after a restart, and no other value ever has it.
            draws = normal(derive(self.key, step, turn, place, digest_of(exact)), tuple(exact.shape))
            noisy = exact + (draws * (self.chosen.gradient_noise * self.chosen.gradient_clip)).to(exact.dtype)
            parameter.grad = noisy / count
        block.update()


def clipped_sums(
    module: nn.Module, parameters: dict[str, Tensor], x: Tensor, cotangents: Tensor, clip: float
) -> list[Tensor]:
    """Return the sum over rows of their gradients, each at most as long as the clip over all parameters together."""
    values = {name: p.detach() for name, p in parameters.items()}

    def along(values: dict[str, Tensor], row: Tensor, cotangent: Tensor) -> Tensor:
        h: Tensor = functional_call(module, values, (row.unsqueeze(0),))
        return (h.squeeze(0) * cotangent).sum()

    of_rows = vmap(grad(along), in_dims=(None, 0, 0))
    sums = [torch.zeros_like(p) for p in values.values()]
    for start in range(0, len(x), CHUNK):
        made = of_rows(values, x[start : start + CHUNK], cotangents[start : start + CHUNK])
        found = [
            torch.nan_to_num(part, 0.0, 0.0, 0.0) for part in made.values()
        ]  # no number is out of the clip's reach
        each = [part.reshape(len(part), -1).double().square().sum(1) for part in found]
        norms = torch.stack(each).sum(0).sqrt()
        factors = clip / norms.clamp(min=clip)  # exactly 1 for gradients within the clip
        for total, part in zip(sums, found, strict=True):
            total += torch.einsum("r,r...->...", factors.to(part.dtype), part)
    return sums


def _checked(plan: Plan, name: str, model: LocalModel) -> PlainModel:
    """Refuse what the proof does not cover, or gradients of single rows cannot be taken of."""
    agreement = plan.agreement
    if not agreement.private or agreement.window > 1 or agreement.cached.steps:
        raise ConfigError(
            f"protect.gradient_noise of {name!r}: expected private labels without a pipeline or cached steps, got "
            "others: a row's cotangent must be the server's, and each must be used once."
        )
    if not isinstance(model, PlainModel):
        raise ConfigError(f"protect.gradient_noise of {name!r}: expected a party on one machine, got several workers.")
    if any(isinstance(part, nn.modules.dropout._DropoutNd) for part in model.block.module.modules()):
        raise ConfigError(
            f"protect.gradient_noise of {name!r}: expected a local model without dropout, got one with it: leave it "
            "out."
        )
    return model
