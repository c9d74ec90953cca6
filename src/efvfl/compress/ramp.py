"""Knobs that change over the run: a compressor's `ratio` may be a number or a `Ramp` over steps.

CVFL converges only if its compression vanishes (alpha goes to 1), so the baseline needs this; EF-VFL does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from efvfl.errors import ConfigError, whole


@dataclass(frozen=True)
class Ramp:
    """A knob that goes from `start` to `stop` within `steps` steps, and stays there."""

    start: float
    stop: float
    steps: int
    shape: Literal["linear", "geometric"] = "linear"  # geometric: the same factor every step

    def __post_init__(self) -> None:
        """Refuse ramps that have no value at some step."""
        if whole("a ramp's steps", self.steps) < 1:
            raise ConfigError(f"a ramp of {self.steps} steps came, at least 1 is expected.")
        if self.shape not in ("linear", "geometric"):
            raise ConfigError(f"ramp shape {self.shape!r} came, 'linear' or 'geometric' is expected.")
        if self.shape == "geometric" and min(self.start, self.stop) <= 0:
            raise ConfigError(f"a geometric ramp needs positive ends, but {self.start} to {self.stop} came.")

    def at(self, step: int) -> float:
        """Return the value at a step."""
        if step >= self.steps:
            return float(self.stop)  # as it is written: the formulas may miss it by a rounding
        share = max(step, 0) / self.steps
        if self.shape == "linear":
            return self.start + share * (self.stop - self.start)
        return float(self.start * (self.stop / self.start) ** share)


Knob = float | Ramp
