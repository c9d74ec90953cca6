"""Ten million rows: RAM of a federation, cost of a checkpoint, and growth of a step with the rows.

`python -m benchmarks.memory accuracy` trains the paper's MNIST network with memories as they are and rounded.
`python -m benchmarks.memory` trains four parties and their server in one process, with shared labels, the combination
on the downlink, columns made on demand and memories in files, and prints what /proc says of that process. Then it takes
steps at ten thousand and at ten million rows in turn. Linux only; it uses 15 GB of disk and 6 GB of RAM for a while.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import link
from benchmarks.growth import proc_bytes
from benchmarks.lines import Line, ratio
from benchmarks.timing import Timing, alternate
from efvfl import Agreement, Batches, Federation, Optimizer, SharedLabels, TopK, efvfl
from efvfl.core import losses
from efvfl.core.assembly import SharedParts, make_party, make_server, plain_model
from efvfl.core.batches import Rows
from efvfl.core.channel import Channel
from efvfl.core.fusion import Fusion
from efvfl.core.plan import Plan
from efvfl.core.targets import Targets
from efvfl.experiments.tables import as_markdown
from efvfl.runs.build import load_data, make_federation
from efvfl.training.transport import LocalTransport
from efvfl.util import checkpoint

PARTIES, COLUMNS, WIDTH, CLASSES, BATCH = 4, 32, 16, 2, 128
FEW, MANY = 10_000, 10_000_000
STEPS = 300
LIMIT = 1e9  # bytes of anonymous memory
GROWTH = 1.2
AGREEMENTS = {
    "private": Agreement(labels="private"),
    "aggregate": Agreement(SharedLabels(downlink="aggregate", fusion="replicate")),
}
MB = 1e6


class Made:
    """Columns computed from the row number, at a constant cost."""

    def __init__(self, party: int, samples: int) -> None:
        """Create one party's columns of this many rows."""
        self.samples = samples
        generator = torch.Generator().manual_seed(party)
        self.factors = torch.randint(1 << 40, 1 << 60, (COLUMNS,), generator=generator) | 1

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.samples

    def batch(self, rows: Rows, step: int) -> Tensor:
        """Return 16 middle bits of the products of row numbers and large odd factors, as numbers from -1 to 1."""
        assert isinstance(rows, Tensor), "batches are smaller than all rows"
        return _scrambled(rows, self.factors)


def _scrambled(rows: Tensor, factors: Tensor) -> Tensor:
    return (((rows + 1).unsqueeze(1) * factors >> 40) & 0xFFFF).float() / 32768 - 1


def labels_of(sources: list[Made], samples: int) -> Tensor:
    """Return classes that depend on the first column of every party, computed in parts."""
    labels, first = torch.empty(samples, dtype=torch.int64), torch.stack([source.factors[0] for source in sources])
    for start in range(0, samples, 1 << 16):
        rows = torch.arange(start, min(start + (1 << 16), samples))
        labels[rows] = (_scrambled(rows, first).sum(dim=1) > 0).long()
    return labels


def federation(samples: int, agreement: Agreement, folder: Path | None) -> Federation:
    """Build every participant separately; those with labels share one tensor."""
    torch.manual_seed(0)
    names = [f"party{k}" for k in range(1, PARTIES + 1)]
    plan = Plan(
        names=names,
        widths=[WIDTH] * PARTIES,
        dtype=torch.float32,
        batches=Batches(samples, BATCH, seed=1),
        method=efvfl(TopK(0.1)),
        agreement=agreement,
        loss=losses.lookup("cross_entropy"),
        optimizer=Optimizer("Adam", {"lr": 0.01}),
        mapped=folder,
    )
    sources = [Made(k, samples) for k in range(PARTIES)]
    labels = labels_of(sources, samples)

    def fusion() -> Fusion:
        return Fusion(nn.Linear(WIDTH, CLASSES), "sum")

    parties = {}
    for name, source in zip(names, sources, strict=True):
        model = nn.Sequential(nn.Linear(COLUMNS, WIDTH), nn.Tanh())
        shared = None if agreement.private else SharedParts(Targets(labels), fusion())
        parties[name] = make_party(plan, name, plain_model(plan, name, model, source, 2), 2, shared)
    server = make_server(plan, fusion(), Targets(labels), 3)
    return Federation(server, LocalTransport(parties), {})


