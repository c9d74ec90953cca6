"""A count in a file of its own, which a crash cannot set back."""

from __future__ import annotations

import json
from pathlib import Path

from efvfl.errors import CheckpointError
from efvfl.util.files import write_atomically


class DurableCount:
    """A whole number that only grows; the disk has it before `add` returns."""

    def __init__(self, path: Path) -> None:
        """Go on from what the file says, or from 0 if there is none."""
        self.path = path
        try:
            self.value = int(json.loads(path.read_text(encoding="utf-8"))["count"]) if path.exists() else 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"cannot read {path}: {error}. It counts what was given away so far: restore it from a backup."
            ) from error

    def add(self, more: int) -> None:
        """Count so many more."""
        write_atomically(self.path, json.dumps({"count": self.value + more}).encode())
        self.value += more
