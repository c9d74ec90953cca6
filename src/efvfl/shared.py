"""Shared labels (Algorithm 1): every party computes its own cotangent from its exact representation.

The server tells each party the others' surrogates, by relaying their packets (scheme 1 of Appendix D) or by sending the
combined representation (scheme 3): the same iterates. The fusion model travels as replica.py says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from efvfl.batches import ALL, Rows, take
from efvfl.channel import Channel, Packets, send_exactly, unpack
from efvfl.errors import ProtocolError
from efvfl.fusion import Fused, Fusion, head_loss
from efvfl.losses import Loss
from efvfl.packet import Kind, Message, Reports
from efvfl.replica import Hearer, Teller
from efvfl.rng import derive


class SharedGuide:
    """A party's half."""

    def __init__(
        self,
        own: int,
        fusion: Fusion,
        hearer: Hearer,
        labels: Tensor,
        loss: Loss,
        peers: list[Channel | None] | None,
        parties: int,
        key: int,
        reports_all: bool,
        local_steps: int,
    ) -> None:
        """Hold the labels, a copy of the fusion model, and a channel from each peer (None: aggregate)."""
        self.own = own
        self.fusion = fusion
        self.hearer = hearer
        self.labels = labels
        self.loss = loss
        self.peers = peers
        self.parties = parties
        self.key = key
        self.reports_all = reports_all
        self.local_steps = local_steps
        self.kind = Kind.AGGREGATE if peers is None else Kind.RELAY
        self._lesson: _Lesson | None = None

    def hear(self, message: Message, rows: Rows, count: int, surrogate: Tensor) -> None:
        """Advance the peers' surrogates and the copy of the fusion model; `surrogate` is the own one of these rows."""
        expected = {self.parties + 1} if self.peers is None else set(range(1, self.parties + 1)) - {self.own + 1}
        if set(message.packets) - {0} != expected:
            raise ProtocolError(
                f"blocks {sorted(message.packets)} came, {sorted(expected)} and perhaps 0 are expected."
            )
        targets = take(self.labels, rows)
        if self.peers is None:
            if len(message.packets[self.parties + 1]) != 1:
                raise ProtocolError("the combined representation comes in 1 packet.")
            packet = message.packets[self.parties + 1][0]
            combined = unpack(packet, tuple(surrogate.shape), surrogate.dtype, "the combined representation")
            self.hearer.hear(message.step, message.packets.get(0, ()))
            self._lesson = _Lesson(targets, self.fusion.without(combined, surrogate, self.parties), combined, None)
            return
        reported, count = (ALL, len(self.labels)) if self.reports_all else (rows, count)
        decoded = {  # all of them before any is absorbed: a message that is refused leaves everything as it was
            j: channel.decode(reported, message.packets[j + 1], count)
            for j, channel in enumerate(self.peers)
            if channel
        }
        self.hearer.hear(message.step, message.packets.get(0, ()))
        parts = [
            surrogate if channel is None else channel.hear(reported, message.packets[j + 1], decoded[j])
            for j, channel in enumerate(self.peers)
        ]
        if self.reports_all:
            parts = [part if part is surrogate else take(part, rows) for part in parts]
        self._lesson = _Lesson(targets, self.fusion.others(parts, self.own), None, parts)

    def cotangent(self, h: Tensor, step: int, turn: int) -> Tensor:
        """Return the derivative by the own exact representation, all else held fixed (equation 3)."""
        lesson = self._lesson
        assert lesson is not None, "hear comes before cotangent"
        leaf = h.detach().requires_grad_()
        combined = self.fusion.insert(lesson.rest, self.own, leaf, self.parties)
        key = derive(self.key, step, turn)
        loss = head_loss(self.fusion, combined, lesson.targets, self.loss, key, keep_buffers=True)
        (cotangent,) = torch.autograd.grad(loss, leaf)
        return cotangent

    def finish(self, step: int) -> None:
        """Repeat the server's update, on surrogates only, if the copy is a replica."""
        lesson = self._lesson
        assert lesson is not None, "hear comes before finish"
        if self.hearer.follows:
            combined = lesson.combined if lesson.parts is None else self.fusion.combine(lesson.parts)
            assert combined is not None, "a lesson has parts or their combination"
            block = self.hearer.block
            for turn in range(self.local_steps):
                key = derive(self.key, step, turn)
                block.descend(head_loss(self.fusion, combined, lesson.targets, self.loss, key))
            block.end_step(step)
        self._lesson = None

    def digest(self, step: int) -> Packets:
        """Return the replica's digest when it is due."""
        return self.hearer.digest(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the peers' memories and the copy of the fusion model."""
        peers = [channel.state_dict() if channel else {} for channel in self.peers or []]
        return {"peers": peers, "fusion": self.hearer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.hearer.load_state_dict(state["fusion"])
        for channel, saved in zip(self.peers or [], state["peers"], strict=True):
            if channel:
                channel.load_state_dict(saved)


@dataclass(frozen=True)
class _Lesson:
    """What a party knows of one step between the server's reply and its own next report."""

    targets: Tensor
    rest: list[Tensor]  # the others' share of the combination
    combined: Tensor | None  # aggregate: as it came
    parts: list[Tensor] | None  # relay: all surrogates


class SharedAnswer:
    """The server's half."""

    needs_cotangent = False

    def __init__(self, teller: Teller, aggregate: bool) -> None:
        """Relay packets or send the combination, and tell of the fusion model."""
        self.teller = teller
        self.aggregate = aggregate
        self._told: list[Packets] = []

    def check(self, step: int, party: int, digest: Packets) -> None:
        """Leave it to the teller."""
        self.teller.check(step, party, digest)

    def prepare(self, step: int, replies: Reports) -> None:
        """Put x0 down as it is before the server's update."""
        self._told = self.teller.tell(step, [reply.packets.get(0, ()) if reply else () for reply in replies])

    def messages(self, step: int, rows: Rows, replies: Reports, fused: Fused, hold: bool) -> list[Message | None]:
        """Return what every party needs to compute its own cotangent."""
        if self.aggregate:
            common = {len(replies) + 1: send_exactly(fused.values)}
            blocks: list[dict[int, Packets]] = [common] * len(replies)
        else:
            reports = {k: reply.packets[k] for k, reply in enumerate(replies, start=1) if reply}
            blocks = [{j: report for j, report in reports.items() if j != k} for k in reports]
        kind = Kind.AGGREGATE if self.aggregate else Kind.RELAY
        return [
            Message(kind, step, {0: told, **block} if told else block, hold)
            for told, block in zip(self._told, blocks, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return what the teller keeps."""
        return {"fusion": self.teller.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.teller.load_state_dict(state["fusion"])
