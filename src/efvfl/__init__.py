"""Vertical federated learning with compressed error feedback (EF-VFL)."""

from efvfl.batches import Batches
from efvfl.block import Optimizer
from efvfl.build import federate
from efvfl.compress import QSGD, Cast, Compressor, Identity, RandK, Sign, TopK, TopKQSGD
from efvfl.errors import EfvflError
from efvfl.losses import Loss
from efvfl.methods import Agreement, Link, Method, cvfl, efvfl, svfl
from efvfl.packet import Message, Packet
from efvfl.schedule import Ramp
from efvfl.train import Federation, Record

__version__ = "0.1.0"

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
    "Ramp",
    "RandK",
    "Record",
    "Sign",
    "TopK",
    "TopKQSGD",
    "cvfl",
    "efvfl",
    "federate",
    "svfl",
]
