"""Reports that come after their step, where the participants have agreed on a quorum, and the answers to them.

A step is taken as soon as enough reports are here. The others stay open: what is remembered of their parties stands in
for them, as for a party that is away. When such a report comes, both ends have absorbed the same packet on the rows of
its own step, so nothing is taken back. The party learns from its own rows, with all else as it is now, and continues at
the server's next step. Its own block has not moved meanwhile: only what it is told of the others is newer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from efvfl.core.fusion import head_loss
from efvfl.core.gradients import slope_by
from efvfl.errors import ProtocolError
from efvfl.util.rng import derive
from efvfl.wire.message import Kind, Message

if TYPE_CHECKING:
    from efvfl.core.party import Party
    from efvfl.core.server import Server


def answers(server: Server, late: Mapping[str, Message], hold: bool) -> dict[str, Message]:
    """Return LATE for every report on an earlier step than the server's, which has absorbed them all."""
    found: dict[str, Message] = {}
    for step in sorted({report.step for report in late.values()}):
        rows = server.batches.rows(step)
        context = server.context(step, [channel.surrogate(rows) for channel in server.channels.values()])
        if server.label_mode.needs_cotangent and len(context.targets):
            key = derive(server.plan.fusion_key, step, "late", server.step_number)
            # An extra pass: it moves neither x0 nor the running statistics of the fusion model.
            loss = head_loss(server.fusion, context.combined, context.targets, server.loss, key, keep_buffers=True)
            context.combined.grad = slope_by(loss, context.combined)
        reports = {name: report for name, report in late.items() if report.step == step}
        for name, answer in server.label_mode.answers(context, reports, hold).items():
            found[name] = Message(Kind.LATE, server.step_number + 1, answer.packets, hold)
    return found


def check(party: Party, message: Message) -> None:
    """Refuse LATE that the party has not agreed to. To report twice on a step would give away more than agreed."""
    quorum, step = party.plan.agreement.asynchronous, party.step
    if not quorum.on or not party.open:
        why = "no report is open" if quorum.on else "the participants have not agreed on a quorum"
        raise ProtocolError(f"{party.name}: expected no LATE at step {step}, as {why}, got one to {message.step}.")
    # On time is COTANGENT or AGGREGATE; `most_stale` steps after its own one the server waits for a report.
    if not step + 2 <= message.step <= step + 1 + quorum.most_stale:
        raise ProtocolError(
            f"{party.name}: expected LATE to a step from {step + 2} to {step + 1 + quorum.most_stale}, as its open "
            f"report is on step {step} and most_stale is {quorum.most_stale}, got one to {message.step}."
        )


def catch_up(party: Party, message: Message) -> None:
    """Learn from the answer to a report that came late, and skip to the step at which to continue."""
    party.learn(Message(party.label_mode.kind, party.step, message.packets))
    party.block.end_steps(range(party.step, message.step))
    party.step = message.step