def resident() -> dict[str, int]:
    """Return the anonymous and the file-backed memory of this process in bytes."""
    return {
        kind: proc_bytes("/proc/self/status", name)
        for kind, name in (("anonymous", "RssAnon"), ("of files", "RssFile"))
    }


@contextmanager
def watched(found: dict[str, float]) -> Iterator[None]:
    """Record the duration and the peak memory of each kind inside this context."""
    done = threading.Event()
    peak = resident()

    def watch() -> None:
        while not done.wait(0.005):
            for kind, size in resident().items():
                peak[kind] = max(peak[kind], size)

    thread = threading.Thread(target=watch)
    thread.start()
    started = time.perf_counter()
    try:
        yield
        found["seconds"] = time.perf_counter() - started
    finally:
        done.set()
        thread.join()
    found |= peak


def training(memory_dtype: str, folder: Path) -> dict[str, Any]:
    """Train at ten million rows, save the server and load it again; return seconds and peaks of each."""
    torch.set_num_threads(1)
    phases: dict[str, dict[str, float]] = {name: {} for name in ("build", "train", "save", "load")}
    agreement = AGREEMENTS["aggregate"]
    with watched(phases["build"]):
        made = federation(MANY, replace(agreement, memory_dtype=memory_dtype), folder)
    with watched(phases["train"]):
        found = [made.step() for _ in range(STEPS)]
    with watched(phases["save"]):
        checkpoint.save(folder / "server", made.server.state_dict())
    size = (folder / "server").stat().st_size
    digest = made.server.channels[next(iter(made.parties))].digest()
    with watched(phases["load"]):
        made.server.load_state_dict(checkpoint.load(folder / "server"))
    assert made.server.channels[next(iter(made.parties))].digest() == digest
    (folder / "server").unlink()
    return {"phases": phases, "losses": [mean(found[:30]), mean(found[-30:])], "checkpoint": size}


def channels(made: Federation) -> Iterator[Channel]:
    """Yield both ends of every uplink."""
    yield from made.server.channels.values()
    for party in made.parties.values():
        yield party.up


def growth(case: str, folder: Path | None, rounds: int, inner: int) -> dict[str, Timing]:
    """Return milliseconds per step at both numbers of rows, with memories in RAM or in files.

    All pages in RAM have been written to, as after an epoch. Those of files have only been read, because the disk would
    be busy for a while if all were written at once: most steps are the first to write to their pages.
    """
    torch.set_num_threads(1)
    sides: dict[str, Callable[[], object]] = {}
    for samples in (FEW, MANY):
        made = federation(samples, AGREEMENTS[case], folder)
        for channel in channels(made):
            channel.memory.g.zero_() if folder is None else channel.memory.g.sum()
        sides[f"{samples:,}"] = made.step
    return alternate(sides, rounds, inner, warm=100)


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a separate process, to measure its memory alone."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result(timeout=600)


def measure(rounds: int = 40, inner: int = 10) -> dict[str, Any]:
    """Return all measurements, sizes in bytes; temporary files are deleted."""
    found: dict[str, Any] = {"rows": MANY, "training": {}, "growth": {}}
    with tempfile.TemporaryDirectory(prefix="efvfl-memory-") as place:
        folder = Path(place)
        if shutil.disk_usage(folder).free < 15e9:
            raise SystemExit(f"{folder} has less than 15 GB of free space: set TMPDIR to a folder on another disk.")
        for dtype in ("", "bfloat16"):
            found["training"][dtype or "float32"] = alone(training, dtype, folder)
        for case, name, where in (("private", "RAM", None), ("aggregate", "RAM", None), ("aggregate", "files", folder)):
            timings = alone(growth, case, where, rounds, inner)
            few, many = timings[f"{FEW:,}"], timings[f"{MANY:,}"]
            found["growth"][f"{case}, memories in {name}"] = {
                "milliseconds": [few.middle, many.middle],
                "spread": max(few.spread, many.spread),
                "ratio": many.middle / few.middle,
            }
        assert not list(folder.iterdir()), "scratch files have no name, and the checkpoint is deleted"
    return found


