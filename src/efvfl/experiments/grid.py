"""`[grid]` of an experiment file: every combination of some values of any keys of a run file, for every run."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from efvfl.errors import ConfigError, describe

MOST = 10_000  # cells of an experiment


@dataclass(frozen=True)
class Point:
    """One combination: a value for each key, as a path of names, and what it is called."""

    values: Mapping[tuple[str, ...], Any]
    label: str  # empty: nothing varies

    def put_into(self, table: dict[str, Any], where: str) -> dict[str, Any]:
        """Return settings with these values."""
        made = copy.deepcopy(table)
        for path, value in self.values.items():
            below = made
            for i, key in enumerate(path[:-1]):
                below = below.setdefault(key, {})
                if not isinstance(below, dict):
                    raise ConfigError(
                        f"{where}: grid: {'.'.join(path)} needs a table at {'.'.join(path[: i + 1])}, got "
                        f"{describe(below)}: vary that key as a whole."
                    )
            below[path[-1]] = copy.deepcopy(value)
        return made


def points(grid: Mapping[str, Any], where: str) -> list[Point]:
    """Return all combinations, the last key varying fastest; of an empty grid one that changes nothing.

    >>> [point.label for point in points({"batch_size": [32, 64], "optimizer": {"lr": [0.1]}}, "mine")]
    ['batch_size = 32, lr = 0.1', 'batch_size = 64, lr = 0.1']
    """
    axes = list(_axes(grid, (), where))
    if ("seed",) in (path for path, _ in axes):
        raise ConfigError(f"{where}: grid: seed: list seeds as `seeds`, over which the table takes means.")
    found: list[Point] = []
    for values in itertools.product(*(values for _, values in axes)):
        if len(found) >= MOST:
            raise ConfigError(f"{where}: grid: expected at most {MOST:,} combinations, got more.")
        chosen = dict(zip((path for path, _ in axes), values, strict=True))
        found.append(Point(chosen, ", ".join(f"{_short(path, chosen)} = {_text(v)}" for path, v in chosen.items())))
    if len({point.label for point in found}) < len(found):
        raise ConfigError(f"{where}: grid: expected different values of a key, got some twice.")
    return found


def has(table: Any, path: tuple[str, ...]) -> bool:
    """Whether settings have a value at a path of names."""
    for key in path:
        if not isinstance(table, dict) or key not in table:
            return False
        table = table[key]
    return True


def _axes(grid: Mapping[str, Any], before: tuple[str, ...], where: str) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    for key, value in grid.items():
        path = (*before, key)
        if isinstance(value, dict):
            yield from _axes(value, path, where)
        elif not isinstance(value, list) or not value:
            raise ConfigError(
                f"{where}: grid: {'.'.join(path)}: expected a list of values, got {describe(value)}: write "
                f"{'.'.join(path)} = [...]."
            )
        else:
            yield path, value


def _short(path: tuple[str, ...], others: Mapping[tuple[str, ...], Any]) -> str:
    """Return the last name of a key, or all of them where another key ends alike."""
    alone = sum(other[-1] == path[-1] for other in others) == 1
    return path[-1] if alone else ".".join(path)


def _text(value: Any) -> str:
    """Return a value as a table's heading has it.

    >>> _text({"name": "topk", "ratio": 0.1}), _text([64, 32]), _text(True)
    ('topk (ratio 0.1)', '64 x 32', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " x ".join(map(_text, value)) if value else "none"
    if isinstance(value, dict):
        rest = ", ".join(f"{key} {_text(item)}" for key, item in value.items() if key != "name")
        name = str(value.get("name", ""))
        return (f"{name} ({rest})" if rest and name else name or rest) or "none"
    return str(value)


def in_file_names(name: str) -> str:
    """Return a name of a cell as names of files can have it.

    >>> in_file_names("efvfl, lr = 0.1, name = mine.nets:Net/2")
    'efvfl-lr=0.1-name=mine.nets:Net_2'
    """
    return name.replace(", ", "-").replace(" = ", "=").replace("/", "_").replace("\\", "_").replace(" ", "")
