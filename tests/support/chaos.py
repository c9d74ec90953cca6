"""The fault lab at length: `make chaos`, or `python tests/support/chaos.py --seed 7 --case stale --faults 1` to replay.

Every run is a federation of real processes that some faults happen to. A line is printed for each, and a table at the
end; the exit code is 1 if a run ended differently without a word, hung, or printed a traceback. The folder of such a
run is kept.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from faults.cases import CASES
from faults.kinds import FAULTS
from faults.scenario import BAD, Lab, Outcome, Plan


class Campaign:
    """Many runs, several at a time, until there were enough faults or the time is over."""

    def __init__(self, lab: Lab, cases: Sequence[str], seed: int, allowed: Collection[str] = ()) -> None:
        """Try these cases in turn, each with the next seed."""
        self.lab = lab
        self.outcomes: list[Outcome] = []
        self._allowed = allowed
        self._turns = ((case, seed + turn) for turn in itertools.count() for case in cases)
        self._calm: dict[str, dict[str, Any]] = {
            c: {} if CASES[c].stale or CASES[c].asynchronous else lab.calm(c) for c in cases
        }
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []

    @property
    def faults(self) -> int:
        """How many there were."""
        return sum(len(outcome.done) for outcome in self.outcomes)

    def run(self, faults: int, minutes: float, jobs: int) -> None:
        """Play until there were so many faults, or the time is over."""
        ends = time.monotonic() + 60 * minutes
        threads = [threading.Thread(target=self._work, args=(faults, ends)) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _work(self, faults: int, ends: float) -> None:
        try:
            while self.faults < faults and time.monotonic() < ends and not self._errors:
                with self._lock:
                    case, seed = next(self._turns)
                outcome = self.lab.play(Plan.draw(case, seed, self._allowed), self._calm[case])
                self.outcomes.append(outcome)
                print(f"{outcome} ({outcome.seconds:.1f} s, {self.faults} faults)", flush=True)
                if not outcome.bad:
                    shutil.rmtree(self.lab.root / f"{case}-{seed}")
        except BaseException as error:  # of the lab itself: the other threads end too
            self._errors.append(error)

    def table(self) -> str:
        """Return how often each fault ended how; a run counts for each of its faults."""
        counts = Counter((name, o.kind) for o in self.outcomes for name in {name for name, _ in o.done})
        times = Counter(name for o in self.outcomes for name, _ in o.done)
        kinds = ["equal", "refused", *BAD]
        lines = [f"{'fault':<20}{'times':>7}" + "".join(f"{kind:>12}" for kind in kinds)]
        for name in FAULTS:
            if times[name]:
                row = "".join(f"{counts[name, kind] or '':>12}" for kind in kinds)
                lines.append(f"{name:<20}{times[name]:>7}{row}")
        whole = Counter(outcome.kind for outcome in self.outcomes)
        lines.append(f"{'runs':<20}{len(self.outcomes):>7}" + "".join(f"{whole[kind] or '':>12}" for kind in kinds))
        return "\n".join(lines)


def main() -> int:
    """Run the lab; return 1 if there was an outcome that must not be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=500, help="end after so many")
    parser.add_argument("--minutes", type=float, default=600.0, help="or after so many minutes")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; each next one has the next")
    parser.add_argument("--case", action="append", choices=CASES, help="only these modes")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="only these faults")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="efvfl-chaos-"))
    began = time.monotonic()
    lab = Lab.prepare(root, options.epochs)
    campaign = Campaign(lab, options.case or list(CASES), options.seed, options.fault or ())
    try:
        campaign.run(options.faults, options.minutes, options.jobs)
    finally:
        print(f"\n{campaign.table()}\n")
    bad = [outcome for outcome in campaign.outcomes if outcome.bad]
    minutes = (time.monotonic() - began) / 60
    print(f"{campaign.faults} faults in {len(campaign.outcomes)} runs and {minutes:.1f} minutes, {len(bad)} bad ends.")
    only = "".join(f" --fault {name}" for name in options.fault or ())
    for outcome in bad:
        case, seed = outcome.plan.case, outcome.plan.seed
        again = f"python tests/support/chaos.py --case {case} --seed {seed} --faults 1 --epochs {options.epochs}{only}"
        print(f"{outcome}\n    {root / f'{case}-{seed}'}\n    {again}")
    if not bad:
        shutil.rmtree(root)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
