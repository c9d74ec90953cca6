"""The server: it holds the labels and the fusion model, and answers the reports of a step party by party."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from efvfl.core.batches import ALL, Batches, Rows, take
from efvfl.core.block import Block
from efvfl.core.channel import Channel, Packets, send_exactly
from efvfl.core.fusion import Fused, Fusion, head_loss
from efvfl.core.losses import Loss
from efvfl.errors import ProtocolError
from efvfl.util.rng import derive
from efvfl.wire.message import Kind, Message, Reports


class Answer(Protocol):
    """What the parties are told: private.py or shared.py."""

    needs_cotangent: bool

    def check(self, step: int, party: int, digest: Packets) -> None:
        """Refuse block 0 of a report that does not belong there."""

    def prepare(self, step: int, replies: Reports) -> None:
        """Note the fusion model before it is updated."""

    def messages(self, step: int, rows: Rows, replies: Reports, fused: Fused, hold: bool) -> list[Message | None]:
        """Return one message for every party, in their order; None for those that are away."""

    def resume(self, party: int, channels: list[Channel], rows: Rows) -> dict[int, Packets]:
        """Return what a party (from 0) that was away has missed of others; `rows` have been reported since."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""


@dataclass(frozen=True)
class _Step:
    """What the server keeps between its answer and its own update."""

    step: int
    combined: Tensor  # shape (batch, width)
    targets: Tensor


