"""`python -m benchmarks.profile`: where the milliseconds and the bytes of a step go.

Counters are put around the functions that do the work, here and not in the library. The time of a counted function that
another one calls is the inner one's alone; what no counter saw is the rest: Python that holds the parts together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from benchmarks import step
from benchmarks.lines import machine_facts
from benchmarks.timing import Sides, alternate
from efvfl import Agreement, Federation, Message, Method, Optimizer, TopK, channel, efvfl, federate, party, shared, svfl
from efvfl import server as servers
from efvfl.batches import Batches
from efvfl.block import Block
from efvfl.checkpoint import write_atomically
from efvfl.compress import Identity
from efvfl.fusion import Fusion
from efvfl.ledger import Ledger
from efvfl.memory import ErrorFeedback
from efvfl.packet import Packet

OUT = Path(__file__).parent / "results" / "profile.json"
REST = "Python around it"
PARTS = (  # in the order of the picture
    "taking rows",
    "local forward",
    "fusion and loss",
    "backward",
    "optimiser",
    "encode",
    "decode",
    "memories",
    "packing",
    REST,
)


@dataclass
class Counters:
    """Seconds by part, each function's own."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _inner: list[float] = field(default_factory=lambda: [0.0])  # seconds of counted calls, by depth

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its own time counted."""

        @wraps(function)
        def counted(*arguments: Any, **options: Any) -> Any:
            self._inner.append(0.0)
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                took = time.perf_counter() - started
                self.seconds[part] += took - self._inner.pop()
                self._inner[-1] += took

        return counted


# What is counted under which name: the place where the caller looks the function up.
COUNTED: tuple[tuple[str, Any, str], ...] = (
    ("taking rows", Batches, "rows"),
    ("taking rows", party, "columns_of"),
    ("taking rows", servers, "take"),
    ("taking rows", shared, "take"),
    ("taking rows", step, "chosen_rows"),
    ("local forward", torch.nn.Sequential, "forward"),
    ("fusion and loss", servers, "head_loss"),
    ("fusion and loss", shared, "head_loss"),
    ("fusion and loss", Fusion, "combine"),
    ("fusion and loss", Fusion, "cotangents"),
    ("fusion and loss", Fusion, "others"),
    ("fusion and loss", Fusion, "insert"),
    ("fusion and loss", torch.nn.Linear, "forward"),  # of a local model too, but inside of it
    ("fusion and loss", step.F, "cross_entropy"),
    ("backward", torch.Tensor, "backward"),
    ("backward", torch.autograd, "grad"),
    ("optimiser", Block, "update"),
    ("optimiser", Block, "zero_grad"),
    ("optimiser", torch.optim.SGD, "step"),
    ("optimiser", torch.optim.SGD, "zero_grad"),
    ("encode", TopK, "encode"),
    ("encode", Identity, "encode"),
    ("decode", channel, "decode"),
    ("memories", ErrorFeedback, "residual"),
    ("memories", ErrorFeedback, "absorb"),
    ("packing", Ledger, "record"),
)


@contextlib.contextmanager
def counting() -> Iterator[Counters]:
    """Count for a while."""
    counters, before = Counters(), []
    for part, owner, name in COUNTED:
        function = getattr(owner, name)
        before.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, counters.around(part, function))
    try:
        yield counters
    finally:
        for owner, name, function in before:
            if function is None:
                delattr(owner, name)  # it was a base class's
            else:
                setattr(owner, name, function)
