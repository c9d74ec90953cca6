"""Labels that are randomised once, before anything is computed from them: all that follows is post-processing.

Training, the weights of classes, stratified splits and decisions by validation rows use the labels of a release. The
labels as they are serve the label holder's own metrics alone. `docs/privacy.md` says what that guarantees.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from efvfl.core.accountant import Accountant
from efvfl.core.label_correction import corrected
from efvfl.core.label_mechanism import Bits, Mechanism, NoisyNumbers, RandomisedResponse
from efvfl.core.losses import Loss, lookup
from efvfl.core.protection import Protection
from efvfl.core.targets import Targets
from efvfl.errors import ConfigError

Source = Callable[[Sequence[str]], Bits]  # from the names of rows to 64 random bits for each


def from_system(names: Sequence[str]) -> Bits:
    """Return bits of the operating system, which nobody can draw again: who uses them keeps the result."""
    return np.frombuffer(os.urandom(8 * len(names)), dtype="<u8")


def from_seed(key: int) -> Source:
    """Return a source of which a row has the same bits every time: for simulations, whose draws all can repeat."""
    start = hashlib.shake_128(f"efvfl labels {key} ".encode())

    def of(name: str) -> bytes:
        one = start.copy()
        one.update(name.encode())
        return one.digest(8)

    return lambda names: np.frombuffer(b"".join(map(of, names)), dtype="<u8")


def mechanism_for(protect: Protection, loss: Loss, classes: int) -> Mechanism:
    """Return how labels of a loss are randomised; of classes there are so many."""
    if loss.labels in ("classes", "shares"):
        if protect.label_range:
            raise ConfigError(f"protect.label_range is set, but loss {loss.name!r} has classes: leave it out.")
        return RandomisedResponse.within(protect.label_epsilon, 2 if loss.labels == "shares" else max(2, classes))
    if loss.labels != "numbers":
        raise ConfigError(
            f"protect.label_epsilon: expected a loss of classes or numbers, got {loss.name!r}: say which labels it "
            "takes, such as Loss(..., labels='numbers')."
        )
    if len(protect.label_range) != 2:
        raise ConfigError(
            f"protect.label_epsilon with loss {loss.name!r} needs protect.label_range = [low, high], to which labels "
            "are clipped: choose it without looking at them."
        )
    low, high = protect.label_range
    return NoisyNumbers(float(low), float(high), float(protect.label_epsilon))


@dataclass(frozen=True)
class LabelRelease:
    """Labels as everybody may know them, by split.

    >>> labels = {"train": torch.tensor([0, 1, 1, 0])}
    >>> release = LabelRelease.draw(Protection(label_epsilon=2.0), "binary_cross_entropy", labels)
    >>> release.accountant.epsilon(visits=1_000_000)
    2.0
    """

    mechanism: Mechanism
    labels: Mapping[str, Tensor]
    truth: Mapping[str, Tensor]  # as they are; empty where nobody knows them, at a party that was told the others
    simulated: bool = False  # the draw follows from a seed, and would hide nothing from who knows it
    corrects: bool = True  # whether the loss accounts for how labels were randomised

    @classmethod
    def draw(
        cls,
        protect: Protection,
        loss: str | Loss,
        truth: Mapping[str, Tensor],
        source: Source = from_system,
        names: Mapping[str, Sequence[str]] | None = None,
        classes: int = 0,
    ) -> LabelRelease:
        """Randomise labels, by split; rows have names of their own for a source that follows from a seed.

        Without a number of classes, it is one more than the largest label.
        """
        most = max((int(part.max()) + 1 for part in truth.values() if len(part)), default=0)
        mechanism = mechanism_for(protect, lookup(loss), classes or most)
        known = names or {split: [f"{split}:{i}" for i in range(len(part))] for split, part in truth.items()}
        drawn = {split: mechanism.randomise(part, source(known[split])) for split, part in truth.items()}
        return cls(mechanism, drawn, dict(truth), source is not from_system, protect.label_correction)

    def check(self, truth: Mapping[str, Tensor]) -> None:
        """Refuse to go on if it was drawn for other labels."""
        if set(truth) != set(self.truth) or any(not torch.equal(self.truth[split], truth[split]) for split in truth):
            raise ConfigError("release: expected one of these labels and splits, got one of others: draw it for them.")

    def targets(self, split: str, weights: Tensor | None = None) -> Targets:
        """Return what is learnt from, and decided by."""
        return Targets(self.labels[split], weights)

    def true_targets(self, split: str, weights: Tensor | None = None) -> Targets:
        """Return what the label holder's own metrics are about."""
        return Targets(self.truth[split], weights)

    def loss(self, loss: Loss) -> Loss:
        """Return the loss on these labels."""
        return corrected(loss, self.mechanism) if self.corrects else loss

    @property
    def accountant(self) -> Accountant:
        """What accounts for it."""
        simulated = "; a simulation, because the draw follows from the seed" if self.simulated else ""
        return Accountant(
            "the label of each row",
            "all other participants together",
            self.mechanism.text + simulated,
            once=self.mechanism.epsilon,
        )
