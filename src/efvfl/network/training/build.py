"""From a federation file and what one participant holds, its half of the federation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from efvfl.config.run_file import RunConfig
from efvfl.core import losses, rules
from efvfl.core.assembly import SharedParts, dropout_key, make_party, make_server, plain_model
from efvfl.core.batches import Batches
from efvfl.core.block import Block
from efvfl.core.fusion import Fusion
from efvfl.core.fusion_replicas import PER_NUMBER
from efvfl.core.local_model import CHUNK, LocalModel
from efvfl.core.losses import LOSSES, Loss
from efvfl.core.party import Party
from efvfl.core.plan import Plan
from efvfl.core.presence import RowPresence, of_training
from efvfl.core.row_protection import RowClip
from efvfl.core.server import Server
from efvfl.core.source_columns import OwnColumns, SourceColumns
from efvfl.errors import ConfigError
from efvfl.network.training.participant_data import ParticipantData
from efvfl.network.workers import worker_group
from efvfl.network.workers.group_model import GroupModel
from efvfl.network.workers.worker_group import WorkerGroup
from efvfl.runs.build import (
    head_model,
    local_model,
    make_loss,
    make_optimizer,
    memory_folder,
    model_config,
    party_training,
    private_seed,
    watching,
)
from efvfl.training.federate import check_batches, check_presence, model_width
from efvfl.training.inputs import check_finite
from efvfl.util.rng import derive


def make_plan(config: RunConfig, data: ParticipantData, home: Path | None = None) -> Plan:
    """Return what all participants know, as this one's file says it; `home` is the participant's folder."""
    widths = [model_config(config, name).width for name in data.names]
    samples, later = data.rows("train"), [split for split in ("validation", "test") if split in data.ids]
    plan = Plan(
        names=data.names,
        widths=widths,
        dtype=torch.float32,
        batches=Batches(samples, config.batch_size, derive(config.seed, "batches"), config.batch_order),
        method=config.method.build(),
        agreement=config.agreement.build(),
        loss=_loss(config, data),
        optimizer=make_optimizer(config.optimizer),
        label_holder=config.label_holder,
        stale=config.network.on_missing == "stale",
        held_out={split: data.rows(split) for split in later} if watching(config).by_messages else {},
        presence=_presence(config, data, samples),
        held_out_presence={split: known for split, known in data.presence.items() if known.missing},
        mapped=memory_folder(config, home),
    )
    missing = plan.presence is not None and plan.presence.missing
    choices = config.choices.with_method(plan.method)
    rules.check(replace(choices, widths=tuple(widths), missing=missing, sampled=plan.samples_subsets))
    return plan


def _presence(config: RunConfig, data: ParticipantData, samples: int) -> RowPresence | None:
    """Return who has which training rows, as far as it is known here; None: all have all."""
    always = config.agreement.subsets == "sampled" or config.fusion.shows_presence
    own = data.presence.get("train")
    if own is None or len(own.masks) == len(data.names):
        return of_training(data.presence, data.names, samples, always)
    own.check_parties()  # with private labels a party knows of itself alone, and that is enough
    return own


def _loss(config: RunConfig, data: ParticipantData) -> Loss:
    """Return the loss; without labels it is not computed here, and a file may leave it to the labels."""
    if data.labels:
        loss = make_loss(config, config.loss or data.loss, data.targets("train"), data.classes)
        return data.release.loss(loss) if data.release else loss
    return losses.lookup(config.loss) if config.loss else LOSSES["cross_entropy"]


def _fusion(config: RunConfig, plan: Plan, data: ParticipantData) -> Fusion:
    head = head_model(config, plan.widths, data.classes, plan.loss.name)
    return Fusion(head, config.fusion.combine, plan.widths if plan.presence else None, config.fusion.shows_presence)


def build_server(config: RunConfig, plan: Plan, data: ParticipantData) -> Server:
    """Make the server's half."""
    targets = data.targets("train")
    plan.loss.check(targets.labels)
    fusion = _fusion(config, plan, data)
    if data.start:
        widths = dict(zip(plan.names, plan.widths, strict=True))
        data.start.say([data.start.give_head(fusion.head, fusion.kind, widths), *data.start.came_and_went(plan.names)])
    check_batches(plan.batches, [fusion])
    check_presence(plan, {})
    held_out = {split: data.targets(split) for split in plan.held_out}
    protect, seed = config.protect.for_epochs(config.epochs), derive(private_seed(config), "server")
    server = make_server(plan, fusion, targets, seed, protect, held_out)
    server.release = data.release
    return server


