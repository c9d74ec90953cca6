"""Reports that the server has not answered yet: what a party needs to learn from the answer, and to survive a crash.

Without a pipeline there is at most one. With a pipeline a party reports on the next steps before the answer to the last
one is there. Several reports are open then, each with a copy of the parameters it was computed with, because these
learn from the older reports in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from efvfl.core.batches import ReportRows, Rows
from efvfl.core.block import copied
from efvfl.core.channel import Channel
from efvfl.core.local_model import LocalModel
from efvfl.wire.message import Kind, Message


def sent_entries(change: Tensor) -> Tensor:
    """Return which entries of a report changed what the server holds: both ends see the same decoded change."""
    return change != 0


@dataclass(frozen=True)
class ForwardPass:
    """The representation of some rows, and what it was computed with."""

    h: Tensor  # exact, with its graph, shape (rows, width)
    buffers: dict[str, Tensor]  # the local model's, as they were before the pass
    leaves: dict[str, Tensor] = field(default_factory=dict)  # copies of the parameters, where there is a pipeline


@dataclass(frozen=True)
class OpenReport:
    """What a party keeps between its report and the answer."""

    rows: Rows  # of the batch
    done: ForwardPass  # of these rows
    surrogate: Tensor  # what the server now holds for these rows
    sent: Tensor | None = None  # which entries the report changed, bool; None: its cotangent comes whole

    @property
    def h(self) -> Tensor:
        """The exact representation of the batch, with its graph, shape (batch, width)."""
        return self.done.h


class OpenReports:
    """The open reports of a party, oldest first, and its last replies."""

    def __init__(self, model: LocalModel, up: Channel, report_rows: ReportRows, window: int) -> None:
        """Keep up to `window` open reports of this model."""
        self.model = model
        self.up = up
        self.report_rows = report_rows
        self.window = window
        self.reports: list[OpenReport] = []
        self.replies: list[tuple[Kind, int, Message]] = []  # the last ones, with kind and step of what they answered

    def __len__(self) -> int:
        """Return how many reports are open."""
        return len(self.reports)

    @property
    def oldest(self) -> OpenReport:
        """The report that the next answer is about."""
        return self.reports[0]

    def forward(self, step: int) -> ForwardPass:
        """Return h_k = H_k(x_k) of the rows that the report on a step covers."""
        block = self.model.block
        buffers, leaves = block.buffers(), block.leaves() if self.window > 1 else {}
        return ForwardPass(self._representation(step, leaves), buffers, leaves)

    def _representation(self, step: int, values: dict[str, Tensor]) -> Tensor:
        rows = self.report_rows.rows(step)
        if isinstance(rows, Tensor) and not len(rows):
            return torch.zeros((0, *self.up.width), dtype=self.up.dtype)  # not every layer works on no rows
        return self.model.forward(rows, step, values=values)

    def add(self, step: int, done: ForwardPass, surrogate: Tensor, change: Tensor | None = None) -> None:
        """Keep the batch's part of a report; with its decoded change, the answer is about what it changed alone."""
        rows = self.report_rows.batches.rows(step)
        surrogate = self.report_rows.batch(surrogate, step)
        if self.window > 1 and isinstance(rows, slice):
            surrogate = surrogate.clone()  # it is a view of the memory, which the next report changes
        if self.report_rows.all_rows:
            done = replace(done, h=self.report_rows.batch(done.h, step))
        sent = None if change is None else sent_entries(self.report_rows.batch(change, step))
        self.reports.append(OpenReport(rows, done, surrogate, sent))

    def close_oldest(self) -> None:
        """Forget the report that has been learnt from."""
        del self.reports[0]

    def clear(self) -> None:
        """Forget all open reports: the server has continued without them."""
        self.reports = []

    # A message that arrives twice gets the same reply twice.

    def reply_to(self, message: Message) -> Message | None:
        """Return the reply that this message was given before, if it is one of the last."""
        for kind, step, reply in self.replies:
            # A party that is back may be told to hold at a step and, after it was away again, to report on it.
            if (kind, step, reply.kind != Kind.REPORT) == (message.kind, message.step, message.hold):
                return reply
        return None

    def remember(self, message: Message, reply: Message) -> Message:
        """Keep a reply, and return it."""
        self.replies = [*self.replies, (message.kind, message.step, reply)][-self.window :]
        return reply

    def unanswered(self, step: int) -> list[Message]:
        """Return the reports on this step and later ones, oldest first."""
        return [reply for _, _, reply in self.replies if reply.kind == Kind.REPORT and reply.step >= step]

    # Checkpoints. The graph of an open report cannot be saved: it is computed again from what it began with.

    def state_dict(self) -> dict[str, Any]:
        """Return what the open reports began with, and the last replies."""
        return {
            "reports": [self._state_of(report) for report in self.reports],
            "replies": [[int(kind), step, reply.to_bytes()] for kind, step, reply in self.replies],
        }

    def _state_of(self, report: OpenReport) -> dict[str, Any]:
        state: dict[str, Any] = {"buffers": dict(report.done.buffers)}
        if self.window > 1:  # else parameters and memory are still as the report left them
            leaves = {name: leaf.detach() for name, leaf in report.done.leaves.items()}
            state |= {"leaves": leaves, "surrogate": report.surrogate}
        return state if report.sent is None else state | {"sent": report.sent}

    def load_state_dict(self, state: dict[str, Any], step: int, block: int) -> None:
        """Restore replies, and compute the open reports again without sending them. Model and memory come first."""
        self.replies = [(Kind(kind), int(at), Message.from_bytes(data)) for kind, at, data in state["replies"]]
        self.reports = []
        for message, saved in zip(self.unanswered(step), state["reports"], strict=True):
            self._reopen(message, saved, block)

    def _reopen(self, message: Message, saved: dict[str, Any], block: int) -> None:
        step, rows, packets = message.step, self.report_rows.rows(message.step), message.packets.get(block, ())
        leaves = {name: copied(value) for name, value in saved.get("leaves", {}).items()}
        buffers = {name: value.clone() for name, value in saved["buffers"].items()}
        h = self._representation(step, buffers | leaves)
        surrogate = saved.get("surrogate")
        if surrogate is None:
            surrogate = self.report_rows.batch(self.up.surrogate_after(rows, packets, len(h)), step)
        done = ForwardPass(self.report_rows.batch(h, step), saved["buffers"], leaves)
        self.reports.append(OpenReport(self.report_rows.batches.rows(step), done, surrogate, saved.get("sent")))
