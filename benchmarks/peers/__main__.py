"""`python -m benchmarks.peers`: train the same network with every library, and print a table."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.lines import machine_facts
from benchmarks.peers.rows import Row, join, table_of
from benchmarks.peers.runner import CASES, ROOT, measure
from efvfl.util.files import write_atomically


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[case.name for case in CASES], help="run one, and save nothing")
    parser.add_argument("--rounds", type=int, default=3, help="how often all take their turn")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one script")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "peers.json")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the script under way is ended too
    # The load is that before anything was started: above 0.5 or so, times are not to be trusted.
    facts = machine_facts() | {"load": os.getloadavg()[0]}
    found: dict[str, list[Row]] = {case.name: [] for case in CASES if options.only in (None, case.name)}
    for turn in range(options.rounds):
        for case in CASES:
            if case.name not in found or any(row.failure for row in found[case.name]):
                continue
            row = measure(case, options.timeout)
            found[case.name].append(row)
            said = row.failure or f"{row.middle:.2f} ms a step"
            print(f"{turn + 1} of {options.rounds}, {case.name}: {said}", file=sys.stderr, flush=True)
    rows = [join(rounds) for rounds in found.values()]
    if not options.only:
        saved = {"machine": facts, "rows": [asdict(row) for row in rows]}
        write_atomically(options.out, (json.dumps(saved, indent=1) + "\n").encode())
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print()
    print(table_of(rows))


if __name__ == "__main__":
    main()
