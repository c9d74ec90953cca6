"""What training in a participant's folder began with: later alignments and other runs do not change it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from efvfl.errors import DataError
from efvfl.network.align.alignments import Alignments
from efvfl.network.training.autosave import CHECKPOINT
from efvfl.util import checkpoint
from efvfl.util.files import write_atomically

FILE: Final = "began.json"  # in a participant's folder


@dataclass(frozen=True)
class Beginning:
    """The rows and the parameters of a run's first step."""

    alignment: int = 0  # the number of the list of rows; 0: there is none
    start: dict[str, str] = field(default_factory=dict)  # warm start: identities of the trained run, by party

    def identity(self) -> dict[str, Any]:
        """Return what the checkpoint and the handshake say of it; nothing where there is nothing special."""
        return {name: value for name, value in asdict(self).items() if value}

    def save(self, home: Path) -> None:
        """Write it down before the first step."""
        write_atomically(home / FILE, (json.dumps(asdict(self)) + "\n").encode())


def has_begun(home: Path) -> bool:
    """Whether there is a checkpoint to go on from; without one, all is as at the first start."""
    return checkpoint.exists(home / CHECKPOINT)


def load(home: Path) -> Beginning | None:
    """Return what training in a folder began with; None if it has not begun."""
    if not has_begun(home):
        return None
    path = home / FILE
    if not path.exists():  # release 0.2 had one list and nothing else
        return Beginning(min(Alignments(home).numbers(), default=0))
    try:
        found = Beginning(**json.loads(path.read_text(encoding="utf-8")))
        texts = [*found.start, *found.start.values()]
        if type(found.alignment) is not int or not all(isinstance(text, str) for text in texts):
            raise ValueError("expected a number and texts")
    except (OSError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"cannot go on with {path}, which says what training began with: {error}. Put a good copy back, or start "
            "all anew in empty folders."
        ) from error
    return found
