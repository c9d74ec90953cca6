"""A run file becomes a federation: data, models, method and seeds put together."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from efvfl.config.own_metrics import own_metrics
from efvfl.config.run_file import (
    SGD_RATE,
    DataConfig,
    FusionConfig,
    ModelConfig,
    PartyConfig,
    RunConfig,
    check_class_weights,
)
from efvfl.config.table_defaults import TABLES, are_tables
from efvfl.config.user_code import own_functions
from efvfl.config.watching import Watching
from efvfl.core import losses
from efvfl.core.losses import Loss
from efvfl.core.optimizer import Optimizer
from efvfl.core.party_training import PartyTraining
from efvfl.core.targets import Targets
from efvfl.data import Dataset, catalogue, digits, label_draws, npz, npz_files
from efvfl.data.npz import classes_of
from efvfl.errors import ConfigError, describe, nearest
from efvfl.models import mlp, vision
from efvfl.runs.trained import TrainedRun
from efvfl.training.federate import federate, model_width
from efvfl.training.federation import Federation
from efvfl.training.measure import Split
from efvfl.training.options import Setup, Training
from efvfl.training.placement import place
from efvfl.util.rng import derive

if TYPE_CHECKING:
    from efvfl.data.tables.encode import Encoder

log = logging.getLogger("efvfl")


def load_data(config: RunConfig, folder: Path, known: Mapping[str, Encoder] | None = None) -> Dataset:
    """Return the rows a run asks for; relative paths start at `folder`.

    `known` has encoders of a trained run, by party: columns of tables that are in them are encoded as that run did.
    """
    chosen = config.data
    if has_tables(config):
        return _joined(config, folder, known)
    own = {party.name: folder / party.data.path for party in config.party if party.data}
    if (own or chosen.name == "npz") and not chosen.path:
        raise ConfigError("data.path is missing: the .npz file with the labels `y`, and the columns of parties in it.")
    if own:
        if len(own) != len(config.party):
            absent = [party.name for party in config.party if not party.data]
            raise ConfigError(f"some parties have a file of their own, so all need one. Without: {', '.join(absent)}.")
        data = npz_files(folder / chosen.path, own, config.seed, (chosen.validation, chosen.test))
    elif chosen.name == "npz":
        data = npz(folder / chosen.path, config.seed, chosen.validation, chosen.test)
    elif chosen.name == "digits":
        data = digits(config.seed, chosen.validation, chosen.test)
    else:
        data = catalogue.load(chosen.name, config.seed, chosen.augment, chosen.subset)
        chosen = replace(chosen, subset=0)  # that is done
    return _some_rows(data, chosen, config.seed)


def _are_tables(config: RunConfig) -> bool:
    return are_tables(config.data.name, (party.data.path for party in config.party if party.data))


def has_tables(config: RunConfig) -> bool:
    """Whether rows come from tables, not arrays; refuse settings that contradict that."""
    found = _are_tables(config)
    if found and not config.party:
        raise ConfigError("the data are tables, but there is no party: add a [[party]] with its name, path and id.")
    if not found and config.weighted:
        raise ConfigError("`weight` names a column of a table, but the data are arrays: leave it out, or use tables.")
    if found and config.data.name not in (TABLES, DataConfig().name):
        raise ConfigError(f"data.name: expected 'table', because parties have tables, got {config.data.name!r}.")
    return found


def watching(config: RunConfig) -> Watching:
    """Return when records are made, how rows are evaluated, and when training stops."""
    return Watching.of(config, _are_tables(config))


def patience(config: RunConfig, validation: bool) -> int:
    """Return after how many epochs training stops; a small table may have no `validation` rows to decide by."""
    return watching(config).patience if validation or config.patience else 0


def _joined(config: RunConfig, folder: Path, known: Mapping[str, Encoder] | None) -> Dataset:
    from efvfl.data.tables import drift, load  # late: it brings polars, which most runs do without

    joined = load.join(config, folder, known)
    for text in joined.notices:
        log.warning("%s", text)
    names = list(joined.columns)
    parts = {
        s: Split([joined.columns[name][s] for name in names], y, joined.weights[s]) for s, y in joined.labels.items()
    }
    classes = len(joined.classes.names) or classes_of(joined.labels["train"])
    data = Dataset(
        names,
        parts["train"],
        parts.get("validation"),
        parts.get("test"),
        classes,
        ids=joined.ids,
        encoders=joined.encoders,
        class_names=joined.classes.names,
        loss=joined.classes.loss,
        participation=joined.participation,
        columns={name: drift.as_table(found) for name, found in joined.compared.items()},
    )
    return _some_rows(data, config.data, config.seed)


def _some_rows(data: Dataset, chosen: DataConfig, seed: int) -> Dataset:
    """Return the rows of a data set that the file asks for."""
    if chosen.subset:
        data = data.subset(chosen.subset, seed)
    return data.with_held_out(chosen.held_out, seed) if chosen.held_out else data


def make_loss(config: RunConfig, name: str, train: Targets, classes: int) -> Loss:
    """Return the loss of this name, with the weights of the classes that the training rows have."""
    loss = losses.lookup(name).with_metrics(own_metrics(config.metrics))
    if not config.class_weights:
        return loss
    check_class_weights(name)
    loss.check(train.labels)
    if config.protect.visits.on and not isinstance(
        config.class_weights, str
    ):  # a mean of 1 over the rows would depend on their labels
        return losses.weighted(loss, losses.given_weights(config.class_weights, max(classes, 2)))
    found = losses.class_weights(config.class_weights, train.labels, max(classes, 2), train.weights)
    return losses.weighted(loss, found)


def make_optimizer(table: dict[str, Any]) -> Optimizer:
    """Make an optimiser from `{ name, lr, ..., scheduler = { name, ... } }`.

    SGD has the rate of a file without a table unless this one has its own; others have torch's.
    """
    options = dict(table)
    given = options.pop("scheduler", {})
    if not isinstance(given, dict) or (given and "name" not in given):
        raise ConfigError(
            f"optimizer.scheduler: expected a table with a name, such as {{ name = 'CosineAnnealingLR', T_max = 20 }}, "
            f"got {given!r}."
        )
    scheduler = dict(given)
    if not isinstance(scheduler.get("name", ""), str):
        raise ConfigError(f"optimizer.scheduler: expected a name that is a string, got {scheduler['name']!r:.80}.")
    name = options.pop("name", "SGD")
    if name == "SGD":
        options.setdefault("lr", SGD_RATE)
    named, every = scheduler.pop("name", ""), scheduler.pop("every", "epoch")
    return Optimizer(name, options, named, own_functions(scheduler), every)


def party_training(config: RunConfig, name: str) -> PartyTraining:
    """Return how a party trains its local model, where that is not as the others do."""
    own = config.of(name).training
    return PartyTraining(make_optimizer(own.optimizer) if own.optimizer else None, own.local_steps)


def model_config(config: RunConfig, name: str) -> ModelConfig:
    """Return what a party's local model is to be."""
    return config.of(name).model or config.model


