"""A party: it holds columns and a local model, and is a message handler.

One step, as the paper writes it: compute h_k(x_k) on the batch, send C(h - G), absorb the decoded packet; then learn
from what the server answers. The graph of the reported representation is the graph of the update: one forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from efvfl.batches import ALL, Batches, Rows, Source, columns_of, take
from efvfl.block import Block, aside
from efvfl.channel import Channel, Packets, unpack
from efvfl.crew import Crew, forward
from efvfl.errors import ProtocolError
from efvfl.packet import Kind, Message
from efvfl.rng import derive, seeded

MOST_MISSED = 1 << 24  # steps that a party may have been away


class Guide(Protocol):
    """What turns the server's answer into the cotangent of a party's own representation: private.py or shared.py."""

    kind: Kind

    def hear(self, message: Message, rows: Rows, count: int, surrogate: Tensor) -> None:
        """Take what the server says of this step."""

    def cotangent(self, h: Tensor, step: int, turn: int) -> Tensor:
        """Return the derivative of the loss by `h`, shape (batch, width)."""

    def finish(self, step: int) -> None:
        """End the step."""

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
        self.crew: Crew | None = None  # workers that share the passes of the local model
        self.step = 0
        self._report: _Report | None = None
        self._answered: tuple[Kind, int] | None = None
        self._reply: Message | None = None

    def handle(self, message: Message) -> Message:
        """Learn from what came; answer with the next report. A repeated message gets the same answer again."""
        if self._reply is not None and self._answered == (message.kind, message.step):
            return self._reply
        if message.kind == Kind.SYNC:
            return self._note(message, self._sync(message))
        if message.step != self.step:
            raise ProtocolError(f"{self.name} is at step {self.step}, but a message for step {message.step} came.")
        if message.kind == Kind.BEGIN and self._report is None:
            reply = self._make_report()
        elif message.kind == self.guide.kind and self._report is not None:
            self._learn(message, self._report)
            reply = Message(Kind.READY, self.step) if message.hold else self._make_report()
        else:
            waiting = self.guide.kind.name if self._report else Kind.BEGIN.name
            raise ProtocolError(f"{self.name} waits for {waiting} at step {self.step}, but {message.kind.name} came.")
        return self._note(message, reply)

    def _note(self, message: Message, reply: Message) -> Message:
        self._answered, self._reply = (message.kind, message.step), reply
        return reply

    def _sync(self, message: Message) -> Message:
        """Go on after having been away: take back the report that the server did not take, and skip to its step."""
        own = message.packets.get(self.number, ())
        fits = self.step <= message.step <= self.step + MOST_MISSED and set(message.packets) == {self.number}
        if not self.stale or not fits or len(own) != 1:
            raise ProtocolError(
                f"SYNC to step {message.step} with blocks {sorted(message.packets)} came, but {self.name} is at step "
                f"{self.step}{'' if self.stale else ', and did not agree to go on after having been away'}."
            )
        rows, count = self.batches.rows(self.step), self.batches.count(self.step)
        reported, count = (ALL, self.batches.samples) if self.reports_all else (rows, count)
        self.up.restore(reported, unpack(own[0], (count, *self.up.width), self.up.dtype, "the server's surrogate"))
        for missed in range(self.step, message.step):
            self.block.end_step(missed)
        self.step, self._report = message.step, None
        return Message(Kind.READY, self.step) if message.hold else self._make_report()

    def _forward(self, rows: Rows, step: int, turn: int) -> Tensor:
        key = derive(self.key, step, turn)
        if self.crew:
            return self.crew.forward(rows, step, key)
        return forward(self.block.module, self.features, rows, step, key, self.name)

    def _make_report(self) -> Message:
        """Compute h, send the compressed change of it, and keep the graph."""
        rows = self.batches.rows(self.step)
        reported = ALL if self.reports_all else rows
        buffers = self.block.buffers()
        h = self._forward(reported, self.step, 0)
        packets, surrogate = self.up.send(reported, h, self.step)
        self._keep(rows, h, surrogate, buffers)
        digest = self.guide.digest(self.step)
        return Message(Kind.REPORT, self.step, {self.number: packets} | ({0: digest} if digest else {}))

    def _keep(self, rows: Rows, h: Tensor, surrogate: Tensor, buffers: dict[str, Tensor]) -> None:
        """Keep the batch's part of a report."""
        if self.reports_all:
            h, surrogate = take(h, rows), take(surrogate, rows)
        self._report = _Report(rows, h, surrogate, buffers)

    def _learn(self, message: Message, report: _Report) -> None:
        """Update x_k, once or local_steps times, on the batch that was reported."""
        self.guide.hear(message, report.rows, self.batches.count(self.step), report.surrogate)
        for turn in range(self.local_steps):
            h = report.h if turn == 0 else self._forward(report.rows, self.step, turn)
            cotangent = self.guide.cotangent(h, self.step, turn)
            self.block.zero_grad()
            if h.requires_grad:
                h.backward(cotangent)  # type: ignore[no-untyped-call]
            self.block.update()
        self.guide.finish(self.step)
        self.block.end_step(self.step)
        self.step += 1
        self._report = None

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on bit for bit, between any two messages."""
        return {
            "step": self.step,
            "block": self.block.state_dict(),
            "up": self.up.state_dict(),
            "guide": self.guide.state_dict(),
            "reported": self._report is not None,
            "buffers": dict(self._report.buffers) if self._report else {},
            "answered": list(self._answered) if self._answered else [],
            "reply": self._reply.to_bytes() if self._reply else b"",
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. A report that was under way is computed again, without sending it."""
        self.step = int(state["step"])
        self.block.load_state_dict(state["block"])
        if self.crew:
            self.crew.share(self.step)
        self.up.load_state_dict(state["up"])
        self.guide.load_state_dict(state["guide"])
        answered = state["answered"]
        self._answered = (Kind(answered[0]), int(answered[1])) if answered else None
        self._reply = Message.from_bytes(state["reply"]) if state["reply"] else None
        self._report = None
        if state["reported"]:
            self._reopen(state["buffers"])

    def _reopen(self, buffers: dict[str, Tensor]) -> None:
        """Compute the open report's representation again, from the buffers of the first time; change none."""
        assert self._reply is not None, "a report is a reply"
        rows = self.batches.rows(self.step)
        reported = ALL if self.reports_all else rows
        if self.crew:  # whose models change no buffers
            h = self._forward(reported, self.step, 0)
        else:
            with seeded(derive(self.key, self.step, 0)):
                copies = {name: value.clone() for name, value in buffers.items()}
                h = aside(self.block.module, columns_of(self.features, reported, self.step), buffers=copies)
        self._keep(rows, h, self.up.last(reported, self._reply.packets[self.number], len(h)), buffers)

    @property
    def reporting(self) -> bool:
        """Whether a report is out that the server has not answered yet."""
        return self._report is not None

    def open_report(self) -> Message:
        """Return the report that is out."""
        if self._report is None or self._reply is None:
            raise ProtocolError(f"{self.name} has no report out at step {self.step}.")
        return self._reply
