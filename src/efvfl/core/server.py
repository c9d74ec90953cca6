"""The server: it holds the labels and the fusion model x0, and answers the reports of a step party by party.

The step is the paper's: absorb every report, G_k <- G_k + C_k; take the gradient of the loss on the surrogates; answer;
update x0. What the parties are answered is the label mode's: private_labels.py or shared_labels.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor

from efvfl.core import cached_steps, late_reports
from efvfl.core.absence import Attendance, sync_message
from efvfl.core.batches import Rows
from efvfl.core.block import Block
from efvfl.core.cached_steps import ServerBatch, WorkSet
from efvfl.core.channel import Channel, Packets
from efvfl.core.evaluation import ServerEvaluation
from efvfl.core.fusion import Fusion, StepContext
from efvfl.core.gradients import backward
from efvfl.core.label_release import LabelRelease
from efvfl.core.losses import Loss
from efvfl.core.noise import digest_of
from efvfl.core.plan import Plan
from efvfl.core.targets import Targets
from efvfl.core.visit_noise import OutputNoise
from efvfl.errors import CheckpointError, CompressionError, ProtocolError
from efvfl.util.rng import derive
from efvfl.wire.message import FUSION, Kind, Message


class ServerLabelMode(Protocol):
    """The server's half of a label mode: it decides what the parties are sent."""

    needs_cotangent: bool

    def check(self, step: int, name: str, digest: Packets) -> None:
        """Refuse what a report says of a copy of the fusion model, where it does not belong."""

    def before_update(self, step: int, reports: Mapping[str, Message]) -> None:
        """Note the fusion model before it is updated."""

    def answers(self, context: StepContext, reports: Mapping[str, Message], hold: bool) -> dict[str, Message]:
        """Return one message for every party that has reported."""

    def catch_up(self, name: str, channels: Mapping[str, Channel], rows: Rows) -> dict[int, Packets]:
        """Return what a party that was away has missed of others, who have reported these rows since."""

    def outgoing(self, name: str, channels: Mapping[str, Channel]) -> list[Channel]:
        """Return what a party's `incoming` are at this end, in the same order; `channels` receive reports."""

    def state_dict(self) -> dict[str, Any]:
        """Return what must be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what was saved."""