def private_seed(config: RunConfig, name: str = "") -> int:
    """Return the seed of a party's, or the server's, initial parameters and noise: its own, or the shared one."""
    own = (config.of(name) if name else config).private_seed
    return config.seed if own is None else own


def column_seed(config: RunConfig, name: str) -> int:
    """Return what decides the orders in which a party puts the values of its columns, to see which matter."""
    return derive(private_seed(config, name), "party", name, "columns")


def local_model(config: RunConfig, name: str, row: Tensor, encoder: Encoder | None = None) -> nn.Module:
    """Return a party's model as it is before training, for columns of which `row` is one row."""
    seed, chosen = derive(private_seed(config, name), "party", name, "init"), model_config(config, name)
    model = mlp.seeded_model(seed, partial(make_local_model, chosen, row, encoder))
    return place(model, chosen.device, chosen.precision)


def head_model(config: RunConfig, widths: Sequence[int], classes: int, loss: str) -> nn.Module:
    """Return the module after the combination, as it is before training, with the outputs that this loss needs."""
    seed = derive(private_seed(config), "server", "init")
    return mlp.seeded_model(seed, partial(make_head, config.fusion, widths, head_outputs(loss, classes)))


def head_outputs(loss: str, classes: int) -> int:
    """Return how many numbers the head gives for a row."""
    return 1 if losses.lookup(loss).labels in ("shares", "numbers") else classes


def make_local_model(config: ModelConfig, row: Tensor, encoder: Encoder | None) -> nn.Module:
    """Return a local model for columns of which `row` is one row; its parameters are drawn at random."""
    if ":" in config.name:
        return mlp.imported(config.name, config.options)
    if encoder is not None and config.name in ("mlp", "linear"):
        from efvfl.models.tables import linear_model, table_model

        if config.name == "linear":
            return linear_model(encoder.layout, config.width)
        return table_model(encoder.layout, config.width, config.hidden, config.activation, config.last, config.skip)
    if config.name == "mlp":
        return mlp.mlp(row.numel(), config.width, config.hidden, config.activation, config.last, config.skip)
    if config.name in ("resnet18", "mvcnn"):
        if row.dim() != 3:
            raise ConfigError(f"{config.name} needs images, but a row of these columns has shape {tuple(row.shape)}.")
        try:
            if config.name == "resnet18":
                return vision.resnet18(row.shape[0], config.width, **config.options)
            return vision.mvcnn((row.shape[0], row.shape[1], row.shape[2]), config.width, **config.options)
        except (TypeError, ValueError, ArithmeticError) as error:
            given = describe(config.options)
            raise ConfigError(f"model.options: {config.name} does not take {given}: {error}") from error
    hint = nearest(config.name, ("mlp", "mvcnn", "resnet18") if encoder is None else ("linear", "mlp"))
    raise ConfigError(f"there is no model {config.name!r}. {hint} Your own: 'package.module:attribute'.")


