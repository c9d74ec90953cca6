"""A whole federation in one process: what researchers train, and what prototypes are made of."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from efvfl.core import losses, rules
from efvfl.core.agreement import Agreement
from efvfl.core.assembly import SharedParts, make_party, make_server, plain_model
from efvfl.core.batches import Batches, Source
from efvfl.core.fusion import Fusion
from efvfl.core.label_release import LabelRelease, from_seed
from efvfl.core.local_model import evaluating
from efvfl.core.losses import Loss
from efvfl.core.methods import Method, svfl
from efvfl.core.party import Party
from efvfl.core.party_training import PartyTraining
from efvfl.core.plan import Plan
from efvfl.core.presence import RowPresence, of_training
from efvfl.core.source_columns import OwnColumns
from efvfl.errors import ConfigError, describe
from efvfl.training import inputs
from efvfl.training.absences import Absences
from efvfl.training.arrivals import Arrivals
from efvfl.training.federation import Federation
from efvfl.training.inputs import Columns, Models
from efvfl.training.measure import Split, predict
from efvfl.training.options import Setup, Training
from efvfl.training.simulated_clock import SimulatedClock
from efvfl.training.transport import LocalTransport
from efvfl.util.rng import derive


def federate(
    features: Columns,
    labels: Any,
    models: Models,
    head: nn.Module,
    *,
    method: Method | None = None,
    agreement: Agreement | None = None,
    training: Training | None = None,
    validation: tuple[Columns, Any] | tuple[Columns, Any, Any] | None = None,
    test: tuple[Columns, Any] | tuple[Columns, Any, Any] | None = None,
    setup: Setup | None = None,
) -> Federation:
    """Return a federation in one process, ready to train. The models are trained in place.

    - `features`: a table of columns for each party, rows in the same order; a dict gives the parties names. A table is
      a tensor, an array, a frame, a list of numbers, or a `Source`, which reads rows when they are asked for.
    - `labels`: one for each row, in any of these forms.
    - `models`: one local model for each party, in their order or by name.
    - `head`: the module after the representations are combined.
    - `method`: `svfl()`, `cvfl(...)` or `efvfl(...)`; `agreement`: label mode and protocol choices.
    - `training`: optimiser, batches, loss, weights of rows and seeds.
    - `validation`, `test`: (features, labels) of rows that are only looked at, with the same columns; weights of these
      rows may be third.
    - `setup`: how representations are combined, who holds the labels, protection, devices of local models, and more.

    >>> import torch
    >>> from efvfl import Training, TopK, efvfl, federate
    >>> x, y = [torch.ones(6, 3), torch.ones(6, 2)], torch.tensor([0, 1, 0, 1, 0, 1])
    >>> models = [torch.nn.Linear(3, 4), torch.nn.Linear(2, 4)]
    >>> run = federate(x, y, models, torch.nn.Linear(4, 2), method=efvfl(TopK(0.5)), training=Training(batch_size=2))
    >>> run.fit(epochs=1)[0].step
    3
    """
    training, setup = training or Training(), setup or Setup()
    inputs.check_settings(method=method, agreement=agreement, training=training, setup=setup)
    inputs.check_module(head, "the head")
    names, train, local = inputs.training_rows(features, labels, training, models, setup.device)
    seed_of = inputs.seeds(training.seed, training.private_seeds, names)
    _check_setup(setup, names, len(train.labels))
    if unknown := sorted(set(training.parties) - set(names)):
        raise ConfigError(f"parties: expected names of the parties {names}, got {unknown[0]!r}.")
    splits = {"train": train, **inputs.held_out_splits({"validation": validation, "test": test}, names, train)}
    agreement = agreement or Agreement()
    widths, dtype = _widths(local, dict(zip(names, train.features, strict=True)))
    by_split = {n: _of_table(names, s.present) for n, s in splits.items() if s.present is not None}
    always = agreement.subsets == "sampled" or setup.shows_presence
    seed, presence = derive(training.seed, "batches"), of_training(by_split, names, len(train.labels), always)
    fusion = Fusion(head, setup.combine, widths if presence else None, setup.shows_presence)
    loss, server_seed = losses.lookup(training.loss).with_metrics(training.metrics), derive(seed_of[""], "server")
    release = _release(setup, loss, splits, server_seed)
    learnt = {n: release.targets(n, s.weights) if release else s.targets for n, s in splits.items()}
    plan = Plan(
        names=names,
        widths=widths,
        dtype=dtype,
        batches=Batches(len(train.labels), training.batch_size, seed, training.batch_order),
        method=method or svfl(),
        agreement=agreement,
        loss=release.loss(loss) if release else loss,
        optimizer=training.optimizer,
        label_holder=setup.label_holder,
        held_out={n: len(s.labels) for n, s in splits.items() if n != "train"} if training.by_messages else {},
        presence=presence,
        held_out_presence=by_split,
        mapped=None if setup.mapped is None else Path(setup.mapped),
        stale=bool(setup.away),
    )
    rules.check(_choices(plan, setup, training, exact=len(splits) > 1 and not training.by_messages))
    _check_parts(plan, splits, local, fusion)
    later = {name: splits[name] for name in plan.held_out}
    held_out = {name: learnt[name] for name in later}
    server = make_server(plan, fusion, learnt["train"], server_seed, setup.protect, held_out)
    server.release = release
    parties: dict[str, Party] = {}
    columns: list[Tensor | Source] = [*(setup.sources or train.features)]
    for place, (name, module, x) in enumerate(zip(names, local, columns, strict=True)):
        party_seed = derive(seed_of[name], "party", name)
        trains = training.parties.get(name) or PartyTraining()
        model = plain_model(plan, name, module, _own_rows(x, presence, name), party_seed, trains.optimizer)
        shared = SharedParts(
            learnt["train"], copy.deepcopy(fusion), None if setup.wire or setup.away else server.channels
        )
        own = {split: rows.of_party(place) for split, rows in later.items()}
        known = None if plan.agreement.private else shared
        protect = setup.protect_rows.get(name)
        parties[name] = make_party(plan, name, model, party_seed, known, own, protect, trains.local_steps)
    transport = LocalTransport(
        parties,
        here=[setup.label_holder] if setup.label_holder else [],
        wire=setup.wire,
        times=None if setup.report_seconds is None else SimulatedClock(setup.report_seconds),
        absences=Absences(setup.away),
    )
    made = Federation(server, transport, splits, plan.agreement.window_here, training.patience)
    made.driver.arrivals = Arrivals(names, setup.arrivals)
    return made


def _release(setup: Setup, loss: Loss, splits: Mapping[str, Split], server_seed: int) -> LabelRelease | None:
    """Return the labels that everything is computed from, where they are randomised; None: they are as they are."""
    if not setup.protect.releases:
        return None
    truth = {name: split.labels for name, split in splits.items()}
    for name, labels in truth.items():
        loss.check(labels, "labels" if name == "train" else f"{name} labels")
    found = setup.release or LabelRelease.draw(setup.protect, loss, truth, from_seed(derive(server_seed, "labels")))
    found.check(truth)
    return found


def _of_table(names: list[str], present: Tensor) -> RowPresence:
    return RowPresence({name: present[:, place].contiguous() for place, name in enumerate(names)})


def _own_rows(x: Tensor | Source, presence: RowPresence | None, name: str) -> Tensor | Source:
    """Return the columns of the rows that a party has."""
    if presence is None or bool(presence.masks[name].all()):
        return x
    if not isinstance(x, Tensor):
        raise ConfigError("sources: expected none where rows are missing, got some: give tables as features alone.")
    return x[presence.masks[name]]


def _choices(plan: Plan, setup: Setup, training: Training, exact: bool) -> rules.Choices:
    chosen = rules.Choices.of(plan.method, plan.agreement)
    return replace(
        chosen,
        combine=setup.combine,
        on_missing="stale" if setup.away else "wait",
        away=bool(setup.away),
        widths=tuple(plan.widths),
        protect=setup.protect.on,
        releases=setup.protect.releases,
        clip=setup.protect.clip > 0,
        visits=setup.protect.visits.on,
        rows=any(chosen.on for chosen in setup.protect_rows.values()),
        exact=exact,
        mapped=plan.mapped is not None,
        decides=training.decides,
        evaluation=training.evaluation,
        missing=plan.presence is not None and plan.presence.missing,
        sampled=plan.samples_subsets,
        own_local_steps=any(own.local_steps for own in training.parties.values()),
        own_optimizer=any(own.optimizer for own in training.parties.values()),
        plateau=training.optimizer.on_plateau,
    )


def _check_setup(setup: Setup, names: list[str], rows: int) -> None:
    if setup.label_holder and setup.label_holder not in names:
        raise ConfigError(f"label_holder: expected one of the parties {names}, got {setup.label_holder!r}.")
    if unknown := sorted(set(setup.protect_rows) - set(names)):
        raise ConfigError(f"protect_rows: expected names of the parties {names}, got {unknown[0]!r}.")
    if isinstance(setup.report_seconds, Mapping) and (unknown := sorted(set(setup.report_seconds) - set(names))):
        raise ConfigError(f"report_seconds: expected names of the parties {names}, got {unknown[0]!r}.")
    Absences(setup.away).check(names)
    if setup.label_holder in setup.away:
        raise ConfigError(f"away: expected parties that are not at the server, got {setup.label_holder!r}.")
    if setup.sources and [len(source) for source in setup.sources] != [rows] * len(names):
        raise ConfigError(f"sources: expected {len(names)} of {rows:,} rows, one for each party.")


def _widths(models: Sequence[nn.Module], named: dict[str, OwnColumns]) -> tuple[list[int], torch.dtype]:
    """Return the widths and the one dtype of all representations."""
    probes = [model_width(model, x, name) for model, (name, x) in zip(models, named.items(), strict=True)]
    widths = [width for width, _ in probes]
    if len({dtype for _, dtype in probes}) > 1:
        raise ConfigError(f"the local models give {sorted(str(d) for _, d in probes)}: one dtype for all is needed.")
    return widths, probes[0][1]


def model_width(model: nn.Module, features: OwnColumns, name: str) -> tuple[int, torch.dtype]:
    """Return the width and dtype of a local model's representation, found on one row and without side effects."""
    row = features[:1].clone()
    try:
        with torch.no_grad(), evaluating([model]):
            h = model(row)
    except (RuntimeError, TypeError, ValueError, IndexError, ImportError) as error:
        shape, dtype = tuple(features.shape[1:]), next((p.dtype for p in model.parameters()), features.dtype)
        hint = "" if dtype == features.dtype else f" Columns are {features.dtype}, the model is {dtype}: convert one."
        raise ConfigError(
            f"the local model of {name!r} does not work on its columns of shape {shape}: {_ended(error)}{hint}"
        ) from error
    if not isinstance(h, Tensor):
        raise ConfigError(
            f"the local model of {name!r}: expected one tensor of shape (rows, width), got {describe(type(h))}: put it "
            "in a module that returns the part to send."
        )
    if h.dim() != 2 or len(h) != 1 or not h.shape[1]:
        raise ConfigError(f"the local model of {name!r}: expected shape (1, width) for one row, got {tuple(h.shape)}.")
    if h.dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"the local model of {name!r}: expected float32 or float64, got {h.dtype}.")
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
        plan.loss.check_weights(split.weights)
        _try_out(split, models, fusion, plan.loss, what)
    check_batches(plan.batches, [*models, fusion])
    check_presence(plan, dict(zip(plan.names, models, strict=True)))


