"""Fail if tests leave out too many branches of the packages that everything rests on.

    python -m tools.branches coverage.json

Reads what `coverage json` wrote and prints a line for each package, with the branches that were not taken.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("core", "wire", "compress")
LEAST = 97.0  # per cent of the branches of each package


def branches(report: dict[str, Any], package: str) -> tuple[int, int, list[str]]:
    """Return how many branches there are, how many were taken, and where the others are."""
    total, taken, left = 0, 0, []
    for path, file in sorted(report["files"].items()):
        if f"efvfl/{package}/" in path:
            total += file["summary"]["num_branches"]
            taken += file["summary"]["covered_branches"]
            left += [f"{path}:{start}" for start, _ in file["missing_branches"]]
    return total, taken, left


def main(path: Path) -> int:
    """Print the table; return 1 if a package has too few."""
    report = json.loads(path.read_text(encoding="utf-8"))
    failed = False
    for package in PACKAGES:
        total, taken, left = branches(report, package)
        share = 100 * taken / total if total else 0.0
        failed |= share < LEAST
        print(f"{package:9} {taken:4} of {total:4} branches, {share:5.1f} % (at least {LEAST:.0f} %)")
        print("".join(f"    {place}\n" for place in left), end="")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
