"""Alternating measurement of two or more things."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one thing."""

    samples: list[float]

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.samples)

    @property
    def spread(self) -> float:
        """The interquartile range over the median."""
        low, _, high = quantiles(self.samples, n=4)
        return (high - low) / self.middle


def alternate(sides: dict[str, Callable[[], object]], rounds: int, inner: int = 1, warm: int = 3) -> dict[str, Timing]:
    """Run each side `inner` times in turn, `rounds` times over, and return milliseconds a call."""
    for side in sides.values():
        for _ in range(warm):
            side()
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            started = time.perf_counter()
            for _ in range(inner):
                side()
            samples[name].append(1e3 * (time.perf_counter() - started) / inner)
    return {name: Timing(values) for name, values in samples.items()}
