"""The one place where parts meet: from a plan that all share, each participant assembles its own half."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from efvfl.core.agreement import SharedLabels
from efvfl.core.batches import Source
from efvfl.core.block import Block
from efvfl.core.channel import Channel
from efvfl.core.evaluation import PartyEvaluation, ServerEvaluation
from efvfl.core.fusion import Fusion
from efvfl.core.fusion_replicas import ReplicaReceiver, ReplicaSender
from efvfl.core.fusion_updates import (
    CompressedReceiver,
    CompressedSender,
    ExactReceiver,
    ExactSender,
    FusionReceiver,
    FusionSender,
)
from efvfl.core.local_model import LocalModel, PlainModel
from efvfl.core.optimizer import Optimizer
from efvfl.core.party import Party, PartyLabelMode
from efvfl.core.plan import Plan
from efvfl.core.private_descent import PrivateDescent
from efvfl.core.private_labels import PrivateLabelsParty, PrivateLabelsServer
from efvfl.core.protection import Protection
from efvfl.core.row_protection import RowClip, RowNoise, RowProtection
from efvfl.core.server import Server, ServerLabelMode
from efvfl.core.shared_labels import SharedLabelsParty, SharedLabelsServer
from efvfl.core.source_columns import OwnColumns
from efvfl.core.targets import Targets
from efvfl.core.visit_noise import OutputNoise
from efvfl.errors import ConfigError
from efvfl.util.rng import derive


def make_server(
    plan: Plan,
    fusion: Fusion,
    targets: Targets,
    private_seed: int,
    protect: Protection | None = None,
    held_out: Mapping[str, Targets] | None = None,
) -> Server:
    """Assemble the server from what it alone holds: all targets, fusion model, private seed and protection."""
    block = Block(fusion, plan.optimizer, plan.batches.per_epoch)
    ups = {name: plan.channel(name, "up") for name in plan.names}
    label_mode: ServerLabelMode
    if plan.agreement.shared:
        label_mode = SharedLabelsServer(plan, _sender(plan, plan.agreement.shared, block, private_seed))
    else:
        downs = {name: plan.channel(name, "down", derive(private_seed, "noise", name)) for name in plan.names}
        label_mode = PrivateLabelsServer(plan, fusion, ups, downs, protect, derive(private_seed, "protect"))
    evaluation: ServerEvaluation | None = None
    if plan.held_out:
        channels = {name: plan.validation_channel(name) for name in plan.names}
        evaluation = ServerEvaluation(plan, block, held_out or {}, channels)
    noise: OutputNoise | None = None
    if protect and protect.visits.on:
        noise = OutputNoise(plan, targets, protect.visits, derive(private_seed, "visits"))
    return Server(plan, block, targets, ups, label_mode, evaluation, noise)


@dataclass(frozen=True)
class SharedParts:
    """What a party holds beside its columns where labels are shared."""

    targets: Targets
    fusion: Fusion  # a copy to write to
    channels: Mapping[str, Channel] | None = None  # in the server's process: its ends of the parties' channels


def plain_model(
    plan: Plan,
    name: str,
    module: nn.Module,
    features: Tensor | Source,
    private_seed: int,
    optimizer: Optimizer | None = None,
) -> PlainModel:
    """Return a party's model as it computes alone, on these columns; perhaps with an optimiser of its own."""
    block = Block(module, optimizer or plan.optimizer, plan.batches.per_epoch)
    return PlainModel(block, features, dropout_key(private_seed), name)


def dropout_key(private_seed: int) -> int:
    """Return what seeds the dropout of a local model."""
    return derive(private_seed, "dropout")


def make_party(
    plan: Plan,
    name: str,
    model: LocalModel,
    private_seed: int,
    shared: SharedParts | None = None,
    held_out: Mapping[str, OwnColumns] | None = None,
    protect: RowProtection | None = None,
    local_steps: int = 0,
) -> Party:
    """Assemble a party from what it alone holds, also columns of held-out rows; with shared labels that is more.

    `protect` is how its rows are protected where they leave it, which those of the label holder do not if labels are
    private. `local_steps` are its own; 0: as all.
    """
    label_mode: PartyLabelMode
    if plan.agreement.shared is None:
        label_mode = PrivateLabelsParty(plan.number(name), plan.channel(name, "down"))
    elif shared is None:
        raise ConfigError(f"labels are shared: party {name!r} needs the labels and a copy of the fusion model.")
    else:
        receiver = _receiver(plan, plan.agreement.shared, shared.fusion)
        label_mode = SharedLabelsParty(plan, name, shared.targets, receiver, _peers(plan, name, shared))
    evaluation: PartyEvaluation | None = None
    if plan.held_out:
        channel = plan.validation_channel(name, derive(private_seed, "noise", "validation"))
        evaluation = PartyEvaluation(model.block, held_out or {}, channel)
    noise: RowNoise | None = None
    if protect and protect.on:
        if plan.agreement.private and name == plan.label_holder:
            raise ConfigError(
                f"protect of {name!r}: it sits next to the server, and its rows do not leave it: leave protect out. "
                "For its labels there is [protect]."
            )
        RowClip(protect.clip).put_on(model.block.module, name)
        noise = RowNoise(plan, name, protect, derive(private_seed, "rows"))
    up = plan.channel(name, "up", derive(private_seed, "noise"))
    party = Party(plan, name, model, up, label_mode, evaluation, noise)
    if protect and protect.of_columns:
        party.descent = PrivateDescent(plan, name, model, protect, derive(private_seed, "gradients"))
    party.local_steps = local_steps or party.local_steps
    return party


def _peers(plan: Plan, name: str, shared: SharedParts) -> dict[str, Channel]:
    """Return a channel from each other party where packets are relayed."""
    if plan.agreement.shared is None or plan.agreement.shared.downlink != "relay":
        return {}
    others = [other for other in plan.names if other != name]
    return {other: shared.channels[other] if shared.channels else plan.channel(other, "up") for other in others}


def _sender(plan: Plan, mode: SharedLabels, block: Block, private_seed: int) -> FusionSender:
    if mode.fusion == "send":
        return ExactSender(block)
    if mode.fusion == "replicate":
        return ReplicaSender(block, plan.names, mode.digest_every, plan.agreement.window)
    return CompressedSender(block, plan.fusion_channel(block, derive(private_seed, "noise", "fusion")))


def _receiver(plan: Plan, mode: SharedLabels, fusion: Fusion) -> FusionReceiver:
    if mode.fusion == "replicate":
        block = Block(fusion, plan.optimizer, plan.batches.per_epoch)
        return ReplicaReceiver(block, mode.digest_every, plan.agreement.window)
    block = Block(fusion.requires_grad_(False), None)  # written to, never trained here
    if mode.fusion == "send":
        return ExactReceiver(block)
    return CompressedReceiver(block, plan.fusion_channel(block))
