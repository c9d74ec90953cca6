"""Vertical federated learning with compressed error feedback (EF-VFL)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from efvfl.compress import QSGD, Cast, Compressor, Identity, RandK, Sign, TopK, TopKQSGD, Uniform
    from efvfl.compress.ramp import Ramp
    from efvfl.core.agreement import Agreement, CachedSteps, PrivateLabels, SharedLabels
    from efvfl.core.batches import Batches
    from efvfl.core.losses import Loss
    from efvfl.core.methods import Link, Method, cvfl, efvfl, svfl
    from efvfl.core.optimizer import Optimizer
    from efvfl.core.protection import Protection
    from efvfl.errors import EfvflError
    from efvfl.runs.estimators import VerticalClassifier, VerticalRegressor
    from efvfl.runs.run import train
    from efvfl.runs.trackers import MLflowLogger, TensorBoardLogger, WandbLogger
    from efvfl.training.callbacks import Callback
    from efvfl.training.federate import federate
    from efvfl.training.federation import Federation
    from efvfl.training.options import Setup, Training
    from efvfl.training.record import Record
    from efvfl.wire.message import Message
    from efvfl.wire.packet import Packet

__version__ = "0.2.0"

# Where each public name lives. It is imported when it is first asked for, so that `efvfl --help` need not load torch.
_HOMES = {
    "core.batches": ("Batches",),
    "core.optimizer": ("Optimizer",),
    "compress": ("QSGD", "Cast", "Compressor", "Identity", "RandK", "Sign", "TopK", "TopKQSGD", "Uniform"),
    "errors": ("EfvflError",),
    "runs.estimators": ("VerticalClassifier", "VerticalRegressor"),
    "runs.run": ("train",),
    "runs.trackers": ("MLflowLogger", "TensorBoardLogger", "WandbLogger"),
    "training.callbacks": ("Callback",),
    "training.federate": ("federate",),
    "training.options": ("Setup", "Training"),
    "core.losses": ("Loss",),
    "core.agreement": ("Agreement", "CachedSteps", "PrivateLabels", "SharedLabels"),
    "core.methods": ("Link", "Method", "cvfl", "efvfl", "svfl"),
    "wire.message": ("Message",),
    "wire.packet": ("Packet",),
    "core.protection": ("Protection",),
    "compress.ramp": ("Ramp",),
    "training.federation": ("Federation",),
    "training.record": ("Record",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "QSGD",
    "Agreement",
    "Batches",
    "CachedSteps",
    "Callback",
    "Cast",
    "Compressor",
    "EfvflError",
    "Federation",
    "Identity",
    "Link",
    "Loss",
    "MLflowLogger",
    "Message",
    "Method",
    "Optimizer",
    "Packet",
    "PrivateLabels",
    "Protection",
    "Ramp",
    "RandK",
    "Record",
    "Setup",
    "SharedLabels",
    "Sign",
    "TensorBoardLogger",
    "TopK",
    "TopKQSGD",
    "Training",
    "Uniform",
    "VerticalClassifier",
    "VerticalRegressor",
    "WandbLogger",
    "cvfl",
    "efvfl",
    "federate",
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
