"""Where two nested tables of settings differ, and how an error says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

SECRET: Final = frozenset({"private_seed", "weights"})  # settings whose values are not shown
_HIDDEN: Final = "..."


def differences(left: Any, right: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Return where two nested tables differ, and what each has there.

    >>> list(differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}))
    [('b.c', 2, 3)]
    """
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}):
            yield from differences(left.get(key), right.get(key), f"{where}.{key:.40}" if where else f"{key:.40}")
    elif left != right:
        yield where, left, right


def changes(before: Any, now: Any) -> list[str]:
    """Say which settings have changed since a checkpoint was made; values that are secret are not in it.

    >>> changes({"batch_size": 64, "private_seed": 5}, {"batch_size": 128, "private_seed": 6})
    ['batch_size: 64 then, 128 now', 'private_seed']
    """
    return [
        where
        if where.rpartition(".")[2] in SECRET
        else f"{where}: {_without_secrets(old)!r:.80} then, {_without_secrets(new)!r:.80} now"
        for where, old, new in differences(_by_name(before), _by_name(now))
    ]


def _by_name(value: Any) -> Any:
    """Return a table in which a list of tables that have names, such as [[party]], is a table by name."""
    if isinstance(value, dict):
        return {key: _by_name(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in value):
            return {item["name"]: _by_name(item) for item in value}
        return list(value)  # JSON knows no tuples: the two are the same setting
    return value


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _HIDDEN if key in SECRET else _without_secrets(item) for key, item in value.items()}
    return [_without_secrets(item) for item in value] if isinstance(value, list | tuple) else value


def without_none(value: Any) -> Any:
    """Return a nested table without what is None, as a file has it that leaves it out.

    >>> without_none({"a": 1, "b": None, "c": [{"d": None}]})
    {'a': 1, 'c': [{}]}
    """
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list | tuple) else value
