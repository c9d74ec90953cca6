"""Time to 90 % over a slow line: a server and four parties as processes with mTLS, each party on an emulated line.

How many rounds a run needs is found in one process, which trains the same model bit for bit; then as many rounds are
trained over the links, without evaluating, and timed. `python -m benchmarks.link` prints a table and draws a picture.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks.emulated_line import network
from benchmarks.lines import Line, slug
from efvfl.config import run_file as configs
from efvfl.config.run_file import RunConfig
from efvfl.runs.build import load_data, make_federation
from efvfl.runs.plots import COLOURS, SOFT, tidy
from efvfl.util.files import write_atomically

GOAL = 0.9
EPOCHS = 100


# The federation.


def run_config(method: dict[str, Any], batch_size: int) -> RunConfig:
    """The paper's MNIST network, shared labels."""
    table = {
        "epochs": EPOCHS,
        "batch_size": batch_size,
        "observe_every": 10**6,
        "data": {"name": "mnist"},
        "agreement": {"labels": "shared"},
        "method": method,
        "optimizer": {"name": "SGD", "lr": 4.0},
    }
    return configs.read(RunConfig, table, "link")


# Measurements.


@dataclass(frozen=True)
class Measured:
    """One row of the table."""

    batch: int  # 0: full
    method: str
    column: str
    rounds: int  # until the validation accuracy is 90 %; 0: not reached
    accuracy: list[list[float]]  # [rounds, validation accuracy]
    timed: int  # rounds trained over the lines
    seconds: float  # for the timed rounds


def rounds_needed(config: RunConfig) -> tuple[int, list[list[float]]]:
    """Train in one process until the goal; return the number of rounds, and the curve."""
    made = make_federation(config, load_data(config, Path()))
    curve = []
    per_epoch = made.server.batches.per_epoch
    every = 1 if per_epoch == 1 else 5  # rounds between two evaluations
    while made.server.step_number < EPOCHS * per_epoch:
        hold = (made.server.step_number + 1) % every == 0
        made.step(hold=hold)
        if hold:
            accuracy = made.record(gradient=False).validation["accuracy"]
            curve.append([made.server.step_number, accuracy])
            if accuracy >= GOAL:
                return made.server.step_number, curve
        if per_epoch > 1 and made.epoch >= EPOCHS // 10:  # ten epochs of mini-batches suffice
            break
    return 0, curve


def measure(batch: int, method: str, column: str, table: dict[str, Any], fewest: int = 12) -> Measured:
    """Count the rounds to the goal and time them, or a few rounds if the goal is not reached."""
    torch.set_num_threads(1)
    config = run_config(table, batch)
    rounds, curve = rounds_needed(config)
    timed = rounds or fewest
    with network(config) as serving:
        serving.advance()  # all parties are connected, and the first reports have arrived
        started = time.perf_counter()
        for _ in range(timed):
            serving.advance()
        seconds = time.perf_counter() - started
    return Measured(batch, method, column, rounds, curve, timed, seconds)


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("SVFL", "uncompressed", {"name": "svfl"}),
    *(
        (text, f"top-k {share:.0%}", {"name": name, "compressor": {"name": "topk", "ratio": share}})
        for name, text in (("cvfl", "CVFL"), ("efvfl", "EF-VFL"))
        for share in (0.1, 0.01)
    ),
]


def table_of(found: list[Measured]) -> str:
    """Return the table as Markdown."""
    lines = [
        "| batch | method | sent | a round | rounds to 90 % | time to 90 % | against SVFL |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        first = next(m for m in found if m.batch == one.batch)
        reached = [f"{one.rounds}", f"{one.seconds:,.1f} s", f"{first.seconds / one.seconds:.1f} x"]
        never = ["not reached", "", ""]
        cells = [f"{one.batch:,}" if one.batch else "full", one.method, one.column, f"{one.seconds / one.timed:.3f} s"]
        lines.append(f"| {' | '.join([*cells, *(reached if one.rounds else never)])} |")
    return "\n".join(lines)


def draw(found: list[Measured], path: Path) -> None:
    """Plot validation accuracy by seconds on the line."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    batches = list(dict.fromkeys(one.batch for one in found))
    for axes, batch in zip(figure.subplots(1, len(batches), sharey=True, squeeze=False)[0], batches, strict=True):
        for one in (m for m in found if m.batch == batch):
            a_round = one.seconds / one.timed
            axes.plot(
                [r * a_round for r, _ in one.accuracy],
                [a for _, a in one.accuracy],
                label=f"{one.method}, {one.column}",
                color=COLOURS[one.method],
                linestyle="--" if one.column.endswith(" 1%") else "-",
                linewidth=2,
            )
        axes.axhline(GOAL, color=SOFT, linewidth=1, linestyle=":")
        axes.set(
            title=f"batch {batch:,}" if batch else "full batch", xlabel="seconds (20 ms, 10 Mbit/s up)", xscale="log"
        )
        axes.set_ylabel("validation accuracy")
        tidy(axes)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def report_lines(full: bool) -> list[Line]:
    """Measure every case; the others are compared with SVFL of the same batch size."""
    found = [measure(batch, *case) for batch in (0, 1024) for case in CASES]
    out = []
    for one in found:
        first = next(m for m in found if m.batch == one.batch)
        batch = f"batch {one.batch:,}" if one.batch else "full batch"
        what = f"{batch}, {one.method}, {one.column}: times sooner at 90 % than SVFL"
        count = f"{one.rounds} rounds" if one.rounds else "not reached, rounds"
        note = f"{count} of {1e3 * one.seconds / one.timed:,.0f} ms"
        value = first.seconds / one.seconds if one.rounds else None
        out.append(Line(slug(f"link {one.batch} {one.method} {one.column}"), what, value, note=note))
    return out


def main() -> None:
    """Measure, print and plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder of the numbers and the picture")
    parser.add_argument("--batches", type=int, nargs="+", default=[0, 1024], help="0: full")
    options = parser.parse_args()
    found = []
    for batch in options.batches:
        for method, column, table in CASES:
            found.append(measure(batch, method, column, table))
            print(table_of([m for m in found if m.batch == batch][-1:]).splitlines()[-1], flush=True)
    print(table_of(found))
    write_atomically(options.out / "link.json", json.dumps([asdict(one) for one in found], indent=1).encode())
    draw(found, options.out / "link.png")


if __name__ == "__main__":
    main()
