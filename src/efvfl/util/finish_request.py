"""A request to end training here and keep the model: a file in a run's folder, which the process that trains takes.

So it needs no process number, which may be somebody else's by now, and it works for everyone who may write there.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from efvfl.util.files import write_atomically

NAME: Final = "finish"  # in a run's folder


class FinishRequest:
    """Whether somebody has asked the process that trains in a folder to finish."""

    def __init__(self, folder: Path, fresh: bool) -> None:
        """Look in a folder; a run that begins afresh forgets what was asked of another, one that goes on does it."""
        self.path = folder / NAME
        if fresh:
            self.take()

    def __bool__(self) -> bool:
        """Look whether it was asked: cheap enough for every step."""
        return self.path.exists()

    def take(self) -> None:
        """Take the request away: it is being done, or there is nothing left to end."""
        with contextlib.suppress(OSError):  # where nothing can be deleted, nothing can be saved either, which is said
            self.path.unlink(missing_ok=True)

    def taken(self) -> bool:
        """Look whether it was asked, and take it."""
        asked = bool(self)
        if asked:
            self.take()
        return asked


def ask(folder: Path) -> None:
    """Ask whoever trains in a folder to finish."""
    write_atomically(folder / NAME, b"")


def ask_and_wait(folder: Path, seconds: float) -> bool:
    """Ask, and return whether somebody has taken the request within so many seconds; else it is taken back."""
    path, ends = folder / NAME, time.monotonic() + seconds
    ask(folder)
    while path.exists():
        if time.monotonic() > ends:
            path.unlink(missing_ok=True)
            return False
        time.sleep(0.05)
    return True


@contextlib.contextmanager
def finish_on_signal(folder: Path) -> Iterator[None]:
    """Have SIGUSR1 ask this process to finish, within this context; not every system has that signal."""
    if not hasattr(signal, "SIGUSR1"):
        yield
        return

    def handle(number: int, frame: Any) -> None:
        with contextlib.suppress(OSError):
            (folder / NAME).touch(mode=0o600)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)
