"""Vertical federated learning with compressed error feedback (EF-VFL)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from efvfl.batches import Batches
    from efvfl.block import Optimizer
    from efvfl.compress import QSGD, Cast, Compressor, Identity, RandK, Sign, TopK, TopKQSGD
    from efvfl.errors import EfvflError
    from efvfl.estimators import VerticalClassifier, VerticalRegressor
    from efvfl.local import federate
    from efvfl.losses import Loss
    from efvfl.methods import Agreement, Link, Method, cvfl, efvfl, svfl
    from efvfl.packet import Message, Packet
    from efvfl.protect import Protection
    from efvfl.schedule import Ramp
    from efvfl.train import Federation, Record

__version__ = "0.1.0"

# Where each public name lives. It is imported when it is first asked for, so that `efvfl --help` need not load torch.
_HOMES = {
    "batches": ("Batches",),
    "block": ("Optimizer",),
    "compress": ("QSGD", "Cast", "Compressor", "Identity", "RandK", "Sign", "TopK", "TopKQSGD"),
    "errors": ("EfvflError",),
    "estimators": ("VerticalClassifier", "VerticalRegressor"),
    "local": ("federate",),
    "losses": ("Loss",),
    "methods": ("Agreement", "Link", "Method", "cvfl", "efvfl", "svfl"),
    "packet": ("Message", "Packet"),
    "protect": ("Protection",),
    "schedule": ("Ramp",),
    "train": ("Federation", "Record"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "QSGD",
    "Agreement",
    "Batches",
    "Cast",
    "Compressor",
    "EfvflError",
    "Federation",
    "Identity",
    "Link",
    "Loss",
    "Message",
    "Method",
    "Optimizer",
    "Packet",
    "Protection",
    "Ramp",
    "RandK",
    "Record",
    "Sign",
    "TopK",
    "TopKQSGD",
    "VerticalClassifier",
    "VerticalRegressor",
    "cvfl",
    "efvfl",
    "federate",
    "svfl",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'efvfl' has no attribute {name!r}")
    value = getattr(import_module(f"efvfl.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