def _build_model(config: RunConfig, plan: Plan, data: ParticipantData, name: str) -> nn.Module:
    """Make a party's local model, and see that it fits the columns."""
    x = data.columns["train"]
    check_finite(x, name)
    model = local_model(config, name, x[0], data.encoder)
    width, declared = model_width(model, x, name), model_config(config, name).width
    if width != (declared, torch.float32):
        raise ConfigError(
            f"the model of {name!r} gives {width[0]} x {width[1]}, but its width is declared as {declared}."
        )
    check_batches(plan.batches, [model])
    check_presence(plan, {name: model})
    if data.start:
        data.start.say([data.start.give_model(name, model, data.encoder)])
    return model


def build_party(config: RunConfig, plan: Plan, data: ParticipantData, name: str) -> Party:
    """Make a party's half; where torchrun started several workers, this is the one of rank 0."""
    rules.check(replace(config.choices, exact=not watching(config).by_messages))
    x, module = data.columns["train"], _build_model(config, plan, data, name)
    seed, trains = derive(private_seed(config, name), "party", name), party_training(config, name)
    model: LocalModel = plain_model(plan, name, module, x, seed, trains.optimizer)
    if worker_group.size() > 1:
        model = GroupModel(
            WorkerGroup(model.block, _in_memory(x, name), name, plan.agreement.window), dropout_key(seed)
        )
    shared = SharedParts(data.targets("train"), _fusion(config, plan, data)) if plan.agreement.shared else None
    held_out = {split: data.columns[split] for split in plan.held_out}
    return make_party(plan, name, model, seed, shared, held_out, config.of(name).protect, trains.local_steps)


def build_worker(config: RunConfig, plan: Plan, data: ParticipantData, name: str) -> WorkerGroup:
    """Make a worker of a party that has a rank above 0: a local model and columns, and nothing else."""
    module, protect = _build_model(config, plan, data, name), config.of(name).protect
    if protect.on:
        RowClip(protect.clip).put_on(module, name)
    block = Block(module, party_training(config, name).optimizer or plan.optimizer, plan.batches.per_epoch)
    return WorkerGroup(block, _in_memory(data.columns["train"], name), name, plan.agreement.window)


def _in_memory(x: OwnColumns, name: str) -> Tensor:
    """Return columns that a group of workers can share: they know rows, and not the step that a source is asked for."""
    if isinstance(x, SourceColumns):
        raise ConfigError(
            f"the columns of {name!r}: expected a table for several workers, got a source: use one worker."
        )
    return x


def frame_limit(plan: Plan, fusion_size: int = 0) -> int:
    """Return a size that no frame of this federation exceeds: all blocks of a message uncompressed, and some to spare.

    A party may be sent a fusion model of `fusion_size` numbers, with its optimiser's state.
    """
    synced = plan.stale and (plan.agreement.window > 1 or not plan.agreement.private)  # SYNC may have all rows
    whole = plan.agreement.reports == "all" or synced
    rows = max(plan.batches.samples if whole else plan.batches.count(0), sum(plan.held_out.values()))
    return 2 * 8 * max(rows, CHUNK) * sum(plan.widths) + 8 * PER_NUMBER * fusion_size + (64 << 20)
