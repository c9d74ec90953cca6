"""What an attack on labels is about, and what the attacker knows of them beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from efvfl.runs.attacks import scoring

Outcome = float | str  # a score; or a sentence that says why the attack does not apply


@dataclass(frozen=True)
class SecretLabels:
    """The classes of a party's training rows, of which it knows a few."""

    labels: Tensor  # int64, shape (rows,)
    classes: int
    known: Tensor  # places of the rows whose labels the attacker knows
    seed: int  # of the attacker's own choices

    @property
    def hidden(self) -> Tensor:
        """A mask of the rows that are guessed."""
        return scoring.others(len(self.labels), self.known)

    @property
    def binary(self) -> bool:
        """Whether there are two classes."""
        return self.classes == 2

    def score(self, scores: Tensor) -> float:
        """Return how well the hidden labels are told: one score a row, of two classes, or one for each class."""
        hidden = self.hidden
        if scores.dim() == 1:
            return scoring.either_end(self.labels[hidden] == 1, scores[hidden])
        return scoring.mean_auc(self.labels[hidden], scores[hidden])

    def centres(self, values: Tensor) -> Tensor:
        """Return the mean of the known rows of each class, shape (classes, width)."""
        centres = values.new_zeros(self.classes, values.shape[1])
        counts = values.new_zeros(self.classes)
        where = self.labels[self.known]
        centres.index_add_(0, where, values[self.known])
        counts.index_add_(0, where, values.new_ones(len(where)))
        return centres / counts.clamp(min=1)[:, None]
