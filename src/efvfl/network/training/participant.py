"""From a federation file and what one participant holds, its half of the federation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from efvfl.config.run_file import RunConfig
from efvfl.core import losses, rules
from efvfl.core.assembly import SharedParts, dropout_key, make_party, make_server, plain_model
from efvfl.core.batches import Batches
from efvfl.core.block import Block
from efvfl.core.channel import send_exactly, unpack
from efvfl.core.fusion import Fusion
from efvfl.core.fusion_replicas import PER_NUMBER
from efvfl.core.local_model import CHUNK as CHUNK
from efvfl.core.local_model import LocalModel
from efvfl.core.party import Party
from efvfl.core.plan import Plan
from efvfl.core.server import Server
from efvfl.data.base import cut_rows
from efvfl.data.npz import classes_of, own_columns, read
from efvfl.errors import ConfigError, DataError, ProtocolError, nearest
from efvfl.network.training import table_data
from efvfl.network.training.participant_data import ParticipantData
from efvfl.network.workers import worker_group
from efvfl.network.workers.worker_group import GroupModel, WorkerGroup
from efvfl.runs.build import (
    has_tables,
    head_model,
    load_data,
    local_model,
    make_loss,
    make_optimizer,
    memory_folder,
    model_config,
    private_seed,
)
from efvfl.training.federate import check_batches, model_width
from efvfl.util.rng import derive
from efvfl.wire.packet import Packet

MAX_QUESTION = 4 << 20  # bytes


def names_of(config: RunConfig, folder: Path) -> list[str]:
    """Return the parties' names: those in the file, or those of the data."""
    if has_tables(config):
        return [p.name for p in config.party]
    return [p.name for p in config.party] if _has_own_files(config, folder) else load_data(config, folder).names


def _has_own_files(config: RunConfig, folder: Path) -> bool:
    """Whether each holds a file of its own: a party's copy may name that alone, the label holder's the labels alone."""
    if any(p.data for p in config.party):
        return True
    return bool(config.party and config.data.path) and not read(folder / config.data.path).columns


def hold(config: RunConfig, folder: Path, name: str, home: Path | None = None) -> ParticipantData:
    """Load what a party holds, or the server (''); `home` is the participant's folder, where an alignment is."""
    party = name or config.label_holder
    if config.data.subset and (has_tables(config) or _has_own_files(config, folder)):
        raise ConfigError(
            f"data.subset = {config.data.subset} is set, but it would have no effect: each participant uses all rows "
            "of its own file. Leave it out."
        )
    if has_tables(config):
        return table_data.hold(config, folder, name, home)
    if _has_own_files(config, folder):
        return _own_files(config, folder, name, party)
    data = load_data(config, folder)
    if data.sources:
        raise ConfigError(
            "augmentation moves pixels between parties, so it exists in one process only: set data.augment = false."
        )
    if party and party not in data.names:
        raise ConfigError(f"{party!r} is not a party of this data. {nearest(party, data.names)}")
    splits = {s: part for s in ("train", "validation", "test") if (part := getattr(data, s)) is not None}
    place = data.names.index(party) if party else None
    columns = {} if place is None else {s: part.features[place] for s, part in splits.items()}
    labels = {s: part.labels for s, part in splits.items()}
    ids = data.ids or {s: [f"{s}:{i}" for i in range(len(part.labels))] for s, part in splits.items()}
    held = labels if not name or config.agreement.labels == "shared" else {}
    return ParticipantData(data.names, columns, held, {s: ids[s] for s in splits}, data.classes if held else 0)


