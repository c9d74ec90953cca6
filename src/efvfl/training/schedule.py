"""After which steps a run is looked at, and how many steps are under way until then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The rhythm of a run. While it is looked at, nothing is under way."""

    per_epoch: int  # steps
    epochs: int
    every: int  # epochs between two records
    window: int = 1  # steps under way at a time; above 1, parties report on later steps before one is answered
    end: int = 0  # the number of steps after which somebody wants it to end, perhaps within an epoch; 0: nobody does

    @property
    def steps(self) -> int:
        """How many steps the run has."""
        whole = self.epochs * self.per_epoch
        return min(whole, self.end) if self.end else whole

    def observed(self, step: int) -> bool:
        """Whether a record follows a step."""
        epoch, rest = divmod(step + 1, self.per_epoch)
        return step + 1 == self.steps or (rest == 0 and epoch % self.every == 0)

    def hold(self, step: int) -> bool:
        """Whether the answer to a step asks for no further report: the next one due comes after a record."""
        return any(self.observed(step + ahead) for ahead in range(self.window))

    def begins(self, step: int) -> int:
        """Return how many steps begin at once where nothing is under way, this one included."""
        return next((ahead + 1 for ahead in range(self.window) if self.observed(step + ahead)), self.window)
