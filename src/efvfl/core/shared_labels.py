"""Shared labels (Algorithm 1): every party computes its own cotangent from its exact representation.

The server tells each party the others' surrogates, by relaying their packets (scheme 1 of Appendix D) or by sending the
combined representation (scheme 3): the same iterates. The fusion model travels as replica.py says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efvfl.core.batches import ALL, Rows, take
from efvfl.core.channel import Channel, Packets, read_bytes, send_bytes, send_exactly, unpack
from efvfl.core.fusion import Fused, Fusion, head_loss
from efvfl.core.fusion_updates import Hearer, Teller
from efvfl.core.losses import Loss
from efvfl.errors import ProtocolError
from efvfl.util.rng import derive
from efvfl.wire.message import Kind, Message, Reports


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
        stale: bool = False,
    ) -> None:
        """Hold the labels, a copy of the fusion model, and a channel from each peer (None: aggregate).

        With `stale`, a step may go without some peers, and without some rows.
        """
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
        self.stale = stale
        self.kind = Kind.AGGREGATE if peers is None else Kind.RELAY
        self.fusion_size = hearer.block.size()
        self._lesson: _Lesson | None = None

    def hear(self, message: Message, rows: Rows, count: int, surrogate: Tensor) -> None:
        """Advance the peers' surrogates and the copy of the fusion model; `surrogate` is the own one of these rows."""
        self._expect(message)
        targets, kept = take(self.labels, rows), self._kept(message, len(surrogate))
        if self.peers is None:
            if len(message.packets[self.parties + 1]) != 1:
                raise ProtocolError("the combined representation comes in 1 packet.")
            packet = message.packets[self.parties + 1][0]
            combined = unpack(packet, tuple(surrogate.shape), surrogate.dtype, "the combined representation")
            self.hearer.hear(message.step, message.packets.get(0, ()))
            rest = self.fusion.without(combined, surrogate, self.parties)
            self._lesson = _Lesson(targets, rest, combined, None, kept)
            return
        reported, count = (ALL, len(self.labels)) if self.reports_all else (rows, count)
        decoded = {  # all of them before any is absorbed: a message that is refused leaves everything as it was
            j: channel.decode(reported, message.packets[j + 1], count)
            for j, channel in enumerate(self.peers)
            if channel and j + 1 in message.packets
        }
        self.hearer.hear(message.step, message.packets.get(0, ()))
        parts = [
            surrogate
            if channel is None
            else channel.hear(reported, message.packets[j + 1], decoded[j])
            if j in decoded
            else channel.held(reported)  # it is away
            for j, channel in enumerate(self.peers)
        ]
        if self.reports_all:
            parts = [part if part is surrogate else take(part, rows) for part in parts]
        self._lesson = _Lesson(targets, self.fusion.others(parts, self.own), None, parts, kept)

    def _expect(self, message: Message) -> None:
        """Refuse blocks that do not belong there; peers may be missing where that was agreed on."""
        came, left_out = set(message.packets), self.parties + 2
        expected = {self.parties + 1} if self.peers is None else self._others
        if self.stale and self.peers is not None:
            expected = came & expected
        if came - ({0, left_out} if self.stale else {0}) != expected:
            raise ProtocolError(f"blocks {sorted(came)} came, {sorted(expected)} and perhaps 0 are expected.")

    @property
    def _others(self) -> set[int]:
        return set(range(1, self.parties + 1)) - {self.own + 1}

    def _kept(self, message: Message, count: int) -> Tensor | None:
        """Return which rows of the batch take part; None: all."""
        packets = message.packets.get(self.parties + 2)
        if packets is None:
            return None
        packed = read_bytes(packets, -(-count // 8), "the list of rows that take part")
        kept = np.unpackbits(np.frombuffer(packed, np.uint8)).astype(bool)
        if kept[count:].any():
            raise ProtocolError(f"the list of rows that take part goes beyond the {count:,} rows of the batch.")
        if kept.sum() in (1, count):
            raise ProtocolError(f"{kept.sum():,} of {count:,} rows are listed: neither one nor all of them ever are.")
        return torch.from_numpy(kept[:count])

    def cotangent(self, h: Tensor, step: int, turn: int) -> Tensor | None:
        """Return the derivative by the own exact representation, all else held fixed (equation 3)."""
        lesson = self._lesson
        assert lesson is not None, "hear comes before cotangent"
        leaf = h.detach().requires_grad_()
        combined, targets = lesson.batch(self.fusion.insert(lesson.rest, self.own, leaf, self.parties))
        if not len(targets):
            return None
        key = derive(self.key, step, turn)
        loss = head_loss(self.fusion, combined, targets, self.loss, key, keep_buffers=True)
        (cotangent,) = torch.autograd.grad(loss, leaf)
        return cotangent

    def finish(self, step: int) -> None:
        """Repeat the server's update, on surrogates only, if the copy is a replica."""
        lesson = self._lesson
        assert lesson is not None, "hear comes before finish"
        if self.hearer.follows:
            combined = lesson.combined if lesson.parts is None else self.fusion.combine(lesson.parts)
            assert combined is not None, "a lesson has parts or their combination"
            combined, targets = lesson.batch(combined)
            block = self.hearer.block
            for turn in range(self.local_steps if len(targets) else 0):
                key = derive(self.key, step, turn)
                block.descend(head_loss(self.fusion, combined, targets, self.loss, key))
            block.end_step(step)
        self._lesson = None

    def resume(self, packets: Mapping[int, Packets], rows: Rows, steps: range) -> None:
        """Take over the peers' surrogates and the copy of the fusion model as they are now."""
        peers = {j: channel for j, channel in enumerate(self.peers or []) if channel}
        if set(packets) - {0} != {j + 1 for j in peers} or any(len(packets[j + 1]) != 1 for j in peers):
            raise ProtocolError(f"blocks {sorted(packets)} came, {[j + 1 for j in peers]} and perhaps 0 are expected.")
        count = len(take(self.labels, rows))
        surrogates = {
            j: unpack(
                packets[j + 1][0], (count, *channel.width), channel.dtype, f"{channel.what}, as the server has it"
            )
            for j, channel in peers.items()
        }
        self.hearer.resume(packets.get(0, ()), steps)
        for j, channel in peers.items():
            channel.restore(rows, surrogates[j])

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
    kept: Tensor | None  # which rows take part; None: all

    def batch(self, combined: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is combined and the targets of the rows that take part."""
        return (combined, self.targets) if self.kept is None else (combined[self.kept], self.targets[self.kept])


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
        self._told = self.teller.tell(step, [reply.packets.get(0, ()) if reply else None for reply in replies])

    def messages(self, step: int, rows: Rows, replies: Reports, fused: Fused, hold: bool) -> list[Message | None]:
        """Return what every party needs to compute its own cotangent."""
        common: dict[int, Packets] = {}
        reports = {k: reply.packets[k] for k, reply in enumerate(replies, start=1) if reply}
        if self.aggregate:
            common, reports = {len(replies) + 1: send_exactly(fused.values, f"the combination of step {step}")}, {}
        if fused.kept is not None:
            common[len(replies) + 2] = send_bytes(np.packbits(fused.kept.numpy()).tobytes())
        kind = Kind.AGGREGATE if self.aggregate else Kind.RELAY

        def message(k: int) -> Message:
            told = {0: self._told[k - 1]} if self._told[k - 1] else {}
            return Message(kind, step, told | {j: r for j, r in reports.items() if j != k} | common, hold)

        return [message(k) if reply else None for k, reply in enumerate(replies, start=1)]

    def resume(self, party: int, channels: list[Channel], rows: Rows) -> dict[int, Packets]:
        """Return the other parties' surrogates where packets are relayed, and of the fusion model what is needed."""
        others = {} if self.aggregate else {j: c for j, c in enumerate(channels) if j != party}
        blocks = {j + 1: send_exactly(channel.held(rows), channel.what) for j, channel in others.items()}
        told = self.teller.resume(party)
        return {0: told, **blocks} if told else blocks

    def state_dict(self) -> dict[str, Any]:
        """Return what the teller keeps."""
        return {"fusion": self.teller.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.teller.load_state_dict(state["fusion"])
