"""A run file becomes a federation: data, models, method and seeds put together."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from efvfl import models, vision
from efvfl.block import Optimizer
from efvfl.config import FusionConfig, ModelConfig, RunConfig
from efvfl.data import Dataset, catalogue, digits, npz
from efvfl.errors import ConfigError, nearest
from efvfl.local import federate, model_width
from efvfl.observe import Split
from efvfl.rng import derive
from efvfl.train import Federation


def load_data(config: RunConfig, folder: Path) -> Dataset:
    """Return the rows a run asks for; relative paths start at `folder`."""
    chosen = config.data
    if chosen.name == "npz":
        if not chosen.path:
            raise ConfigError("data.name = 'npz' needs data.path, the file with `y` and one array for each party.")
        return npz(folder / chosen.path, config.seed, chosen.validation, chosen.test)
    if chosen.name == "digits":
        data = digits(config.seed, chosen.validation, chosen.test)
    else:
        data = catalogue.load(chosen.name, config.seed, augment=chosen.augment)
    return data.subset(chosen.subset, config.seed) if chosen.subset else data


def make_optimizer(table: dict[str, Any]) -> Optimizer:
    """Make an optimiser from `{ name, lr, ..., scheduler = { name, ... } }`."""
    options = dict(table)
    scheduler = dict(options.pop("scheduler", {}))
    if scheduler and "name" not in scheduler:
        raise ConfigError("optimizer.scheduler needs a name, such as 'CosineAnnealingLR'.")
    return Optimizer(options.pop("name", "SGD"), options, scheduler.pop("name", ""), scheduler)


def _local_model(config: ModelConfig, split: Split, party: int) -> nn.Module:
    if ":" in config.name:
        return models.imported(config.name, config.options)
    row = split.features[party][0]
    if config.name == "mlp":
        return models.mlp(row.numel(), config.width, config.hidden, config.activation, config.last)
    if config.name in ("resnet18", "mvcnn"):
        if row.dim() != 3:
            raise ConfigError(f"{config.name} needs images, but a row of these columns has shape {tuple(row.shape)}.")
        if config.name == "resnet18":
            return vision.resnet18(row.shape[0], config.width, **config.options)
        return vision.mvcnn((row.shape[0], row.shape[1], row.shape[2]), config.width, **config.options)
    hint = nearest(config.name, ("mlp", "mvcnn", "resnet18"))
    raise ConfigError(f"there is no model {config.name!r}. {hint} Your own: 'package.module:attribute'.")


def _head(config: FusionConfig, inputs: int, outputs: int) -> nn.Module:
    if ":" in config.name:
        return models.imported(config.name, config.options)
    if config.name != "mlp":
        raise ConfigError(f"there is no head {config.name!r}. Known: mlp, or your own as 'package.module:attribute'.")
    return models.mlp(inputs, outputs, config.hidden, config.activation)


def make_federation(config: RunConfig, data: Dataset) -> Federation:
    """Build a run in one process. Every initial parameter and every random draw comes from its seed, by name."""
    special = {party.name: party.model for party in config.party}
    for name in special:
        if name not in data.names:
            raise ConfigError(f"[[party]] name = {name!r} is not in the data. {nearest(name, data.names)}")
    chosen = [special.get(name) or config.model for name in data.names]
    locals_ = [
        models.seeded_model(derive(config.seed, "party", name, "init"), partial(_local_model, model, data.train, k))
        for k, (name, model) in enumerate(zip(data.names, chosen, strict=True))
    ]
    outputs = 1 if config.loss in ("binary_cross_entropy", "mse", "huber") else data.classes
    columns = zip(locals_, data.train.features, data.names, strict=True)
    widths = [model_width(model, x, name)[0] for model, x, name in columns]
    inputs = sum(widths) if config.fusion.combine == "concat" else widths[0]
    head = models.seeded_model(derive(config.seed, "server", "init"), partial(_head, config.fusion, inputs, outputs))

    def rows(split: Split | None) -> tuple[dict[str, Any], Any] | None:
        return None if split is None else (dict(zip(data.names, split.features, strict=True)), split.labels)

    train = rows(data.train)
    assert train is not None, "every data set has training rows"
    return federate(
        train[0],
        train[1],
        locals_,
        head,
        combine=config.fusion.combine,
        loss=config.loss,
        method=config.method.build(),
        agreement=config.agreement,
        optimizer=make_optimizer(config.optimizer),
        batch_size=config.batch_size,
        batch_order=config.batch_order,
        seed=config.seed,
        validation=rows(data.validation),
        test=rows(data.test),
        label_holder=config.label_holder,
        sources=data.sources,
    )
