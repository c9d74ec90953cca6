"""The methods and defences that are compared: everything is on SVFL, which hides nothing, unless a name says otherwise.

An epsilon is for the whole run at delta = 1e-5: of each label, or of each of the guest's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.attacks.problems import GUEST, HOLDER, Task
from efvfl import (
    Agreement,
    Federation,
    Method,
    Optimizer,
    Protection,
    RowProtection,
    Setup,
    SharedLabels,
    TopK,
    Training,
    VisitNoise,
    cvfl,
    efvfl,
    federate,
    svfl,
)
from efvfl.data.base import Dataset
from efvfl.runs.attacks.defences import Defence, marvell, max_norm, unlike_columns, unlike_labels

KEPT = TopK(0.1)


@dataclass(frozen=True)
class Setting:
    """A row of the table."""

    name: str
    method: Callable[[], Method] = svfl
    labels: float = 0.0  # epsilon of noise at every visit of a label
    rows: float = 0.0  # epsilon of the guest's rows
    deeper: bool = False  # the hidden layer is the head's, and the local models are linear
    defence: Defence | None = None
    binary: bool = False  # for two classes alone
    once: float = 0.0  # epsilon of labels that are randomised once
    shared: bool = False  # the labels, as they were randomised, are given to the guest


def ef() -> Method:
    """EF-VFL with one number in ten, upwards."""
    return efvfl(KEPT)


SETTINGS = (
    Setting("SVFL"),
    Setting("CVFL, top-k 10 %", lambda: cvfl(KEPT)),
    Setting("EF-VFL, top-k 10 %", ef),
    Setting("EF-VFL, top-k 10 % up, 30 % down", lambda: efvfl(KEPT, TopK(0.3))),
    Setting("A: labels randomised once, ε = 4", once=4.0),
    Setting("A: labels randomised once, ε = 1", once=1.0),
    Setting("A, labels shared, ε = 4", once=4.0, shared=True),
    Setting("B: noise at visits, ε = 16", labels=16.0),
    Setting("B: noise at visits, ε = 4", labels=4.0),
    Setting("EF-VFL and B, ε = 4", ef, labels=4.0),
    Setting("C: guest's rows, ε = 16", rows=16.0),
    Setting("C: guest's rows, ε = 4", rows=4.0),
    Setting("EF-VFL and C, ε = 16", ef, rows=16.0),
    Setting("max-norm", defence=max_norm),
    Setting("Marvell", defence=marvell, binary=True),
    Setting("distance correlation, columns", defence=unlike_columns),
    Setting("distance correlation, labels", defence=unlike_labels),
    Setting("deeper head", deeper=True),
)
NAMED = {setting.name: setting for setting in SETTINGS}


def build(task: Task, data: Dataset, setting: Setting, seed: int) -> Federation:
    """Return the federation of a setting, before training."""
    torch.manual_seed(seed)
    models = [_model(x.shape[1], task, setting) for x in data.train.features]
    outputs = 1 if data.classes == 2 else data.classes
    head: nn.Module = nn.Linear(task.width, outputs)
    if setting.deeper:
        inner = nn.Linear(task.width, task.hidden)
        head = nn.Sequential(nn.ReLU(), inner, nn.ReLU(), nn.Linear(task.hidden, outputs))
    assert data.test is not None, "every task has test rows"
    visits = VisitNoise(epsilon=setting.labels, epochs=task.epochs) if setting.labels else VisitNoise()
    return federate(
        dict(zip(data.names, data.train.features, strict=True)),
        data.train.labels,
        models,
        head,
        method=setting.method(),
        agreement=Agreement(SharedLabels()) if setting.shared else Agreement(),
        training=Training(
            loss=task.loss(data),
            optimizer=Optimizer("Adam", {"lr": 0.005}),
            batch_size=task.batch_size,
            seed=seed,
            evaluation="compressed" if setting.rows else "exact",  # noise is on evaluated rows as well
        ),
        test=(dict(zip(data.names, data.test.features, strict=True)), data.test.labels),
        setup=Setup(
            "sum",
            HOLDER,
            Protection(visits=visits, label_epsilon=setting.once),
            protect_rows={GUEST: _protection(task, setting)},
        ),
    )


def _model(columns: int, task: Task, setting: Setting) -> nn.Module:
    if setting.deeper:
        return nn.Linear(columns, task.width)
    return nn.Sequential(nn.Linear(columns, task.hidden), nn.ReLU(), nn.Linear(task.hidden, task.width))


def _protection(task: Task, setting: Setting) -> RowProtection:
    if not setting.rows:
        return RowProtection()
    visits = task.epochs + 1  # one for predictions
    return RowProtection(1.0, RowProtection(1.0).accountant(GUEST).with_noise_for(setting.rows, visits).noise)
