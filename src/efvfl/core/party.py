"""Party k: it holds columns and a local model, and answers every message of the server with one message.

The step is the paper's. `report` computes h_k(x_k) and sends C(h - G); `learn` updates x_k from the server's answer,
which private_labels.py or shared_labels.py turns into a cotangent. What a report leaves open until its answer is there
is kept by open_reports.py, what a party does after an absence is in absence.py, what it does if its report came late in
late_reports.py, and what it does between two steps, for rows that are held out, in evaluation.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from efvfl.core import absence, cached_steps, evaluation, late_reports
from efvfl.core.batches import Rows
from efvfl.core.block import Block
from efvfl.core.cached_steps import PartyBatch, WorkSet
from efvfl.core.channel import Channel, Packets, blocks
from efvfl.core.evaluation import BETWEEN_STEPS, PartyEvaluation
from efvfl.core.local_model import LocalModel
from efvfl.core.open_reports import OpenReport, OpenReports
from efvfl.core.plan import Plan
from efvfl.core.private_descent import PrivateDescent
from efvfl.core.row_protection import RowNoise
from efvfl.errors import CheckpointError, ProtocolError
from efvfl.wire.message import FUSION, Kind, Message


class PartyLabelMode(Protocol):
    """A party's half of a label mode: it turns the server's answer into the cotangent of h_k."""

    kind: Kind  # of the server's answers
    fusion_size: int  # numbers in the copy of the fusion model

    def receive(self, answer: Message, report: OpenReport) -> None:
        """Take the server's answer to a report, or refuse it and change nothing."""

    def cotangent(self, h: Tensor, step: int, turn: int) -> Tensor | None:
        """Return the derivative of the loss by `h`, shape (batch, width); None: no row of it takes part in the step."""

    def end_step(self, step: int) -> None:
        """End the step."""

    def set_rate(self, rate: float) -> None:
        """Change the learning rate of what learns here beside x_k."""

    def catch_up(self, blocks: Mapping[int, Packets], rows: Rows, steps: range) -> None:
        """Take what was missed of others in these steps, who reported these rows; or refuse it, changing nothing."""

    def digest(self, step: int, at: int) -> Packets:
        """Return what the report on a step says of the copy of the fusion model, which has learnt all below `at`."""

    def incoming(self) -> list[Channel]:
        """Return the channels that the server's answers advance, in an order that both ends know."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what was saved."""


