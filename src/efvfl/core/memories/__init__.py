"""Memories, each in one file, and the registry of all of them."""

from efvfl.core.memories.base import MEMORIES, Before, Memory, lookup, register
from efvfl.core.memories.decay import Decay
from efvfl.core.memories.direct import Direct
from efvfl.core.memories.econtrol import EControl
from efvfl.core.memories.ef14 import EF14
from efvfl.core.memories.error_feedback import ErrorFeedback
from efvfl.core.memories.momentum import Momentum

__all__ = [
    "EF14",
    "MEMORIES",
    "Before",
    "Decay",
    "Direct",
    "EControl",
    "ErrorFeedback",
    "Memory",
    "Momentum",
    "lookup",
    "register",
]
