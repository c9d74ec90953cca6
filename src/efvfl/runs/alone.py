"""What the label holder reaches with its own columns alone: the same model, head and settings, and nothing is sent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from efvfl.config.run_file import RunConfig
from efvfl.core.batches import Source
from efvfl.core.source_columns import OwnColumns
from efvfl.core.targets import Targets
from efvfl.errors import EfvflError
from efvfl.runs.build import head_model, local_model, make_loss, make_optimizer, patience, private_seed, watching
from efvfl.runs.run_folder import ALONE, Outputs, save_outputs
from efvfl.training.federate import federate, model_width
from efvfl.training.options import Setup, Training
from efvfl.training.record import Record

if TYPE_CHECKING:
    from efvfl.data.tables.encode import Encoder

log = logging.getLogger("efvfl")


@dataclass(frozen=True)
class LabelHolderRows:
    """What a label holder with columns has itself."""

    columns: Mapping[str, OwnColumns]  # by split
    targets: Mapping[str, Targets]
    ids: Mapping[str, list[str]]
    classes: int
    encoder: Encoder | None = None
    source: Source | None = None  # in place of the training rows: augmented images


def no_longer_than(records: Sequence[Record], config: RunConfig) -> RunConfig:
    """Return the settings with the epochs that a run had, if it was asked to finish before it had all of them."""
    asked = bool(records) and records[-1].asked
    return replace(config, epochs=min(config.epochs, records[-1].epoch)) if asked else config


def leave_alone(
    folder: Path, config: RunConfig, rows: LabelHolderRows, stop: Callable[[], bool] = lambda: False
) -> None:
    """Train alone and leave the outputs in a run's folder, unless it is stopped; the run is as good without them."""
    log.info("training the label holder's own columns alone, to compare with; --no-alone leaves that out")
    try:
        outputs = train_alone(config, rows, stop)
    except EfvflError as error:  # such as a head of one's own that takes as many columns as all parties have
        log.warning("the label holder's own columns could not be trained alone, to compare with: %s", error)
        return
    if outputs:
        save_outputs(folder, outputs, ALONE)


def train_alone(
    config: RunConfig, rows: LabelHolderRows, stop: Callable[[], bool] = lambda: False
) -> dict[str, Outputs]:
    """Train as the run did, without the other parties, and return outputs on held-out rows; nothing if stopped.

    The best model is kept where the run keeps it. There is no compressor and no protection, for nothing leaves. The
    settings name the loss.
    """
    name, x = config.label_holder, rows.columns["train"]
    held_out = [split for split in ("validation", "test") if split in rows.targets]
    model = local_model(config, name, x[0], rows.encoder)
    head = head_model(config, [model_width(model, x, name)[0]], rows.classes, config.loss)

    def part(split: str) -> tuple[dict[str, OwnColumns], Tensor, Tensor | None] | None:
        of = rows.targets.get(split)
        return None if of is None else ({name: rows.columns[split]}, of.labels, of.weights)

    train = rows.targets["train"]
    watch = watching(config)
    made = federate(
        {name: x},
        train.labels,
        [model],
        head,
        validation=part("validation"),
        test=part("test"),
        training=Training(
            loss=make_loss(config, config.loss, train, rows.classes),
            weights=train.weights,
            optimizer=make_optimizer(config.optimizer),
            batch_size=config.batch_size,
            batch_order=config.batch_order,
            seed=config.seed,
            private_seeds={of: private_seed(config, of) for of in ("", name)},
            patience=patience(config, "validation" in held_out),
            evaluation="compressed" if watch.by_messages else "exact",
        ),
        setup=Setup(combine=config.fusion.combine, label_holder=name, sources=[rows.source] if rows.source else None),
    )
    for _ in made.train(config.epochs, watch.every, gradient=False):
        if stop():
            return {}
    return {
        split: Outputs(rows.ids[split], rows.targets[split].labels, made.predict({name: rows.columns[split]}))
        for split in held_out
    }
