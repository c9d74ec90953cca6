"""The one place where parts meet: from a plan that all share, each participant builds its own half."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from efvfl.core import memory
from efvfl.core.batches import Batches, Source
from efvfl.core.block import Block, Optimizer
from efvfl.core.channel import Channel
from efvfl.core.fusion import Fusion
from efvfl.core.fusion_replicas import ReplicateHearer, ReplicateTeller
from efvfl.core.fusion_updates import CompressHearer, CompressTeller, Hearer, SendHearer, SendTeller, Teller
from efvfl.core.losses import Loss
from efvfl.core.methods import Agreement, Link, Method, svfl
from efvfl.core.party import Guide, Party
from efvfl.core.private_labels import PrivateAnswer, PrivateGuide
from efvfl.core.protection import Protection
from efvfl.core.server import Answer, Server
from efvfl.core.shared_labels import SharedAnswer, SharedGuide
from efvfl.errors import ConfigError
from efvfl.util.rng import derive


@dataclass(frozen=True)
class Plan:
    """What every participant knows of the federation before it starts: enough to build its own half alone."""

    names: list[str]
    widths: list[int]
    dtype: torch.dtype
    batches: Batches
    method: Method
    agreement: Agreement
    loss: Loss
    optimizer: Optimizer
    label_holder: str = ""  # a party that sits next to the server
    stale: bool = False  # whether steps may go without a party that is missing
    mapped: Path | None = None  # each its own choice: a folder where memories lie in files; None: they are in RAM

    def link(self, party: int, direction: str) -> Link:
        """Return the uplink or downlink of a party; next to the server, and with private labels, nothing is lost."""
        if self.agreement.labels == "private" and self.names[party] == self.label_holder:
            return svfl().up
        return self.method.up if direction == "up" else self.method.down

    def channel(self, party: int, direction: str, key: int = 0) -> Channel:
        """Return one end of the channel that carries a party's representation (up) or cotangent (down)."""
        link, width = self.link(party, direction), self.widths[party]
        narrow = torch.bfloat16 if self.agreement.memory_dtype == "bfloat16" else None
        shape = (self.batches.samples, width)
        made = memory.make(link.memory, shape, self.dtype, link.start, narrow, self.mapped)
        what = f"{self.names[party]}'s {'representation' if direction == 'up' else 'cotangent'}"
        return Channel(link.compressor, made, (width,), self.dtype, key, what)

    def fusion_channel(self, block: Block, key: int = 0) -> Channel:
        """Return one end of the channel that carries the fusion model as a vector."""
        link = self.method.fusion
        made = memory.make(link.memory, (block.size(),), block.dtype, link.start)
        return Channel(link.compressor, made, (), block.dtype, key, "the fusion model")


def make_server(
    plan: Plan, fusion: Fusion, labels: Tensor, private_seed: int, protect: Protection | None = None
) -> Server:
    """Build the server from what it alone holds: the labels, the fusion model, a private seed, its own protection."""
    block = Block(fusion, plan.optimizer, plan.batches.per_epoch)
    parties = range(len(plan.names))
    answer: Answer
    if plan.agreement.labels == "private":
        downs = [plan.channel(k, "down", derive(private_seed, "noise", plan.names[k])) for k in parties]
        here = plan.names.index(plan.label_holder) if plan.label_holder else None
        answer = PrivateAnswer(fusion, downs, protect, derive(private_seed, "protect"), here)
    else:
        if protect is not None and protect.on:
            raise ConfigError(
                "protect is set, but it would have no effect: labels are shared, and no cotangent is sent. "
                "Leave it out, or use Agreement(labels='private')."
            )
        answer = SharedAnswer(_teller(plan, block, private_seed), plan.agreement.downlink == "aggregate")
    return Server(
        names=plan.names,
        fusion=fusion,
        block=block,
        labels=labels,
        loss=plan.loss,
        batches=plan.batches,
        channels=[plan.channel(k, "up") for k in parties],
        answer=answer,
        key=derive(plan.batches.seed, "fusion"),
        reports_all=plan.agreement.reports == "all",
        local_steps=plan.agreement.local_steps,
        stale=plan.stale,
    )


def _teller(plan: Plan, block: Block, private_seed: int) -> Teller:
    if plan.agreement.fusion == "send":
        return SendTeller(block, len(plan.names))
    if plan.agreement.fusion == "replicate":
        return ReplicateTeller(block, plan.names, plan.agreement.digest_every)
    channel = plan.fusion_channel(block, derive(private_seed, "noise", "fusion"))
    return CompressTeller(block, len(plan.names), channel)


def _hearer(plan: Plan, fusion: Fusion) -> Hearer:
    if plan.agreement.fusion == "replicate":
        return ReplicateHearer(Block(fusion, plan.optimizer, plan.batches.per_epoch), plan.agreement.digest_every)
    block = Block(fusion.requires_grad_(False), None)  # written to, never trained here
    if plan.agreement.fusion == "send":
        return SendHearer(block)
    return CompressHearer(block, plan.fusion_channel(block))


def make_party(
    plan: Plan,
    name: str,
    model: nn.Module,
    features: Tensor | Source,
    private_seed: int,
    fusion: Fusion | None = None,
    labels: Tensor | None = None,
    server: Server | None = None,
) -> Party:
    """Build a party from what it alone holds. With shared labels it also has them, and a fusion model to write to.

    In the server's own process it hears the other parties through the server's ends of their channels.
    """
    own = plan.names.index(name)
    agreement = plan.agreement
    guide: Guide
    if agreement.labels == "private":
        guide = PrivateGuide(own + 1, plan.channel(own, "down"))
    else:
        if fusion is None or labels is None:
            raise ConfigError(f"labels are shared, so party {name!r} needs the labels and a copy of the fusion model.")
        peers = None
        if agreement.downlink == "relay":
            ends = server.channels if server else [plan.channel(j, "up") for j in range(len(plan.names))]
            peers = [None if j == own else end for j, end in enumerate(ends)]
        guide = SharedGuide(
            own=own,
            fusion=fusion,
            hearer=_hearer(plan, fusion),
            labels=labels,
            loss=plan.loss,
            peers=peers,
            parties=len(plan.names),
            key=derive(plan.batches.seed, "fusion"),
            reports_all=agreement.reports == "all",
            local_steps=agreement.local_steps,
            stale=plan.stale,
        )
    return Party(
        name=name,
        number=own + 1,
        block=Block(model, plan.optimizer, plan.batches.per_epoch),
        features=features,
        batches=plan.batches,
        up=plan.channel(own, "up", derive(private_seed, "noise")),
        guide=guide,
        key=derive(private_seed, "dropout"),
        reports_all=agreement.reports == "all",
        local_steps=agreement.local_steps,
        stale=plan.stale,
        window=agreement.window,
    )