def _own_files(config: RunConfig, folder: Path, name: str, party: str) -> ParticipantData:
    names = [p.name for p in config.party]
    own = config.of(party).data
    if party and own is None:
        known = f" {nearest(party, names)}" if party not in names else ""
        raise ConfigError(
            f"party {party!r} has no data in this file: its [[party]] needs data = {{ path = ... }}.{known}"
        )
    columns, labels, ids, rows = None, None, [], 0
    if own is not None:
        found = read(folder / own.path)
        columns, ids, rows = own_columns(found, folder / own.path), found.ids, found.rows
        labels = found.labels if config.agreement.labels == "shared" else None
        if labels is None and name and config.agreement.labels == "shared":
            raise ConfigError(f"labels are shared, so {own.path} of {name!r} needs them as 'y'.")
    if not name:
        if not config.data.path:
            raise ConfigError("data.path is missing: the .npz file with the labels `y`.")
        found = read(folder / config.data.path)
        if found.labels is None or (own is not None and found.ids != ids):
            raise ConfigError(f"{config.data.path} needs labels 'y', and the ids of the label holder's own columns.")
        labels, ids, rows = found.labels, found.ids, found.rows
    ids = ids or [str(i) for i in range(rows)]
    parts = {s: p for s, p in cut_rows(rows, (config.data.validation, config.data.test), config.seed).items() if len(p)}
    held = ParticipantData(
        names,
        {} if columns is None else {s: columns[part] for s, part in parts.items()},
        {} if labels is None else {s: labels[part] for s, part in parts.items()},
        {s: [ids[i] for i in part.tolist()] for s, part in parts.items()},
        0 if labels is None else classes_of(labels),
    )
    if own is not None and own.new:
        later = read(folder / own.new)
        held.columns["new"] = own_columns(later, folder / own.new)
        held.ids["new"] = later.ids or [str(i) for i in range(later.rows)]
    return held


def make_plan(config: RunConfig, holding: ParticipantData, home: Path | None = None) -> Plan:
    """Return what all participants know, as this one's file says it; `home` is the participant's folder."""
    widths = [model_config(config, name).width for name in holding.names]
    rules.check(replace(config.choices, widths=tuple(widths)))
    samples = len(holding.ids["train"])
    return Plan(
        names=holding.names,
        widths=widths,
        dtype=torch.float32,
        batches=Batches(samples, config.batch_size, derive(config.seed, "batches"), config.batch_order),
        method=config.method.build(),
        agreement=config.agreement.build(),
        # Without labels the loss is not computed here, and its name is all that matters.
        loss=make_loss(config, holding.labels["train"], holding.classes)
        if holding.labels
        else losses.lookup(config.loss),
        optimizer=make_optimizer(config.optimizer),
        label_holder=config.label_holder,
        stale=config.network.on_missing == "stale",
        mapped=memory_folder(config, home),
    )


def _fusion(config: RunConfig, plan: Plan, holding: ParticipantData) -> Fusion:
    return Fusion(head_model(config, plan.widths, holding.classes), config.fusion.combine)


def build_server(config: RunConfig, plan: Plan, holding: ParticipantData) -> Server:
    """Make the server's half."""
    labels = holding.labels["train"]
    plan.loss.check(labels)
    fusion = _fusion(config, plan, holding)
    check_batches(plan.batches, [fusion])
    return make_server(plan, fusion, labels, derive(private_seed(config), "server"), config.protect)


def _build_model(config: RunConfig, plan: Plan, holding: ParticipantData, name: str) -> nn.Module:
    """Make a party's local model, and see that it fits the columns."""
    x = holding.columns["train"]
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise ConfigError(f"the columns of {name!r} hold NaN or infinity: fill or drop such rows first.")
    model = local_model(config, name, x[0], holding.encoder)
    width, declared = model_width(model, x, name), model_config(config, name).width
    if width != (declared, torch.float32):
        raise ConfigError(
            f"the model of {name!r} gives {width[0]} x {width[1]}, but its width is declared as {declared}."
        )
    check_batches(plan.batches, [model])
    return model


def build_party(config: RunConfig, plan: Plan, holding: ParticipantData, name: str) -> Party:
    """Make a party's half; where torchrun started several workers, this is the one of rank 0."""
    x, module = holding.columns["train"], _build_model(config, plan, holding, name)
    seed, workers = derive(private_seed(config, name), "party", name), worker_group.size()
    rules.check(rules.Choices.of(plan.method, plan.agreement, workers=workers))
    model: LocalModel = plain_model(plan, name, module, x, seed)
    if workers > 1:
        model = GroupModel(WorkerGroup(model.block, x, plan.batches, name), dropout_key(seed))
    shared = SharedParts(holding.labels["train"], _fusion(config, plan, holding)) if plan.agreement.shared else None
    return make_party(plan, name, model, seed, shared)


