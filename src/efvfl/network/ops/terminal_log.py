"""Log lines on a terminal or in a service's journal, without what a peer may have put in them to control it."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.logging import RichHandler

from efvfl.errors import printable


class PrintableFilter(logging.Filter):
    """Makes every line printable, whoever wrote its parts."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace control characters in a record; none is left out."""
        record.msg, record.args = printable(record.getMessage()), None
        return True


def log_handler(live: bool) -> logging.Handler:
    """Return what shows log lines on stderr: with times and colours for people, plain for services."""
    handler = RichHandler(console=Console(stderr=True), show_path=False) if live else logging.StreamHandler()
    handler.addFilter(PrintableFilter())
    return handler
