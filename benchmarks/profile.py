"""`python -m benchmarks.profile`: where the milliseconds and the bytes of a step go.

Counters are put around the functions that do the work, here and not in the library. The time of a counted function that
another one calls is the inner one's alone; what no counter saw is the rest: Python that holds the parts together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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
from benchmarks.timing import Sides, milliseconds
from efvfl import Agreement, Message, Method, Optimizer, SharedLabels, TopK, Training, efvfl, federate, svfl
from efvfl.compress import Identity
from efvfl.core import block as core_block
from efvfl.core import channel, local_model, server, shared_labels
from efvfl.core.batches import Batches
from efvfl.core.block import Block
from efvfl.core.fusion import Fusion, StepContext
from efvfl.core.memory import MemoryEnd
from efvfl.core.targets import Targets
from efvfl.experiments.tables import as_markdown
from efvfl.util.files import write_atomically
from efvfl.wire.ledger import Ledger
from efvfl.wire.packet import Packet, Reader

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
    "counting bytes",
    REST,
)


@dataclass
class Counters:
    """Seconds by part, each function without the counted functions it calls."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _inner: list[float] = field(default_factory=lambda: [0.0])  # seconds of counted calls, by depth

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a counter of its own time."""

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


# The counted functions by part: the object and attribute where the caller finds the function.
COUNTED: tuple[tuple[str, Any, str], ...] = (
    ("taking rows", Batches, "rows"),
    ("taking rows", local_model, "columns_of"),
    ("taking rows", Targets, "take"),
    ("taking rows", step, "chosen_rows"),
    ("local forward", local_model.PlainModel, "forward"),
    ("local forward", step, "represent"),
    ("fusion and loss", StepContext, "loss"),
    ("fusion and loss", shared_labels, "head_loss"),
    ("fusion and loss", Fusion, "combine"),
    ("fusion and loss", Fusion, "cotangents"),
    ("fusion and loss", Fusion, "others"),
    ("fusion and loss", Fusion, "insert"),
    ("fusion and loss", step, "head_loss"),
    ("backward", torch.Tensor, "backward"),
    ("backward", core_block, "backward"),
    ("backward", server, "backward"),
    ("backward", shared_labels, "slope_by"),
    ("optimiser", Block, "update"),
    ("optimiser", Block, "zero_grad"),
    ("optimiser", torch.optim.SGD, "step"),
    ("optimiser", torch.optim.SGD, "zero_grad"),
    ("encode", TopK, "encode"),
    ("encode", Identity, "encode"),
    ("decode", channel, "decode"),
    ("memories", MemoryEnd, "residual"),
    ("memories", MemoryEnd, "absorb"),
    ("counting bytes", Ledger, "record"),
)


@contextlib.contextmanager
def counting() -> Iterator[Counters]:
    """Count inside this context."""
    counters, before = Counters(), []
    for part, owner, name in COUNTED:
        before.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, counters.around(part, getattr(owner, name)))
    try:
        yield counters
    finally:
        for owner, name, function in before:
            if function is None:
                delattr(owner, name)  # the original belongs to a base class
            else:
                setattr(owner, name, function)


@dataclass(frozen=True)
class Time:
    """Where a step's milliseconds go."""

    batch: int  # 0: full
    side: str
    plain: float  # milliseconds without counters
    parts: dict[str, float]  # with them

    @property
    def total(self) -> float:
        """Milliseconds with counters."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Bytes:
    """Where a step's bytes go, all parties together."""

    side: str
    direction: str
    places: int  # positions of kept entries
    values: int
    fusion: int  # the fusion model
    headers: int


@dataclass(frozen=True)
class Profile:
    """The profile that is written to a file."""

    machine: dict[str, str]
    times: list[Time]
    bytes: list[Bytes]

    def to_json(self) -> str:
        """Return the profile as JSON."""
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """Return the profile that `to_json` wrote."""
        table = json.loads(text)
        return cls(table["machine"], [Time(**t) for t in table["times"]], [Bytes(**b) for b in table["bytes"]])


def times(batch: int, rounds: int, inner: int) -> list[Time]:
    """Profile central SGD and EF-VFL with top-k 10 % in both label modes, in turn, with counters and without.

    The fastest round tells: it is the one that was disturbed least.
    """
    x, y = step.rows(step.MNIST if batch == 0 else 12_800)
    sides: Sides = {
        "central SGD": step.central(x, y, batch),
        **{f"{labels} labels": step.federation(x, y, batch, labels).step for labels in ("private", "shared")},
    }
    plain: dict[str, list[float]] = {name: [] for name in sides}
    parts: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            side()  # warms the caches after another side
            plain[name].append(milliseconds(side, inner))
            with counting() as counters:
                parts[name].append(_by_part(counters, side, inner))
    return [Time(batch, name, min(plain[name]), min(parts[name], key=lambda p: sum(p.values()))) for name in sides]


