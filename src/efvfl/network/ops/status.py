"""The status of a participant: a live line for people, lines of the log without a terminal, JSON lines, or nothing."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from rich.console import Console

from efvfl.network.ops.terminal_log import events, fields
from efvfl.runs.terminal import size
from efvfl.training.record import Record, finite_or_null

log = logging.getLogger("efvfl")

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
            log.info("%s", sentence(state), extra=fields(**state))

    def say(self, text: str, **more: Any) -> None:
        """Show an event."""
        if self.mode == "json":
            print(json.dumps(finite_or_null({"time": round(time.time(), 3), "event": text, **more})), flush=True)
        elif self.mode == "live":
            say(self.console, text, **more)

    def close(self) -> None:
        """Remove the live line."""
        if self._line:
            self._line.stop()


def say(console: Console, text: str, **more: Any) -> None:
    """Say something to whoever sits before a terminal; if nobody does, it is a line with its time."""
    if console.is_terminal:
        console.print(text, soft_wrap=True, highlight=False, markup=False)
    else:
        events.info("%s", text, extra=fields(**more))


def log_records(records: Iterable[Record], epochs: int) -> Iterator[Record]:
    """Yield the records of a run, each with a line in the log."""
    for record in records:
        scores = record.validation or record.train
        shown = "".join(f", {name} {value:.4f}" for name, value in scores.items())
        numbers: dict[str, Any] = {"epoch": record.epoch, "step": record.step, "seconds": record.seconds}
        numbers |= {"bytes_up": record.bytes_up, "bytes_down": record.bytes_down, "train": record.train}
        log.info(
            "epoch %d of %d: loss on surrogates %.4f%s",
            record.epoch,
            epochs,
            record.surrogate_loss,
            shown,
            extra=fields(**numbers, validation=record.validation, test=record.test),
        )
        yield record


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
