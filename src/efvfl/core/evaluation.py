"""Held-out rows by messages: validation rows as training rows are sent, and what follows from their loss.

Between two steps the server asks for a report on the validation rows (EVALUATE). It travels through the compressor of
the training rows, with a memory of its own at both ends. What the server decides by the loss it tells the parties
(DECIDE). At the end of training, and then only, parties represent validation and test rows finely (FINAL): rounded to
a byte a number where reports are compressed at all, else exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from efvfl.compress import Identity, Uniform
from efvfl.core.batches import ALL
from efvfl.core.block import Block
from efvfl.core.channel import Channel, Packets, blocks, refuse_huge, send_alone, unpack
from efvfl.core.decision import Decision
from efvfl.core.fusion import Fusion
from efvfl.core.kept_model import KeptModel
from efvfl.core.local_model import CHUNK, evaluating
from efvfl.core.plan import Plan
from efvfl.core.source_columns import OwnColumns
from efvfl.core.targets import Targets
from efvfl.errors import ProtocolError
from efvfl.wire.message import Kind, Message

if TYPE_CHECKING:
    from efvfl.core.party import Party

FINE = Uniform(levels=127, scale="row")  # of held-out rows at the end: half a step is 0.4 % of a row's largest number
BETWEEN_STEPS = (Kind.EVALUATE, Kind.FINAL, Kind.DECIDE)  # parties hold, and hold on


class PartyEvaluation:
    """A party's half: its held-out columns, the memory of its validation rows, and the model that is kept."""

    def __init__(self, block: Block, columns: Mapping[str, OwnColumns], channel: Channel) -> None:
        """Report on these columns, by split, through this channel."""
        self.columns = columns
        self.channel = channel
        self.kept = KeptModel(block)

    def state_dict(self) -> dict[str, Any]:
        """Return the memory and the kept model."""
        return {"channel": self.channel.state_dict(), "kept": self.kept.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.channel.load_state_dict(state["channel"])
        self.kept.load_state_dict(state["kept"])


def answer(party: Party, message: Message) -> Message:
    """Do what the server asks for between two steps, or refuse it."""
    evaluation, step = party.evaluation, party.step
    if evaluation is None:
        raise ProtocolError(
            f"{party.name}: did not agree to evaluate by messages, got {message.kind.name}: is evaluation the same in "
            "all files?"
        )
    if message.step != step or party.open or not message.hold:
        raise ProtocolError(
            f"{party.name}: expected {message.kind.name} with hold for step {step} and no open report, got one for "
            f"step {message.step} with {len(party.open)} open."
        )
    if message.kind == Kind.DECIDE:
        _carry_out(party, evaluation, message)
        return Message(Kind.READY, step)
    if message.packets or (message.kind == Kind.EVALUATE and "validation" not in evaluation.columns):
        raise ProtocolError(
            f"{party.name}: expected {message.kind.name} without blocks about rows held here, got blocks "
            f"{sorted(message.packets)} about {sorted(evaluation.columns)}."
        )
    return Message(Kind.EVALUATION, step, blocks({party.number: _represented(party, evaluation, message.kind)}))


def _represented(party: Party, evaluation: PartyEvaluation, kind: Kind) -> Packets:
    """Return C(h - G) of the validation rows, or h of all held-out rows, rounded finely; a packet a split with rows."""
    here = [split for split in party.plan.held_out if len(evaluation.columns[split])]
    if kind == Kind.EVALUATE:
        if "validation" not in here:
            return ()
        h = _leaving(party, "validation", "evaluate")
        return evaluation.channel.send(ALL, h, party.step)[0]
    found = [_leaving(party, split, "final") for split in here]
    compressor = Identity() if evaluation.channel.exact else FINE
    return tuple(packet for h in found for packet in send_alone(h, "a representation", compressor))


def _leaving(party: Party, split: str, asked: str) -> Tensor:
    """Return the representation of a held-out split as it may leave the party."""
    assert party.evaluation is not None, "it was asked about held-out rows"
    h = party.model.represent(party.evaluation.columns[split])
    return party.noise.evaluate(h, split, asked, party.step) if party.noise else h


def _carry_out(party: Party, evaluation: PartyEvaluation, message: Message) -> None:
    """Carry out a decision of the server, or refuse it and change nothing."""
    if set(message.packets) != {party.number}:
        raise ProtocolError(
            f"{party.name}: expected a decision in block {party.number} alone, got {sorted(message.packets)}."
        )
    decision, rate = Decision.read(message.packets[party.number]), party.block.rate
    if decision.use and not (evaluation.kept.exists or decision.keep):
        raise ProtocolError(f"{party.name}: expected to be told to keep a model before it is used, got the reverse.")
    if decision.rate and not (party.plan.optimizer.on_plateau and decision.rate <= rate):
        agreed = f"at most {rate:g}" if party.plan.optimizer.on_plateau else "none, as no plateau was agreed on"
        raise ProtocolError(f"{party.name}: expected a learning rate of {agreed}, got {decision.rate:g}.")
    decision.carry_out(party.block, evaluation.kept)
    if decision.rate:
        party.label_mode.set_rate(decision.rate)
    party.model.share(party.step)


def go_on(party: Party) -> None:
    """Go on learning where training was, if it had ended and the kept model was in use."""
    if party.evaluation and party.evaluation.kept.go_on():
        party.model.share(party.step)


class ServerEvaluation:
    """The server's half: targets of held-out rows, the other ends of memories, and the fusion model that is kept."""

    def __init__(self, plan: Plan, block: Block, targets: Mapping[str, Targets], channels: dict[str, Channel]) -> None:
        """Evaluate rows with these targets, by split; the channels receive the reports of the parties, by name."""
        assert isinstance(block.module, Fusion)
        self.plan = plan
        self.block = block
        self.fusion: Fusion = block.module
        self.targets = targets
        self.channels = channels
        self.kept = KeptModel(block)
        self.parts: dict[
            str, dict[str, Tensor]
        ] = {}  # as sent at the end, by split and party; zeros where one lacks a row

    def ask(self, kind: Kind, step: int) -> dict[str, Message]:
        """Return what every party is asked before this step: EVALUATE or FINAL."""
        return {name: Message(kind, step, hold=True) for name in self.plan.names}

    def decide(self, decision: Decision, step: int) -> dict[str, Message]:
        """Carry out a decision here, and return what every party is told."""
        decision.carry_out(self.block, self.kept)
        packets = decision.packets()
        return {name: Message(Kind.DECIDE, step, {self.plan.number(name): packets}, True) for name in self.plan.names}

    def outputs(self, asked: Kind, replies: Mapping[str, Message]) -> dict[str, Tensor]:
        """Absorb what the parties replied, and return the network's output on held-out rows by split."""
        packets = {name: replies[name].packets.get(self.plan.number(name), ()) for name in self.plan.names}
        if asked == Kind.EVALUATE:
            return {"validation": self._predict("validation", {n: self._absorb(n, packets[n]) for n in packets})}
        fine = {name: self._fine(name, packets[name]) for name in packets}
        if self.plan.presence is not None:  # else nobody can do with fewer, and they are not needed again
            self.parts = {split: self._spread(split, fine) for split in self.plan.held_out}
        return {
            split: self._predict(split, {name: parts[split] for name, parts in fine.items()})
            for split in self.plan.held_out
        }

    def check(self, name: str, reply: Message, asked: Message) -> None:
        """Refuse a reply that `outputs` could not use."""
        number, final = self.plan.number(name), asked.kind == Kind.FINAL
        splits = self.plan.held_out if final else ("validation",)
        expected = {number} if any(self.plan.held_rows(name, split) for split in splits) else set()
        if reply.kind != Kind.EVALUATION or reply.step != asked.step or set(reply.packets) != expected:
            what = f"block {number}" if expected else "no block"
            raise ProtocolError(
                f"{name}: expected EVALUATION for step {asked.step} with {what}, got {reply.kind.name} for "
                f"step {reply.step} with blocks {sorted(reply.packets)}."
            )
        packets = reply.packets.get(number, ())
        if final:
            self._fine(name, packets)
            return
        channel = self.channels[name]
        decoded = channel.decode(ALL, packets, self.plan.held_rows(name, "validation"))
        channel.refuse_surrogate(ALL, decoded, f"{name}'s validation rows")

    def _absorb(self, name: str, packets: Packets) -> Tensor:
        """G_k <- G_k + C_k of the validation rows; return G_k."""
        channel = self.channels[name]
        return channel.receive(ALL, packets, channel.decode(ALL, packets, self.plan.held_rows(name, "validation")))

    def _fine(self, name: str, packets: Packets) -> dict[str, Tensor]:
        """Return the held-out rows that a party sent at the end, by split."""
        width, dtype = self.plan.widths[self.plan.names.index(name)], self.plan.dtype
        counts = {split: self.plan.held_rows(name, split) for split in self.plan.held_out}
        here = [split for split, rows in counts.items() if rows]
        if len(packets) != len(here):
            raise ProtocolError(f"{name}: expected a packet for each of {here}, got {len(packets)}.")
        found = {split: torch.empty((0, width), dtype=dtype) for split in counts}
        for split, packet in zip(here, packets, strict=True):
            found[split] = unpack(packet, (counts[split], width), dtype, f"{name}'s {split} rows")
            refuse_huge(found[split], f"{name}'s {split} rows")
        return found

    def _spread(self, split: str, fine: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return the rows of a split that every party sent, with zeros for those that it lacks."""
        presence, parts = self.plan.held_out_presence.get(split), {name: fine[name][split] for name in fine}
        return {name: presence.spread(name, part) for name, part in parts.items()} if presence else parts

    def _predict(self, split: str, parts: Mapping[str, Tensor]) -> Tensor:
        """Return the output of the fusion model in evaluation mode, a part of the rows at a time."""
        presence, found, mask = self.plan.held_out_presence.get(split), list(parts.values()), None
        if presence:
            found, mask = [presence.spread(name, part) for name, part in parts.items()], presence.table
        with torch.no_grad(), evaluating([self.fusion]):
            return torch.cat(
                [
                    self.fusion(
                        [part[rows] for part in found], None if mask is None else mask[rows].to(self.plan.dtype)
                    )
                    for rows in (slice(start, start + CHUNK) for start in range(0, len(found[0]), CHUNK))
                ]
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the memories and the kept model."""
        channels = {name: channel.state_dict() for name, channel in self.channels.items()}
        return {"channels": channels, "kept": self.kept.state_dict(), "parts": self.parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for name, channel in self.channels.items():
            channel.load_state_dict(state["channels"][name])
        self.kept.load_state_dict(state["kept"])
        self.parts = {split: dict(parts) for split, parts in state.get("parts", {}).items()}
