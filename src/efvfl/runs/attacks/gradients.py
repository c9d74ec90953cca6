"""Labels from cotangents: by their norm and by their direction (Li et al., arXiv 2102.08504).

The derivative of a row's loss is p - y times what the fusion model makes of it: rows of the rarer class have longer
ones, and those of two classes point in opposite directions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from efvfl.core.batches import BatchRows
from efvfl.runs.attacks import scoring
from efvfl.runs.attacks.logistic import logistic_scores
from efvfl.runs.attacks.secret_labels import Outcome, SecretLabels

MEMORIES = (0.0, 0.97)  # of a direction that is followed from step to step: this batch alone, or about thirty


def norm_attack(heard: Tensor, secret: SecretLabels) -> Outcome:
    """Guess by the length of what was heard of a row: that of the mean over visits, or the mean length."""
    if not secret.binary:
        return "a length orders rows in one way, and there are more than two classes"
    return scoring.best(secret.score(score) for score in lengths(heard))


def lengths(heard: Tensor) -> list[Tensor]:
    """Return the length of each row's mean over visits, and its mean length; `heard` is (epochs, rows, width)."""
    return [heard.mean(0).norm(dim=1), heard.norm(dim=2).mean(0)]


def direction_attack(
    heard: Tensor, secret: SecretLabels, batches: BatchRows | None = None, per_epoch: int = 1
) -> Outcome:
    """Guess by the direction: of two classes the main one, else the one of the rows whose labels are known.

    The best of several ways to find it, which differ in how fast it may turn and how much noise they stand: of the mean
    over visits, of all visits side by side, as lines whose sign says nothing, by a regression, and followed from step
    to step where the batches are known.
    """
    beside = heard.permute(1, 0, 2).flatten(1)
    level = F.normalize(heard, dim=2).permute(1, 0, 2).flatten(1)  # every visit counts alike
    scores = [_alike(values, secret) for values in (heard.mean(0), beside, level)]
    scores += [logistic_scores(level, secret), _in_line(F.normalize(heard, dim=2), secret)]
    if secret.binary:
        scores += along(heard, batches, per_epoch)
    return scoring.best(secret.score(score) for score in scores)


def along(heard: Tensor, batches: BatchRows | None = None, per_epoch: int = 1) -> list[Tensor]:
    """Return every row's component along the main direction, which no label is needed for, found in several ways."""
    scores = [rows @ main_direction(rows) for rows in (heard.mean(0), heard.permute(1, 0, 2).flatten(1))]
    if batches is not None:
        scores += [_followed(heard, batches, per_epoch, memory) for memory in MEMORIES]
    return scores


def main_direction(rows: Tensor) -> Tensor:
    """Return the direction in which the rows are longest."""
    squares: Tensor = rows.double().T @ rows.double()
    main: Tensor = torch.linalg.eigh(squares).eigenvectors[:, -1]
    return main.to(rows.dtype)


def _alike(values: Tensor, secret: SecretLabels) -> Tensor:
    """Return the cosine between a row and the known rows of each class."""
    directions = F.normalize(secret.centres(F.normalize(values, dim=1)), dim=1)
    return F.normalize(values, dim=1) @ directions.T


def _in_line(visits: Tensor, secret: SecretLabels) -> Tensor:
    """Return how much of a row lies on the line of the known rows of each class, whichever way it points, over visits.

    Noise along the cotangent, as max-norm adds it, turns some of them around and leaves the line.
    """
    scores = visits.new_zeros(visits.shape[1], secret.classes)
    for k in range(secret.classes):
        known = secret.known[secret.labels[secret.known] == k]
        for visit in visits:
            scores[:, k] += (visit @ main_direction(visit[known])).square()
    return scores


def _followed(heard: Tensor, batches: BatchRows, per_epoch: int, memory: float) -> Tensor:
    """Return every row's component along the direction of the last steps, summed over epochs."""
    epochs, samples, width = heard.shape
    scores, squares, last = heard.new_zeros(samples), heard.new_zeros(width, width), heard.new_zeros(width)
    for step in range(epochs * per_epoch):
        rows = batches.rows(step)
        now = heard[step // per_epoch, rows]
        squares = memory * squares + now.T @ now
        direction = torch.linalg.eigh(squares).eigenvectors[:, -1]
        last = -direction if direction @ last < 0 else direction
        scores[rows] += now @ last
    return scores
