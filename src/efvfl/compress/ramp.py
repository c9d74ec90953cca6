"""Parameters that change during the run: a compressor's `ratio` may be a number or a `Ramp` over steps.

CVFL converges only if its compression vanishes (alpha goes to 1), so the baseline needs this; EF-VFL does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from efvfl.errors import ConfigError, whole_number


@dataclass(frozen=True)
class Ramp:
    """A parameter that goes from `start` to `stop` within `steps` steps, and then stays there.

    >>> ramp = Ramp(start=0.1, stop=0.5, steps=4)
    >>> [round(ramp.at(step), 2) for step in (0, 1, 2, 4, 100)]
    [0.1, 0.2, 0.3, 0.5, 0.5]
    """

    start: float
    stop: float
    steps: int
    shape: Literal["linear", "geometric"] = "linear"  # geometric: a constant factor per step

    def __post_init__(self) -> None:
        """Check that the ramp has a value at every step."""
        whole_number("a ramp's steps", self.steps, least=1)
        if self.shape not in ("linear", "geometric"):
            raise ConfigError(f"expected a ramp's shape 'linear' or 'geometric', got {self.shape!r}.")
        if self.shape == "geometric" and min(self.start, self.stop) <= 0:
            raise ConfigError(f"expected positive ends of a geometric ramp, got {self.start} and {self.stop}.")

    def at(self, step: int) -> float:
        """Return the value at a step."""
        if step >= self.steps:
            return float(self.stop)  # exactly: the formulas may be off by a rounding error
        share = max(step, 0) / self.steps
        if self.shape == "linear":
            return self.start + share * (self.stop - self.start)
        return float(self.start * (self.stop / self.start) ** share)


Knob = float | Ramp
