"""Private labels (Algorithm 2): labels and fusion model stay at the server; each party receives its cotangent.

A party learns from the derivative of the loss by its *surrogate* G_k (equation 5, scheme 2 of Appendix D).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from efvfl.core.batches import Rows
from efvfl.core.channel import Channel, Packets, blocks
from efvfl.core.fusion import Fusion, StepContext
from efvfl.core.fusion_updates import refuse_digest
from efvfl.core.open_reports import OpenReport, sent_entries
from efvfl.core.plan import Plan
from efvfl.core.protection import Protection
from efvfl.errors import ProtocolError
from efvfl.util.rng import derive
from efvfl.wire.message import Kind, Message


class PrivateLabelsParty:
    """A party's half."""

    kind = Kind.COTANGENT
    fusion_size = 0

    def __init__(self, number: int, down: Channel) -> None:
        """Receive the cotangent of party `number` through this channel."""
        self.number = number
        self.down = down
        self._cotangent: Tensor | None = None

    def receive(self, answer: Message, report: OpenReport) -> None:
        """Take the cotangent of the batch from the server's answer."""
        expected = {self.number} if len(report.h) else set()
        if set(answer.packets) != expected:
            what = f"block {self.number} alone" if expected else "no block for a batch without rows"
            raise ProtocolError(f"expected {what}, got blocks {sorted(answer.packets)}.")
        packets = answer.packets.get(self.number, ())
        decoded = self.down.decode(report.rows, packets, len(report.h), report.sent)
        self._cotangent = self.down.receive(report.rows, packets, decoded)

    def cotangent(self, h: Tensor, step: int, turn: int) -> Tensor | None:
        """Return d loss / d G_k, as the server sent it; the exact `h` plays no part."""
        return self._cotangent if len(h) else None

    def end_step(self, step: int) -> None:
        """Do nothing more."""

    def set_rate(self, rate: float) -> None:
        """Do nothing: no copy of the fusion model learns here."""

    def catch_up(self, blocks: Mapping[int, Packets], rows: Rows, steps: range) -> None:
        """Refuse everything: with private labels a party misses nothing of others."""
        if blocks:
            raise ProtocolError(f"expected no block of others with private labels, got blocks {sorted(blocks)}.")

    def digest(self, step: int, at: int) -> Packets:
        """Return nothing: there is no copy of the fusion model."""
        return ()

    def incoming(self) -> list[Channel]:
        """Return the downlink."""
        return [self.down]

    def state_dict(self) -> dict[str, Any]:
        """Return the downlink's memory."""
        return {"down": self.down.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved memory."""
        self.down.load_state_dict(state["down"])


class PrivateLabelsServer:
    """The server's half."""

    needs_cotangent = True

    def __init__(
        self,
        plan: Plan,
        fusion: Fusion,
        ups: dict[str, Channel],
        downs: dict[str, Channel],
        protection: Protection | None,
        key: int,
    ) -> None:
        """Answer every party through its own channel, by name, what came through that in `ups`.

        The key is the server's secret and decides the noise.
        """
        self.plan = plan
        self.fusion = fusion
        self.ups = ups
        self.downs = downs
        self.protection = protection or Protection()
        self.key = key

    def check(self, step: int, name: str, digest: Packets) -> None:
        """Refuse any digest: parties have no copy of the fusion model."""
        refuse_digest(name, digest)

    def before_update(self, step: int, reports: Mapping[str, Message]) -> None:
        """Do nothing: the fusion model is not sent."""

    def answers(self, context: StepContext, reports: Mapping[str, Message], hold: bool) -> dict[str, Message]:
        """Return d loss / d G_k on the batch, to every party its own."""
        cotangents = self._protected(context.cotangents(self.fusion, self.plan.widths), context.step)
        exact: dict[int, Packets] = {}  # by identity: for a sum or mean all parties get the same tensor

        def packets(name: str, cotangent: Tensor) -> Packets:
            channel, rows = self.downs[name], self.plan.batches_of(name).rows(context.step)
            where = self._sent(name, context.step)
            if context.present:
                cotangent = context.present.part(self.plan.number(name) - 1, cotangent)
            if context.present or where is not None or not channel.exact:
                return channel.send(rows, cotangent, context.step, where)[0]
            if id(cotangent) not in exact:
                exact[id(cotangent)] = channel.send(rows, cotangent, context.step)[0]
            return exact[id(cotangent)]

        return {
            name: Message(Kind.COTANGENT, context.step, blocks({number: packets(name, cotangent)}), hold)
            for number, (name, cotangent) in enumerate(zip(self.plan.names, cotangents, strict=True), start=1)
            if name in reports
        }

    def _sent(self, name: str, step: int) -> Tensor | None:
        """Return which entries of the batch a party's report has changed; None: all are answered."""
        if not self.plan.answers_in_part(name):
            return None
        change = self.ups[name].change
        assert change is not None, "a report is absorbed before it is answered"
        return sent_entries(self.plan.report_rows_of(name).batch(change, step))

    def catch_up(self, name: str, channels: Mapping[str, Channel], rows: Rows) -> dict[int, Packets]:
        """Return nothing: with private labels a party misses nothing of others."""
        return {}

    def outgoing(self, name: str, channels: Mapping[str, Channel]) -> list[Channel]:
        """Return the party's downlink."""
        return [self.downs[name]]

    def _protected(self, cotangents: list[Tensor], step: int) -> list[Tensor]:
        """Return cotangents as they may leave the server; the label holder's own, which stays, is exact.

        For a sum or mean all parties get the same cotangent with the same noise: from draws of their own, parties that
        collude would take the mean. In a concatenation each has a part of its own with draws of its own: with the same
        draws they would take the difference.
        """
        if not self.protection.clip:
            return cotangents
        source = {
            place: 0 if self.fusion.additive else place
            for place, name in enumerate(self.plan.names)
            if name != self.plan.label_holder
        }
        safe = {p: self.protection.apply(cotangents[p], derive(self.key, step, p)) for p in set(source.values())}
        return [safe[source[place]] if place in source else exact for place, exact in enumerate(cotangents)]

    def state_dict(self) -> dict[str, Any]:
        """Return the downlinks' memories."""
        return {"down": {name: channel.state_dict() for name, channel in self.downs.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore saved memories."""
        for name, channel in self.downs.items():
            channel.load_state_dict(state["down"][name])
