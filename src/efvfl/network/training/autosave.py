"""When a participant saves itself, and how it goes on from what it saved."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from efvfl.config.run_file import NetworkConfig
from efvfl.errors import CheckpointError
from efvfl.util import checkpoint, nested

CHECKPOINT = "checkpoint.safetensors"  # in a participant's folder
VERSION = 4  # of a checkpoint's layout


class CheckpointPolicy:
    """Says when a checkpoint is due: after so many steps or seconds, as the file says."""

    def __init__(self, config: NetworkConfig | None = None) -> None:
        """Count from now."""
        self.config = config or NetworkConfig()
        self._last = time.monotonic()

    def due(self, steps: int) -> bool:
        """Whether so many steps, or the time since the last checkpoint, are enough."""
        return steps >= self.config.save_steps or time.monotonic() - self._last >= self.config.save_seconds

    def done(self) -> None:
        """Count from now on."""
        self._last = time.monotonic()


def save_own(path: Path, about: dict[str, Any], state: dict[str, Any]) -> None:
    """Write a participant's own checkpoint, with the settings and rows it was made with; the one before it is kept."""
    checkpoint.save(path, {"version": VERSION, "about": about, **state}, keep=True)


def load_own(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Read a participant's own checkpoint, if it was made with the settings and rows it has now.

    One that is damaged is set aside, and the one before it is read: the others keep what is needed to go on from that.
    """
    state = checkpoint.load_kept(path)
    if state.get("version") != VERSION:
        raise CheckpointError(
            f"{path} was left by another version of efvfl: go on with that one at all participants, or start anew in "
            "an empty folder together with the others."
        )
    if changes := list(_changes(state.get("about", {}), about)):
        raise CheckpointError(
            f"{path} was made with other settings or rows ({'; '.join(changes)}): restore them, or start anew in an "
            "empty folder together with the others."
        )
    return state


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Say what has changed: settings with both values, but for those that are secret or too long to compare by eye."""
    for key in now:
        if before.get(key) == now[key] or (key == "own" and not (before.get(key) and now[key])):
            continue  # parties did not always write down settings of their own
        if key in ("shared", "own"):
            yield from nested.changes(before.get(key), now[key])
        elif key != "digest":  # which is that of the shared settings
            yield key
