"""Shared labels (Algorithm 1): every party computes its own cotangent from its exact representation.

The server sends each party the others' surrogates, by relaying their packets (scheme 1 of Appendix D) or by sending the
combined representation (scheme 3): the same iterates. The fusion model travels as fusion_updates.py says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efvfl.core.agreement import SharedLabels
from efvfl.core.batches import Rows
from efvfl.core.channel import Channel, Packets, blocks, read_bytes, send_bytes, send_exactly, unpack
from efvfl.core.fusion import Fusion, StepContext, head_loss, select
from efvfl.core.fusion_updates import CompressedReceiver, CompressedSender, FusionReceiver, FusionSender
from efvfl.core.gradients import slope_by
from efvfl.core.open_reports import OpenReport
from efvfl.core.plan import Plan
from efvfl.core.presence import PresentBatch
from efvfl.core.targets import Targets
from efvfl.errors import ProtocolError
from efvfl.util.rng import derive
from efvfl.wire.message import FUSION, Kind, Message, combined_block, rows_block


@dataclass(frozen=True)
class PartyContext:
    """What a party knows of one step, from the server's answer until the end of the step."""

    targets: Targets  # of the rows that take part
    rest: list[Tensor]  # the others' share of the combination; empty where it is made of surrogates every time
    surrogates: list[Tensor] | None  # relay: of all parties
    combined: Tensor | None  # aggregate: as it was received
    mask: Tensor | None  # which rows take part; None: all
    present: PresentBatch | None = None  # who has which rows; None: all have all


