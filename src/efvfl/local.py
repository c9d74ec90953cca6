"""A whole federation in one process: what researchers train, and what prototypes are made of."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from efvfl import losses
from efvfl.batches import Batches, BatchOrder, Source
from efvfl.block import Optimizer
from efvfl.build import Plan, make_party, make_server
from efvfl.errors import ConfigError
from efvfl.fusion import Combine, Fusion
from efvfl.ledger import Ledger
from efvfl.losses import Loss
from efvfl.methods import Agreement, Method, svfl
from efvfl.observe import Split, evaluating, predict
from efvfl.party import Party
from efvfl.protect import Protection
from efvfl.rng import derive
from efvfl.train import Federation
from efvfl.transport import LocalTransport

Columns = Mapping[str, Tensor] | Sequence[Tensor]


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
    protect: Protection | None = None,
    optimizer: Optimizer | None = None,
    batch_size: int = 0,
    batch_order: BatchOrder = "shuffle",
    seed: int = 0,
    private_seeds: Mapping[str, int] | None = None,
    validation: tuple[Columns, Tensor] | None = None,
    test: tuple[Columns, Tensor] | None = None,
    label_holder: str = "",
    sources: Sequence[Source] | None = None,
    wire: bool = False,
    mapped: Path | None = None,
) -> Federation:
    """Make a federation in one process, ready to train.

    - `features`: one tensor of columns for each party, rows in the same order; a dict gives the parties names.
    - `labels`: one for each row.
    - `models`: one local model for each party; `head`: the module after the representations are combined.
    - `method`: `svfl()`, `cvfl(...)` or `efvfl(...)`; `agreement`: label mode and protocol choices.
    - `protect`: what the label holder does to cotangents before they leave it, with private labels.
    - `batch_size`: 0 means full batch.
    - `label_holder`: the party, if any, that sits next to the server.
    - `sources`: what parties train on in place of `features`, such as augmented images; records use `features`.
    - `wire`: send every message through its bytes, which changes nothing but time.
    - `mapped`: a folder where memories lie in files without a name, for more rows than RAM has room for.
    - `private_seeds`: of participants that do not want theirs to follow from `seed`, by name; '' is the server.

    All randomness comes from these seeds, by name. The models are trained in place.
    """
    named = _named(features)
    names = list(named)
    if len(models) != len(names):
        raise ConfigError(f"{len(names)} parties need {len(names)} local models, but {len(models)} came.")
    if label_holder and label_holder not in names:
        raise ConfigError(f"label_holder = {label_holder!r} is not a party; parties are {names}.")
    if sources and [len(source) for source in sources] != [len(labels)] * len(names):
        raise ConfigError(f"{len(names)} sources of {len(labels):,} rows are needed, one for each party.")
    splits = {"train": _split(features, labels, names, "training")}
    for name, split in (("validation", validation), ("test", test)):
        if split is not None and len(split[1]):
            splits[name] = _split(split[0], split[1], names, name)
    fusion = Fusion(head, combine)
    widths, dtype = _widths(models, named, fusion)
    plan = Plan(
        names=names,
        widths=widths,
        dtype=dtype,
        batches=Batches(len(labels), batch_size, derive(seed, "batches"), batch_order),
        method=method or svfl(),
        agreement=agreement or Agreement(),
        loss=losses.lookup(loss),
        optimizer=optimizer or Optimizer(),
        label_holder=label_holder,
        mapped=mapped,
    )
    _check_parts(plan, splits["train"], models, fusion)
    private = private_seeds or {}
    server = make_server(plan, fusion, labels, derive(private.get("", seed), "server"), protect)
    parties: dict[str, Party] = {}
    columns: list[Tensor | Source] = [*(sources or named.values())]
    for name, model, x in zip(names, models, columns, strict=True):
        held = (copy.deepcopy(fusion), labels, None if wire else server) if plan.agreement.labels == "shared" else ()
        parties[name] = make_party(plan, name, model, x, derive(private.get(name, seed), "party", name), *held)
    ledger, here = Ledger(), [label_holder] if label_holder else []
    transport = LocalTransport(parties, ledger, here, wire)
    return Federation(server, parties, transport, ledger, splits, here, plan.agreement.window)


def _widths(models: Sequence[nn.Module], named: dict[str, Tensor], fusion: Fusion) -> tuple[list[int], torch.dtype]:
    """Return the widths and the one dtype of all representations."""
    probes = [model_width(model, x, name) for model, (name, x) in zip(models, named.items(), strict=True)]
    widths = [width for width, _ in probes]
    if fusion.additive and len(set(widths)) > 1:
        raise ConfigError(
            f"combine = {fusion.kind!r} needs equal widths, but the local models give {widths}: use 'concat'."
        )
    if len({dtype for _, dtype in probes}) > 1:
        raise ConfigError(f"the local models give {sorted(str(d) for _, d in probes)}: one dtype for all is needed.")
    return widths, probes[0][1]


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


def _check_parts(plan: Plan, split: Split, models: Sequence[nn.Module], fusion: Fusion) -> None:
    """Refuse data and models that cannot be trained together, and say which of them is wrong."""
    names, loss = plan.names, plan.loss
    if plan.agreement.labels == "shared" and plan.agreement.downlink == "aggregate" and not fusion.additive:
        raise ConfigError("downlink = 'aggregate' needs combine = 'sum' or 'mean'; use 'relay' with a concatenation.")
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
    check_batches(plan.batches, [*models, fusion])


def check_batches(batches: Batches, modules: Sequence[nn.Module]) -> None:
    """Refuse batches of one row where a layer needs the statistics of several."""
    smallest = min(batches.count(step) for step in (0, batches.per_epoch - 1))
    normed = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for module in modules for part in module.modules())
    if smallest == 1 and normed:
        raise ConfigError(
            f"{batches.samples:,} rows in batches of {batches.size} leave a batch of one row, and batch normalisation "
            "needs more: choose another batch_size, or group normalisation."
        )
