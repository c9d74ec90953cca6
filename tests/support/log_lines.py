"""Log lines of a command that runs in the process of the tests."""

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

from efvfl.network.ops.terminal_log import events

PLAIN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) \S.*")


@contextlib.contextmanager
def logging_as_a_command() -> Iterator[None]:
    """Let a command decide where its log lines go: otherwise it keeps to what pytest has told the process."""
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    level, said, handed_on = root.level, events.handlers[:], events.propagate
    root.handlers.clear()
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers[:], events.handlers[:], events.propagate = before, said, handed_on
        root.setLevel(level)


def objects(text: str) -> list[dict[str, Any]]:
    """The lines of a log in JSON; every one must be whole, and have a time, a level and an event."""
    lines = [json.loads(line) for line in text.splitlines()]
    assert all(re.fullmatch(r".*T.*Z", line["time"]) and line["level"] and line["event"] for line in lines)
    return lines