class SharedLabelsParty:
    """A party's half."""

    def __init__(
        self, plan: Plan, name: str, targets: Targets, receiver: FusionReceiver, peers: Mapping[str, Channel]
    ) -> None:
        """Hold the labels, a copy of the fusion model, and with relayed packets a channel from each other party."""
        assert plan.agreement.shared is not None
        self.plan = plan
        self.shared: SharedLabels = plan.agreement.shared
        self.place = plan.names.index(name)
        self.targets = targets
        self.receiver = receiver
        self.peers = peers
        self.key = plan.fusion_key
        self.kind = Kind.RELAY if self.shared.downlink == "relay" else Kind.AGGREGATE
        self.fusion_size = receiver.block.size()
        self._context: PartyContext | None = None

    @property
    def fusion(self) -> Fusion:
        """The copy of the fusion model."""
        assert isinstance(self.receiver.block.module, Fusion)
        return self.receiver.block.module

    # The step.

    def receive(self, answer: Message, report: OpenReport) -> None:
        """G_j <- G_j + C_j of all other parties j, and x0: all that the own cotangent depends on."""
        self._check_blocks(answer)
        count, present = self.plan.batches.count(answer.step), self.plan.present(answer.step)
        mask = self._taking_part(answer, count)
        targets = self.targets.take(self.plan.batches.rows(answer.step)).select(mask)
        if self.kind == Kind.AGGREGATE:
            combined = self._combined(answer, (count, *report.surrogate.shape[1:]), report.surrogate.dtype)
            self.receiver.receive(answer.step, answer.packets.get(FUSION, ()))
            if present:
                rest = [combined - self._share(present, report.surrogate)]
            else:
                rest = self.fusion.without(combined, report.surrogate, len(self.plan.names))
            self._context = PartyContext(targets, rest, None, combined, mask, present)
            return
        decoded = self._decoded(answer)  # all of it before any is absorbed: a refused message changes nothing
        self.receiver.receive(answer.step, answer.packets.get(FUSION, ()))
        surrogates = [
            self._absorb(name, answer, decoded) if name in self.peers else report.surrogate for name in self.plan.names
        ]
        rest = [] if present else self.fusion.others(surrogates, self.place)
        self._context = PartyContext(targets, rest, surrogates, None, mask, present)

    def cotangent(self, h: Tensor, step: int, turn: int) -> Tensor | None:
        """Return d loss / d h_k at the own exact representation, all else held fixed (equation 3)."""
        context = self._current
        if not len(context.targets) or not len(h):
            return None
        leaf = h.detach().requires_grad_()
        joined = select(self._with_own(context, leaf), context.mask)
        key = derive(self.key, step, turn)
        loss = head_loss(self.fusion, joined, context.targets, self.plan.loss, key, True, context.present)
        return slope_by(loss, leaf)

    def _with_own(self, context: PartyContext, h: Tensor) -> Tensor:
        """Return what the loss is computed from, with `h` as the own representation."""
        present = context.present
        if present is None:
            return self.fusion.insert(context.rest, self.place, h, len(self.plan.names))
        if context.surrogates is None:
            return context.rest[0] + self._share(present, h)
        parts = [h if j == self.place else part for j, part in enumerate(context.surrogates)]
        return self.fusion.join(parts, present)

    def _share(self, present: PresentBatch, h: Tensor) -> Tensor:
        """Return what the own rows add to a sum or mean over those present."""
        return present.spread(self.place, h) * self.fusion.weights(present.mask)

    def end_step(self, step: int) -> None:
        """Repeat the server's update of x0, on surrogates only, if the copy is a replica."""
        context, self._context = self._current, None
        if not self.receiver.follows:
            return
        present = context.present
        joined = context.combined if context.surrogates is None else self.fusion.join(context.surrogates, present)
        assert joined is not None, "a context has surrogates or their combination"
        joined, block = select(joined, context.mask), self.receiver.block
        for turn in range(self.shared.local_steps if len(context.targets) else 0):
            key = derive(self.key, step, turn)
            block.descend(head_loss(self.fusion, joined, context.targets, self.plan.loss, key, present=present))
        block.end_step(step)

    def set_rate(self, rate: float) -> None:
        """Change the learning rate of a replica."""
        self.receiver.block.set_rate(rate)

    @property
    def _current(self) -> PartyContext:
        assert self._context is not None, "receive comes first"
        return self._context

    # What an answer holds.

    def _check_blocks(self, answer: Message) -> None:
        """Refuse blocks that do not belong there; other parties may be missing where that was agreed on."""
        found, parties = set(answer.packets), len(self.plan.names)
        relayed = {self.plan.number(name) for name in self.peers if not self._has_none(name, answer.step)}
        expected = {combined_block(parties)} if self.kind == Kind.AGGREGATE else relayed
        if self.plan.partial and self.kind == Kind.RELAY:
            expected = found & expected
        if found - ({FUSION, rows_block(parties)} if self.plan.partial else {FUSION}) != expected:
            raise ProtocolError(f"expected blocks {sorted(expected)} and perhaps {FUSION}, got {sorted(found)}.")

    def _taking_part(self, answer: Message, count: int) -> Tensor | None:
        """Return which rows of the batch take part; None: all."""
        packets = answer.packets.get(rows_block(len(self.plan.names)))
        if packets is None:
            return None
        packed = read_bytes(packets, -(-count // 8), "the list of rows that take part")
        mask = np.unpackbits(np.frombuffer(packed, np.uint8)).astype(bool)
        if mask[count:].any():
            raise ProtocolError(f"the list of rows that take part: expected {count:,} rows of the batch, got more.")
        if mask.sum() in (1, count):
            raise ProtocolError(
                f"the list of rows that take part: expected none or several, but not all of {count:,}, got "
                f"{mask.sum():,}."
            )
        return torch.from_numpy(mask[:count])

    def _combined(self, answer: Message, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        packets = answer.packets[combined_block(len(self.plan.names))]
        if len(packets) != 1:
            raise ProtocolError(f"the combined representation: expected 1 packet, got {len(packets)}.")
        return unpack(packets[0], shape, dtype, "the combined representation")

    def _decoded(self, answer: Message) -> dict[str, Tensor]:
        decoded = {}
        for name, channel in self.peers.items():
            rows, number = self.plan.report_rows_of(name), self.plan.number(name)
            if number in answer.packets:
                decoded[name] = channel.decode(rows.rows(answer.step), answer.packets[number], rows.count(answer.step))
        return decoded

    def _absorb(self, name: str, answer: Message, decoded: Mapping[str, Tensor]) -> Tensor:
        """Return another party's surrogate on the batch; of one that is away, as it is."""
        channel, report_rows, step = self.peers[name], self.plan.report_rows_of(name), answer.step
        rows, packets = report_rows.rows(step), answer.packets.get(self.plan.number(name), ())
        if name in decoded:
            return report_rows.batch(channel.receive(rows, packets, decoded[name]), step)
        if self._has_none(name, step):
            return channel.decode(rows, packets, 0)
        return report_rows.batch(channel.surrogate(rows), step)

    def _has_none(self, name: str, step: int) -> bool:
        """Whether a party has no row to report on at a step."""
        return not self.plan.report_rows_of(name).count(step)

    # Absence, copies of the fusion model, checkpoints.

    def catch_up(self, blocks: Mapping[int, Packets], rows: Rows, steps: range) -> None:
        """Take over the other parties' surrogates and the copy of the fusion model as they are now."""
        peers = {self.plan.number(name): channel for name, channel in self.peers.items()}
        if set(blocks) - {FUSION} != set(peers) or any(len(blocks[number]) != 1 for number in peers):
            raise ProtocolError(f"expected blocks {sorted(peers)} and perhaps {FUSION}, got {sorted(blocks)}.")
        count = len(self.targets.take(rows))
        surrogates = {
            number: unpack(
                blocks[number][0], (count, *channel.width), channel.dtype, f"{channel.what}, as the server holds it"
            )
            for number, channel in peers.items()
        }
        self.receiver.catch_up(blocks.get(FUSION, ()), steps)
        for number, channel in peers.items():
            channel.restore(rows, surrogates[number])

    def digest(self, step: int, at: int) -> Packets:
        """Return the replica's digest when it is due."""
        return self.receiver.digest(step, at)

    def incoming(self) -> list[Channel]:
        """Return the channels of the other parties in their order, and that of a compressed fusion model."""
        fusion = [self.receiver.channel] if isinstance(self.receiver, CompressedReceiver) else []
        return [*self.peers.values(), *fusion]

    def state_dict(self) -> dict[str, Any]:
        """Return the other parties' memories and the copy of the fusion model."""
        peers = {name: channel.state_dict() for name, channel in self.peers.items()}
        return {"peers": peers, "fusion": self.receiver.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.receiver.load_state_dict(state["fusion"])
        for name, channel in self.peers.items():
            channel.load_state_dict(state["peers"][name])


class SharedLabelsServer:
    """The server's half."""

    needs_cotangent = False

    def __init__(self, plan: Plan, sender: FusionSender) -> None:
        """Relay packets or send the combination, as the plan says, and send the fusion model."""
        assert plan.agreement.shared is not None
        self.plan = plan
        self.sender = sender
        self.aggregate = plan.agreement.shared.downlink == "aggregate"
        self._fusion: dict[str, Packets] = {}  # x0 for every party, as it is before the server's update

    def check(self, step: int, name: str, digest: Packets) -> None:
        """Refuse a digest that is not due, and want one that is."""
        self.sender.check(step, name, digest)

    def before_update(self, step: int, reports: Mapping[str, Message]) -> None:
        """Take down x0 as it is before the server's update of this step."""
        self._fusion = self.sender.send(step, {name: r.packets.get(FUSION, ()) for name, r in reports.items()})

    def answers(self, context: StepContext, reports: Mapping[str, Message], hold: bool) -> dict[str, Message]:
        """Return what every party needs to compute its own cotangent: x0, and the others' C_j or the combination."""
        parties, common, relayed = len(self.plan.names), dict[int, Packets](), dict[int, Packets]()
        if self.aggregate:
            what = f"the combination of step {context.step}"
            common[combined_block(parties)] = send_exactly(context.values, what)
        else:
            numbered = enumerate(self.plan.names, start=1)
            relayed = blocks({k: reports[n].packets.get(k, ()) for k, n in numbered if n in reports})
        if context.mask is not None:
            common[rows_block(parties)] = send_bytes(np.packbits(context.mask.numpy()).tobytes())
        kind = Kind.AGGREGATE if self.aggregate else Kind.RELAY

        def answer(name: str) -> Message:
            number, fusion = self.plan.number(name), self._fusion.get(name)
            others = {k: packets for k, packets in relayed.items() if k != number}
            return Message(kind, context.step, ({FUSION: fusion} if fusion else {}) | others | common, hold)

        return {name: answer(name) for name in self.plan.names if name in reports}

    def catch_up(self, name: str, channels: Mapping[str, Channel], rows: Rows) -> dict[int, Packets]:
        """Return the other parties' surrogates where packets are relayed, and of the fusion model what is needed."""
        others = {} if self.aggregate else {other: channel for other, channel in channels.items() if other != name}
        blocks = {
            self.plan.number(other): send_exactly(channel.surrogate(rows), channel.what)
            for other, channel in others.items()
        }
        fusion = self.sender.catch_up(name)
        return {FUSION: fusion, **blocks} if fusion else blocks

    def outgoing(self, name: str, channels: Mapping[str, Channel]) -> list[Channel]:
        """Return the channels of the other parties where packets are relayed, and that of a compressed fusion model."""
        fusion = [self.sender.channel] if isinstance(self.sender, CompressedSender) else []
        peers = [] if self.aggregate else [channels[other] for other in self.plan.names if other != name]
        return [*peers, *fusion]

    def state_dict(self) -> dict[str, Any]:
        """Return what the sender of the fusion model keeps."""
        return {"fusion": self.sender.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.sender.load_state_dict(state["fusion"])