def accuracy(labels: str, batch: int, rate: float, epochs: int, seed: int, memory_dtype: str) -> float:
    """Return the test accuracy of the paper's MNIST network, in percent, with memories of a dtype."""
    base = link.run_config({"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.1}}, batch)
    agreement = Agreement(labels=labels, memory_dtype=memory_dtype)  # type: ignore[arg-type]
    config = replace(base, agreement=agreement, seed=seed, optimizer={"name": "SGD", "lr": rate})
    made = make_federation(config, load_data(config, Path()))
    *_, last = made.train(epochs, observe_every=epochs, gradient=False)
    return 100 * last.test["accuracy"]


def accuracies() -> str:
    """Return a table of the effect of rounded memories on accuracy."""
    rows = []
    for labels, batch, rate, epochs in (("private", 128, 1.0, 5), ("shared", 0, 4.0, 40)):
        what = f"{epochs} epochs, {f'batch {batch}' if batch else 'full batch'}, {labels} labels, step size {rate:g}"
        cells = [
            ", ".join(f"{accuracy(labels, batch, rate, epochs, seed, dtype):.1f} %" for seed in (0, 1))
            for dtype in ("", "bfloat16")
        ]
        rows.append([what, *cells])
    return as_markdown(["", "float32", "bfloat16"], rows)


def lines(full: bool) -> list[Line]:
    """Measure for the suite, except the growth in RAM, which is another topic."""
    out = []
    with tempfile.TemporaryDirectory(prefix="efvfl-memory-") as place:
        for dtype in ("", "bfloat16") if full else ("",):
            phases = alone(training, dtype, Path(place))["phases"]
            most = max(values["anonymous"] for values in phases.values()) / MB
            seconds = ", ".join(f"{phase} {values['seconds']:.1f} s" for phase, values in phases.items())
            what = (
                f"anonymous memory of {PARTIES} parties and server, 10^7 rows, aggregate, {dtype or 'float32'} in files"
            )
            out.append(Line(f"memory-mapped-{dtype or 'float32'}", what, most, "MB", target=LIMIT / MB, note=seconds))
        timings = alone(growth, "aggregate", Path(place), 40 if full else 15, 20)
        few, many = timings[f"{FEW:,}"], timings[f"{MANY:,}"]
        what = "batch 128, shared labels, aggregate, memories in files: 10^7 rows / 10^4 rows"
        out.append(ratio("growth-mapped", what, many, few, note="pages written to for the first time"))
    return out


def main() -> None:
    """Print two tables and the JSON, or with `accuracy` the effect of rounding on a network."""
    if sys.argv[1:] == ["accuracy"]:
        torch.set_num_threads(1)
        print(accuracies())
        return
    found = measure()
    print(f"{MANY:,} rows, {PARTIES} parties and server in one process, width {WIDTH}, batch {BATCH}, {STEPS} steps\n")
    print("| memories | phase | seconds | anonymous, MB (target 1,000) | of files, MB |")
    print("| --- | --- | ---: | ---: | ---: |")
    for name, run in found["training"].items():
        for phase, values in run["phases"].items():
            mark = "" if values["anonymous"] < LIMIT else " (missed)"
            sizes = f"{values['anonymous'] / MB:,.0f}{mark} | {values['of files'] / MB:,.0f}"
            print(f"| {name} | {phase} | {values['seconds']:.2f} | {sizes} |")
    print(f"\n| a step at batch {BATCH} | {FEW:,} rows, ms | {MANY:,} rows, ms | growth (target {GROWTH}) | spread |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, values in found["growth"].items():
        few, many = values["milliseconds"]
        mark = "" if values["ratio"] <= GROWTH else " (missed)"
        print(f"| {name} | {few:.3f} | {many:.3f} | {values['ratio']:.2f}{mark} | {values['spread']:.0%} |")
    print(f"\n{json.dumps(found)}")


if __name__ == "__main__":
    main()
