"""Notes of single steps, for records: the loss, what was sent, and how well compression did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from efvfl.training.callbacks import Callback, Sending, TrainingStep

Notes = dict[str, list[float]]  # one number for every step that is noted, by what it is


class StepNotes(Callback):
    """Notes every n-th step until they are taken for a record.

    Of the blocks that are compressed they say what was to be sent and what of it was lost: 'residual up NAME' and
    'lost up NAME' are squared norms. Over a network these are measured nowhere, and not among the notes.
    """

    def __init__(self) -> None:
        """Note nothing, until `every` is set."""
        self.every = 0  # steps; 0: nothing is noted
        self._sent: dict[int, dict[str, float]] = {}  # by step: with a pipeline they are sent before others are done
        self._notes: Notes = {}

    def on_sent(self, sending: Sending) -> None:
        """See a block that is sent."""
        if self._wanted(sending.step + 1):
            of_step = self._sent.setdefault(sending.step + 1, {})
            of_step[f"residual {sending.direction} {sending.block}"] = sending.residual
            of_step[f"lost {sending.direction} {sending.block}"] = sending.lost

    def on_step(self, step: TrainingStep) -> None:
        """See a step that is done."""
        sent = self._sent.get(step.number, {})
        self._sent = {number: values for number, values in self._sent.items() if number > step.number}
        if not self._wanted(step.number):
            return
        noted = {"step": step.number, "loss": step.loss, "bytes_up": step.bytes_up, "bytes_down": step.bytes_down}
        rows = len(self._notes.get("step", []))
        for name, value in (noted | sent).items():
            column = self._notes.setdefault(name, [])
            column += [float("nan")] * (rows - len(column))  # a block that was not sent with every step
            column.append(value)
        for column in self._notes.values():
            column += [float("nan")] * (rows + 1 - len(column))

    def _wanted(self, number: int) -> bool:
        return bool(self.every) and number % self.every == 0

    def take(self) -> Notes:
        """Return the notes since they were taken last."""
        notes, self._notes = self._notes, {}
        return notes

    def state_dict(self) -> dict[str, Any]:
        """Return what is noted and not yet taken."""
        sent = {str(step): dict(values) for step, values in self._sent.items()}
        return {"notes": {name: list(column) for name, column in self._notes.items()}, "sent": sent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._notes = {name: [float(value) for value in column] for name, column in state["notes"].items()}
        self._sent = {int(step): dict(values) for step, values in state["sent"].items()}


def joined(parts: list[Notes]) -> Notes:
    """Return the notes of several records as one.

    >>> joined([{"step": [1.0], "lost": [0.5]}, {}, {"step": [2.0]}])
    {'step': [1.0, 2.0], 'lost': [0.5, nan]}
    """
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: [value for part in parts for value in part.get(name, [float("nan")] * len(part.get("step", [])))]
        for name in names
    }
