"""The settings that `efvfl plan` tries, as one table, and how each changes a run file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from efvfl.config.run_file import AgreementConfig, MethodConfig, RunConfig
from efvfl.core.agreement import CachedSteps
from efvfl.errors import ConfigError

Knobs = dict[str, Any]  # of a compressor, as a run file names it

ROW_31: Knobs = {"name": "uniform", "levels": 31, "scale": "row"}
ROW_7: Knobs = {"name": "uniform", "levels": 7, "scale": "row"}
BLOCK_15: Knobs = {"name": "uniform", "levels": 15}
TERNARY: Knobs = {"name": "uniform", "levels": 1, "scale": "row"}
TOP_K: Knobs = {"name": "topk", "ratio": 0.1}


@dataclass(frozen=True)
class Setting:
    """EF-VFL in one way. What does not exist with shared labels, `down` and `cached`, is left out there."""

    up: Knobs
    down: Knobs
    batch: int = 1  # times the file's
    window: int = 1  # steps under way
    cached: int = 0  # steps between two rounds


# As benchmarks/fewer_rounds.py found it on images and tables (docs/performance.md).
RECOMMENDED = Setting(TERNARY, ROW_31, window=2, cached=9)

# Likely winners first: whoever is slower than the best so far is soon abandoned.
SETTINGS: tuple[Setting, ...] = (
    RECOMMENDED,
    Setting(TERNARY, ROW_31, cached=9),
    Setting(TERNARY, ROW_7, cached=9),
    Setting(ROW_7, ROW_7, cached=9),
    Setting(TERNARY, ROW_7, batch=4, cached=9),
    Setting(TERNARY, ROW_7, cached=4),
    Setting(ROW_7, ROW_7, window=2, cached=9),
    Setting(BLOCK_15, BLOCK_15, cached=9),
    Setting(TERNARY, ROW_7, window=2, cached=4),
    Setting(TERNARY, ROW_7, window=2),
    Setting(TERNARY, ROW_7, window=4),
    Setting(ROW_7, ROW_7, window=2),
    Setting(TERNARY, ROW_7, batch=4, window=2),
    Setting(TOP_K, TOP_K, window=2, cached=4),
)


@dataclass(frozen=True)
class Candidate:
    """A run that is tried, and what tables call its method."""

    method: str
    config: RunConfig


def yardstick(config: RunConfig) -> Candidate:
    """Return SVFL on the file's batches: nothing compressed, nothing overlapped, no update between rounds."""
    agreement = _agreement(config, window=1, cached=0)
    method = MethodConfig("svfl")
    plain = replace(config, method=method, agreement=replace(agreement, memory_dtype=""), memory="ram")
    return Candidate("SVFL", plain)


def candidates(config: RunConfig, rows: int) -> list[Candidate]:
    """Return what is tried beside the yardstick, for so many training rows; the file's own setting is the second."""
    settings = list(_settings(config, rows))
    found = [*settings[:1], Candidate("as in the file", config), *settings[1:]]
    first = {_key(candidate.config): candidate for candidate in reversed(found)}
    first.pop(_key(yardstick(config).config), None)  # it is tried anyway
    return [candidate for candidate in found if first.get(_key(candidate.config)) is candidate]


def _key(config: RunConfig) -> str:
    """Return what tells two candidates apart; some methods ignore compressors."""
    named = MethodConfig(config.method.name, options=config.method.options)
    method = named if config.method.lossless else config.method
    return repr((config.batch_size, method, config.agreement))


def _settings(config: RunConfig, rows: int) -> Iterator[Candidate]:
    for setting in SETTINGS:
        try:
            changed = with_setting(config, setting)
        except ConfigError:
            continue  # one of the rules refuses it for this file
        if setting.batch == 1 or 0 < changed.batch_size <= rows:
            yield Candidate(method_name(changed.method), changed)


def with_setting(config: RunConfig, setting: Setting) -> RunConfig:
    """Return a run with one of the settings in place of its own."""
    down = setting.down if config.agreement.labels == "private" else {}
    return replace(
        config,
        batch_size=config.batch_size * setting.batch,
        method=MethodConfig("efvfl", setting.up, down, config.method.fusion),
        agreement=_agreement(config, setting.window, setting.cached),
    )


def _agreement(config: RunConfig, window: int, cached: int) -> AgreementConfig:
    steps = cached if config.agreement.labels == "private" else 0
    pipeline = window if window > 1 else False
    return replace(config.agreement, pipeline=pipeline, cached=replace(config.agreement.cached, steps=steps))


def method_name(method: MethodConfig) -> str:
    """Return a method as tables show it.

    >>> method_name(MethodConfig("efvfl", {"name": "uniform", "levels": 1}, down={"name": "topk", "ratio": 0.1}))
    'uniform 1, down topk 0.1'
    """
    if method.lossless:
        return " ".join([method.name.upper(), *map(str, method.options.values())])
    up, down = (" ".join(str(value) for value in table.values()) for table in (method.compressor, method.down))
    remembers = f", {method.memory['name']}" if "name" in method.memory else ""
    return up + (" both ways" if down == up else f", down {down}" if down else "") + remembers


def to_toml(config: RunConfig) -> str:
    """Return the lines of a run file that a candidate may have changed."""
    method, agreement = config.method, config.agreement
    lines = [f"batch_size = {config.batch_size}", "", "[method]", f'name = "{method.name}"']
    lines += [f"options = {_inline(method.options)}"] if method.options else []
    if not method.lossless:
        lines += [f"{key} = {_inline(table)}" for key in _TABLES if (table := getattr(method, key))]
        lines += [f'start = "{method.start}"'] if method.start != MethodConfig().start else []
    lines += ["", "[agreement]  # beside what it says already", f"pipeline = {_value(agreement.pipeline)}"]
    if agreement.labels == "private":
        cached, usual = vars(agreement.cached), vars(CachedSteps())
        chosen = {key: value for key, value in cached.items() if key == "steps" or value != usual[key]}
        lines.append(f"cached = {_inline(chosen)}")
    return "\n".join(lines)


_TABLES = ("compressor", "down", "fusion", "first", "memory")


def _inline(table: Knobs) -> str:
    return "{ " + ", ".join(f"{key} = {_value(value)}" for key, value in table.items()) + " }"


def _value(value: object) -> str:
    return _inline(value) if isinstance(value, dict) else json.dumps(value)  # TOML writes the rest as JSON does
