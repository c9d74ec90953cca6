"""What a participant has spent on what it protects: a file in its folder for `efvfl audit`, which nobody reads back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efvfl.util.files import write_atomically

FILE = "privacy.json"


def save(folder: Path, spent: Mapping[str, Mapping[str, float | str]]) -> None:
    """Write what was spent, by what is protected; nothing is written where nothing is."""
    if spent:
        table = {what: _finite(entry) for what, entry in spent.items()}
        write_atomically(folder / FILE, (json.dumps(table) + "\n").encode())


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what was spent when the participant saved itself last; nothing if nothing is protected."""
    try:
        return dict(json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}


def lines(spent: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each thing that is protected.

    >>> lines({"labels": {"epsilon": 2.0, "delta": 1e-5, "visits": 20.0, "by": "noise"}})
    ['labels: epsilon = 2 at delta = 1e-05, 20 visits (noise)']
    >>> lines({"labels": {"epsilon": None, "delta": 0.0, "visits": 20.0, "by": "clipping alone"}})
    ['labels: no guarantee, 20 visits (clipping alone)']
    >>> lines({"labels": {"epsilon": 2.0, "delta": 0.0, "visits": 1.0, "by": "each drawn once"}})
    ['labels: epsilon = 2 (each drawn once)']
    """
    return [f"{what}: {_guarantee(entry)} ({entry['by']})" for what, entry in spent.items()]


def _guarantee(entry: Mapping[str, Any]) -> str:
    epsilon, visits = entry["epsilon"], f", {entry['visits']:,.0f} visits"
    if epsilon is None or not epsilon < float("inf"):
        return f"no guarantee{visits}"
    # What is told once has no delta, and later visits cost nothing.
    return f"epsilon = {epsilon:.4g}" + (f" at delta = {entry['delta']:g}{visits}" if entry["delta"] else "")


def _finite(entry: Mapping[str, float | str]) -> dict[str, float | str | None]:
    return {key: None if value == float("inf") else value for key, value in entry.items()}
