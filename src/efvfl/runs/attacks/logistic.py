"""A logistic regression on the few rows whose labels an attacker knows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from efvfl.runs.attacks.secret_labels import SecretLabels


def logistic_scores(values: Tensor, secret: SecretLabels) -> Tensor:
    """Return what a logistic regression on the known rows says of all rows, shape (rows, classes)."""
    known = values[secret.known].double()
    level, spread = known.mean(dim=0), known.std(dim=0).clamp(min=1e-6)
    x, y = (known - level) / spread, secret.labels[secret.known]
    weights = torch.zeros(secret.classes, x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        penalty = weights[:, 1:].square().sum() / 2  # as scikit-learn has it with C = 1
        loss: Tensor = F.cross_entropy(x @ weights[:, 1:].T + weights[:, 0], y, reduction="sum") + penalty
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    found = weights.detach()
    return ((values.double() - level) / spread) @ found[:, 1:].T + found[:, 0]