def build_worker(config: RunConfig, plan: Plan, holding: ParticipantData, name: str) -> WorkerGroup:
    """Make a worker of a party that has a rank above 0: a local model and columns, and nothing else."""
    block = Block(_build_model(config, plan, holding, name), plan.optimizer, plan.batches.per_epoch)
    return WorkerGroup(block, holding.columns["train"], plan.batches, name)


class QuestionHandler:
    """Gives a party's exact representations of rows that are asked for."""

    def __init__(self, party: Party, holding: ParticipantData) -> None:
        """Know all rows by split and place, and by id."""
        self.party = party
        self.columns = holding.columns
        self.places = {i: (split, n) for split, ids in holding.ids.items() for n, i in enumerate(ids)}

    def __call__(self, question: bytes) -> tuple[int, bytes]:
        """Return how many rows are given, and the answer: 0 and a packet, or 1, what is wrong and where."""
        if len(question) > MAX_QUESTION:
            raise ProtocolError(f"a question of {len(question):,} bytes came, at most {MAX_QUESTION:,} are expected.")
        try:
            table = json.loads(question)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a question came that is not JSON: {error}") from error
        try:
            rows = self._rows(table)
        except DataError as error:  # which ids a party does not hold is an answer too, and counts as one
            ids = table.get("ids", ())
            places = [place for place, i in enumerate(ids) if i not in self.places]
            return len(ids), b"\x01" + str(error).encode() + b"\x00" + json.dumps(places).encode()
        h = self.party.model.represent(rows)
        return len(h), b"\x00" + send_exactly(h, "a representation")[0].to_bytes()

    def _rows(self, question: Any) -> Tensor:
        match question:
            case {"split": str(split), "start": int(start), "stop": int(stop)} if 0 <= start < stop <= start + CHUNK:
                if split not in self.columns or stop > len(self.columns[split]):
                    raise DataError(f"{self.party.name} has no {split} rows up to {stop:,}.")
                return self.columns[split][start:stop]
            case {"ids": list(ids)} if 0 < len(ids) <= CHUNK and all(isinstance(i, str) for i in ids):
                absent = [i for i in ids if i not in self.places]
                if absent:
                    raise DataError(
                        f"{self.party.name} lacks {len(absent):,} of {len(ids):,} ids, such as {absent[0]!r:.80}."
                    )
                return torch.stack([self.columns[split][n] for split, n in (self.places[i] for i in ids)])
        raise ProtocolError(f"a question came that nobody understands: {question!s:.200}")


def read_answer(name: str, answer: bytes, rows: int, width: int) -> Tensor:
    """Return the representations in an answer."""
    if answer[:1] == b"\x01":
        raise DataError(answer[1:2001].partition(b"\x00")[0].decode(errors="replace"))
    if answer[:1] != b"\x00":
        raise ProtocolError(f"{name} sent an answer that is none.")
    return unpack(Packet.from_bytes(answer[1:]), (rows, width), torch.float32, f"{name}'s representations")


def lacking(name: str, answer: bytes, rows: int) -> list[int]:
    """Return the places of the ids that a party says it lacks, of `rows` asked for; none if it has them all."""
    if answer[:1] != b"\x01":
        return []
    text = answer.partition(b"\x00")[2]
    try:
        places = json.loads(text) if len(text) <= 8 * rows else None
    except (ValueError, RecursionError):
        places = None
    if not (isinstance(places, list) and places and all(type(n) is int and 0 <= n < rows for n in places)):
        raise ProtocolError(f"{name} lacks ids, but does not say which of the {rows:,} it was asked for.")
    return places


def question(table: Mapping[str, Any]) -> bytes:
    """Return a question as it is sent."""
    return json.dumps(table).encode()


def frame_limit(plan: Plan, fusion_size: int = 0) -> int:
    """Return a size that no frame of this federation exceeds: all blocks of a message uncompressed, and to spare.

    A party may get a fusion model of so many numbers, with its optimiser's.
    """
    whole = plan.agreement.reports == "all" or (plan.stale and not plan.agreement.private)
    rows = plan.batches.samples if whole else plan.batches.count(0)
    return 2 * 8 * max(rows, CHUNK) * sum(plan.widths) + 8 * PER_NUMBER * fusion_size + (64 << 20)
