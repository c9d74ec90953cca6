"""Vertical federated learning with compressed error feedback (EF-VFL)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from efvfl.compress import (
        QSGD,
        Cast,
        Columns,
        Compressor,
        Identity,
        LowRank,
        Natural,
        Product,
        RandK,
        RandomTopK,
        Sign,
        TopK,
        TopKQSGD,
        Uniform,
    )
    from efvfl.compress.ramp import Ramp
    from efvfl.core.accountant import Accountant
    from efvfl.core.agreement import Agreement, CachedSteps, PrivateLabels, Quorum, SharedLabels
    from efvfl.core.batches import Batches, Source
    from efvfl.core.label_release import LabelRelease
    from efvfl.core.losses import Loss
    from efvfl.core.memories import EF14, Decay, Direct, EControl, ErrorFeedback, Memory, Momentum
    from efvfl.core.methods import Link, Method, celu, cvfl, efvfl, fedbcd, svfl
    from efvfl.core.optimizer import Optimizer
    from efvfl.core.party_training import PartyTraining
    from efvfl.core.protection import Protection
    from efvfl.core.row_protection import RowProtection
    from efvfl.core.visit_noise import VisitNoise
    from efvfl.errors import EfvflError
    from efvfl.runs.estimators import VerticalClassifier, VerticalRegressor
    from efvfl.runs.run import train
    from efvfl.runs.trackers import MLflowLogger, TensorBoardLogger, WandbLogger
    from efvfl.training.callbacks import Callback
    from efvfl.training.federate import federate
    from efvfl.training.federation import Federation
    from efvfl.training.options import Setup, Training
    from efvfl.training.placement import place
    from efvfl.training.record import Record
    from efvfl.wire.message import Message
    from efvfl.wire.packet import Packet

__version__ = "0.2.0"

# Where each public name lives. It is imported when it is first asked for, so that `efvfl --help` need not load torch.
_HOMES = {
    "core.batches": ("Batches", "Source"),
    "core.optimizer": ("Optimizer",),
    "core.party_training": ("PartyTraining",),
    "compress": (
        "QSGD",
        "Cast",
        "Columns",
        "Compressor",
        "Identity",
        "LowRank",
        "Natural",
        "Product",
        "RandK",
        "RandomTopK",
        "Sign",
        "TopK",
        "TopKQSGD",
        "Uniform",
    ),
    "errors": ("EfvflError",),
    "runs.estimators": ("VerticalClassifier", "VerticalRegressor"),
    "runs.run": ("train",),
    "runs.trackers": ("MLflowLogger", "TensorBoardLogger", "WandbLogger"),
    "training.callbacks": ("Callback",),
    "training.federate": ("federate",),
    "training.options": ("Setup", "Training"),
    "training.placement": ("place",),
    "core.label_release": ("LabelRelease",),
    "core.losses": ("Loss",),
    "core.accountant": ("Accountant",),
    "core.agreement": ("Agreement", "CachedSteps", "PrivateLabels", "Quorum", "SharedLabels"),
    "core.memories": ("EF14", "Decay", "Direct", "EControl", "ErrorFeedback", "Memory", "Momentum"),
    "core.methods": ("Link", "Method", "celu", "cvfl", "efvfl", "fedbcd", "svfl"),
    "wire.message": ("Message",),
    "wire.packet": ("Packet",),
    "core.protection": ("Protection",),
    "core.row_protection": ("RowProtection",),
    "core.visit_noise": ("VisitNoise",),
    "compress.ramp": ("Ramp",),
    "training.federation": ("Federation",),
    "training.record": ("Record",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "EF14",
    "QSGD",
    "Accountant",
    "Agreement",
    "Batches",
    "CachedSteps",
    "Callback",
    "Cast",
    "Columns",
    "Compressor",
    "Decay",
    "Direct",
    "EControl",
    "EfvflError",
    "ErrorFeedback",
    "Federation",
    "Identity",
    "LabelRelease",
    "Link",
    "Loss",
    "LowRank",
    "MLflowLogger",
    "Memory",
    "Message",
    "Method",
    "Momentum",
    "Natural",
    "Optimizer",
    "Packet",
    "PartyTraining",
    "PrivateLabels",
    "Product",
    "Protection",
    "Quorum",
    "Ramp",
    "RandK",
    "RandomTopK",
    "Record",
    "RowProtection",
    "Setup",
    "SharedLabels",
    "Sign",
    "Source",
    "TensorBoardLogger",
    "TopK",
    "TopKQSGD",
    "Training",
    "Uniform",
    "VerticalClassifier",
    "VerticalRegressor",
    "VisitNoise",
    "WandbLogger",
    "celu",
    "cvfl",
    "efvfl",
    "fedbcd",
    "federate",
    "place",
    "svfl",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'efvfl' has no attribute {name!r}")
    value = getattr(import_module(f"efvfl.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
