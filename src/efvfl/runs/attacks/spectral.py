"""Labels from a party's own representations (Sun et al., arXiv 2203.01451), which gather by class in training."""

from __future__ import annotations

import torch
from torch import Tensor

from efvfl.runs.attacks import scoring
from efvfl.runs.attacks.gradients import main_direction
from efvfl.runs.attacks.secret_labels import Outcome, SecretLabels

ROUNDS = 20  # of gathering rows around their centres


def spectral_attack(h: Tensor, secret: SecretLabels) -> Outcome:
    """Guess by where a row's representation lies: of two classes along the main direction, else by clusters.

    Clusters are of as many main directions as there are classes, less one, and begin at the rows whose labels are
    known.
    """
    centred = h - h.mean(dim=0)
    if secret.binary:
        along = centred @ main_direction(centred)
        return scoring.best(secret.score(score) for score in (along, along.square()))
    squares = centred.double().T @ centred.double()
    axes = torch.linalg.eigh(squares).eigenvectors[:, -(secret.classes - 1) :].to(h.dtype)
    return secret.score(-_distances(centred @ axes, secret))


def _distances(points: Tensor, secret: SecretLabels) -> Tensor:
    """Return the distance of every row to the centre of each cluster, shape (rows, classes)."""
    centres = secret.centres(points)
    for _ in range(ROUNDS):
        nearest = torch.cdist(points, centres).argmin(dim=1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        counts = torch.bincount(nearest, minlength=len(centres))[:, None]
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
    return torch.cdist(points, centres)
