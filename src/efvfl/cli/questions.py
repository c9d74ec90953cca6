"""Questions at a terminal; where there is none, a flag or a default answers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from efvfl.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


class Questions:
    """Asks for what no flag has said."""

    def __init__(self, console: Console) -> None:
        """Ask at this console, if somebody sits there."""
        self._console = console
        self.possible = sys.stdin is not None and sys.stdin.isatty()

    def text(self, flag: str, given: str | None, question: str, default: str = "", known: str = "") -> str:
        """Return what was given with a flag, or an answer, or the default.

        If there is none, an error names the flag, and what may be given with it.
        """
        if given:
            return given
        if self.possible:
            shown = f" [{default}]" if default else ""
            self._console.print(f"{question}{shown}: ", end="", markup=False, highlight=False, emoji=False)
            default = sys.stdin.readline().strip() or default
        if not default:
            raise ConfigError(f"{question}? Give {flag}{f': {known}' if known else ''}.")
        return default

    def yes(self, question: str) -> bool:
        """Return whether somebody says yes; without a terminal nobody does."""
        if not self.possible:
            return False
        self._console.print(f"{question} [y/N]: ", end="", markup=False, highlight=False, emoji=False)
        return sys.stdin.readline().strip().lower() in ("y", "yes")
