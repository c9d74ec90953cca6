"""When training stops, which model is kept, and what the learning rate is: decided by the loss of validation rows."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any

from efvfl.core.optimizer import Optimizer
from efvfl.training.record import NAN, Record

INFINITE = float("inf")


class Stopping:
    """What has become of the validation loss so far."""

    def __init__(self, patience: int = 0, optimizer: Optimizer | None = None) -> None:
        """Stop after so many epochs without a better loss, and keep the best model; 0: never stop, and keep none.

        An optimiser whose rate is reduced on a plateau has it reduced here.
        """
        self.patience = patience
        self.plateau = optimizer.build_plateau() if optimizer and optimizer.on_plateau else None
        self.epoch = 0  # of the last look
        self.best = INFINITE
        self.best_epoch = 0

    @property
    def over(self) -> bool:
        """Whether there was no better loss for too long."""
        return 0 < self.patience <= self.epoch - self.best_epoch

    @property
    def kept(self) -> float:
        """The epoch whose model is kept; NaN: none is."""
        return self.best_epoch if self.patience and self.best_epoch else NAN

    def look(self, epoch: int, loss: float) -> bool:
        """Note the loss after an epoch, and return whether the model of now is to be kept."""
        self.epoch = epoch
        better = self.patience > 0 and loss < self.best
        if better:
            self.best, self.best_epoch = loss, epoch
        return better

    def rate(self, loss: float) -> float:
        """Return the learning rate if this loss changes it; 0: it stays as it is."""
        if self.plateau is None:
            return 0.0
        group = self.plateau.optimizer.param_groups[0]
        before = group["lr"]
        self.plateau.step(loss)
        return float(group["lr"]) if group["lr"] != before else 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved."""
        state: dict[str, Any] = {"epoch": self.epoch, "best": self.best, "best_epoch": self.best_epoch}
        if self.plateau is not None:
            state["plateau"] = {
                "rate": self.plateau.optimizer.param_groups[0]["lr"],
                "best": float(self.plateau.best),
                "bad": self.plateau.num_bad_epochs,
                "cooldown": self.plateau.cooldown_counter,
            }
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.epoch, self.best_epoch = int(state["epoch"]), int(state["best_epoch"])
        self.best = float(state["best"])
        if self.plateau is not None:
            saved = state["plateau"]
            self.plateau.optimizer.param_groups[0]["lr"] = float(saved["rate"])
            self.plateau.best = float(saved["best"])
            self.plateau.num_bad_epochs, self.plateau.cooldown_counter = int(saved["bad"]), int(saved["cooldown"])


def ending(last: Record, epochs: int) -> str:
    """Say how a run of so many epochs has ended, by its last record; nothing, if it did all and kept the last model.

    >>> ending(Record(epoch=31, step=310, surrogate_loss=0.2, kept=21), epochs=100)
    'Stopped after 31 epochs: no better validation loss for 10. The model of epoch 21 is kept.'
    """
    if last.asked:
        kept = "" if isnan(last.kept) else f" The model of epoch {last.kept:g} is kept."
        return f"Finished as asked after {last.step:,} steps, in epoch {last.epoch} of {epochs}.{kept}"
    if isnan(last.kept):
        return "" if last.epoch >= epochs else f"Stopped after {last.epoch} epochs: no validation loss was a number."
    kept = f"The model of epoch {last.kept:g} is kept"
    if last.epoch < epochs:
        return f"Stopped after {last.epoch} epochs: no better validation loss for {last.epoch - last.kept:g}. {kept}."
    return f"{kept}, which has the best validation loss." if last.kept < last.epoch else ""
