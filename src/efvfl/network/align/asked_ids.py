"""How many ids the label holder has tested against a party, in all alignments together, and how many it may.

A new salt is a new alignment to the party, so the size of one question bounds nothing: only the sum does.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final

from efvfl.config.run_file import RunConfig
from efvfl.errors import CheckpointError, LimitError
from efvfl.network.align import psi, sizes
from efvfl.util.files import write_atomically

log = logging.getLogger("efvfl")

COUNT: Final = "align.json"
ALIGNMENTS: Final = 3  # that the limit has room for if the file leaves it out: participants are killed and start again


class AskedIds:
    """The count, on disk, and its limit."""

    def __init__(self, config: RunConfig, name: str, held: int, folder: Path) -> None:
        """Count for a party that holds so many ids; `config` is its own file."""
        self.config = config
        self.name = name
        self.held = held
        self._path = folder / COUNT
        self._chosen = config.of(name).limits.rows  # None: left out
        self._salt = b""
        try:
            table = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {"tested": 0}
            self.tested = int(table["tested"])
            self.size = int(table.get("size", 0))  # of the label holder's table when it was first counted; 0: not yet
            self.newest_size = int(table.get("newest", self.size))  # when it was last counted
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"cannot read {self._path}: {error}. It counts the ids that were tested so far."
            ) from error

    @property
    def limit(self) -> int:
        """How many may be tested in total; 0: no limit."""
        return ALIGNMENTS * self._cost() if self._chosen is None else self._chosen

    def _cost(self) -> int:
        """Return what one alignment counts if the label holder brings what was announced, or what it first said."""
        if self.config.data.align == "none":
            return 1
        if self.config.data.align == "hash":
            return self.held + 1
        size = sizes.announced(self.config, "") or self.size
        shards = psi.shards_for(size, self.held)
        return shards * psi.holder_points(size, shards) + 1

    def add(self, salt: bytes, more: int, size: int = 0) -> None:
        """Count so many more under a salt, of a label holder that brings so many ids; refuse what is too many."""
        self.size, self.newest_size = self.size or size, size or self.newest_size
        tested, limit = self.tested + more, self.limit
        if limit and tested > limit:
            why = f", the default for {ALIGNMENTS} alignments" if self._chosen is None else ""
            raise LimitError(
                f"the label holder tests {tested:,} ids in total, but limits.rows of {self.name} allows {limit:,}{why}"
                ": ask its people why; to allow more, set limits.rows in your own file."
            )
        # On disk before the answer is sent: a crash must not lose it.
        write_atomically(
            self._path, json.dumps({"tested": tested, "size": self.size, "newest": self.newest_size}).encode()
        )
        self.tested = tested
        if salt != self._salt:
            self._salt = salt
            allowed = f"the {limit:,} that limits.rows allows" if limit else "any number: limits.rows is 0"
            log.info("the label holder has now tested %s points of %s.", f"{tested:,}", allowed)
