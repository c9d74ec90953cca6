"""Which reports a step goes on with, where parties are asynchronous: a rule, or what was recorded of an earlier run.

Who reported when is the one thing about an asynchronous run that depends on time. It is recorded step by step; a run
that is given the record takes the same reports at the same steps, and ends with the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efvfl.core.agreement import Quorum
from efvfl.core.server import Server
from efvfl.errors import ConfigError
from efvfl.util.files import write_atomically

ARRIVALS = "arrivals.jsonl"  # in the folder of a run


@dataclass(frozen=True)
class Enough:
    """When a step is taken without the reports that are still to come."""

    quorum: Quorum
    always: frozenset[str]  # parties that it waits for in any case
    planned: frozenset[str] | None = None  # just these reports are taken, as in an earlier run

    def met(self, here: Collection[str], open_: Collection[str], waited: float) -> bool:
        """Whether it may be taken with the reports of `here`, of those that are open, after so many seconds."""
        if self.planned is not None:
            return self.planned <= set(here)
        missing = set(open_).difference(here)
        if not missing or missing & self.always:
            return not missing
        quorum, count = self.quorum, len(set(here))
        late = 0 < quorum.deadline_seconds <= waited and count > 0
        return late or 0 < quorum.reports <= count

    def taken(self, here: Iterable[str]) -> set[str]:
        """Return whose reports the step is taken with."""
        return set(here) if self.planned is None else set(self.planned)


class Arrivals:
    """Whose reports every step was taken with, from the first one on; and, in a replay, whose it must be.

    A party that has reported reports next on the step that follows: so these names say which step each report is on.

    >>> arrivals = Arrivals(["bank", "telco"])
    >>> for step, names in enumerate([["bank", "telco"], ["bank"], ["bank", "telco"]]):
    ...     arrivals.note(step, names)
    >>> arrivals.reports()
    [{'bank': 0, 'telco': 0}, {'bank': 1}, {'bank': 2, 'telco': 1}]
    """

    def __init__(self, names: Sequence[str], planned: Sequence[Collection[str]] = ()) -> None:
        """Record these parties; `planned`: whose reports each step takes, from an earlier run."""
        self.names = list(names)
        self.taken: list[tuple[str, ...]] = []
        self.planned = [frozenset(step) for step in planned]  # none: as reports come
        if unknown := sorted({name for step in self.planned for name in step}.difference(names)):
            raise ConfigError(f"arrivals: expected names of the parties {self.names}, got {unknown[0]!r}.")

    def note(self, step: int, names: Collection[str]) -> None:
        """Note whose reports a step takes."""
        del self.taken[step:]
        self.taken.append(tuple(name for name in self.names if name in names))

    def enough(self, server: Server, everybody: bool, here: Collection[str]) -> Enough:
        """Return what the server's current step waits for: `everybody`, or a quorum and always those who sit `here`."""
        quorum, step = server.plan.agreement.asynchronous, server.step_number
        if self.planned and step >= len(self.planned):
            raise ConfigError(f"arrivals: expected those of step {step:,}, got {len(self.planned):,} steps in all.")
        if self.planned:
            open_ = len(self.planned[step])
            if everybody and open_ < len(self.names):
                raise ConfigError(
                    f"arrivals: expected reports of all {len(self.names)} parties at step {step:,}, after which this "
                    f"run makes a record, got {open_}: replay with the epochs and observe_every of the recorded run."
                )
            return Enough(quorum, frozenset(), self.planned[step])
        if everybody:
            return Enough(quorum, frozenset(self.names))
        overdue = {name for name, since in server.attendance.late.items() if step - since >= quorum.most_stale}
        return Enough(quorum, frozenset({*overdue, *here}))

    def reports(self) -> list[dict[str, int]]:
        """Return for every step whose reports it took, and which step each of these was on."""
        due, found = dict.fromkeys(self.names, 0), []
        for step, names in enumerate(self.taken):
            found.append({name: due[name] for name in names})
            due |= dict.fromkeys(names, step + 1)
        return found

    def save(self, folder: Path) -> None:
        """Write a line for every step."""
        lines = [json.dumps({"step": step, "reports": on}) for step, on in enumerate(self.reports())]
        write_atomically(folder / ARRIVALS, "".join(f"{line}\n" for line in lines).encode())

    def state_dict(self) -> list[int]:
        """Return a number for every step, whose bits say which parties it took reports of."""
        place = {name: 1 << k for k, name in enumerate(self.names)}
        return [sum(place[name] for name in names) for names in self.taken]

    def load_state_dict(self, state: Sequence[int]) -> None:
        """Go on from a saved state."""
        self.taken = [tuple(n for k, n in enumerate(self.names) if bits >> k & 1) for bits in map(int, state)]


def load_arrivals(path: Path) -> list[list[str]]:
    """Return whose reports every step took, from a file that `Arrivals.save` wrote or from the folder that has it."""
    path = path / ARRIVALS if path.is_dir() else path
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found: list[Mapping[str, Any]] = [json.loads(line) for line in lines]
        steps = [list(line["reports"]) for line in found]
        ordered = [line["step"] for line in found] == list(range(len(found)))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"cannot read who reported when from {path}: {error}.") from error
    if not ordered or not found:
        raise ConfigError(f"{path}: expected a line for every step from 0 on, got {len(found)} lines that are not.")
    return steps
