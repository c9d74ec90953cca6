"""Defaults of runs on tables: one set for run files, networks and estimators, chosen by `benchmarks/tables`.

They differ from those of arrays, which are the paper's. What a file sets wins, key by key; a compressor or an optimiser
is one key, so its parts are never mixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

Table = Mapping[str, Any]

TABLES: Final = "table"  # data.name
FROM_LABEL: Final = ""  # a loss that follows from the label: two classes, more of them, or numbers
TOP: Final[Table] = {"epochs": 100, "batch_size": 64, "loss": FROM_LABEL}
DATA: Final[Table] = {"validation": 0.1}  # the share of rows that decide when to stop
MODEL: Final[Table] = {"hidden": [64], "last": "identity", "skip": True}  # of the network that efvfl makes for a party
FUSION: Final[Table] = {"combine": "concat", "hidden": [64], "skip": True}
COMPRESSOR: Final[Table] = {"name": "uniform", "levels": 7, "scale": "row"}
DOWN: Final[Table] = {"name": "uniform", "levels": 31, "scale": "row"}
OPTIMIZER: Final[Table] = {"name": "AdamW", "lr": 0.001, "weight_decay": 0.1}


def are_tables(name: str, paths: Iterable[str]) -> bool:
    """Whether rows come from tables: data.name says so, or a party has a file that is not one of arrays."""
    return name == TABLES or any(path and not path.endswith(".npz") for path in paths)


def completed(table: Table) -> dict[str, Any]:
    """Return a run's settings with the defaults of tables, if it is on tables. What is not a setting stays as it is."""
    data, agreement = _table(table, "data"), _table(table, "agreement")
    parties = [party for party in _list(table.get("party")) if isinstance(party, Mapping)]
    if not are_tables(str(data.get("name", "")), (str(_table(party, "data").get("path", "")) for party in parties)):
        return dict(table)
    shared = agreement.get("labels") == "shared"
    method = {"compressor": COMPRESSOR} | (
        {} if shared else {"down": DOWN}
    )  # nothing goes down where labels are shared
    fusion = FUSION if agreement.get("downlink") != "aggregate" else {**FUSION, "combine": "mean"}
    fusion = {} if _table(table, "model").get("name") == "linear" else fusion  # a linear model is linear to the end
    out = {**TOP, "optimizer": OPTIMIZER, **table}
    out["data"] = {**DATA, **data} if isinstance(table.get("data", {}), Mapping) else table["data"]
    for key, defaults in (("model", MODEL), ("fusion", fusion), ("method", method)):
        out[key] = _filled(table.get(key, {}), defaults)
    if "party" in table:
        out["party"] = [_with_model(party) for party in _list(table["party"])] or table["party"]
    return out


def _with_model(party: Any) -> Any:
    """Return a party with the defaults of tables in its own model, if it has one."""
    if not isinstance(party, Mapping) or "model" not in party:
        return party
    return {**party, "model": _filled(party["model"], MODEL)}


def _filled(given: Any, defaults: Table) -> Any:
    """Return settings with defaults for what is left out; a module of the user's own has none."""
    if not isinstance(given, Mapping) or given.get("name", "mlp") not in ("mlp", "efvfl", "svfl", "cvfl"):
        return given
    return {**defaults, **given}


def _table(of: Table, key: str) -> Table:
    found = of.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
