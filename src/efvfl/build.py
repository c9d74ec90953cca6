"""The one place where parts meet: a method, an agreement, models and data become a server and its parties."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from efvfl import losses, memory
from efvfl.batches import Batches, BatchOrder, Source
from efvfl.block import Block, Optimizer
from efvfl.channel import Channel
from efvfl.errors import ConfigError
from efvfl.fusion import Combine, Fusion
from efvfl.ledger import Ledger
from efvfl.losses import Loss
from efvfl.methods import Agreement, Link, Method, svfl
from efvfl.observe import Split, evaluating, predict
from efvfl.party import Guide, Party
from efvfl.private import PrivateAnswer, PrivateGuide
from efvfl.replica import (
    CompressHearer,
    CompressTeller,
    Hearer,
    ReplicateHearer,
    ReplicateTeller,
    SendHearer,
    SendTeller,
    Teller,
)
from efvfl.rng import derive
from efvfl.server import Answer, Server
from efvfl.shared import SharedAnswer, SharedGuide
from efvfl.train import Federation
from efvfl.transport import LocalTransport

Columns = Mapping[str, Tensor] | Sequence[Tensor]


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

    def link(self, party: int, direction: str) -> Link:
        """Return the uplink or downlink of a party; next to the server, and with private labels, nothing is lost."""
        if self.agreement.labels == "private" and self.names[party] == self.label_holder:
            return svfl().up
        return self.method.up if direction == "up" else self.method.down

    def channel(self, party: int, direction: str, key: int = 0) -> Channel:
        """Return one end of the channel that carries a party's representation (up) or cotangent (down)."""
        link, width = self.link(party, direction), self.widths[party]
        made = memory.make(link.memory, (self.batches.samples, width), self.dtype, link.start)
        what = f"{self.names[party]}'s {'representation' if direction == 'up' else 'cotangent'}"
        return Channel(link.compressor, made, (width,), self.dtype, key, what)

    def fusion_channel(self, block: Block, key: int = 0) -> Channel:
        """Return one end of the channel that carries the fusion model as a vector."""
        link = self.method.fusion
        made = memory.make(link.memory, tuple(block.vector().shape), block.dtype, link.start)
        return Channel(link.compressor, made, (), block.dtype, key, "the fusion model")


def make_server(plan: Plan, fusion: Fusion, labels: Tensor, private_seed: int) -> Server:
    """Build the server from what it alone holds: the labels, the fusion model and a private seed."""
    block = Block(fusion, plan.optimizer, plan.batches.per_epoch)
    parties = range(len(plan.names))
    answer: Answer
    if plan.agreement.labels == "private":
        downs = [plan.channel(k, "down", derive(private_seed, "noise", plan.names[k])) for k in parties]
        answer = PrivateAnswer(fusion, downs)
    else:
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
) -> Party:
    """Build a party from what it alone holds. With shared labels it also has them, and a fusion model to write to."""
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
            peers = [None if j == own else plan.channel(j, "up") for j in range(len(plan.names))]
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
    )


def _named(columns: Columns) -> dict[str, Tensor]:
    if isinstance(columns, Mapping):
        return dict(columns)
    return {f"party{k}": x for k, x in enumerate(columns, start=1)}


def _split(columns: Columns, labels: Tensor, names: list[str], what: str) -> Split:
    named = _named(columns)
    if list(named) != names:
        raise ConfigError(f"the {what} rows are of parties {list(named)}, but {names} are expected, in this order.")
    for name, x in named.items():
        if len(x) != len(labels):
            raise ConfigError(
                f"{name!r} holds {len(x):,} {what} rows, but there are {len(labels):,} labels: align first."
            )
    return Split(list(named.values()), labels)


