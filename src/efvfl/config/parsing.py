"""Tables to dataclasses, with every key known and every type right."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from efvfl.compress.ramp import Ramp
from efvfl.errors import ConfigError, nearest

Made = TypeVar("Made")


def read(cls: type[Made], table: dict[str, Any], where: str) -> Made:
    """Make a dataclass from a table, with every key known and every type right."""
    hints = get_type_hints(cls)
    known = {f.name: f for f in fields(cls) if f.init}  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: there is no key {key!r} here. {nearest(key, known)}")
    for name, f in known.items():
        if f.default is MISSING and f.default_factory is MISSING and name not in table:
            raise ConfigError(f"{where}: the key {name!r} is missing.")
    return cls(**{key: _value(hints[key], value, f"{where}: {key}") for key, value in table.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value in args:
            return value
        hint_text = nearest(str(value), [str(a) for a in args])
        raise ConfigError(f"{where} = {value!r} came. {hint_text}")
    if origin in (Union, UnionType):
        if isinstance(value, dict):
            return _value(next(a for a in args if is_dataclass(a)), value, where)
        if isinstance(value, list) and (lists := [a for a in args if get_origin(a) is tuple]):
            return _value(lists[0], value, where)
        args = tuple(a for a in args if isinstance(a, type) and not is_dataclass(a))
        if any(_fits(a, value) for a in args):
            return value
    elif is_dataclass(hint) and isinstance(value, dict):
        return read(hint, value, where)  # type: ignore[arg-type]
    elif origin is tuple and isinstance(value, list):
        return tuple(_value(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    elif (origin is dict and isinstance(value, dict)) or (isinstance(hint, type) and _fits(hint, value)):
        return value
    raise ConfigError(f"{where} = {value!r} came, {_name(hint)} is expected.")


def _fits(hint: type, value: Any) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _name(hint: Any) -> str:
    if hint is not Ramp and (is_dataclass(hint) or get_origin(hint) is dict):
        return "a table"
    if get_origin(hint) is tuple:
        return "a list"
    names = {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "true or false",
        Ramp: "a ramp { start, stop, steps }",
    }
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_name(a) for a in get_args(hint))
    return names.get(hint, str(hint))
