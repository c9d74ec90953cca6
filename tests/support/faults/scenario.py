"""Several faults on one federation, all by one seed, and what comes of it."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from efvfl.errors import EfvflError
from efvfl.network.identity import authority
from faults import ends
from faults.cases import CASES
from faults.federation import Ended, Federation
from faults.kinds import FAULTS
from faults.participant import Hung

MOST = 4  # faults of one run
UNDER_WAY = "under way"  # of a fault during which the run has ended
BAD = ("SILENT", "HANG", "TRACEBACK", "UNEXPECTED")


@dataclass(frozen=True)
class Plan:
    """What is to happen in one run: each fault with the share of all requests at which it happens."""

    case: str
    seed: int
    save: int  # steps between two checkpoints
    faults: tuple[tuple[float, str], ...]

    @classmethod
    def draw(cls, case: str, seed: int, allowed: Collection[str] = ()) -> Plan:
        """Return the plan of a seed; `allowed`: only these faults."""
        chance = random.Random(f"{case}/{seed}/{','.join(sorted(allowed))}")
        fitting = {name: fault for name, fault in FAULTS.items() if fault.fits(CASES[case])}
        if allowed:
            fitting = {name: fault for name, fault in fitting.items() if name in allowed}
        weights = [fault.weight for fault in fitting.values()]
        names = chance.choices(list(fitting), weights, k=chance.randint(1, MOST)) if fitting else []
        moments = sorted(chance.uniform(0.02, 0.75) for _ in names)
        for i in range(1, len(moments)):
            if chance.random() < 0.4:  # two at the same time
                moments[i] = moments[i - 1]
        return cls(case, seed, chance.choice([1, 3, 10, 50]), tuple(zip(moments, names, strict=True)))


@dataclass
class Outcome:
    """What one run has led to."""

    plan: Plan
    done: list[tuple[str, str]] = field(default_factory=list)  # the faults there were, and what each did
    kind: str = ""  # equal, refused, or one of BAD
    text: str = ""
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        """Whether this must not be."""
        return self.kind in BAD

    def __str__(self) -> str:
        faults = "; ".join(f"{name} ({text})" for name, text in self.done) or "nothing"
        return f"{self.plan.case} seed {self.plan.seed}: {self.kind}{self.text and ': '}{self.text} | {faults}"


@dataclass(frozen=True)
class Lab:
    """A place for runs of some length, with the certificates of everybody."""

    root: Path
    epochs: int

    @classmethod
    def prepare(cls, root: Path, epochs: int) -> Lab:
        """Make the certificates of all participants."""
        lab = cls(root, epochs)
        authority.make(lab.certs, ["server", *sorted({name for case in CASES.values() for name in case.parties})])
        return lab

    @property
    def certs(self) -> Path:
        """The folder of the certificates."""
        return self.root / "certs"

    def calm(self, case: str) -> dict[str, Any]:
        """Return what a run comes to that nothing disturbs."""
        run = Federation(self.root / f"{case}-calm", case, self.certs, self.epochs, save=1000)
        try:
            run.start(random.Random(0))
            run.finish()
        finally:
            run.close()
        found = ends.states(run.root, run.names)
        assert not list(ends.between_ends(found)), "both ends differ, and nothing has happened"
        return found

    def play(self, plan: Plan, calm: dict[str, Any]) -> Outcome:
        """Return what a run comes to with the faults of a plan; `calm` is not looked at where it would not be equal."""
        chance = random.Random(f"{plan.case}/{plan.seed}/play")
        proxied = any(FAULTS[name].proxied for _, name in plan.faults)
        root = self.root / f"{plan.case}-{plan.seed}"
        run = Federation(root, plan.case, self.certs, self.epochs, plan.save, proxied)
        outcome, began = Outcome(plan), time.monotonic()
        try:
            run.start(chance)
            for moment, name in plan.faults:
                if not run.reach(int(moment * run.steps)):
                    break
                outcome.done.append((name, UNDER_WAY))
                text = FAULTS[name].apply(run, chance)
                outcome.done[-1:] = [(name, text)] if text else []
            run.finish()
            _compare(outcome, run, calm)
        except Ended:
            _refusal(outcome, run)
        except Hung as error:
            outcome.kind, outcome.text = "HANG", str(error)
        finally:
            run.close()
        _look_for_tracebacks(outcome, run)
        outcome.seconds = time.monotonic() - began
        return outcome


def _compare(outcome: Outcome, run: Federation, calm: dict[str, Any]) -> None:
    """All have ended with 0: see whether this is right."""
    try:
        found = ends.states(run.root, run.names)
    except (EfvflError, OSError, ValueError, KeyError) as error:
        outcome.kind, outcome.text = "SILENT", f"cannot read what is left: {error}"
        return
    wrong = list(ends.between_ends(found))
    if run.case.asynchronous:
        wrong += ends.from_replay(run.root, found)
    elif not run.case.stale:
        wrong += ends.differences(calm, found)
    outcome.kind = "SILENT" if wrong else "equal"
    outcome.text = f"{len(wrong)} differences: {', '.join(sorted(wrong)[:4])}" if wrong else ""


def _refusal(outcome: Outcome, run: Federation) -> None:
    """Somebody has ended with another code: see who, and whether it says why; the others are asked to end."""
    name, code = next((name, each.code) for name, each in run.participants.items() if each.code not in (None, 0))
    reasons = re.findall(r"^efvfl: (.+)", run[name].said, re.MULTILINE)
    outcome.text = f"{name} {code}: {reasons[-1] if reasons else 'no reason'}"
    if code not in (2, 3, 4, 5) or not reasons:
        outcome.kind = "TRACEBACK"
    elif any(FAULTS[fault].may_refuse and text != UNDER_WAY for fault, text in outcome.done):
        outcome.kind = "refused"
    else:
        outcome.kind = "UNEXPECTED"
    run.stop_rest()


def _look_for_tracebacks(outcome: Outcome, run: Federation) -> None:
    for name, each in run.participants.items():
        if "Traceback (most recent call last)" in each.all_said:
            outcome.kind = "TRACEBACK"
            last = each.all_said.rpartition("Traceback (most recent call last)")[2].strip().splitlines()
            reason = next((line for line in last if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)), "?")
            outcome.text = f"{name}: {reason[:200]}"
