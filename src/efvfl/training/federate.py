"""A whole federation in one process: what researchers train, and what prototypes are made of."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from efvfl.core import losses, rules
from efvfl.core.agreement import Agreement
from efvfl.core.assembly import SharedParts, make_party, make_server, plain_model
from efvfl.core.batches import Batches, BatchOrder, Source
from efvfl.core.block import Optimizer
from efvfl.core.fusion import Combine, Fusion
from efvfl.core.local_model import evaluating
from efvfl.core.losses import Loss
from efvfl.core.methods import Method, svfl
from efvfl.core.party import Party
from efvfl.core.plan import Plan
from efvfl.core.protection import Protection
from efvfl.errors import ConfigError, describe, whole_number
from efvfl.training import inputs
from efvfl.training.federation import Federation
from efvfl.training.inputs import Columns, Models
from efvfl.training.measure import Split, predict
from efvfl.training.transport import LocalTransport
from efvfl.util.rng import derive


def federate(
    features: Columns,
    labels: Any,
    models: Models,
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
    validation: tuple[Columns, Any] | None = None,
    test: tuple[Columns, Any] | None = None,
    label_holder: str = "",
    sources: Sequence[Source] | None = None,
    wire: bool = False,
    mapped: Path | str | None = None,
) -> Federation:
    """Make a federation in one process, ready to train.

    - `features`: a table of columns for each party, rows in the same order; a dict gives the parties names. A table is
      a tensor, an array, a frame or a list of numbers.
    - `labels`: one for each row, in any of these forms.
    - `models`: one local model for each party, in their order or by name.
    - `head`: the module after the representations are combined.
    - `method`: `svfl()`, `cvfl(...)` or `efvfl(...)`; `agreement`: label mode and protocol choices.
    - `protect`: what the label holder does to cotangents before they leave it, with private labels.
    - `batch_size`: 0 means full batch.
    - `validation`, `test`: (features, labels) of rows that are only looked at, with the same columns.
    - `label_holder`: the party, if any, that sits next to the server.
    - `sources`: what parties train on in place of `features`, such as augmented images; records use `features`.
    - `wire`: send every message through its bytes, which changes nothing but time.
    - `mapped`: a folder where memories lie in files without a name, for more rows than RAM has room for.
    - `private_seeds`: of participants that do not want theirs to follow from `seed`, by name; '' is the server.

    All randomness comes from these seeds, by name. The models are trained in place.
    """
    inputs.check_settings(method=method, agreement=agreement, protect=protect, optimizer=optimizer)
    inputs.check_module(head, "the head")
    names, train = inputs.training_rows(features, labels)
    local, seed_of = inputs.modules(models, names), inputs.seeds(seed, private_seeds, names)
    if label_holder and label_holder not in names:
        raise ConfigError(f"label_holder = {label_holder!r} is not a party; parties are {names}.")
    if sources and [len(source) for source in sources] != [len(train.labels)] * len(names):
        raise ConfigError(f"{len(names)} sources of {len(train.labels):,} rows are needed, one for each party.")
    pairs = {"validation": validation, "test": test}
    given = {name: inputs.held_out(pair, names, train, name) for name, pair in pairs.items()}
    splits = {"train": train} | {name: split for name, split in given.items() if split is not None}
    fusion = Fusion(head, combine)
    widths, dtype = _widths(local, dict(zip(names, train.features, strict=True)))
    plan = Plan(
        names=names,
        widths=widths,
        dtype=dtype,
        batches=Batches(
            len(train.labels), whole_number("batch_size", batch_size), derive(seed, "batches"), batch_order
        ),
        method=method or svfl(),
        agreement=agreement or Agreement(),
        loss=losses.lookup(loss),
        optimizer=optimizer or Optimizer(),
        label_holder=label_holder,
        mapped=None if mapped is None else Path(mapped),
    )
    chosen = {"combine": combine, "widths": tuple(widths), "protect": bool(protect and protect.on)}
    rules.check(rules.Choices.of(plan.method, plan.agreement, mapped=plan.mapped is not None, **chosen))
    _check_parts(plan, splits, local, fusion)
    server = make_server(plan, fusion, train.labels, derive(seed_of[""], "server"), protect)
    parties: dict[str, Party] = {}
    columns: list[Tensor | Source] = [*(sources or train.features)]
    for name, model, x in zip(names, local, columns, strict=True):
        party_seed = derive(seed_of[name], "party", name)
        shared = SharedParts(train.labels, copy.deepcopy(fusion), None if wire else server.channels)
        made = plain_model(plan, name, model, x, party_seed)
        parties[name] = make_party(plan, name, made, party_seed, None if plan.agreement.private else shared)
    transport = LocalTransport(parties, here=[label_holder] if label_holder else [], wire=wire)
    return Federation(server, transport, splits, plan.agreement.window)


def _widths(models: Sequence[nn.Module], named: dict[str, Tensor]) -> tuple[list[int], torch.dtype]:
    """Return the widths and the one dtype of all representations."""
    probes = [model_width(model, x, name) for model, (name, x) in zip(models, named.items(), strict=True)]
    widths = [width for width, _ in probes]
    if len({dtype for _, dtype in probes}) > 1:
        raise ConfigError(f"the local models give {sorted(str(d) for _, d in probes)}: one dtype for all is needed.")
    return widths, probes[0][1]


def model_width(model: nn.Module, features: Tensor, name: str) -> tuple[int, torch.dtype]:
    """Return the width and dtype of a local model's representation, found on one row and without side effects."""
    try:
        with torch.no_grad(), evaluating([model]):
            h = model(features[:1].clone())
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shape, dtype = tuple(features.shape[1:]), next((p.dtype for p in model.parameters()), features.dtype)
        hint = "" if dtype == features.dtype else f" Columns are {features.dtype}, the model is {dtype}: convert one."
        raise ConfigError(
            f"the local model of {name!r} does not work on its columns of shape {shape}: {_ended(error)}{hint}"
        ) from error
    if not isinstance(h, Tensor):
        raise ConfigError(
            f"the local model of {name!r} gives {describe(type(h))}, one tensor of shape (rows, width) is expected: put "
            "it in a module that returns the part to send."
        )
    if h.dim() != 2 or len(h) != 1 or not h.shape[1]:
        raise ConfigError(
            f"the local model of {name!r} turns one row into shape {tuple(h.shape)}; (1, width) is expected."
        )
    if h.dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"the local model of {name!r} gives {h.dtype}, float32 or float64 is expected.")
    return h.shape[1], h.dtype


