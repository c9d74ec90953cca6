"""Results of experiments, to be compared."""

import json
from pathlib import Path


def without_times(folder: Path) -> dict[str, str]:
    """Return what the files of a folder say, without how long it took."""
    out = {}
    for path in sorted(folder.glob("*.json")):
        table = json.loads(path.read_text())
        table["columns"].pop("seconds")
        out[path.name] = json.dumps(table)
    return out