class Party:
    """A party of a plan, by name."""

    def __init__(
        self,
        plan: Plan,
        name: str,
        model: LocalModel,
        up: Channel,
        label_mode: PartyLabelMode,
        held_out: PartyEvaluation | None = None,
        noise: RowNoise | None = None,
    ) -> None:
        """Report through `up`, and learn by the answers that `label_mode` understands.

        `held_out` are rows that are evaluated by messages; `noise` is added to all that leaves.
        """
        self.plan = plan
        self.batches = plan.batches_of(name)
        self.report_rows = plan.report_rows_of(name)
        self.name = name
        self.number = plan.number(name)
        self.model = model
        self.up = up
        self.label_mode = label_mode
        self.evaluation = held_out
        self.noise = noise
        self.descent: PrivateDescent | None = None  # learns from single rows, with noise; set where it does
        self.open = OpenReports(model, up, self.report_rows, plan.agreement.window)
        self.cached: WorkSet[PartyBatch] = WorkSet(plan.agreement.cached, plan.batches.per_epoch)
        self.local_steps = plan.agreement.local_steps  # Q of this party
        self.answered_in_part = plan.answers_in_part(name)
        self.step = 0  # the next one to learn from
        self.may_report: Callable[[int], None] = lambda step: None  # refuses to report on a step, by raising

    # The step.

    def report(self, step: int) -> Message:
        """C_k = C(H_k(x_k) - G_k), G_k <- G_k + C_k: send C_k, and keep h with its graph for `learn`."""
        done = self.open.forward(step)
        rows = self.report_rows.rows(step)
        h = self.noise.report(done.h, rows, step) if self.noise else done.h
        packets, surrogate = self.up.send(rows, h, step)
        self.open.add(step, done, surrogate, self.up.change if self.answered_in_part else None)
        digest = self.label_mode.digest(step, self.step)
        return Message(Kind.REPORT, step, blocks({self.number: packets, FUSION: digest}))

    def learn(self, answer: Message) -> None:
        """x_k <- x_k - eta g_k on the batch of the oldest report; Q times where Q local updates are agreed."""
        report = self.open.oldest
        self.label_mode.receive(answer, report)
        for turn in range(self.local_steps):
            h = report.h if turn == 0 else self.model.forward(report.rows, self.step, turn)
            cotangent = self.label_mode.cotangent(h, self.step, turn)
            if cotangent is None:
                break
            if self.descent:
                self.descent.descend(report.rows, cotangent, self.step, turn)
            else:
                self.block.descend_from(h, cotangent, report.done.leaves if turn == 0 else {})
            if self.cached.on:
                self.cached.add(PartyBatch.of_step(self.step, report.rows, h, cotangent))
        if self.cached.on:
            cached_steps.learn_at_party(self)
        self.label_mode.end_step(self.step)
        self.block.end_step(self.step)
        self.step += 1
        self.open.close_oldest()

    # Messages.

    def handle(self, message: Message) -> Message:
        """Do what a message asks, and return the reply. A repeated message gets the same reply again."""
        repeated = self.open.reply_to(message)
        return repeated or self.open.remember(message, self._handle(message))

    def _handle(self, message: Message) -> Message:
        if message.kind in BETWEEN_STEPS:
            return evaluation.answer(self, message)
        step = self._step_to_report(message)
        if step is not None:
            self.may_report(step)  # before anything changes
            if self.noise:
                self.noise.check(self.report_rows.rows(step))
        if message.kind == Kind.SYNC:
            absence.catch_up(self, message)
        elif message.kind == Kind.LATE:
            late_reports.catch_up(self, message)
        elif message.kind == Kind.BEGIN:
            evaluation.go_on(self)
        else:
            self.learn(message)
        return Message(Kind.READY, self.step) if step is None else self.report(step)

    def _step_to_report(self, message: Message) -> int | None:
        """Return the step that the reply to a message reports on, or None if the server asks to hold; or refuse it."""
        if message.kind == Kind.LATE:
            late_reports.check(self, message)
        if message.kind in (Kind.SYNC, Kind.LATE):
            return None if message.hold else message.step
        begins = message.kind == Kind.BEGIN and len(self.open) < self.open.window
        expected = self.step + (len(self.open) if begins else 0)
        if message.step != expected:
            raise ProtocolError(f"{self.name}: expected a message for step {expected}, got one for {message.step}.")
        if begins and message.hold:
            raise ProtocolError(f"{self.name}: expected BEGIN for step {expected} without hold, got one with it.")
        if not begins and (message.kind != self.label_mode.kind or not self.open):
            waiting = self.label_mode.kind.name if self.open else Kind.BEGIN.name
            raise ProtocolError(f"{self.name}: expected {waiting} at step {self.step}, got {message.kind.name}.")
        return None if message.hold else self.step + len(self.open)

    @property
    def block(self) -> Block:
        """The variables x_k."""
        return self.model.block

    @property
    def reporting(self) -> bool:
        """Whether a report is out that the server has not answered yet."""
        return bool(self.open)

    def every_channel(self) -> list[Channel]:
        """Return all channels at this end."""
        held_out = [self.evaluation.channel] if self.evaluation else []
        return [self.up, *self.label_mode.incoming(), *held_out]

    def digests(self) -> list[str]:
        """Return digests of what is remembered of the own reports, and of what the server's answers brought."""
        found = [channel.digest() for channel in (self.up, *self.label_mode.incoming())]
        found[0] += self.evaluation.channel.digest() if self.evaluation else ""
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit, between any two messages."""
        return {
            "step": self.step,
            "block": self.block.state_dict(),
            "up": self.up.state_dict(),
            "label_mode": self.label_mode.state_dict(),
            "open": self.open.state_dict(),
            "cached": self.cached.state_dict(),
            "evaluation": self.evaluation.state_dict() if self.evaluation else {},
        } | ({"noise": self.noise.state_dict()} if self.noise else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        if ("noise" in state) != (self.noise is not None):
            raise CheckpointError(f"the rows of {self.name} were protected, or were not, so far: restore protect.")
        if self.noise:
            self.noise.load_state_dict(state["noise"])
        self.step = int(state["step"])
        self.model.load_state_dict(state["block"], self.step)
        self.up.load_state_dict(state["up"])
        self.label_mode.load_state_dict(state["label_mode"])
        self.open.load_state_dict(state["open"], self.step, self.number)
        self.cached.load([PartyBatch.of(step, self.batches, saved) for step, saved in state["cached"]])
        if self.evaluation:
            self.evaluation.load_state_dict(state["evaluation"])
