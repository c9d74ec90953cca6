"""Valid bytes, changed a little: what hypothesis draws for the fuzzers, and shrinks when something is found.

To draw takes longer than to read what was drawn, so every draw is a few inputs: the same edits at several places.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from efvfl.wire.packet import number

EDITS = ("flip", "set", "cut", "drop", "repeat", "splice", "number", "insert")
# Numbers that end a range somewhere, as they are written on the wire.
NUMBERS = tuple(number(n) for n in (0, 1, 2, 127, 128, 255, 1 << 16, 1 << 20, 1 << 26, 1 << 31, 1 << 48, (1 << 63) - 1))
ODD_JSON: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, 1e308, 10**30, "", "x", "\x00", "\ud800", "é" * 300, "x" * 3000),
    *([], {}, [[]], [{}], [None], {"": None}, [1, "a"], {"a": {"b": []}}, [0] * 300),
)

Edit = tuple[str, int, int]
VARIANTS = 16


def edited(data: bytes, edits: Sequence[Edit], others: Sequence[bytes]) -> bytes:
    """Return the data after some edits, each at a place and with a value."""
    for kind, place, value in edits:
        at = place % (len(data) + 1)
        head, tail = data[:at], data[at:]
        match kind:
            case "flip":
                data = head + bytes((tail[0] ^ 1 << value % 8,)) + tail[1:] if tail else data
            case "set":
                data = head + bytes((value % 256,)) + tail[1:]
            case "cut":
                data = head
            case "drop":
                data = head + tail[1 + value % 8 :]
            case "repeat":
                data = head + tail[: 1 + value % 16] * 2 + tail[1 + value % 16 :]
            case "splice":
                other = others[value % len(others)]
                data = head + other[value % (len(other) + 1) :]
            case "number":
                data = head + NUMBERS[value % len(NUMBERS)] + tail[1:]
            case "insert":
                data = head + bytes((value % 256,)) * (1 + value % 3) + tail
    return data


def mutated(seeds: Sequence[bytes]) -> SearchStrategy[list[bytes]]:
    """Valid bytes with a few edits; now and then bytes that were never valid."""
    edit = st.tuples(st.sampled_from(EDITS), st.integers(0, 1 << 16), st.integers(0, 1 << 16))
    scripts = st.lists(edit, min_size=1, max_size=5)
    changed = st.builds(lambda seed, script: _variants(seed, script, seeds), st.sampled_from(seeds), scripts)
    return st.one_of(*[changed] * 7, st.binary(max_size=60).map(lambda data: [data]))


def _variants(seed: bytes, script: Sequence[Edit], others: Sequence[bytes]) -> list[bytes]:
    moved = ([(kind, place + 7 * i, value + 3 * i) for kind, place, value in script] for i in range(VARIANTS))
    return [edited(seed, edits, others) for edits in moved]


def odd_json(seeds: Sequence[Any]) -> SearchStrategy[list[bytes]]:
    """Valid JSON in which something, somewhere, is replaced by something odd; or its bytes edited."""
    texts = [json.dumps(seed).encode() for seed in seeds]
    changes = st.lists(st.tuples(st.integers(0, 1 << 16), st.sampled_from(ODD_JSON)), min_size=1, max_size=3)
    replaced = st.builds(_odd_variants, st.sampled_from(seeds), changes)
    return st.one_of(replaced, replaced, mutated(texts))


def _odd_variants(seed: Any, changes: Sequence[tuple[int, Any]]) -> list[bytes]:
    moved = ([(choice + i, value) for choice, value in changes] for i in range(VARIANTS))
    return [json.dumps(_replaced(seed, each)).encode() for each in moved]


def _replaced(table: Any, changes: Sequence[tuple[int, Any]]) -> Any:
    table = copy.deepcopy(table)
    for choice, value in changes:
        places = list(_places(table))
        if not places:
            return value
        holder, key = places[choice % len(places)]
        holder[key] = copy.deepcopy(value)
    return table


def _places(table: Any) -> list[tuple[Any, Any]]:
    """Return every place in a table or a list, and in those in it."""
    keys: list[Any] = (
        list(table) if isinstance(table, dict) else list(range(len(table))) if isinstance(table, list) else []
    )
    found = [(table, key) for key in keys]
    return found + [place for key in keys for place in _places(table[key])]
