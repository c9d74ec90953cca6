"""The metrics of a run for Prometheus, from its files. A file may be damaged: only numbers are taken from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from efvfl.network.ops.metrics import State
from efvfl.training.record import Record

NAMES: Final = 1000  # of parties or metrics that are told; whoever damaged a file may have written more
LONGEST: Final = 200  # characters of a name
LARGEST: Final = 1e300


def metrics_state(status: Mapping[str, Any], running: bool, last: Record | None) -> State:
    """Return what a status file and the last record tell, as the process itself would have published it."""
    plain = ("step", "steps", "epoch", "loss", "connected", "bytes_out", "bytes_in")
    found: dict[str, Any] = {"running": running}
    found |= _numbers({"epoch": last.epoch}) if last else {}
    found |= _numbers({key: status.get(key) for key in plain} | {"updated": status.get("time")})
    found |= _numbers(status.get("seconds"))
    if "missing" in status:
        parties = status.get("parties")
        found["parties"] = [str(name)[:LONGEST] for name in parties[:NAMES]] if isinstance(parties, list) else []
        found["missing"] = _numbers(status["missing"])
    if last:
        found["scores"] = {"validation": _numbers(last.validation), "test": _numbers(last.test)}
    return found


def _numbers(table: object) -> dict[str, float]:
    """Return the finite numbers in a table."""
    return {
        str(name)[:LONGEST]: float(value)
        for name, value in list(table.items() if isinstance(table, dict) else ())[:NAMES]
        if isinstance(value, int | float) and abs(value) < LARGEST
    }
