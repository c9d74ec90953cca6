"""Alternating measurement of two or more things."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles

Sides = Mapping[str, Callable[[], object]]


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

    def over(self, other: Timing) -> Timing:
        """Return the ratio to another thing, round by round: what slowed a whole round slowed both."""
        return Timing([a / b for a, b in zip(self.samples, other.samples, strict=True)])


def alternate(
    sides: Sides, rounds: int, inner: int = 1, warm: int = 3, threads: Mapping[str, int] | None = None
) -> dict[str, Timing]:
    """Run each side `inner` times in turn, `rounds` times over, and return milliseconds a call.

    A side may have a number of torch threads of its own.
    """
    threads = threads or {}
    for name, side in sides.items():
        _use(threads.get(name))
        for _ in range(warm):
            side()
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            _use(threads.get(name))
            samples[name].append(milliseconds(side, inner))
    return {name: Timing(values) for name, values in samples.items()}


def best_threads(sides: Sides, inner: int = 1, tries: int = 2) -> dict[str, int]:
    """Return with how many threads each side was faster, one or as many as cores: each is to be seen at its best."""
    found: dict[str, dict[int, float]] = {name: {} for name in sides}
    for threads in sorted({1, os.cpu_count() or 1}):
        _use(threads)
        for name, side in sides.items():
            side()
            found[name][threads] = min(milliseconds(side, inner) for _ in range(tries))
    return {name: min(times, key=times.__getitem__) for name, times in found.items()}


def _use(threads: int | None) -> None:
    if threads:
        import torch

        torch.set_num_threads(threads)


def milliseconds(side: Callable[[], object], inner: int) -> float:
    """Return milliseconds a call, of `inner` calls in a row."""
    started = time.perf_counter()
    for _ in range(inner):
        side()
    return 1e3 * (time.perf_counter() - started) / inner
