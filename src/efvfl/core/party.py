"""A party: it holds columns and a local model, and is a message handler.

One step, as the paper writes it: compute h_k(x_k) on the batch, send C(h - G), absorb the decoded packet; then learn
from what the server answers. The graph of the reported representation is the graph of the update: one forward pass.

With a pipeline it reports on the next step before that answer is there: two reports are open, each with a copy of the
parameters it was computed with, because these learn from the older one in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from efvfl.core.batches import ALL, Batches, Rows, Source, take
from efvfl.core.block import Block, copied
from efvfl.core.channel import Channel, Packets, unpack
from efvfl.core.local_model import forward
from efvfl.errors import ProtocolError
from efvfl.network.workers.worker_group import WorkerGroup
from efvfl.util.rng import derive
from efvfl.wire.message import Kind, Message

MOST_MISSED = 1 << 24  # steps that a party may have been away


class Guide(Protocol):
    """What turns the server's answer into the cotangent of a party's own representation: private.py or shared.py."""

    kind: Kind
    fusion_size: int  # numbers in the copy of the fusion model

    def hear(self, message: Message, rows: Rows, count: int, surrogate: Tensor) -> None:
        """Take what the server says of this step."""

    def cotangent(self, h: Tensor, step: int, turn: int) -> Tensor | None:
        """Return the derivative of the loss by `h`, shape (batch, width); None: no row takes part in the step."""

    def finish(self, step: int) -> None:
        """End the step."""

    def resume(self, packets: Mapping[int, Packets], rows: Rows, steps: range) -> None:
        """Take what was missed of others in these steps, who have reported these rows; or refuse all of it."""

    def digest(self, step: int) -> Packets:
        """Return block 0 of a report."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""


@dataclass(frozen=True)
class _Report:
    """What a party keeps between its report and the answer."""

    rows: Rows  # of the batch
    h: Tensor  # exact, with its graph, shape (batch, width)
    surrogate: Tensor  # what the server now has for these rows
    buffers: dict[str, Tensor]  # the local model's, as they were before its forward pass
    leaves: dict[str, Tensor]  # the parameters it was computed with, where they may learn before the answer comes


