"""Terminal output: progress bars and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from efvfl.compress import REGISTRY, Compressor
from efvfl.data import catalogue
from efvfl.runs.line import Line, shared_line_seconds
from efvfl.training.federation import Federation
from efvfl.training.record import Record


def size(count: float, digits: int = 2) -> str:
    """Return a number of bytes with a unit.

    >>> size(1234567)
    '1.23 MB'
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.{digits}f} {unit}"
    return f"{count:,.0f} B"


def train_with_bar(
    federation: Federation,
    epochs: int,
    console: Console,
    title: str,
    observe_every: int = 1,
    gradient: bool = True,
) -> Iterator[Record]:
    """Train and yield records, with a progress bar."""
    records = federation.train(epochs, observe_every, gradient)
    yield from bar(records, console, title, federation.epoch, epochs)


def bar(records: Iterable[Record], console: Console, title: str, done: int, epochs: int) -> Iterator[Record]:
    """Yield the records, with a progress bar of the epochs."""
    columns = (
        TextColumn("{task.description:<8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=epochs, completed=done, note="")
        for record in records:
            scores = record.validation or record.train
            note = ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
            progress.update(task, completed=record.epoch, note=note)
            yield record


def summary(name: str, last: Record) -> Table:
    """Return a table of a run's last record."""
    metric = next((m for m in last.test if m != "loss"), "loss")
    table = Table(title="After training")
    for heading in ("method", f"test {metric}", "bytes up", "bytes down", "seconds"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    table.add_row(name, score(last, metric), size(last.bytes_up), size(last.bytes_down), f"{last.seconds:.1f}")
    return table


def score(record: Record, metric: str) -> str:
    """Return a metric of the test rows as tables show it."""
    if not record.test:
        return "no test rows"
    value = record.test.get(metric, float("nan"))
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.4f}"


def race(runs: Mapping[str, Sequence[Record]], target: float, line: Line) -> Table:
    """Return a table of what each run needs to an accuracy of validation rows; the others are compared with the first.

    Seconds on the line are those of `shared_line_seconds`, seconds here those of this process.
    """
    table = Table(title=f"Until {100 * target:g} % of the validation rows are right; after training")
    headings = ["method", "rounds", "sent", "fewer", "line,\nsec.", "sooner", "test\naccuracy", "here,\nsec."]
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "method" else "right", vertical="bottom", no_wrap=True)
    table.caption = (
        f"Line: rounds x {1e3 * line.round_trip:g} ms + bytes / {line.up / 1e6:g} Mbit/s, the parties sharing "
        "one line. This is arithmetic, not a measurement, and computing comes on top."
    )
    first = reached(next(iter(runs.values())), target)
    for name, records in runs.items():
        cells = [score(records[-1], "accuracy"), f"{records[-1].seconds:.1f}"]
        table.add_row(name, *_to_target(reached(records, target), first, line), *cells)
    return table


def reached(records: Sequence[Record], target: float) -> Record | None:
    """Return the first record whose accuracy of validation rows is at the target."""
    return next((record for record in records if record.validation["accuracy"] >= target), None)


def _to_target(at: Record | None, first: Record | None, line: Line) -> list[str]:
    if at is None:
        return ["never", "", "", "", ""]
    sent, seconds = at.bytes_up + at.bytes_down, shared_line_seconds(at, line)
    fewer = f"{(first.bytes_up + first.bytes_down) / sent:.1f} x" if first else ""
    sooner = f"{shared_line_seconds(first, line) / seconds:.1f} x" if first else ""
    return [f"{at.step}", size(sent, digits=1), fewer, f"{seconds:.1f}", sooner]


def metric_table(scores: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table of the metrics of each split."""
    table = Table("metric", title="How well it predicts")
    for split in scores:
        table.add_column(split, justify="right")
    for name in dict.fromkeys(name for values in scores.values() for name in values):
        table.add_row(name.replace("_", " "), *(f"{values[name]:.4f}" for values in scores.values()))
    return table


def ledger_table(record: Record) -> Table:
    """Return a table of the bytes sent, by direction, party and kind."""
    table = Table(title="What was sent")
    for heading in ("direction", "party", "kind", "bytes"):
        table.add_column(heading, justify="right" if heading == "bytes" else "left")
    for direction, parties in record.ledger.items():
        for party, kinds in parties.items():
            for kind, count in kinds.items():
                table.add_row(direction, party, kind, f"{count:,}")
    return table


def list_data(console: Console) -> None:
    """Print the catalogue of data sets, and which are present."""
    table = Table(title="Data sets")
    for heading in ("name", "what", "download", "present"):
        table.add_column(heading, justify="right" if heading == "download" else "left")
    for status in map(catalogue.status, catalogue.names()):
        place = "with the package" if status.where is None else str(status.where)
        table.add_row(status.name, status.what, size(status.size), place if status.present else "no")
    console.print(table, "Get one with `efvfl data get NAME`.")


def get_data(name: str, console: Console) -> None:
    """Download a data set, with progress bars."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bars: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total or None)
            progress.update(bars[what], completed=done, total=total or None)

        status = catalogue.get(name, show)
    console.print(
        f"{name} is {'part of the package' if status.where is None else f'at {status.where}'}.", soft_wrap=True
    )


# Examples of each compressor with common settings.
EXAMPLES: dict[str, list[dict[str, object]]] = {
    "cast": [{"to": "fp16"}, {"to": "bf16"}],
    "columns": [{"bits": 3}, {"bits": 2}],
    "identity": [{}],
    "low_rank": [{"rank": 1}, {"rank": 2}],
    "natural": [{}, {"rounding": "nearest"}],
    "product": [{}, {"codes": 14}],
    "qsgd": [{"bits": 4}, {"bits": 2}, {"bits": 1}],
    "randk": [{"ratio": 0.1}],
    "random_topk": [{"ratio": 0.1, "others": 0.1}, {"ratio": 0.1, "others": 0.1, "per": "row"}],
    "sign": [{}],
    "topk": [{"ratio": 0.1}, {"ratio": 0.01}, {"ratio": 0.1, "per": "row"}],
    "topk_qsgd": [{"ratio": 0.1, "bits": 4}],
}


def compressor_table(shape: tuple[int, ...]) -> Table:
    """Return a table of all registered compressors: parameters, alpha, and bytes measured on a Gaussian block."""
    block = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    table = Table(title=f"Compressors on a Gaussian float32 block of {' x '.join(map(str, shape))}")
    for heading in ("name", "knobs", "alpha", "bytes/entry", "paper", "error"):
        table.add_column(heading, justify="left" if heading in ("name", "knobs") else "right", no_wrap=True)
    for name in sorted(REGISTRY):
        for knobs in EXAMPLES.get(name, [{}]):
            compressor: Compressor = REGISTRY[name](**knobs)
            packet = compressor.encode(block, 1)
            count = len(packet.to_bytes())
            after = np.asarray(compressor.read(packet), dtype=np.float64)
            lost = ((after - block) ** 2).sum() / (block.astype(np.float64) ** 2).sum()
            table.add_row(
                name,
                ", ".join(f"{k}={v}" for k, v in knobs.items()) or "-",
                f"{compressor.alpha(shape):.3g}",
                f"{count / prod(shape):.4f}",
                f"{compressor.paper_bits(shape) / 8 / prod(shape):.4f}",
                f"{lost:.2g}",
            )
    table.caption = (
        "Measured on the whole packet, header included; paper: its formula. "
        "error: |C(x) - x|^2 / |x|^2, at most 1 - alpha on average."
    )
    return table
