"""The federations that faults are tried on: every mode in which participants depend on one another in another way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

QUARTERS = ("top-left", "top-right", "bottom-left", "bottom-right")
DIGITS = """
name = "digits"
subset = 320
"""
TABLES = """
path = "labels.csv"
id = "customer"
label = "left"
[[party]]
name = "bank"
data = { path = "bank.csv", id = "customer" }
[[party]]
name = "phone"
data = { path = "phone.csv", id = "customer" }
"""
STALE = 'on_missing = "stale"\nstale_seconds = 0.3\nsilent_seconds = 5.0\n'
ROWS = 320  # of the tables


@dataclass(frozen=True)
class Case:
    """A federation file, and what is expected of its end."""

    settings: str  # the file's first lines
    data: str = DIGITS
    network: str = ""
    parties: tuple[str, ...] = QUARTERS  # those that join
    workers: str = ""  # the party that has two of them
    private: bool = True  # labels
    per_epoch: int = 10  # steps: so many batches of 32 rows

    @property
    def stale(self) -> bool:
        """Whether the end depends on who was away."""
        return "stale" in self.network

    @property
    def asynchronous(self) -> bool:
        """Whether the end depends on who reported when, of which there is a record."""
        return "asynchronous" in self.settings

    @property
    def tables(self) -> bool:
        """Whether participants have lists of aligned rows and encoders."""
        return self.data == TABLES

    def file(self, address: str, save: int, epochs: int) -> str:
        """Return a participant's file."""
        lines = (line.strip() for line in self.settings.splitlines())
        head = f"epochs = {epochs}\nbatch_size = 32\nobserve_every = 3\nseed = 3\n" + "\n".join(lines)
        network = f'address = "{address}"\nsave_steps = {save}\n{self.network}'
        return f"{head}\n[data]{self.data}\n[network]\n{network}"


CASES = {
    "private": Case("""
        agreement = { labels = "private" }
        method = { name = "efvfl", compressor = { name = "topk", ratio = 0.1 }, down = { name = "qsgd", bits = 4 } }
    """),
    "shared": Case(
        """
        agreement = { labels = "shared", local_steps = 2, fusion = "replicate", digest_every = 5 }
        method = { name = "efvfl", compressor = { name = "qsgd", bits = 4 }, start = "exact" }
        optimizer = { name = "SGD", lr = 0.5, momentum = 0.9 }
        """,
        private=False,
    ),
    "aggregate": Case(
        """
        label_holder = "top-left"
        agreement = { labels = "shared", downlink = "aggregate", fusion = "compress" }
        method = { name = "efvfl", compressor = { name = "topk", ratio = 0.2 }, fusion = { name = "qsgd", bits = 8 } }
        """,
        parties=QUARTERS[1:],
        private=False,
    ),
    "pipelined": Case("""
        agreement = { labels = "private", pipeline = true }
        method = { name = "efvfl", compressor = { name = "topk", ratio = 0.1 }, down = { name = "qsgd", bits = 4 } }
        optimizer = { name = "SGD", lr = 0.5, momentum = 0.9 }
    """),
    "stale": Case(
        """
        agreement = { labels = "private" }
        method = { name = "efvfl", compressor = { name = "topk", ratio = 0.1 }, down = { name = "qsgd", bits = 4 } }
        """,
        network=STALE,
    ),
    "stale-shared": Case(
        """
        agreement = { labels = "shared", fusion = "replicate", digest_every = 5 }
        method = { name = "efvfl", compressor = { name = "topk", ratio = 0.2 } }
        optimizer = { name = "Adam", lr = 0.05 }
        """,
        network=STALE,
        private=False,
    ),
    "stale-window": Case(
        """
        agreement = { labels = "shared", fusion = "replicate", digest_every = 1, pipeline = 4 }
        method = { name = "efvfl", compressor = { name = "topk", ratio = 0.2 } }
        optimizer = { name = "Adam", lr = 0.05 }
        batch_order = "independent"
        """,
        network=STALE,
        private=False,
    ),
    "asynchronous": Case("""
        agreement = { labels = "private", asynchronous = { reports = 3, most_stale = 8 } }
        method = { name = "efvfl", compressor = { name = "topk", ratio = 0.1 }, down = { name = "qsgd", bits = 4 } }
        optimizer = { name = "SGD", lr = 0.5, momentum = 0.9 }
    """),
    "tables": Case(
        """
        patience = 3
        agreement = { labels = "private" }
        method = { name = "efvfl", compressor = { name = "topk", ratio = 0.2 }, down = { name = "qsgd", bits = 4 } }
        optimizer = { name = "SGD", lr = 0.1 }
        """,
        data=TABLES,
        parties=("bank", "phone"),
        per_epoch=8,
    ),
    "workers": Case(
        """
        agreement = { labels = "private" }
        method = { name = "efvfl", compressor = { name = "topk", ratio = 0.1 } }
        """,
        workers="top-right",
    ),
}


def write_tables(folder: Path, names: list[str]) -> None:
    """Write the tables of the participants, and the list of shared rows into the folder of each."""
    from efvfl.network.align.aligned_rows import Aligned
    from efvfl.network.align.alignments import Alignments

    chance = np.random.default_rng(5)
    ids = [f"c{i:04d}" for i in range(ROWS)]
    age, debt, calls = chance.normal(40, 9, ROWS), chance.normal(0, 1, ROWS), chance.integers(0, 90, ROWS)
    plan = chance.choice(["flat", "daily", "none"], ROWS)
    left = (debt + calls / 30 + (plan == "none") + chance.normal(0, 0.3, ROWS) > 1.5).astype(int)
    _write(folder / "labels.csv", "customer,left", ids, left)
    _write(folder / "bank.csv", "customer,age,debt", ids, age.round(2), debt.round(3))
    _write(folder / "phone.csv", "customer,calls,plan", ids, calls, plan)
    splits = bytes(1 + i % 2 if i % 5 == 0 else 0 for i in range(ROWS))
    for name in names:
        (folder / name).mkdir()
        Alignments(folder / name).save(1, Aligned(ids, splits))


def _write(path: Path, head: str, *columns: Iterable[object]) -> None:
    rows = zip(*columns, strict=True)
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")