def _by_part(counters: Counters, side: Callable[[], object], inner: int) -> dict[str, float]:
    """Return milliseconds per step by part, over `inner` consecutive steps."""
    total = milliseconds(side, inner)
    found = {part: 1e3 * seconds / inner for part, seconds in counters.seconds.items()}
    found[REST] = total - sum(found.values())
    return {part: found[part] for part in PARTS if part in found}


BYTES: tuple[tuple[str, Method, Agreement], ...] = (
    ("private labels, SVFL", svfl(), Agreement()),
    ("private labels, top-k 10 % up", efvfl(TopK(0.1)), Agreement()),
    ("private labels, top-k 10 % up and down", efvfl(TopK(0.1), TopK(0.1)), Agreement()),
    ("shared labels, SVFL", svfl(), Agreement(labels="shared")),
    ("shared labels, top-k 10 %", efvfl(TopK(0.1)), Agreement(labels="shared")),
    ("shared labels, top-k 10 %, aggregate", efvfl(TopK(0.1)), Agreement(SharedLabels(downlink="aggregate"))),
)


def bytes_of(side: str, method: Method, agreement: Agreement) -> list[Bytes]:
    """Count what one step at batch 128 sends, up and down."""
    (x, y), (local, head) = step.rows(1_280), step.models()
    made = federate(
        x,
        y,
        local,
        head,
        method=method,
        agreement=agreement,
        training=Training(optimizer=Optimizer(), batch_size=128),
    )
    made.step()  # reports on the second step have been sent
    sent: dict[str, list[Message]] = {"up": [], "down": []}
    count = made.ledger.record

    def record(direction: Any, name: str, message: Message, size: int | None = None) -> None:
        count(direction, name, message, size)
        sent[direction].append(message)

    made.ledger.record = record  # type: ignore[method-assign, assignment]
    made.step()
    return [_bytes(side, direction, messages) for direction, messages in sent.items()]


def _bytes(side: str, direction: str, messages: list[Message]) -> Bytes:
    places = values = fusion = 0
    for message in messages:
        for name, packets in message.packets.items():
            for packet in packets:
                which = _places(packet)
                places += which
                fusion += 0 if name else len(packet.body) - which
                values += len(packet.body) - which if name else 0
    total = sum(len(message.to_bytes()) for message in messages)
    return Bytes(side, direction, places, values, fusion, total - places - values - fusion)


def _places(packet: Packet) -> int:
    """Return the bytes that a packet uses for positions: a top-k body starts with the number of entries."""
    if packet.codec != TopK.code:
        return 0
    return len(packet.body) - packet.dtype.itemsize * Reader(packet.body).number("how many are kept")


def main() -> None:
    """Profile, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description="Where a step goes.")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = [*times(128, rounds=100, inner=10), *times(0, rounds=15, inner=1)]
    sent = [part for case in BYTES for part in bytes_of(*case)]
    profile = Profile(machine_facts(), found, sent)
    write_atomically(options.out, profile.to_json().encode())
    print(f"{time_table(profile)}\n\n{byte_table(profile)}")


def time_table(profile: Profile) -> str:
    """Return milliseconds by part as Markdown."""
    heads = [f"{'full batch' if t.batch == 0 else f'batch {t.batch}'}, {t.side}" for t in profile.times]
    body = [[part, *(f"{t.parts[part]:.3g}" if part in t.parts else "" for t in profile.times)] for part in PARTS]
    body.append(["all", *(f"{t.total:.3g}" for t in profile.times)])
    body.append(["without counters", *(f"{t.plain:.3g}" for t in profile.times)])
    return as_markdown(["milliseconds", *heads], body)


def byte_table(profile: Profile) -> str:
    """Return bytes by kind as Markdown."""
    kinds = ("places", "values", "fusion", "headers")
    body = []
    for one in profile.bytes:
        counts = [int(getattr(one, kind)) for kind in kinds]
        body.append([one.side, one.direction, *(f"{n:,}" for n in (*counts, sum(counts)))])
    return as_markdown(["bytes a step, 4 parties", "", "places", "values", "fusion model", "headers", "all"], body)


if __name__ == "__main__":
    main()