def check_presence(plan: Plan, models: Mapping[str, nn.Module]) -> None:
    """Refuse what does not work on the part of a batch that a party has, or without losses of single rows."""
    if plan.samples_subsets and plan.loss.each is None:
        raise ConfigError(
            f"loss {plan.loss.name!r}: subsets are sampled, so expected `each`, its losses of single rows, got none: "
            "pass Loss(..., each=function), or set subsets='off' in the agreement."
        )
    if plan.presence is None or plan.batches.full:
        return
    for name, model in models.items():
        if not bool(plan.presence.masks[name].all()) and _normalises(model):
            raise ConfigError(
                f"the local model of {name!r} normalises over batches, and {name!r} lacks rows, so that its part of a "
                "batch may be one row: use layer or group normalisation."
            )


def _normalises(module: nn.Module) -> bool:
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


def _try_out(split: Split, models: Sequence[nn.Module], fusion: Fusion, loss: Loss, what: str) -> None:
    """Refuse a head or a loss that does not work on a few rows, one of the largest label among them."""
    rows = torch.arange(min(8, len(split.labels)))
    if loss.labels == "classes":
        rows = torch.cat([rows, split.labels.argmax().reshape(1)])  # a class the head may have no output for
    output = None
    try:
        few = split.part(rows)
        output = predict(models, fusion, few.features, few.present)
        found = loss(output, few.labels, few.weights)
        alike = loss.like(output, output) if loss.like else None
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        shape = "" if output is None else f" The head gives shape {tuple(output.shape[1:])} for a row."
        if shape and loss.labels == "classes":
            shape += f" The {what} go up to {int(split.labels.max())}; classes are numbered from 0."
        raise ConfigError(
            f"the head or the loss {loss.name!r} does not fit representations and labels: {_ended(error)}{shape}"
        ) from error
    if not isinstance(found, Tensor) or found.dim():
        got = tuple(found.shape) if isinstance(found, Tensor) else describe(found)
        raise ConfigError(f"the loss {loss.name!r}: expected one number, the mean over rows, got {got}.")
    if loss.like and not (isinstance(alike, Tensor) and alike.dim() and len(alike) == len(rows)):
        returned = f"shape {tuple(alike.shape)}" if isinstance(alike, Tensor) else describe(alike)
        raise ConfigError(
            f"the loss {loss.name!r}: expected `like` to give the losses of {len(rows)} rows, got {returned}: do not "
            "take their mean."
        )


def _ended(error: Exception) -> str:
    """Torch ends some of its errors with a full stop, and some not."""
    return f"{str(error).rstrip('.')}."


def check_batches(batches: Batches, modules: Sequence[nn.Module]) -> None:
    """Refuse batches of one row where a layer needs the statistics of several."""
    smallest = min(batches.count(step) for step in (0, batches.per_epoch - 1))
    if smallest == 1 and any(_normalises(module) for module in modules):
        raise ConfigError(
            f"{batches.samples:,} rows in batches of {batches.size} leave a batch of one row, and batch normalisation "
            "needs more: choose another batch_size, or group normalisation."
        )