def make_head(config: FusionConfig, widths: Sequence[int], outputs: int) -> nn.Module:
    """Return the module after the combination of so wide representations; its parameters are drawn at random."""
    inputs = sum(widths) if config.combine == "concat" else widths[0]
    inputs += len(widths) if config.shows_presence else 0
    if ":" in config.name:
        return mlp.imported(config.name, config.options)
    if config.name != "mlp":
        raise ConfigError(f"there is no head {config.name!r}. Known: mlp, or your own as 'package.module:attribute'.")
    return mlp.mlp(inputs, outputs, config.hidden, config.activation, skip=config.skip)


def memory_folder(config: RunConfig, folder: Path | None) -> Path | None:
    """Return where memories lie in files: in a participant's folder if it has one; None: they are in RAM."""
    if config.memory == "ram":
        return None
    return Path(tempfile.gettempdir()) if folder is None else folder


def _report_seconds(config: RunConfig, names: Sequence[str]) -> dict[str, float] | None:
    """Return how long parties take for a report in virtual time; None: the file says nothing of it."""
    given = {name: config.of(name).report_seconds for name in names}
    return given if any(seconds != PartyConfig("").report_seconds for seconds in given.values()) else None


def _check_width(chosen: ModelConfig, name: str, width: int) -> None:
    if chosen.width not in (width, ModelConfig().width):  # left out, it is not a promise
        raise ConfigError(
            f"model.width: expected {width}, as {chosen.name!r} of {name!r} returns for a row, got {chosen.width}: "
            "change one of the two."
        )


def make_federation(
    config: RunConfig,
    data: Dataset,
    folder: Path | None = None,
    start: TrainedRun | None = None,
    arrivals: Sequence[Collection[str]] = (),
) -> Federation:
    """Build a run in one process. Every initial parameter and every random draw comes from its seed, by name.

    Parameters that a trained run has are those of that run. `arrivals`: whose reports each step takes, in a replay.
    """
    for party in config.party:
        if party.name not in data.names:
            raise ConfigError(f"[[party]] name = {party.name!r} is not in the data. {nearest(party.name, data.names)}")
    columns = dict(zip(data.names, data.train.features, strict=True))
    locals_ = [local_model(config, name, x[0], data.encoders.get(name)) for name, x in columns.items()]
    first = {name: x[:1].nan_to_num() for name, x in columns.items()}  # a row that a party may lack
    widths = [model_width(model, x, name)[0] for model, (name, x) in zip(locals_, first.items(), strict=True)]
    for name, width in zip(columns, widths, strict=True):
        _check_width(model_config(config, name), name, width)
    named = config.loss or data.loss
    release = label_draws.of_run(config, named, {s: split.labels for s, split in data.splits.items()}, data.ids)
    learnt = release.targets("train", data.train.weights) if release else data.train.targets
    loss = make_loss(config, named, learnt, data.classes)
    head = head_model(config, widths, data.classes, loss.name)
    if start:
        models = [(name, model) for name, model in zip(columns, locals_, strict=True) if name in start.models]
        kept = [start.give_model(name, model, data.encoders.get(name)) for name, model in models]
        kept.append(start.give_head(head, config.fusion.combine, dict(zip(columns, widths, strict=True))))
        start.say([*kept, *start.came_and_went(data.names)])

    def rows(split: Split | None) -> tuple[dict[str, Any], Any, Any] | None:
        if split is None:
            return None
        return dict(zip(data.names, split.features, strict=True)), split.labels, split.weights

    train = rows(data.train)
    assert train is not None, "every data set has training rows"
    return federate(
        train[0],
        train[1],
        locals_,
        head,
        method=config.method.build(),
        agreement=config.agreement.build(),
        validation=rows(data.validation),
        test=rows(data.test),
        training=Training(
            loss=loss,
            weights=data.train.weights,
            optimizer=make_optimizer(config.optimizer),
            batch_size=config.batch_size,
            batch_order=config.batch_order,
            seed=config.seed,
            private_seeds={name: private_seed(config, name) for name in ("", *data.names)},
            patience=patience(config, data.validation is not None and len(data.validation.labels) > 0),
            evaluation="compressed" if watching(config).by_messages else "exact",
            parties={name: party_training(config, name) for name in data.names},
        ),
        setup=Setup(
            combine=config.fusion.combine,
            shows_presence=config.fusion.shows_presence,
            protect=config.protect.for_epochs(config.epochs),
            release=release,
            protect_rows={name: config.of(name).protect for name in data.names},
            label_holder=config.label_holder,
            sources=data.sources,
            mapped=memory_folder(config, folder),
            report_seconds=_report_seconds(config, data.names),
            arrivals=arrivals,
        ),
    )
