"""The settings of a run as they were: what the file left out as it was chosen, and nothing that had no effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from efvfl.config.run_file import RunConfig
from efvfl.config.table_defaults import TABLES
from efvfl.runs.build import has_tables, patience, watching

_OF_TABLES = ("id", "label", "weight", "align", "id_format", "duplicates", "stratify", "ids")
_OF_SHARED_LABELS = ("downlink", "fusion", "local_steps", "digest_every")
_OF_COMPRESSION = ("compressor", "down", "fusion", "start", "first", "memory")
_SECRET = "private_seed"  # which a page must not reveal


def true_settings(config: RunConfig, rows: Mapping[str, int], network: bool) -> dict[str, Any]:
    """Return the settings of a run with so many rows by split, without private seeds; `network`: over one."""
    table: dict[str, Any] = _without_seeds(asdict(config))
    watch = watching(config)
    table |= {"observe_every": watch.every, "evaluation": "compressed" if watch.by_messages else "exact"}
    table["patience"] = patience(config, rows.get("validation", 0) > 0)
    table["data"] = _data(config, table["data"])
    if config.agreement.labels == "private":
        _drop(table["agreement"], _OF_SHARED_LABELS)
    if config.method.lossless:
        _drop(table["method"], _OF_COMPRESSION)
    if not network:
        _drop(table, ("network",))
    return table


def _data(config: RunConfig, data: dict[str, Any]) -> dict[str, Any]:
    """Return where rows came from: a party's own file counts, not the name that a file without [data] has."""
    if has_tables(config):
        data["name"] = TABLES
    else:
        _drop(data, _OF_TABLES)
        if any(party.data for party in config.party):
            data["name"] = "npz"
    if not data["name"].startswith("cifar"):
        _drop(data, ("augment",))
    return data


def _drop(table: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        table.pop(key, None)


def _without_seeds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_seeds(item) for key, item in value.items() if key != _SECRET}
    return [_without_seeds(item) for item in value] if isinstance(value, list | tuple) else value
