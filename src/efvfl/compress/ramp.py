"""Parameters that change during the run: a compressor's `ratio` may be a number or a `Ramp` over steps.

CVFL converges only if its compression vanishes (alpha goes to 1), so the baseline needs this; EF-VFL does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from efvfl.errors import ConfigError, describe, whole_number

Way = Callable[[float], float]  # from the share of the steps that are done, 0 and more, to the share of the way

WAYS: dict[str, Way] = {
    "linear": lambda done: min(done, 1.0),
    "geometric": lambda done: min(done, 1.0),  # of the logarithm
    "inverse_sqrt": lambda done: 1 - 1 / math.sqrt(1 + done),
    "inverse": lambda done: 1 - 1 / (1 + done),
}


@dataclass(frozen=True)
class Ramp:
    """A parameter that goes from `start` to `stop` within `steps` steps, and then stays there.

    With the shape 'inverse_sqrt' or 'inverse' it never arrives: what is left of the way falls like 1 / sqrt(t) or
    1 / t, and `steps` is the time scale. Your own shape is a function from t / steps to the share of the way, from 0 to
    1; in a run file its name, "package.module:function". Both ends compute the same from the step.

    >>> ramp = Ramp(start=0.1, stop=0.5, steps=4)
    >>> [round(ramp.at(step), 2) for step in (0, 1, 2, 4, 100)]
    [0.1, 0.2, 0.3, 0.5, 0.5]
    >>> ramp = Ramp(start=0.1, stop=1.0, steps=10, shape="inverse_sqrt")
    >>> [round(1 - ramp.at(step), 2) for step in (0, 30, 990)]
    [0.9, 0.45, 0.09]
    """

    start: float
    stop: float
    steps: int
    shape: str | Way = (
        "linear"  # or geometric (a constant factor per step), inverse_sqrt, inverse, or your own function
    )

    def __post_init__(self) -> None:
        """Check that the ramp has a value at every step."""
        whole_number("a ramp's steps", self.steps, least=1)
        own = callable(self.shape) or (isinstance(self.shape, str) and ":" in self.shape)
        if not own and (not isinstance(self.shape, str) or self.shape not in WAYS):
            raise ConfigError(
                f"expected a ramp's shape {', '.join(map(repr, WAYS))} or a function, got {describe(self.shape)}."
            )
        if self.shape == "geometric" and min(self.start, self.stop) <= 0:
            raise ConfigError(f"expected positive ends of a geometric ramp, got {self.start} and {self.stop}.")

    def at(self, step: int) -> float:
        """Return the value at a step."""
        if step >= self.steps and self.shape in ("linear", "geometric"):
            return float(self.stop)  # exactly: the formulas may be off by a rounding error
        share = self._share(max(step, 0) / self.steps)
        if self.shape == "geometric":
            return float(self.start * (self.stop / self.start) ** share)
        return float(self.start + share * (self.stop - self.start))

    def _share(self, done: float) -> float:
        if isinstance(self.shape, str):
            if self.shape not in WAYS:
                raise ConfigError(f"the ramp's shape {self.shape!r} was not imported: give the function itself.")
            return WAYS[self.shape](done)
        share: object = self.shape(done)
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ConfigError(f"a ramp's own shape: expected a share from 0 to 1 at {done:g}, got {describe(share)}.")
        return share


Knob = float | Ramp
