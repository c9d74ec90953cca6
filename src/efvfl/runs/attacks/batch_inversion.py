"""Labels from averaged gradients: the cotangents that explain the gradient of a batch, then their direction.

In efvfl a party with private labels is sent a cotangent for each row, so this attack is never its best. It says what
would be hidden if a party were told the gradient of its own model alone, averaged over the batch, as under encryption
(the setting of arXiv 2112.05409). The party knows its model's Jacobian at every row, so the averaged gradient is a
system of linear equations for the rows' cotangents, and it takes the shortest solution.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from efvfl.core.local_model import evaluating
from efvfl.runs.attacks.gradients import direction_attack
from efvfl.runs.attacks.secret_labels import Outcome, SecretLabels
from efvfl.runs.attacks.views import PartyView

ROWS = 512  # that are looked at
MOST_NUMBERS = 30_000_000  # of a batch's Jacobian
SMALLEST = 1e-9  # of an equation that counts, relative to the largest


def inversion_attack(view: PartyView, secret: SecretLabels) -> Outcome:
    """Guess the labels of some rows from the averaged gradients of the last epoch's batches."""
    batches, last = view.batches, view.visits[-1]
    parameters = {name: p.detach() for name, p in view.model.named_parameters() if p.requires_grad}
    numbers = batches.count(0) * last.shape[1] * sum(p.numel() for p in parameters.values())
    if not parameters:
        return "the local model has no parameters, so it has no gradient"
    if numbers > MOST_NUMBERS:
        return f"the Jacobian of a batch has {numbers:,} numbers, more than {MOST_NUMBERS:,}"
    found, seen = torch.zeros_like(last), torch.zeros(len(last), dtype=torch.bool)
    for step in range(view.per_epoch):
        rows = torch.arange(len(last))[batches.rows(step)]
        found[rows] = _explained(view.model, parameters, view.columns[rows], last[rows])
        seen[rows] = True
        if int(seen.sum()) >= min(ROWS, len(last)):
            break
    looked = seen.clone()
    looked[secret.known] = True
    places = torch.cumsum(looked, 0) - 1
    part = replace(secret, labels=secret.labels[looked], known=places[secret.known])
    # Of known rows that are in no batch that was looked at, nothing was found: their direction is zero.
    return direction_attack(found[looked][None], part)


def _explained(model: nn.Module, parameters: dict[str, Tensor], x: Tensor, cotangents: Tensor) -> Tensor:
    """Return the shortest cotangents with the averaged gradient that these have, shape (batch, width)."""

    def representation(values: dict[str, Tensor], row: Tensor) -> Tensor:
        output: Tensor = functional_call(model, values, (row[None],))
        return output[0]

    with evaluating([model]):
        slopes = vmap(jacrev(representation), in_dims=(None, 0))(parameters, x)
    rows = len(x) * cotangents.shape[1]
    jacobian = torch.cat([slope.detach().reshape(rows, -1) for slope in slopes.values()], dim=1).double()
    gradient = cotangents.reshape(-1).double() @ jacobian / len(x)  # all that the party is told here
    values, vectors = torch.linalg.eigh(jacobian @ jacobian.T)
    kept = values > SMALLEST * values[-1]
    along = vectors[:, kept].T @ (jacobian @ gradient)
    shortest: Tensor = len(x) * vectors[:, kept] @ (along / values[kept])
    return shortest.reshape(cotangents.shape).to(cotangents.dtype)
