"""The server: it holds the labels and the fusion model, and answers the reports of a step party by party."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from efvfl.batches import ALL, Batches, Rows, take
from efvfl.block import Block
from efvfl.channel import Channel
from efvfl.errors import ProtocolError
from efvfl.fusion import Fusion, head_loss
from efvfl.losses import Loss
from efvfl.packet import Kind, Message
from efvfl.rng import derive


class Answer(Protocol):
    """What the parties are told: private.py or shared.py."""

    needs_cotangent: bool

    def prepare(self, step: int, replies: list[Message]) -> None:
        """Refuse what does not belong in the reports, and note the fusion model before it is updated."""

    def messages(self, step: int, rows: Rows, replies: list[Message], combined: Tensor, hold: bool) -> list[Message]:
        """Return one message for every party, in their order."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""


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
    ) -> None:
        """Serve the parties of these names, in this order; `channels` receive their reports."""
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
        self.step_number = 0
        self.surrogate_loss = float("nan")  # of the last step

    def begin(self) -> dict[str, Message]:
        """Ask every party for its report on the current step."""
        return {name: Message(Kind.BEGIN, self.step_number) for name in self.names}

    def step(self, replies: Mapping[str, Message], hold: bool = False) -> dict[str, Message]:
        """Absorb the reports, update x0 and answer. With `hold`, parties learn but do not report again yet."""
        step, rows = self.step_number, self.batches.rows(self.step_number)
        reports = self._checked(replies)
        # Whatever can be refused is refused before anything is absorbed: then the same step can be tried again.
        decoded = [self._decode(party, report, rows) for party, report in enumerate(reports)]
        self.answer.prepare(step, reports)
        combined = self.fusion.combine(self._surrogates(decoded, rows))
        combined.requires_grad_(self.answer.needs_cotangent)
        targets = take(self.labels, rows)
        messages: list[Message] = []
        for turn in range(self.local_steps):
            self.block.zero_grad()
            loss = head_loss(self.fusion, combined, targets, self.loss, derive(self.key, step, turn))
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
            if turn == 0:
                self.surrogate_loss = float(loss.detach())
                messages = self.answer.messages(step, rows, reports, combined, hold)
            self.block.update()
        self.block.end_step(step)
        self.step_number += 1
        return dict(zip(self.names, messages, strict=True))

    def _checked(self, replies: Mapping[str, Message]) -> list[Message]:
        if set(replies) != set(self.names):
            raise ProtocolError(f"reports of {sorted(replies)} came, those of {sorted(self.names)} are expected.")
        for name in self.names:
            self._expect(name, replies[name])
        return [replies[name] for name in self.names]

    def _expect(self, name: str, reply: Message) -> None:
        """Refuse a reply that is not this party's report on this step."""
        k = self.names.index(name) + 1
        if reply.kind != Kind.REPORT or reply.step != self.step_number or set(reply.packets) - {0} != {k}:
            raise ProtocolError(
                f"{name} sent {reply.kind.name} for step {reply.step} with blocks {sorted(reply.packets)}, but its "
                f"REPORT on step {self.step_number} with block {k} is expected."
            )

    def check(self, name: str, reply: Message, hold: bool) -> None:
        """Refuse a reply that `step` would refuse, as soon as it is here; a party told to hold must be READY."""
        if not hold:
            self._expect(name, reply)
            self._decode(self.names.index(name), reply, self.batches.rows(self.step_number))
        elif reply.kind != Kind.READY or reply.step != self.step_number or reply.packets:
            raise ProtocolError(
                f"{name} sent {reply.kind.name} for step {reply.step}, but an empty READY for step {self.step_number} "
                "is expected: it was told to hold."
            )

    def _decode(self, party: int, report: Message, rows: Rows) -> Tensor:
        """Return what a report says; nothing is changed yet."""
        reported = ALL if self.reports_all else rows
        count = self.batches.samples if self.reports_all else self.batches.count(self.step_number)
        return self.channels[party].decode(reported, report.packets[party + 1], count)

    def _surrogates(self, decoded: list[Tensor], rows: Rows) -> list[Tensor]:
        """Absorb the reports and return every party's surrogate on the batch."""
        if not self.reports_all:
            return [channel.absorb(rows, d) for channel, d in zip(self.channels, decoded, strict=True)]
        return [take(channel.absorb(ALL, d), rows) for channel, d in zip(self.channels, decoded, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on bit for bit, between any two steps."""
        return {
            "step": self.step_number,
            "block": self.block.state_dict(),
            "channels": [channel.state_dict() for channel in self.channels],
            "answer": self.answer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.step_number = int(state["step"])
        self.block.load_state_dict(state["block"])
        for channel, saved in zip(self.channels, state["channels"], strict=True):
            channel.load_state_dict(saved)
        self.answer.load_state_dict(state["answer"])
