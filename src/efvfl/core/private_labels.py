"""Private labels (Algorithm 2): labels and fusion model stay at the server, and the cotangent comes back (scheme 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from efvfl.core.batches import Rows
from efvfl.core.channel import Channel, Packets
from efvfl.core.fusion import Fused, Fusion
from efvfl.core.fusion_updates import refuse_digest
from efvfl.core.protection import Protection
from efvfl.errors import ProtocolError
from efvfl.util.rng import derive
from efvfl.wire.message import Kind, Message, Reports


class PrivateGuide:
    """A party's half: what it learns from is the derivative of the loss by its surrogate, and nothing else."""

    kind = Kind.COTANGENT
    fusion_size = 0

    def __init__(self, block: int, channel: Channel) -> None:
        """Hear the cotangent of this block through this channel."""
        self.block = block
        self.channel = channel
        self._cotangent: Tensor | None = None

    def hear(self, message: Message, rows: Rows, count: int, surrogate: Tensor) -> None:
        """Take the cotangent of the batch from the server's reply."""
        if set(message.packets) != {self.block}:
            raise ProtocolError(f"blocks {sorted(message.packets)} came, only block {self.block} is expected.")
        packets = message.packets[self.block]
        self._cotangent = self.channel.hear(rows, packets, self.channel.decode(rows, packets, count))

    def cotangent(self, h: Tensor, step: int, turn: int) -> Tensor:
        """Return it; the exact representation plays no part (equation 5)."""
        assert self._cotangent is not None, "hear comes before cotangent"
        return self._cotangent

    def finish(self, step: int) -> None:
        """Nothing else is to be done at the end of a step."""

    def resume(self, packets: Mapping[int, Packets], rows: Rows, steps: range) -> None:
        """A party with private labels has missed nothing of others."""
        if packets:
            raise ProtocolError(f"blocks {sorted(packets)} came too, but labels are private, and nothing was missed.")

    def digest(self, step: int) -> Packets:
        """A party with private labels has no copy to compare."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Return the downlink's memory."""
        return {"down": self.channel.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved memory."""
        self.channel.load_state_dict(state["down"])


class PrivateAnswer:
    """The server's half."""

    needs_cotangent = True

    def __init__(
        self,
        fusion: Fusion,
        channels: list[Channel],
        protection: Protection | None = None,
        key: int = 0,
        here: int | None = None,
    ) -> None:
        """Answer every party through its own channel.

        The key is the server's secret and decides the noise. Party `here` (from 0) sits next to the server: nothing
        leaves, so its cotangent stays exact.
        """
        self.fusion = fusion
        self.channels = channels
        self.widths = [channel.width[0] for channel in channels]
        self.protection = protection or Protection()
        self.key = key
        self.here = here

    def check(self, step: int, party: int, digest: Packets) -> None:
        """Nothing is heard of a fusion model."""
        refuse_digest(party, digest)

    def prepare(self, step: int, replies: Reports) -> None:
        """Nothing of the fusion model is told."""

    def messages(self, step: int, rows: Rows, replies: Reports, fused: Fused, hold: bool) -> list[Message | None]:
        """Return the cotangent of every party, given the derivative by the combined representation."""
        assert fused.slope is not None, "the server has run its backward pass"
        cotangents = self._protected(self.fusion.cotangents(fused.slope, self.widths), step)
        shared: dict[int, Packets] = {}  # of cotangents that go out as they are: for a sum or mean all are the same one

        def packets(channel: Channel, part: Tensor) -> Packets:
            if not channel.exact:
                return channel.send(rows, part, step)[0]
            if id(part) not in shared:
                shared[id(part)] = channel.send(rows, part, step)[0]
            return shared[id(part)]

        return [
            None if reply is None else Message(Kind.COTANGENT, step, {k: packets(channel, part)}, hold)
            for k, (channel, part, reply) in enumerate(zip(self.channels, cotangents, replies, strict=True), start=1)
        ]

    def resume(self, party: int, channels: list[Channel], rows: Rows) -> dict[int, Packets]:
        """Nothing is told of others."""
        return {}

    def _protected(self, cotangents: list[Tensor], step: int) -> list[Tensor]:
        """Return what leaves the server, and exactly what stays.

        For a sum or mean all parties get the same cotangent, with the same noise: from draws of their own, parties that
        collude would take the mean. In a concatenation each has a part of its own, and draws of its own: with the same
        ones they would take the difference.
        """
        if not self.protection.on:
            return cotangents
        parts = {k: 0 if self.fusion.additive else k for k in range(len(cotangents)) if k != self.here}
        safe = {p: self.protection.apply(cotangents[p], derive(self.key, step, p)) for p in set(parts.values())}
        return [safe[parts[k]] if k in parts else cotangent for k, cotangent in enumerate(cotangents)]

    def state_dict(self) -> dict[str, Any]:
        """Return the downlinks' memories."""
        return {"down": [channel.state_dict() for channel in self.channels]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved memories."""
        for channel, saved in zip(self.channels, state["down"], strict=True):
            channel.load_state_dict(saved)
