"""Training on a table of the benchmark: a federation by its settings, and the same network in one place."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from benchmarks.tables.problems import Problem, Rows
from efvfl.config.run_file import RunConfig, read
from efvfl.config.table_defaults import TABLES
from efvfl.core.fusion import Fusion
from efvfl.core.losses import LOSSES
from efvfl.data import Dataset
from efvfl.data.tables.bins import MOST_BINS
from efvfl.data.tables.encode import Encoder, TableSettings
from efvfl.errors import CompressionError
from efvfl.runs.build import head_model, local_model, make_federation, make_optimizer, watching
from efvfl.runs.estimator_base import FEWEST_VALIDATION
from efvfl.runs.estimator_inputs import split_rows
from efvfl.training import measure
from efvfl.training.measure import Split
from efvfl.training.record import Record

Settings = Mapping[str, Any]  # of a run file


@dataclass(frozen=True)
class Result:
    """What one training came to."""

    auc: float
    log_loss: float
    epochs: int = 0  # that were trained
    bytes_up: int = 0
    bytes_down: int = 0
    alone_auc: float = 0.0  # of the same model, from the label holder's columns alone

    @classmethod
    def of(cls, problem: Problem, rows: Rows, probabilities: NDArray[np.float64], **others: Any) -> Result:
        """Return the result of predicted probabilities."""
        return cls(**problem.scores(rows, probabilities), **others)

    def to_table(self) -> dict[str, float]:
        """Return it for a file: scores to six places, and what is not zero."""
        return {name: round(value, 6) for name, value in asdict(self).items() if value}


def run_config(problem: Problem, seed: int, settings: Settings) -> RunConfig:
    """Return a run file on this table: all that `settings` leave out is the default of tables."""
    loss = "binary_cross_entropy" if problem.outputs == 2 else "cross_entropy"
    table = {"seed": seed, "loss": loss, "label_holder": problem.label_holder, "data": {"name": TABLES}}
    return read(RunConfig, table | dict(settings), problem.name)


def encoded(
    problem: Problem, rows: tuple[Rows, Rows], run: RunConfig, bins: int = MOST_BINS
) -> tuple[Dataset, list[Tensor]]:
    """Return the table in numbers: of the first rows those to train on, and a share that decides when to stop.

    The second rows are not in the data set: what each party has of them is beside it.
    """
    first, held = rows
    share = run.data.validation if len(first) * run.data.validation >= FEWEST_VALIDATION else 0.0
    train, stop = (first[part] for part in split_rows(len(first), run.seed, share))
    encoders, columns = {}, {}
    for party, chosen in problem.columns.items():
        table = problem.frame.select(chosen)
        encoders[party] = Encoder.fit(table[train], TableSettings(bins=bins))
        columns[party] = torch.from_numpy(encoders[party].transform(table))
    parts = (
        Split([x[part] for x in columns.values()], torch.from_numpy(problem.classes[part])) for part in (train, stop)
    )
    data = Dataset(list(columns), *parts, None, problem.outputs, encoders=encoders)
    return data, [x[held] for x in columns.values()]


def probabilities(output: Tensor) -> NDArray[np.float64]:
    """Return the probability of every class."""
    logits = output.double()
    shares = torch.cat([-logits, logits], dim=1).sigmoid() if logits.shape[1] == 1 else logits.softmax(dim=1)
    return shares.numpy()


def federated(
    problem: Problem, rows: tuple[Rows, Rows], seed: int, settings: Settings, bins: int = MOST_BINS
) -> Result:
    """Train a federation on the first rows, stop as the estimator does, and return its scores on the second."""
    run = run_config(problem, seed, settings)
    data, features = encoded(problem, rows, run, bins)
    federation = make_federation(run, data)
    records: list[Record] = []
    best, kept = float("inf"), (0, [])
    for record in _until_it_diverges(federation.train(run.epochs, watching(run).every, gradient=False)):
        records.append(record)
        loss = record.validation.get("loss", -record.epoch)  # without validation rows the last is the best
        if loss < best:
            best, kept = loss, (record.epoch, _states([federation.fusion, *federation.models]))
    _restore([federation.fusion, *federation.models], kept[1])
    found = probabilities(measure.predict(federation.models, federation.fusion, features))
    last = records[-1]
    return Result.of(problem, rows[1], found, epochs=last.epoch, bytes_up=last.bytes_up, bytes_down=last.bytes_down)


def one_place(
    problem: Problem,
    rows: tuple[Rows, Rows],
    seed: int,
    parties: Sequence[str] = (),
    settings: Settings = MappingProxyType({}),
    bins: int = MOST_BINS,
) -> Result:
    """Train the same network, or the part of some parties, in plain torch: nothing is sent."""
    names = list(parties or problem.columns)
    chosen = Problem(problem.name, problem.frame, {n: problem.columns[n] for n in names}, problem.classes, names[0])
    run = run_config(chosen, seed, settings)
    data, features = encoded(chosen, rows, run, bins)
    watched = watching(run)
    models = [
        local_model(run, name, x[0], data.encoders[name]) for name, x in zip(names, data.train.features, strict=True)
    ]
    fusion = Fusion(head_model(run, [run.model.width] * len(models), problem.outputs, run.loss), run.fusion.combine)
    network = nn.ModuleList([fusion, *models])
    made = make_optimizer(run.optimizer)
    optimizer = made.build(network.parameters())
    scheduler = made.build_scheduler(optimizer)
    plateau = ReduceLROnPlateau(optimizer, **made.scheduler_options) if made.on_plateau else None
    loss, labels = LOSSES[run.loss], data.train.labels
    best, kept = float("inf"), (0, [])
    for epoch in range(1, run.epochs + 1):
        for batch in _batches(len(labels), run.batch_size, seed + epoch):
            optimizer.zero_grad()
            output = fusion([model(x[batch]) for model, x in zip(models, data.train.features, strict=True)])
            loss(output, labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if scheduler:
            scheduler.step()
        if epoch % watched.every and epoch < run.epochs:
            continue
        stop = data.validation
        value = measure.evaluate(models, fusion, stop, loss)["loss"] if stop and len(stop.labels) else -epoch
        if plateau:
            plateau.step(value)
        if value < best:
            best, kept = value, (epoch, _states(network))
        elif epoch - kept[0] >= watched.patience:
            break
    _restore(network, kept[1])
    return Result.of(problem, rows[1], probabilities(measure.predict(models, fusion, features)), epochs=epoch)


def _until_it_diverges(records: Iterator[Record]) -> Iterator[Record]:
    """Yield records up to a step with numbers that are not finite: the best model of before counts."""
    with suppress(CompressionError):
        yield from records


def _batches(rows: int, size: int, seed: int) -> Iterator[Tensor]:
    order = torch.from_numpy(np.random.default_rng(seed).permutation(rows))
    yield from torch.split(order, size)


def _states(modules: Sequence[nn.Module]) -> list[dict[str, Any]]:
    return [copy.deepcopy(module.state_dict()) for module in modules]


def _restore(modules: Sequence[nn.Module], states: Sequence[dict[str, Any]]) -> None:
    for module, state in zip(modules, states, strict=True):
        module.load_state_dict(state)