class Party:
    """Answers every message of the server with one message."""

    def __init__(
        self,
        name: str,
        number: int,
        block: Block,
        features: Tensor | Source,
        batches: Batches,
        up: Channel,
        guide: Guide,
        key: int,
        reports_all: bool = False,
        local_steps: int = 1,
        stale: bool = False,
        window: int = 1,
    ) -> None:
        """Be party `number` (from 1) with these columns. The key is private and seeds the local model's dropout."""
        self.name = name
        self.number = number
        self.block = block
        self.features = features
        self.batches = batches
        self.up = up
        self.guide = guide
        self.key = key
        self.reports_all = reports_all
        self.local_steps = local_steps
        self.stale = stale  # whether it agreed that training may go on while it is away
        self.window = window  # reports that may be open at a time
        self.crew: WorkerGroup | None = None  # workers that share the passes of the local model
        self.step = 0  # the next one to learn from
        self._reports: list[_Report] = []  # open: on this step and those after it
        self._replies: list[tuple[Kind, int, Message]] = []  # the last ones, and what each of them answered

    def handle(self, message: Message) -> Message:
        """Learn from what came; answer with the next report. A repeated message gets the same answer again."""
        for kind, step, reply in self._replies:
            if (kind, step) == (message.kind, message.step):
                return reply
        if message.kind == Kind.SYNC:
            return self._note(message, self._sync(message))
        begins = message.kind == Kind.BEGIN and len(self._reports) < self.window
        if message.step != self.step + (len(self._reports) if begins else 0):
            raise ProtocolError(f"{self.name} is at step {self.step}, but a message for step {message.step} came.")
        if begins:
            reply = self._make_report()
        elif message.kind == self.guide.kind and self._reports:
            self._learn(message, self._reports[0])
            reply = Message(Kind.READY, self.step) if message.hold else self._make_report()
        else:
            waiting = self.guide.kind.name if self._reports else Kind.BEGIN.name
            raise ProtocolError(f"{self.name} waits for {waiting} at step {self.step}, but {message.kind.name} came.")
        return self._note(message, reply)

    def _note(self, message: Message, reply: Message) -> Message:
        self._replies = [*self._replies, (message.kind, message.step, reply)][-self.window :]
        return reply

    def _sync(self, message: Message) -> Message:
        """Go on after having been away: take back the report that the server did not take, and skip to its step."""
        others = dict(message.packets)
        own = others.pop(self.number, ())
        # With an open report a step has gone without it: to report on the same one twice would give more than agreed.
        fits = self.step + self.reporting <= message.step <= self.step + MOST_MISSED
        if not self.stale or not fits or len(own) != 1:
            raise ProtocolError(
                f"SYNC to step {message.step} with blocks {sorted(message.packets)} came, but {self.name} is at step "
                f"{self.step}{'' if self.stale else ', and did not agree to go on after having been away'}."
            )
        rows, count = self.batches.rows(self.step), self.batches.count(self.step)
        reported, count = (ALL, self.batches.samples) if self.reports_all else (rows, count)
        surrogate = unpack(own[0], (count, *self.up.width), self.up.dtype, "the server's surrogate")
        missed = range(self.step, message.step)
        self.guide.resume(others, ALL if self.reports_all else self.batches.touched(missed), missed)
        self.up.restore(reported, surrogate)
        self.block.end_steps(missed)
        self.step, self._reports = message.step, []
        return Message(Kind.READY, self.step) if message.hold else self._make_report()

    def _forward(self, rows: Rows, step: int, turn: int, values: dict[str, Tensor]) -> Tensor:
        """Return the representation of some rows, with these values in place of parameters and buffers."""
        key = derive(self.key, step, turn)
        if self.crew:  # whose models change no buffers, and which has no pipeline: there is nothing to put in place
            return self.crew.forward(rows, step, key)
        return forward(self.block.module, self.features, rows, step, key, self.name, values)

    def _make_report(self) -> Message:
        """Compute h of the next step, send the compressed change of it, and keep the graph."""
        step = self.step + len(self._reports)
        rows = self.batches.rows(step)
        reported = ALL if self.reports_all else rows
        buffers, leaves = self.block.buffers(), self.block.leaves() if self.window > 1 else {}
        h = self._forward(reported, step, 0, leaves)
        packets, surrogate = self.up.send(reported, h, step)
        if self.reports_all:
            surrogate = take(surrogate, rows)
        if self.window > 1 and isinstance(rows, slice):
            surrogate = surrogate.clone()  # it is a view of the memory, which the next report changes
        self._keep(rows, h, surrogate, buffers, leaves)
        digest = self.guide.digest(step)
        return Message(Kind.REPORT, step, {self.number: packets} | ({0: digest} if digest else {}))

    def _keep(
        self, rows: Rows, h: Tensor, surrogate: Tensor, buffers: dict[str, Tensor], leaves: dict[str, Tensor]
    ) -> None:
        """Keep the batch's part of a report."""
        h = take(h, rows) if self.reports_all else h
        self._reports.append(_Report(rows, h, surrogate, buffers, leaves))

    def _learn(self, message: Message, report: _Report) -> None:
        """Update x_k, once or local_steps times, on the batch that was reported."""
        self.guide.hear(message, report.rows, self.batches.count(self.step), report.surrogate)
        for turn in range(self.local_steps):
            h = report.h if turn == 0 else self._forward(report.rows, self.step, turn, {})
            cotangent = self.guide.cotangent(h, self.step, turn)
            if cotangent is None:
                break
            self.block.zero_grad()
            if h.requires_grad:
                h.backward(cotangent)  # type: ignore[no-untyped-call]
            if turn == 0:
                self.block.take_gradients(report.leaves)
            self.block.update()
        self.guide.finish(self.step)
        self.block.end_step(self.step)
        self.step += 1
        del self._reports[0]

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on bit for bit, between any two messages."""
        return {
            "step": self.step,
            "block": self.block.state_dict(),
            "up": self.up.state_dict(),
            "guide": self.guide.state_dict(),
            "reports": [self._state_of(report) for report in self._reports],
            "replies": [[int(kind), step, reply.to_bytes()] for kind, step, reply in self._replies],
        }

    def _state_of(self, report: _Report) -> dict[str, Any]:
        state: dict[str, Any] = {"buffers": dict(report.buffers)}
        if self.window > 1:  # else parameters and memory are still as the report left them
            leaves = {name: leaf.detach() for name, leaf in report.leaves.items()}
            state |= {"leaves": leaves, "surrogate": report.surrogate}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. Reports that were under way are computed again, without sending them."""
        self.step = int(state["step"])
        self.block.load_state_dict(state["block"])
        if self.crew:
            self.crew.share(self.step)
        self.up.load_state_dict(state["up"])
        self.guide.load_state_dict(state["guide"])
        self._replies = [(Kind(kind), int(at), Message.from_bytes(data)) for kind, at, data in state["replies"]]
        self._reports = []
        for message, saved in zip(self.open_reports(), state["reports"], strict=True):
            self._reopen(message, saved)

    def _reopen(self, message: Message, saved: dict[str, Any]) -> None:
        """Compute an open report's representation again, from what the first time began with; change nothing."""
        rows = self.batches.rows(message.step)
        reported = ALL if self.reports_all else rows
        leaves = {name: copied(value) for name, value in saved.get("leaves", {}).items()}
        buffers = {name: value.clone() for name, value in saved["buffers"].items()}
        h = self._forward(reported, message.step, 0, buffers | leaves)
        surrogate = saved.get("surrogate")
        if surrogate is None:
            surrogate = self.up.last(reported, message.packets[self.number], len(h))
            surrogate = take(surrogate, rows) if self.reports_all else surrogate
        self._keep(rows, h, surrogate, saved["buffers"], leaves)

    @property
    def fusion_size(self) -> int:
        """How many numbers its copy of the fusion model has; 0 without one."""
        return self.guide.fusion_size

    @property
    def reporting(self) -> bool:
        """Whether a report is out that the server has not answered yet."""
        return bool(self._reports)

    def open_reports(self) -> list[Message]:
        """Return the reports that are out and not learnt from, oldest first."""
        return [reply for _, _, reply in self._replies if reply.kind == Kind.REPORT and reply.step >= self.step]