class Server:
    """The server of a plan."""

    def __init__(
        self,
        plan: Plan,
        block: Block,
        targets: Targets,
        channels: dict[str, Channel],
        label_mode: ServerLabelMode,
        held_out: ServerEvaluation | None = None,
        noise: OutputNoise | None = None,
    ) -> None:
        """Train the fusion model in `block` on these targets; `channels` receive the parties' reports, by name.

        `held_out` are rows that are evaluated by messages; `noise` is added wherever labels enter.
        """
        assert isinstance(block.module, Fusion)
        self.plan = plan
        self.batches = plan.batches
        self.loss = plan.loss
        self.block = block
        self.fusion: Fusion = block.module
        self.targets = targets
        self.channels = channels
        self.label_mode = label_mode
        self.evaluation = held_out
        self.noise = noise
        self.release: LabelRelease | None = None  # how its labels were randomised; set where they were
        self.attendance = Attendance(plan)
        self.cached: WorkSet[ServerBatch] = WorkSet(plan.agreement.cached, plan.batches.per_epoch)
        self.step_number = 0
        self.surrogate_loss = float("nan")  # of the last step
        self.took_part = 0  # how many rows did in it
        self._answered: StepContext | None = None  # the step that was answered and not learnt from yet
        self._digests: tuple[int, dict[int, str]] = (0, {})  # of channels, by identity, as of this step

    @property
    def labels(self) -> Tensor:
        """The labels of all training rows."""
        return self.targets.labels

    # The step.

    def begin(self, ahead: int = 0) -> dict[str, Message]:
        """Ask every party for its report on the current step, or on one so many steps ahead."""
        if self.evaluation:
            self.evaluation.kept.go_on()
        return {name: Message(Kind.BEGIN, self.step_number + ahead) for name in self.attendance.here}

    def step(self, reports: Mapping[str, Message], hold: bool = False) -> dict[str, Message]:
        """Absorb the reports, answer them and update x0. With `hold`, parties learn but do not report again yet."""
        answers = self.respond(reports, hold)
        self.learn()
        return answers

    def respond(self, reports: Mapping[str, Message], hold: bool = False) -> dict[str, Message]:
        """Absorb the reports and answer; `learn` must follow, and may do so while the answers travel."""
        step = self.step_number
        # Whatever can be refused is refused before anything is absorbed: then the same step can be tried again.
        decoded = self._decoded(reports)
        self.label_mode.before_update(step, reports)
        surrogates = [self._absorb(name, reports.get(name), decoded.get(name)) for name in self.plan.names]
        self.attendance.note(reports)
        context = self.context(step, surrogates)
        self._answered, self.took_part = context, len(context.targets)
        self.surrogate_loss = float(self._backward(context)) if self.took_part else float("nan")
        late = {name: report for name, report in reports.items() if report.step < step}
        try:
            on_time = {name: report for name, report in reports.items() if name not in late} if late else reports
            answers = self.label_mode.answers(context, on_time, hold) | late_reports.answers(self, late, hold)
        except CompressionError as error:
            raise CompressionError(f"{error} {self._largest(surrogates)}") from error
        self.step_number += 1
        return answers

    def context(self, step: int, surrogates: list[Tensor]) -> StepContext:
        """Return the batch of a step with these surrogates of all parties."""
        rows, present = self.batches.rows(step), self.plan.present(step)
        return StepContext(
            step,
            rows,
            self.fusion.join(surrogates, present),
            self.targets.take(rows),
            self.attendance.taking_part(rows),
            self.label_mode.needs_cotangent,
            present,
        )

    def learn(self) -> None:
        """x0 <- x0 - eta g_0, on the batch that was answered; Q times where Q local updates are agreed."""
        context, self._answered = self._answered, None
        if context is None:
            return
        for turn in range(self.plan.agreement.local_steps if self.took_part else 0):
            if turn > 0:
                self._backward(context, turn)
            self.block.update()
        if self.cached.on:
            cached_steps.learn_at_server(self, context)
        self.block.end_step(context.step)

    def _absorb(self, name: str, report: Message | None, decoded: Tensor | None) -> Tensor:
        """G_k <- G_k + C_k: return a party's surrogate on the batch; of one that is away, as it is."""
        channel, report_rows, step = self.channels[name], self.plan.report_rows_of(name), self.step_number
        if report is None or decoded is None:
            return channel.surrogate(self.batches.rows(step))
        packets = report.packets.get(self.plan.number(name), ())
        surrogate = channel.receive(report_rows.rows(report.step), packets, decoded)
        return report_rows.batch(surrogate, step) if report.step == step else channel.surrogate(self.batches.rows(step))

    def _backward(self, context: StepContext, turn: int = 0) -> Tensor:
        """Take the gradient of the loss on the surrogates by x0, and by what is combined where that is needed."""
        self.block.zero_grad()
        visited = self.visit(context.rows, context.mask, "step", context.step, turn)
        loss = context.loss(self.fusion, visited, derive(self.plan.fusion_key, context.step, turn))
        if loss.requires_grad:
            backward(loss)
        return loss.detach()

    def visit(self, rows: Rows, mask: Tensor | None, *names: str | int) -> Loss:
        """Return the loss for one visit of these rows' labels, which has these names and no other."""
        return self.loss if self.noise is None else self.noise.loss(self.loss, rows, mask, *names)

    # Messages.

    def _decoded(self, reports: Mapping[str, Message]) -> dict[str, Tensor]:
        """Check the reports of a step and return what they say, in the parties' order."""
        if not self.attendance.expects(reports):
            raise ProtocolError(f"expected reports of {sorted(self.attendance.here)}, got those of {sorted(reports)}.")
        for name, report in reports.items():
            self._check_report(name, report)
        return {name: self._decode(name, report) for name, report in reports.items()}

    def _decode(self, name: str, report: Message) -> Tensor:
        report_rows, packets = self.plan.report_rows_of(name), report.packets.get(self.plan.number(name), ())
        rows, count = report_rows.rows(report.step), report_rows.count(report.step)
        return self.channels[name].decode(rows, packets, count)

    def _check_report(self, name: str, reply: Message) -> None:
        number, step = self.plan.number(name), self.attendance.due(name, self.step_number)
        expected = {number} if self.plan.report_rows_of(name).count(step) else set()
        if reply.kind != Kind.REPORT or reply.step != step or set(reply.packets) - {FUSION} != expected:
            what = f"block {number}" if expected else "no block"
            raise ProtocolError(
                f"{name}: expected REPORT on step {step} with {what}, got {reply.kind.name} for step "
                f"{reply.step} with blocks {sorted(reply.packets)}."
            )
        self.label_mode.check(step, name, reply.packets.get(FUSION, ()))

    def check(self, name: str, reply: Message, asked: Message) -> None:
        """Refuse a reply that `respond` would refuse, as soon as it is here; a party told to hold must be READY."""
        ready = asked.step + (
            asked.kind not in (Kind.SYNC, Kind.DECIDE, Kind.LATE)
        )  # it has learnt from what it was sent
        if self.evaluation and asked.kind in (Kind.EVALUATE, Kind.FINAL):
            self.evaluation.check(name, reply, asked)
        elif not asked.hold:
            self._check_report(name, reply)
            decoded, rows = self._decode(name, reply), self.plan.report_rows_of(name).rows(reply.step)
            self.channels[name].refuse_surrogate(rows, decoded, f"{name}'s surrogate")
        elif reply.kind != Kind.READY or reply.step != ready or reply.packets:
            raise ProtocolError(
                f"{name}: expected an empty READY for step {ready}, as it was told to hold, got {reply.kind.name} for "
                f"step {reply.step} with blocks {sorted(reply.packets)}."
            )

    def _largest(self, surrogates: list[Tensor]) -> str:
        """Say whose values are the largest of a batch, for an error that one of them may have caused."""
        named = zip(self.plan.names, surrogates, strict=True)
        sizes = {name: float(part.abs().max()) for name, part in named if len(part)}
        name = max(sizes, key=lambda name: sizes[name])
        return f"The largest value in this batch, {sizes[name]:.2g}, is one of {name}."

    def leave(self, name: str) -> None:
        """Proceed without a party. If it has reported on the current step, that report is taken late or not at all."""
        self.attendance.leave(name, self.step_number)

    def rejoin(self, name: str, hold: bool) -> Message:
        """Return the message with which a party that was away continues at the current step."""
        return sync_message(self, name, hold)

    def every_channel(self) -> Iterator[Channel]:
        """Yield all channels at this end, some of them more than once."""
        for name, channel in self.channels.items():
            yield from (channel, *self.label_mode.outgoing(name, self.channels))
        if self.evaluation:
            yield from self.evaluation.channels.values()

    def digests(self, name: str) -> list[str]:
        """Return what a party's `digests` are if both ends remember the same."""
        if self._digests[0] != self.step_number:  # memories may be large, and parties connect at the same time
            self._digests = (self.step_number, {})
        known, found = self._digests[1], []
        for channel in (self.channels[name], *self.label_mode.outgoing(name, self.channels)):
            if id(channel) not in known:
                known[id(channel)] = channel.digest()
            found.append(known[id(channel)])
        found[0] += self.evaluation.channels[name].digest() if self.evaluation else ""
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit, between any two steps."""
        return {
            "step": self.step_number,
            "block": self.block.state_dict(),
            "channels": {name: channel.state_dict() for name, channel in self.channels.items()},
            "label_mode": self.label_mode.state_dict(),
            "attendance": self.attendance.state_dict(),
            "cached": self.cached.state_dict(),
            "evaluation": self.evaluation.state_dict() if self.evaluation else {},
        } | self._protected_state()

    def _protected_state(self) -> dict[str, Any]:
        """Return what must not change of the protection of labels: visits so far, and the labels that were drawn."""
        noise = {"noise": self.noise.state_dict()} if self.noise else {}
        return noise | ({"release": digest_of(self.labels)} if self.release else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        if ("noise" in state) != (self.noise is not None):
            had = "had" if "noise" in state else "had none"
            raise CheckpointError(f"labels {had} noise at every visit so far: restore protect.visits.")
        if state.get("release") != self._protected_state().get("release"):
            raise CheckpointError(
                "so far training has used other randomised labels, or others than it would now: restore "
                "protect.label_epsilon and the draw, or start anew, which spends another epsilon."
            )
        if self.noise:
            self.noise.load_state_dict(state["noise"])
        self.step_number = int(state["step"])
        self._digests = (self.step_number, {})
        self.block.load_state_dict(state["block"])
        for name, channel in self.channels.items():
            channel.load_state_dict(state["channels"][name])
        self.label_mode.load_state_dict(state["label_mode"])
        self.attendance.load_state_dict(state["attendance"])
        self.cached.load([ServerBatch.of(s, self.batches, self.targets, saved) for s, saved in state["cached"]])
        if self.evaluation:
            self.evaluation.load_state_dict(state["evaluation"])