def federate(
    features: Columns,
    labels: Tensor,
    models: Sequence[nn.Module],
    head: nn.Module,
    *,
    combine: Combine = "mean",
    loss: str | Loss = "cross_entropy",
    method: Method | None = None,
    agreement: Agreement | None = None,
    optimizer: Optimizer | None = None,
    batch_size: int = 0,
    batch_order: BatchOrder = "shuffle",
    seed: int = 0,
    validation: tuple[Columns, Tensor] | None = None,
    test: tuple[Columns, Tensor] | None = None,
    label_holder: str = "",
    sources: Sequence[Source] | None = None,
    wire: bool = False,
) -> Federation:
    """Make a federation in one process, ready to train.

    - `features`: one tensor of columns for each party, rows in the same order; a dict gives the parties names.
    - `labels`: one for each row.
    - `models`: one local model for each party; `head`: the module after the representations are combined.
    - `method`: `svfl()`, `cvfl(...)` or `efvfl(...)`; `agreement`: label mode and protocol choices.
    - `batch_size`: 0 means full batch.
    - `label_holder`: the party, if any, that sits next to the server.
    - `sources`: what parties train on in place of `features`, such as augmented images; records use `features`.
    - `wire`: send every message through its bytes, which changes nothing but time.

    All randomness comes from `seed`, by name. The models are trained in place.
    """
    named = _named(features)
    names = list(named)
    if len(models) != len(names):
        raise ConfigError(f"{len(names)} parties need {len(names)} local models, but {len(models)} came.")
    if label_holder and label_holder not in names:
        raise ConfigError(f"label_holder = {label_holder!r} is not a party; parties are {names}.")
    splits = {"train": _split(features, labels, names, "training")}
    for name, split in (("validation", validation), ("test", test)):
        if split is not None and len(split[1]):
            splits[name] = _split(split[0], split[1], names, name)
    if sources and [len(source) for source in sources] != [len(labels)] * len(names):
        raise ConfigError(f"{len(names)} sources of {len(labels):,} rows are needed, one for each party.")
    agreement = agreement or Agreement()
    fusion = Fusion(head, combine)
    if agreement.labels == "shared" and agreement.downlink == "aggregate" and not fusion.additive:
        raise ConfigError("downlink = 'aggregate' needs combine = 'sum' or 'mean'; use 'relay' with a concatenation.")
    probes = [model_width(model, x, name) for model, (name, x) in zip(models, named.items(), strict=True)]
    widths = [width for width, _ in probes]
    if fusion.additive and len(set(widths)) > 1:
        raise ConfigError(
            f"combine = {combine!r} needs equal widths, but the local models give {widths}: use 'concat'."
        )
    if len({dtype for _, dtype in probes}) > 1:
        raise ConfigError(f"the local models give {sorted(str(d) for _, d in probes)}: one dtype for all is needed.")
    batches = Batches(len(labels), batch_size, derive(seed, "batches"), batch_order)
    _check_parts(splits["train"], names, models, fusion, losses.lookup(loss))
    _check_batches(batches, [*models, fusion])
    plan = Plan(
        names=names,
        widths=widths,
        dtype=probes[0][1],
        batches=batches,
        method=method or svfl(),
        agreement=agreement,
        loss=losses.lookup(loss),
        optimizer=optimizer or Optimizer(),
        label_holder=label_holder,
    )
    shared = agreement.labels == "shared"
    parties = {
        name: make_party(
            plan,
            name,
            model,
            sources[k] if sources else x,
            derive(seed, "party", name),
            copy.deepcopy(fusion) if shared else None,
            labels if shared else None,
        )
        for k, (model, (name, x)) in enumerate(zip(models, named.items(), strict=True))
    }
    server = make_server(plan, fusion, labels, derive(seed, "server"))
    ledger = Ledger()
    here = [label_holder] if label_holder else []
    transport = LocalTransport(parties, ledger, here, wire)
    return Federation(server, parties, transport, ledger, splits, here)


def model_width(model: nn.Module, features: Tensor, name: str) -> tuple[int, torch.dtype]:
    """Return the width and dtype of a local model's representation, found on one row and without side effects."""
    try:
        with torch.no_grad(), evaluating([model]):
            h = model(features[:1].clone())
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shape = tuple(features.shape[1:])
        raise ConfigError(
            f"the local model of {name!r} does not work on its columns of shape {shape}: {error}"
        ) from error
    if h.dim() != 2 or len(h) != 1 or not h.shape[1]:
        raise ConfigError(
            f"the local model of {name!r} turns one row into shape {tuple(h.shape)}; (1, width) is expected."
        )
    if h.dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"the local model of {name!r} gives {h.dtype}, float32 or float64 is expected.")
    return h.shape[1], h.dtype


def _check_parts(split: Split, names: list[str], models: Sequence[nn.Module], fusion: Fusion, loss: Loss) -> None:
    """Refuse data and models that cannot be trained together, and say which of them is wrong."""
    for name, x in zip(names, split.features, strict=True):
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise ConfigError(f"the columns of {name!r} hold NaN or infinity: fill or drop such rows first.")
    owners: dict[int, str] = {}
    for name, module in zip([*names, "the server"], [*models, fusion], strict=True):
        for parameter in module.parameters():
            if owners.setdefault(id(parameter), name) != name:
                raise ConfigError(
                    f"{owners[id(parameter)]!r} and {name!r} share parameters: give each a model of its own."
                )
    loss.check(split.labels)
    few = min(8, len(split.labels))
    try:
        output = predict(models, fusion, [x[:few].clone() for x in split.features])
        loss(output, split.labels[:few])
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"the head or the loss {loss.name!r} does not fit representations and labels: {error}"
        ) from error


def _check_batches(batches: Batches, modules: Sequence[nn.Module]) -> None:
    """Refuse batches of one row where a layer needs the statistics of several."""
    smallest = min(batches.count(step) for step in (0, batches.per_epoch - 1))
    normed = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for module in modules for part in module.modules())
    if smallest == 1 and normed:
        raise ConfigError(
            f"{batches.samples:,} rows in batches of {batches.size} leave a batch of one row, and batch normalisation "
            "needs more: choose another batch_size, or group normalisation."
        )
