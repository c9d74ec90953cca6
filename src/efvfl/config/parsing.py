"""Conversion of tables to dataclasses; unknown keys and wrong types are errors."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, time
from inspect import Parameter, signature
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from efvfl.compress.ramp import Ramp
from efvfl.errors import ConfigError, describe, nearest

Parsed = TypeVar("Parsed")

LARGEST = 1 << 64  # of whole numbers
DEEPEST = 16  # tables and lists in each other


def parse(text: str, where: str) -> dict[str, Any]:
    """Return the table in a text; `where` names the text in errors."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and thousands of brackets
        raise ConfigError(f"{where} is not TOML: {error}") from error
    _refuse_odd(table, Path(where).name)
    return table


def read(cls: type[Parsed], table: dict[str, Any], where: str) -> Parsed:
    """Return a dataclass made from a table; `where` names the table in errors.

    A class with a function `completed` has it add defaults that depend on what the table says.

    >>> read(Ramp, {"start": 0, "stop": 1, "steps": "5"}, "ramp")
    Traceback (most recent call last):
    efvfl.errors.ConfigError: ramp: steps: expected a whole number, got '5'.
    """
    table = getattr(cls, "completed", dict)(table)
    hints = get_type_hints(cls)
    known = {f.name: f for f in fields(cls) if f.init}  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}. {nearest(key, known)}")
    for name, f in known.items():
        if f.default is MISSING and f.default_factory is MISSING and name not in table:
            raise ConfigError(f"{where}: the key {name!r} is missing.")
    return cls(**{key: _value(hints[key], value, f"{where}: {key}") for key, value in table.items()})


def arguments(
    function: Callable[..., Any], table: dict[str, Any], where: str, leave: Collection[str] = ()
) -> dict[str, Any]:
    """Return a table as arguments of a function by their names, checked as `read` does; those to `leave` are none.

    >>> arguments(divmod, {"x": 7}, "options")
    Traceback (most recent call last):
    efvfl.errors.ConfigError: options: unknown key 'x'. Nothing can be set here.
    """
    try:
        hints = get_type_hints(function)
    except NameError:  # a user's function may be annotated with what only its type checker imports
        hints = {}
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    known = {name: p for name, p in signature(function).parameters.items() if p.kind in named and name not in leave}
    for key in table:
        if key not in known:
            advice = nearest(key, known) if known else "Nothing can be set here."
            raise ConfigError(f"{where}: unknown key {key!r}. {advice}")
    for name, parameter in known.items():
        if parameter.default is Parameter.empty and name not in table:
            raise ConfigError(f"{where}: the key {name!r} is missing.")
    return {
        key: _value(hints[key], value, f"{where}: {key}") if key in hints else value for key, value in table.items()
    }


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value in args:
            return value
        suggestion = nearest(str(value), [str(a) for a in args])
        raise ConfigError(f"{where}: unknown value {describe(value)}. {suggestion}")
    if origin in (Union, UnionType):
        if isinstance(value, dict) and (tables := [a for a in args if is_dataclass(a)]):
            return _value(tables[0], value, where)
        if isinstance(value, list) and (lists := [a for a in args if get_origin(a) is tuple]):
            return _value(lists[0], value, where)
        if any(get_origin(a) is Literal and value in get_args(a) for a in args if isinstance(value, str)):
            return value
        args = tuple(a for a in args if isinstance(a, type) and not is_dataclass(a))
        if any(_fits(a, value) for a in args):
            return value
    elif is_dataclass(hint) and isinstance(value, dict):
        return read(hint, value, where)  # type: ignore[arg-type]
    elif origin is tuple and isinstance(value, list):
        return tuple(_value(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    elif origin is dict and isinstance(value, dict):
        return value if args[1] is Any else {k: _value(args[1], v, f"{where}: {k}") for k, v in value.items()}
    elif isinstance(hint, type) and _fits(hint, value):
        return value
    raise ConfigError(f"{where}: expected {_name(hint)}, got {describe(value)}.")


def _refuse_odd(value: Any, where: str, depth: int = 0) -> None:
    """Refuse what TOML can say and no setting means, wherever it is: also in tables that are passed on as they are."""
    if isinstance(value, dict | list | tuple):
        if depth > DEEPEST:
            raise ConfigError(f"{where:.200}: expected at most {DEEPEST} tables and lists in each other, got more.")
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _refuse_odd(item, f"{where}: {key}" if isinstance(value, dict) else f"{where}[{key}]", depth + 1)
    elif isinstance(value, float) and not isfinite(value):
        raise ConfigError(f"{where}: expected a finite number, got {value}.")
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise ConfigError(f"{where}: expected a number within 64 bits, got {value.bit_length()} bits.")
    elif isinstance(value, date | time):
        raise ConfigError(f"{where}: expected no date or time, got {value}: write it as a string.")
    elif isinstance(value, str) and "\x00" in value:
        raise ConfigError(f"{where}: expected a text without null characters, got {value!r:.80}.")


def _fits(hint: type, value: Any) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _name(hint: Any) -> str:
    if hint is not Ramp and (is_dataclass(hint) or get_origin(hint) is dict):
        return "a table"
    if get_origin(hint) is tuple:
        return "a list"
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    names = {
        int: "a whole number",
        float: "a number",
        str: "a string",
        bool: "true or false",
        Ramp: "a ramp { start, stop, steps }",
    }
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_name(a) for a in get_args(hint))
    return names.get(hint, str(hint))
