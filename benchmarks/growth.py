"""How a step grows with the rows and with the parties, and the size of the memories. Rows are generated on demand."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.lines import Line, ratio, slug
from benchmarks.step import CLASSES, PARTIES, PIXELS, SHALLOW, WIDTH
from benchmarks.timing import Timing, alternate
from efvfl import Agreement, Batches, Federation, Optimizer, SharedLabels, TopK, efvfl
from efvfl.core import losses
from efvfl.core.assembly import SharedParts, make_party, make_server, plain_model
from efvfl.core.batches import Rows
from efvfl.core.fusion import Fusion
from efvfl.core.plan import Plan
from efvfl.core.targets import Targets
from efvfl.training.transport import LocalTransport

BATCH = 128
AGREEMENTS = {
    "private labels": Agreement(labels="private"),
    "shared labels": Agreement(labels="shared"),
    "shared labels, aggregate": Agreement(SharedLabels(downlink="aggregate")),
}


class Made:
    """Generated columns: row i is row i mod 4,096 of a small table, so that only the memories grow."""

    def __init__(self, samples: int, seed: int) -> None:
        """Create a source with this many rows."""
        self.samples = samples
        self.table = torch.randn(4096, PIXELS, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return self.samples

    def batch(self, rows: Rows, step: int) -> Tensor:
        """Return the features of these rows."""
        assert isinstance(rows, Tensor), "batches are smaller than the whole"
        return self.table.index_select(0, rows % len(self.table))


def federation(samples: int, agreement: Agreement, parties: int = PARTIES) -> Federation:
    """Return EF-VFL with top-k 10 % on the shallow network with generated rows."""
    local, head = SHALLOW.models(parties)
    fusion = Fusion(head)
    plan = Plan(
        names=[f"party{k}" for k in range(1, parties + 1)],
        widths=[WIDTH] * parties,
        dtype=torch.float32,
        batches=Batches(samples, BATCH),
        method=efvfl(TopK(0.1)),
        agreement=agreement,
        loss=losses.lookup("cross_entropy"),
        optimizer=Optimizer("SGD", {"lr": SHALLOW.rate}),
    )
    labels = torch.arange(samples) % CLASSES
    server = make_server(plan, fusion, Targets(labels), 0)
    members = {}
    for k, (name, model) in enumerate(zip(plan.names, local, strict=True)):
        shared = None if agreement.private else SharedParts(Targets(labels), copy.deepcopy(fusion), server.channels)
        members[name] = make_party(plan, name, plain_model(plan, name, model, Made(samples, k), k), k, shared)
    return Federation(server, LocalTransport(members), splits={})


def memories(made: Federation) -> list[Tensor]:
    """Return the surrogates of all participants; in one process parties share the server's copies."""
    channels = [*made.server.channels.values(), *(party.up for party in made.parties.values())]
    return [channel.memory.g for channel in channels if channel.memory.keeps]


def touched(made: Federation) -> Federation:
    """Write to every page of the memories once, as the first epoch would."""
    for surrogate in memories(made):
        surrogate.zero_()
    return made


def by_rows(agreement: Agreement, counts: list[int], rounds: int, inner: int) -> dict[int, Timing]:
    """Return milliseconds per step at batch 128 by the number of rows, without those that do not fit into memory."""
    gc.collect()  # frees the previous federation, which has reference cycles
    sides = {str(n): touched(federation(n, agreement)).step for n in counts if room(n)}
    return {int(name): found for name, found in alternate(sides, rounds, inner, warm=100).items()}


def by_parties(agreement: Agreement, counts: list[int], rounds: int, inner: int) -> dict[int, Timing]:
    """Return milliseconds per step at batch 128 by the number of parties."""
    sides: dict[str, Callable[[], object]] = {str(k): federation(10_000, agreement, k).step for k in counts}
    return {int(name): found for name, found in alternate(sides, rounds, inner, warm=10).items()}


def proc_bytes(file: str, name: str) -> int:
    """Return a number of bytes from a file in /proc; 0 on systems without it."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith(name)), 0)


def anonymous() -> int:
    """Return the anonymous memory of this process in bytes."""
    return proc_bytes("/proc/self/status", "RssAnon")


def room(samples: int) -> bool:
    """Return whether the memories of this many rows fit into RAM with a reserve."""
    return 2 * PARTIES * WIDTH * 4 * samples < 0.7 * (proc_bytes("/proc/meminfo", "MemAvailable") or 1 << 62)


def memory_line(name: str, agreement: Agreement, samples: int = 1_000_000) -> Line:
    """Measure the memory of a federation after touching all its memories."""
    gc.collect()
    before = anonymous()
    made = touched(federation(samples, agreement))
    taken = (anonymous() - before) / 2**20
    buffers = memories(made)
    note = (
        f"{len(buffers)} memories of 1,000,000 x {WIDTH} floats are {sum(g.nbytes for g in buffers) / 2**20:,.0f} MiB"
    )
    return Line(f"memory-{slug(name)}", f"memory, 10^6 rows, {name}", taken, "MiB", note=note)


def lines(full: bool) -> list[Line]:
    """Measure memory, then growth."""
    out = [memory_line(name, agreement) for name, agreement in AGREEMENTS.items()] if anonymous() else []
    for name, agreement in AGREEMENTS.items():
        counts = [10**4, 10**5, 10**6, *([10**7] if full else [])]
        found = by_rows(agreement, counts, rounds=40 if full else 15, inner=20)
        for n in counts[1:]:
            power = len(str(n)) - 1
            line = Line(
                f"growth-rows-{power}-{slug(name)}",
                f"batch 128, {name}: 10^{power} rows / 10^4 rows",
                target=1.2 if n >= 10**6 else None,
                note="no room in memory",
            )
            if n in found:
                line = ratio(line.name, line.what, found[n], found[10**4], line.target)
            out.append(line)
    for name, agreement in AGREEMENTS.items():
        counts = [2, 4, 8, 16, 32] if full else [2, 8, 32]
        found = by_parties(agreement, counts, rounds=20 if full else 8, inner=4)
        for k in counts[1:]:
            over, under = (Timing([t / n for t in found[n].samples]) for n in (k, 2))
            what = f"batch 128, {name}: a step for each of {k} parties / of 2"
            out.append(ratio(f"growth-parties-{k}-{slug(name)}", what, over, under))
    return out
