"""`pipeline = "auto"`: the server tries how many steps are best under way on this line, and keeps to it.

The windows take turns over the first steps of a run, a fixed number of steps each, so that which window a step had does
not depend on any clock: a server that restarts from a checkpoint does the same again. The choice does depend on one.
Whoever keeps the trial must therefore have it on disk before a message follows from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from efvfl.core.agreement import AUTO_WINDOWS

STEPS = 32  # of a run that each window is tried for
NEARLY = 1.1  # a window this much slower than the fastest is as good: fewer steps under way are less stale


class WindowTrial:
    """Times every window in turn, and then chooses one.

    A window's time is that from a step's answer to the report that this answer asked for, divided by the window: so
    many steps are done meanwhile. A single step would say little, because steps under way end in bursts.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start with nothing measured."""
        self.clock = clock
        self.chosen = 0  # 0: not yet
        self._asked: dict[int, tuple[float, int]] = {}  # by step: when its reports were asked for, and the window then
        self._seconds: dict[int, list[float]] = {}  # for a step, by window

    def window(self, step: int) -> int:
        """Return how many steps are under way when a step is answered."""
        return self.chosen or AUTO_WINDOWS[min(step // STEPS, len(AUTO_WINDOWS) - 1)]

    def due(self, step: int) -> bool:
        """Whether all windows were tried, and none is chosen yet."""
        return not self.chosen and step >= STEPS * len(AUTO_WINDOWS)

    def answered(self, step: int, reports: int) -> None:
        """Note that a step was answered just now, and how many reports are under way since."""
        if self.chosen:
            return
        now, window = self.clock(), self.window(step)
        if step in self._asked:
            before, asked_with = self._asked.pop(step)
            self._seconds.setdefault(asked_with, []).append((now - before) / asked_with)
        if reports == window:  # else none was asked for: a record is near, before which everything is answered
            self._asked[step + window] = (now, window)

    @property
    def medians(self) -> dict[int, float]:
        """Seconds for a step, by window. Those that no stretch between two records was long enough for are left out."""
        return {window: median(found) for window, found in sorted(self._seconds.items())}

    def choose(self) -> str:
        """Choose the smallest window that is nearly as fast as the fastest; return a sentence about it."""
        times = self.medians
        if not times:
            self.chosen = 1
            return (
                "pipeline: chose 1: records leave no steps between them that could overlap. To pin it: pipeline = 1; "
                "to overlap steps, raise observe_every."
            )
        self.chosen = min(window for window, seconds in times.items() if seconds <= NEARLY * min(times.values()))
        tried = ", ".join(f"{1e3 * seconds:.1f} ms with {window}" for window, seconds in times.items())
        return (
            f"pipeline: chose {self.chosen} (a step takes {tried}). To pin it: pipeline = {self.chosen} in all files."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the choice and what it is made from; the clock of another process would be of no use."""
        return {"chosen": self.chosen, "seconds": [[window, *found] for window, found in self._seconds.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.chosen, self._asked = int(state["chosen"]), {}
        self._seconds = {int(window): list(map(float, found)) for window, *found in state["seconds"]}