class Server:
    """Fuses, learns, and tells each party what it needs."""

    def __init__(
        self,
        names: list[str],
        fusion: Fusion,
        block: Block,
        labels: Tensor,
        loss: Loss,
        batches: Batches,
        channels: list[Channel],
        answer: Answer,
        key: int,
        reports_all: bool = False,
        local_steps: int = 1,
        stale: bool = False,
    ) -> None:
        """Serve the parties of these names, in this order; `channels` receive their reports.

        With `stale`, a step may go without some parties: their surrogates stay as they are, and rows that one of them
        never reported are left out.
        """
        self.names = names
        self.fusion = fusion
        self.block = block
        self.labels = labels
        self.loss = loss
        self.batches = batches
        self.channels = channels
        self.answer = answer
        self.key = key
        self.reports_all = reports_all
        self.local_steps = local_steps
        # Which rows each party has reported at least once, and who is away since which step.
        self.visits = [torch.zeros(batches.samples, dtype=torch.bool) for _ in names] if stale else []
        self.away: dict[str, int] = {}
        self.step_number = 0
        self._fused: _Step | None = None  # what was answered and not yet learnt from
        self.surrogate_loss = float("nan")  # of the last step
        self.took_part = 0  # how many rows did in it

    def begin(self, ahead: int = 0) -> dict[str, Message]:
        """Ask every party that is here for its report on the current step, or on one so many steps ahead."""
        return {name: Message(Kind.BEGIN, self.step_number + ahead) for name in self.names if name not in self.away}

    def step(self, replies: Mapping[str, Message], hold: bool = False) -> dict[str, Message]:
        """Absorb the reports, update x0 and answer. With `hold`, parties learn but do not report again yet."""
        messages = self.respond(replies, hold)
        self.learn()
        return messages

    def respond(self, replies: Mapping[str, Message], hold: bool = False) -> dict[str, Message]:
        """Absorb the reports and answer; `learn` must follow, and may do so while the answers travel."""
        step, rows = self.step_number, self.batches.rows(self.step_number)
        reports = self._checked(replies)
        # Whatever can be refused is refused before anything is absorbed: then the same step can be tried again.
        decoded = [None if r is None else self._decode(party, r, rows) for party, r in enumerate(reports)]
        self.answer.prepare(step, reports)
        surrogates = [self._surrogate(party, r, decoded[party], rows) for party, r in enumerate(reports)]
        values, targets = self.fusion.combine(surrogates), take(self.labels, rows)
        kept = self._kept(reports, rows)
        combined, targets = (values, targets) if kept is None else (values[kept], targets[kept])
        combined.requires_grad_(self.answer.needs_cotangent)
        self._fused = _Step(step, combined, targets)
        self.took_part = len(targets)
        self.surrogate_loss = float(self._backward(self._fused, 0)) if self.took_part else float("nan")
        fused = Fused(values.detach(), _spread(combined.grad, kept, values), kept)
        messages = self.answer.messages(step, rows, reports, fused, hold)
        self.step_number += 1
        return {name: message for name, message in zip(self.names, messages, strict=True) if message}

    def learn(self) -> None:
        """Update x0, once or local_steps times, on the batch that was answered; nothing if that is done."""
        if self._fused is None:
            return
        for turn in range(self.local_steps if len(self._fused.targets) else 0):
            if turn > 0:
                self._backward(self._fused, turn)
            self.block.update()
        self.block.end_step(self._fused.step)
        self._fused = None

    def _backward(self, batch: _Step, turn: int) -> Tensor:
        self.block.zero_grad()
        key = derive(self.key, batch.step, turn)
        loss = head_loss(self.fusion, batch.combined, batch.targets, self.loss, key)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def leave(self, name: str) -> None:
        """Go on without a party. If it has reported on the current step, that report is not taken."""
        if not self.visits:
            raise ProtocolError(f"{name} is missing, and this federation does not go on without a party.")
        self.away.setdefault(name, self.step_number)

    def rejoin(self, name: str, hold: bool) -> Message:
        """Return what a party that was away needs to go on at the current step: its surrogate, as the server has it.

        Its last report was not taken, but the party has added it to its own memory, on the rows of the step at which it
        went away. With shared labels it also needs what the others were told meanwhile.
        """
        self.learn()  # it goes on with x0 as it is after the last step
        since, party = self.away.pop(name), self.names.index(name)
        rows = ALL if self.reports_all else self.batches.rows(since)
        missed = ALL if self.reports_all else self.batches.touched(range(since, self.step_number))
        blocks = self.answer.resume(party, self.channels, missed)
        blocks[party + 1] = send_exactly(self.channels[party].held(rows), self.channels[party].what)
        return Message(Kind.SYNC, self.step_number, blocks, hold)

    def _kept(self, reports: Reports, rows: Rows) -> Tensor | None:
        """Note who has reported which rows; return those of the batch that nobody who is away has yet to report.

        None: all of them. A single one is left out too, because a layer that normalises cannot work on it.
        """
        kept = None
        for seen, report in zip(self.visits, reports, strict=False):
            if report is not None:
                seen[ALL if self.reports_all else rows] = True
            else:
                kept = take(seen, rows) if kept is None else kept & take(seen, rows)
        if kept is None or bool(kept.all()):
            return None
        return kept if int(kept.sum()) > 1 else torch.zeros_like(kept)

    def _checked(self, replies: Mapping[str, Message]) -> Reports:
        if set(replies) != set(self.names) - set(self.away):
            here = sorted(set(self.names) - set(self.away))
            raise ProtocolError(f"reports of {sorted(replies)} came, those of {here} are expected.")
        for name in replies:
            self._expect(name, replies[name])
        return [replies.get(name) for name in self.names]

    def _expect(self, name: str, reply: Message) -> None:
        """Refuse a reply that is not this party's report on this step."""
        k = self.names.index(name) + 1
        if reply.kind != Kind.REPORT or reply.step != self.step_number or set(reply.packets) - {0} != {k}:
            raise ProtocolError(
                f"{name} sent {reply.kind.name} for step {reply.step} with blocks {sorted(reply.packets)}, but its "
                f"REPORT on step {self.step_number} with block {k} is expected."
            )
        self.answer.check(self.step_number, k - 1, reply.packets.get(0, ()))

    def check(self, name: str, reply: Message, asked: Message) -> None:
        """Refuse a reply that `step` would refuse, as soon as it is here; a party told to hold must be READY."""
        ready = asked.step + (asked.kind != Kind.SYNC)  # it has learnt from what it was told
        if not asked.hold:
            self._expect(name, reply)
            self._decode(self.names.index(name), reply, self.batches.rows(self.step_number))
        elif reply.kind != Kind.READY or reply.step != ready or reply.packets:
            raise ProtocolError(
                f"{name} sent {reply.kind.name} for step {reply.step}, but an empty READY for step {ready} is "
                "expected: it was told to hold."
            )

    def _decode(self, party: int, report: Message, rows: Rows) -> Tensor:
        """Return what a report says; nothing is changed yet."""
        reported = ALL if self.reports_all else rows
        count = self.batches.samples if self.reports_all else self.batches.count(self.step_number)
        return self.channels[party].decode(reported, report.packets[party + 1], count)

    def _surrogate(self, party: int, report: Message | None, decoded: Tensor | None, rows: Rows) -> Tensor:
        """Absorb a report and return the party's surrogate on the batch; of one that is away, as it stands."""
        channel = self.channels[party]
        if report is None or decoded is None:
            return channel.held(rows)
        packets = report.packets[party + 1]
        return (
            take(channel.hear(ALL, packets, decoded), rows)
            if self.reports_all
            else channel.hear(rows, packets, decoded)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on bit for bit, between any two steps."""
        return {
            "step": self.step_number,
            "block": self.block.state_dict(),
            "channels": [channel.state_dict() for channel in self.channels],
            "answer": self.answer.state_dict(),
            "visits": [seen.clone() for seen in self.visits],
            "away": dict(self.away),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.step_number = int(state["step"])
        self.block.load_state_dict(state["block"])
        for channel, saved in zip(self.channels, state["channels"], strict=True):
            channel.load_state_dict(saved)
        self.answer.load_state_dict(state["answer"])
        for seen, saved in zip(self.visits, state.get("visits", []), strict=True):
            seen.copy_(saved)
        self.away = {name: int(step) for name, step in state.get("away", {}).items()}


def _spread(slope: Tensor | None, kept: Tensor | None, values: Tensor) -> Tensor | None:
    """Return the derivative on the whole batch: zero for rows that were left out."""
    if kept is None:
        return slope
    whole = torch.zeros_like(values)
    if slope is not None:
        whole[kept] = slope
    return whole
