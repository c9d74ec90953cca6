"""The status of a participant: a live line for people, JSON lines for services, or nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

from rich.console import Console

from efvfl.runs.terminal import size
from efvfl.training.record import finite_or_null

Mode = Literal["live", "json", "quiet"]


class StatusLine:
    """Shows the state of a process, a few times a second at most."""

    def __init__(self, mode: Mode, console: Console, state: Callable[[], dict[str, Any]]) -> None:
        """Show what `state` returns, whenever it is time."""
        self.mode = mode
        self.console = console
        self.state = state
        # On a terminal the line is redrawn; in a file, a line every ten seconds is enough.
        self.interval = 0.25 if mode == "live" and console.is_terminal else 10.0 if mode == "live" else 1.0
        self._line = console.status("starting", spinner="dots") if mode == "live" and console.is_terminal else None
        self._last = 0.0
        if self._line:
            self._line.start()

    def __call__(self) -> None:
        """Show the state if it is time; cheap enough to call often."""
        now = time.monotonic()
        if self.mode == "quiet" or now - self._last < self.interval:
            return
        self._last = now
        state = self.state()
        if self.mode == "json":
            print(json.dumps(finite_or_null({"time": round(time.time(), 3), **state})), flush=True)
        elif self._line:
            self._line.update(sentence(state))
        else:
            print(sentence(state), file=sys.stderr, flush=True)

    def say(self, text: str, **more: Any) -> None:
        """Show an event."""
        if self.mode == "json":
            print(json.dumps(finite_or_null({"time": round(time.time(), 3), "event": text, **more})), flush=True)
        elif self.mode == "live":
            self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def close(self) -> None:
        """Remove the live line."""
        if self._line:
            self._line.stop()


def sentence(state: dict[str, Any]) -> str:
    """Return a state as one line."""
    parts = [f"step {state['step']:,}"]
    if "steps" in state:
        parts[0] += f" of {state['steps']:,}"
    if state.get("loss") is not None:
        parts.append(f"loss {state['loss']:.4f}")
    parts.append(f"out {size(state['bytes_out'])}, in {size(state['bytes_in'])}")
    total = sum(state[key] for key in ("compute", "codec", "waiting")) or 1.0
    parts.append(", ".join(f"{key} {state[key] / total:.0%}" for key in ("compute", "codec", "waiting")))
    if state.get("missing"):
        parts.append("missing: " + ", ".join(f"{name} for {age:,.0f} s" for name, age in state["missing"].items()))
    elif state.get("connected") is False:
        parts.append("no link to the server")
    return " · ".join(parts)