def _check_parts(plan: Plan, splits: Mapping[str, Split], models: Sequence[nn.Module], fusion: Fusion) -> None:
    """Refuse data and models that cannot be trained together, and say which of them is wrong."""
    for name, x in zip(plan.names, splits["train"].features, strict=True):
        inputs.check_finite(x, name)
    owners: dict[int, str] = {}
    for name, module in zip([*plan.names, "the server"], [*models, fusion], strict=True):
        for parameter in module.parameters():
            if owners.setdefault(id(parameter), name) != name:
                raise ConfigError(
                    f"{owners[id(parameter)]!r} and {name!r} share parameters: give each a model of its own."
                )
    for name, split in splits.items():
        what = "labels" if name == "train" else f"{name} labels"
        plan.loss.check(split.labels, what)
        _try_out(split, models, fusion, plan.loss, what)
    check_batches(plan.batches, [*models, fusion])


def _try_out(split: Split, models: Sequence[nn.Module], fusion: Fusion, loss: Loss, what: str) -> None:
    """Refuse a head or a loss that does not work on a few rows, one of the largest label among them."""
    rows = torch.arange(min(8, len(split.labels)))
    if loss.labels == "classes":
        rows = torch.cat([rows, split.labels.argmax().reshape(1)])  # a class the head may have no output for
    output = None
    try:
        output = predict(models, fusion, [x[rows] for x in split.features])
        found = loss(output, split.labels[rows])
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        shape = "" if output is None else f" The head gives shape {tuple(output.shape[1:])} for a row."
        if shape and loss.labels == "classes":
            shape += f" The {what} go up to {int(split.labels.max())}; classes are numbered from 0."
        raise ConfigError(
            f"the head or the loss {loss.name!r} does not fit representations and labels: {_ended(error)}{shape}"
        ) from error
    if not isinstance(found, Tensor) or found.dim():
        came = tuple(found.shape) if isinstance(found, Tensor) else describe(found)
        raise ConfigError(f"the loss {loss.name!r} gives {came}, but one number, the mean over rows, is expected.")


def _ended(error: Exception) -> str:
    """Torch ends some of its errors with a full stop, and some not."""
    return f"{str(error).rstrip('.')}."


def check_batches(batches: Batches, modules: Sequence[nn.Module]) -> None:
    """Refuse batches of one row where a layer needs the statistics of several."""
    smallest = min(batches.count(step) for step in (0, batches.per_epoch - 1))
    normed = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for module in modules for part in module.modules())
    if smallest == 1 and normed:
        raise ConfigError(
            f"{batches.samples:,} rows in batches of {batches.size} leave a batch of one row, and batch normalisation "
            "needs more: choose another batch_size, or group normalisation."
        )
