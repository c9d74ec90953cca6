"""Memories as a run file names them: a table with a name and knobs."""

from __future__ import annotations

from typing import Any

from efvfl.config.registered import made_from
from efvfl.core.memories import MEMORIES, ErrorFeedback, Memory, lookup


def memory_from(table: dict[str, Any]) -> Memory:
    """Make a memory from `{ name = ..., knobs }`; an empty table is error feedback (EF21)."""
    found: Memory | None = made_from(table, "memory", "{ name = 'momentum', eta = 0.5 }", MEMORIES, lookup)
    return ErrorFeedback() if found is None else found


def kind_of(table: dict[str, Any]) -> type[Memory]:
    """Return the class that a table names, as far as that is known without importing anything of yours: else EF21."""
    return MEMORIES.get(str(table.get("name", "")), ErrorFeedback)
