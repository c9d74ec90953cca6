"""Steps without a party that is missing, where the participants have agreed on that, and its return.

While a party is away its surrogate stays as it is, and rows that it never reported are left out of the batch. When it
is back the server sends SYNC: the party's own surrogate as the server holds it, and with shared labels what the others
were sent meanwhile. A party that is only late is left out in the same way, but its report is taken when it comes:
late_reports.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from efvfl.core.batches import Rows, take
from efvfl.core.channel import send_exactly, unpack
from efvfl.core.plan import Plan
from efvfl.errors import ProtocolError
from efvfl.wire.message import Kind, Message

if TYPE_CHECKING:
    from efvfl.core.party import Party
    from efvfl.core.server import Server

MOST_MISSED = 1 << 24  # steps that a party may have been away


class Attendance:
    """Who takes part in the current step, and which rows every party has reported at least once."""

    def __init__(self, plan: Plan) -> None:
        """Start with everybody here."""
        self.names = plan.names
        self.report_rows = plan.report_rows
        self.asynchronous = plan.agreement.asynchronous.on
        self.away: dict[str, int] = {}  # since which step
        self.late: dict[str, int] = {}  # the step of a report that is still open, and is taken when it comes
        seen = {name: torch.zeros(plan.batches.samples, dtype=torch.bool) for name in plan.names}
        self.reported: dict[str, Tensor] = seen if plan.partial else {}  # empty: nobody may be missing

    @property
    def here(self) -> list[str]:
        """The parties that take part in the current step, in their order."""
        return [name for name in self.names if name not in self.away] if self.away else self.names

    def leave(self, name: str, step: int) -> None:
        """Proceed without a party from this step on. Its report on this step is taken late, or else not at all."""
        if not self.reported:
            raise ProtocolError(f"{name} is missing, and this federation does not proceed without a party.")
        (self.late if self.asynchronous else self.away).setdefault(name, step)

    def rejoin(self, name: str) -> int:
        """Count a party as here again, and return the step at which it left."""
        return self.away.pop(name)

    def due(self, name: str, step: int) -> int:
        """Return the step that a party's next report is on, where the server is at `step`."""
        return self.late.get(name, step)

    def expects(self, reporters: Collection[str]) -> bool:
        """Whether these may report: all that are here, but perhaps those that are late."""
        here, reporting = set(self.here), set(reporters)
        return here - self.late.keys() <= reporting <= here

    def note(self, reports: Mapping[str, Message]) -> None:
        """Note who has reported which rows; nobody of these is late any more."""
        for name, report in reports.items():
            self.late.pop(name, None)
            if self.reported:
                self.reported[name][self.report_rows.rows(report.step)] = True

    def taking_part(self, rows: Rows) -> Tensor | None:
        """Return which rows of a batch take part; None: all of them.

        A row takes part if every party has reported it at least once. A single row is left out too, because a layer
        that normalises cannot work on it.
        """
        mask: Tensor | None = None
        for seen in self.reported.values():
            mask = take(seen, rows) if mask is None else mask & take(seen, rows)
        if mask is None or bool(mask.all()):
            return None
        return mask if int(mask.sum()) > 1 else torch.zeros_like(mask)

    def state_dict(self) -> dict[str, Any]:
        """Return who is away or late, and who has reported what."""
        reported = {name: seen.clone() for name, seen in self.reported.items()}
        return {"away": dict(self.away), "late": dict(self.late), "reported": reported}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.away = {name: int(step) for name, step in state["away"].items()}
        self.late = {name: int(step) for name, step in state.get("late", {}).items()}
        for name, seen in self.reported.items():
            seen.copy_(state["reported"][name])


def sync_message(server: Server, name: str, hold: bool) -> Message:
    """Return what a party that was away needs to continue at the server's current step.

    Its last reports were not taken, but the party has added them to its own memory, on the rows of the steps from the
    one at which it left. With shared labels it also needs what the others were sent meanwhile.
    """
    server.learn()  # it continues with x0 as it is after the last step
    since, channel = server.attendance.rejoin(name), server.channels[name]
    missed = server.plan.report_rows.touched(range(since, server.step_number))
    blocks = server.label_mode.catch_up(name, server.channels, missed)
    own = channel.surrogate(server.plan.report_rows.open(since, server.plan.agreement.window))
    blocks[server.plan.number(name)] = send_exactly(own, channel.what)
    return Message(Kind.SYNC, server.step_number, blocks, hold)


def catch_up(party: Party, message: Message) -> None:
    """Continue after an absence: take back the reports that the server did not take, and skip to its step."""
    others = dict(message.packets)
    own, plan, step = others.pop(party.number, ()), party.plan, party.step
    # Steps with an open report have passed without it. To report twice on one would give away more than agreed.
    fits = step + len(party.open) <= message.step <= step + MOST_MISSED
    if not plan.stale or not fits or len(own) != 1:
        agreed = "" if plan.stale else ", and did not agree that steps may pass without it"
        raise ProtocolError(
            f"{party.name}: expected SYNC to a later step than {step + max(len(party.open), 1) - 1} with block "
            f"{party.number}, got step "
            f"{message.step} with blocks {sorted(message.packets)}{agreed}."
        )
    rows = plan.report_rows.open(step, party.open.window)
    count = plan.batches.samples if isinstance(rows, slice) else len(rows)
    surrogate = unpack(own[0], (count, *party.up.width), party.up.dtype, "the server's surrogate")
    missed = range(step, message.step)
    party.label_mode.catch_up(others, plan.report_rows.touched(missed), missed)
    party.up.restore(rows, surrogate)
    party.block.end_steps(missed)
    party.step = message.step
    party.open.clear()
