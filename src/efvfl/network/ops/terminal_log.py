"""Log lines on stderr: for people at a terminal, plain lines for files and journals, JSON for programs.

A plain line is `TIME LEVEL EVENT`, with the time in UTC as ISO 8601 has it; a line of JSON has `time`, `level`, `event`
and what else is known, by name: `log.info("...", extra=fields(step=3))`. What a peer may have put into a text to
control a terminal is replaced. Nothing is wrapped or cut.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from rich.console import Console
from rich.logging import RichHandler

from efvfl.errors import printable
from efvfl.training.record import finite_or_null

LogForm = Literal["auto", "plain", "json"]  # auto: for people if stderr is a terminal, else plain

events = logging.getLogger("efvfl.events")  # what a command has to say, if nobody sits before it; see `start`


def fields(**values: Any) -> dict[str, Any]:
    """Return what a log line knows beside its text, as `extra` of a logger takes it; lines of JSON have it."""
    return {"fields": values}


class PrintableFilter(logging.Filter):
    """Makes every line printable, whoever wrote its parts."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace control characters in a record; none is left out."""
        record.msg, record.args = printable(record.getMessage()), None
        return True


class PlainFormatter(logging.Formatter):
    """Writes `TIME LEVEL EVENT`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        return f"{iso_time(record.created)} {record.levelname} {record.getMessage()}"


class JsonFormatter(logging.Formatter):
    """Writes an object of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        return as_json(record.levelname, record.getMessage(), getattr(record, "fields", {}), record.created)


def iso_time(seconds: float) -> str:
    """Return a time as ISO 8601 writes it, in UTC.

    >>> iso_time(1e9)
    '2001-09-09T01:46:40.000Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_json(level: str, event: str, more: Mapping[str, Any], seconds: float) -> str:
    """Return a line of the log as JSON."""
    line = {"time": iso_time(seconds), "level": level.lower(), "event": event}
    return json.dumps(
        finite_or_null(line | {key: value for key, value in more.items() if key not in line}), default=str
    )


class StdoutHandler(logging.Handler):
    """Prints lines, wherever stdout leads by then."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        print(self.format(record), flush=True)


def start(form: LogForm = "auto", live: bool = True) -> None:
    """Have log lines of this process shown on stderr, for people only where it is `live`.

    A process that has been told where its logs go keeps to that. What a command has to say goes to stdout in plain
    form, or with the log if that is JSON.
    """
    root = logging.getLogger()
    if not root.handlers:
        root.setLevel(logging.INFO)
        root.addHandler(log_handler(form, live))
        logging.captureWarnings(True)
    handler = StdoutHandler()
    handler.setFormatter(PlainFormatter())
    handler.addFilter(PrintableFilter())
    events.setLevel(logging.INFO)
    events.handlers[:] = [] if form == "json" else [handler]
    events.propagate = form == "json"


def log_handler(form: LogForm = "auto", live: bool = True) -> logging.Handler:
    """Return what shows log lines on stderr."""
    handler: logging.Handler = logging.StreamHandler()
    console = Console(stderr=True)
    if form == "auto" and live and console.is_terminal:
        handler = RichHandler(console=console, show_path=False)
    else:
        handler.setFormatter(JsonFormatter() if form == "json" else PlainFormatter())
    handler.addFilter(PrintableFilter())
    return handler
