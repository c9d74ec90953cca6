"""The faults by name: which modes they fit, and whether somebody may refuse to go on afterwards."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from efvfl.network.training.autosave import CHECKPOINT
from faults import damage
from faults.cases import Case
from faults.disk_faults import (
    changed_weights,
    damaged_file,
    forgotten_absence,
    full_disk,
    lost_log,
    lying_disk,
    old_folder,
    old_set,
    power_failure,
)
from faults.federation import Federation
from faults.line_faults import cut_line, silent_line, slow_line, trickle
from faults.process_faults import away_for_long, freeze, kill, kill_worker, stop


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, and is over when `apply` returns, which says what was done; '' means nothing."""

    apply: Callable[[Federation, random.Random], str]
    may_refuse: bool = False  # else the end is the same as if nothing had happened
    fits: Callable[[Case], bool] = lambda case: True
    weight: float = 1.0  # how often it is drawn, compared with others
    proxied: bool = False  # it needs lines that can be disturbed


FAULTS: dict[str, Fault] = {
    "kill": Fault(kill, weight=3),
    "kill-worker": Fault(kill_worker, fits=lambda case: bool(case.workers), weight=3),
    "stop": Fault(stop),
    "freeze": Fault(freeze),
    "freeze-for-long": Fault(
        partial(away_for_long, begin=signal.SIGSTOP, end=signal.SIGCONT), fits=lambda case: case.stale, weight=0.2
    ),
    "hang-for-long": Fault(
        partial(away_for_long, begin=signal.SIGUSR1, end=signal.SIGUSR2), fits=lambda case: case.stale, weight=0.2
    ),
    "slow-line": Fault(slow_line, proxied=True, weight=0.7),
    "trickle": Fault(trickle, proxied=True, weight=0.7),
    "silent-line": Fault(silent_line, proxied=True, weight=0.7),
    "silent-for-long": Fault(partial(silent_line, most=30.0), proxied=True, weight=0.1),
    "cut-line": Fault(cut_line, proxied=True, weight=0.7),
    "power-failure": Fault(power_failure, weight=2),
    "power-failure-zeros": Fault(partial(power_failure, zeros=True), may_refuse=True),
    "torn-checkpoint": Fault(damaged_file(CHECKPOINT, damage.truncate), may_refuse=True, weight=0.5),
    "flip-checkpoint": Fault(damaged_file(CHECKPOINT, damage.flip), may_refuse=True),
    "flip-log": Fault(damaged_file("log/*.log", damage.flip), may_refuse=True),
    "flip-records": Fault(damaged_file("records.jsonl", damage.flip), may_refuse=True, weight=0.3),
    "flip-ledger": Fault(damaged_file("ledger.jsonl", damage.flip), may_refuse=True, weight=0.3),
    "flip-rows": Fault(damaged_file("alignments/*", damage.flip), may_refuse=True, fits=lambda case: case.tables),
    "flip-encoder": Fault(damaged_file("encoder.json", damage.flip), may_refuse=True, fits=lambda case: case.tables),
    "lying-disk": Fault(lying_disk, may_refuse=True),
    "lost-log": Fault(lost_log, may_refuse=True),
    "old-folder": Fault(old_folder, may_refuse=True),
    "forgotten-absence": Fault(forgotten_absence, may_refuse=True, fits=lambda case: case.stale),
    "old-checkpoint": Fault(partial(old_folder, pattern=CHECKPOINT), may_refuse=True),
    "old-set": Fault(old_set, weight=0.5),
    "full-disk": Fault(full_disk),
    # Where labels are shared, everybody's file has the weights, and all are compared.
    "changed-weights": Fault(changed_weights, may_refuse=True, fits=lambda case: case.private, weight=0.7),
}
