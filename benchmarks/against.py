"""The step of one checkout against that of another, in turn: did a change make it slower?

    git worktree add ../before REVISION
    python -m benchmarks.against ../before

Each checkout steps in a process of its own, with its own `benchmarks.step`, and the two take turns round by round, so
that whatever slows the machine slows both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
CASES = {  # labels, batch, rows, steps in a round
    "private labels, batch 128": ("private", 128, 10_000, 200),
    "shared labels, batch 128": ("shared", 128, 10_000, 100),
    "private labels, full batch": ("private", 0, 60_000, 4),
    "shared labels, full batch": ("shared", 0, 60_000, 3),
}
ROUNDS = 15


def serve() -> None:
    """Answer every line, the name of a case, with the milliseconds of one of its steps."""
    import torch

    from benchmarks import step

    torch.set_num_threads(1)
    steps: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        labels, batch, rows, count = CASES[line.strip()]
        if line not in steps:
            steps[line] = step.federation(*step.rows(rows), batch, labels).step
            steps[line]()
        started = time.perf_counter()
        for _ in range(count):
            steps[line]()
        print(json.dumps(1000 * (time.perf_counter() - started) / count), flush=True)


class Checkout:
    """A process that steps with the code of one checkout."""

    def __init__(self, root: Path) -> None:
        """Start it."""
        paths = os.pathsep.join(map(str, (root / "src", root)))
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), "--serve"],
            cwd=root,
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def milliseconds(self, case: str) -> float:
        """Return the time of one step, the mean of a round."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(case, file=self.process.stdin, flush=True)
        return float(json.loads(self.process.stdout.readline()))


def main() -> None:
    """Print the ratio of this checkout's step to the other's, for every case."""
    from benchmarks.timing import Timing

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("other", type=Path, nargs="?", help="the root of another checkout")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    if options.other is None:
        parser.error("name the root of another checkout")
    here, other = Checkout(HERE), Checkout(options.other.resolve())
    for case in CASES:
        for side in (here, other):
            side.milliseconds(case)  # compiles kernels, fills caches
        pairs = [(here.milliseconds(case), other.milliseconds(case)) for _ in range(options.rounds)]
        ratio = Timing([mine for mine, _ in pairs]).over(Timing([theirs for _, theirs in pairs]))
        middle = Timing([mine for mine, _ in pairs]).middle
        print(f"{case}: {ratio.middle:.3f} of the other's time ({middle:.2f} ms a step, spread {ratio.spread:.2f})")


if __name__ == "__main__":
    main()
