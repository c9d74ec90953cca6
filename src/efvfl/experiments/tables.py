"""The tables of an experiment from its results, next to the paper's. Nothing is trained here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import accumulate
from pathlib import Path
from statistics import mean, stdev

from rich.table import Table

from efvfl.experiments.experiment_file import Sweep
from efvfl.experiments.results import Result, find

Results = Mapping[str, list[Result]]  # by cell, one per finished seed

SPLITS = ("test", "validation", "train")  # a table shows the first split that all its runs have


@dataclass(frozen=True)
class Measure:
    """What a table shows of a run: a metric on a split."""

    split: str = "test"
    metric: str = "accuracy"

    @property
    def column(self) -> str:
        """The name of the column in a result."""
        return f"{self.split}_{self.metric}"

    @property
    def title(self) -> str:
        """The name in headings."""
        return f"{'training' if self.split == 'train' else self.split} {self.metric}"

    @property
    def unit(self) -> str:
        """The unit in headings: accuracies are in percent."""
        return " (%)" if self.metric == "accuracy" else ""


def measure(sweep: Sweep, results: Results, splits: Sequence[str] = SPLITS) -> Measure:
    """Return the metric of a sweep's loss on the first of `splits` that all results have."""
    columns = [set(result.columns) for done in results.values() for result in done]
    choices = [Measure(split, sweep.metric) for split in splits]
    return next((c for c in choices if all(c.column in names for names in columns)), choices[-1])


@dataclass(frozen=True)
class Score:
    """A metric over seeds; accuracy is in percent."""

    mean: float
    std: float
    seeds: int = 0  # 0: from the paper
    digits: int = 1

    def __str__(self) -> str:
        alone = f"{self.mean:.{self.digits}f}"
        return alone if self.seeds == 1 else f"{alone} ± {self.std:.{self.digits}f}"  # one seed shows no spread


def collect(sweep: Sweep, folder: Path) -> dict[str, list[Result]]:
    """Read the results there are: `folder` is the working folder, its compact file lies beside it."""
    found: dict[str, list[Result]] = {cell.name: [] for cell in sweep.cells}
    for result in find(sweep.jobs(), folder):
        found[result.cell].append(result)
    return {cell: results for cell, results in found.items() if results}


def score(results: list[Result], shown: Measure = Measure()) -> Score:  # noqa: B008  (frozen)
    """Return mean and standard deviation over seeds of the last epoch's metric, by default test accuracy."""
    factor, digits = (100, 1) if shown.metric == "accuracy" else (1, 3)
    values = [factor * result.columns[shown.column][-1] for result in results]
    return Score(mean(values), stdev(values) if len(values) > 1 else 0.0, len(values), digits)


def paper_scores(task: str) -> dict[tuple[str, str], Score]:
    """Return the paper's Table 2 for a task, by row and column; empty for tasks that are not in it."""
    text = (resources.files("efvfl") / "experiments" / "paper.json").read_text(encoding="utf-8")
    block: dict[str, dict[str, list[float]]] = json.loads(text).get(task, {})
    return {(row, column): Score(value[0], value[1]) for row, cells in block.items() for column, value in cells.items()}


def differs(ours: Score, paper: Score) -> bool:
    """Return whether our mean is more than two of the paper's standard deviations away."""
    return abs(ours.mean - paper.mean) > 2 * paper.std


def rows_of(sweep: Sweep, results: Results, comparable: bool = True) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of a task's table; `*` marks a difference of more than two standard deviations.

    Where one data set stands in for another, the paper's numbers are there without marks.
    """
    paper = paper_scores(sweep.paper or sweep.name) if comparable or sweep.paper else {}
    marked = paper if comparable and not sweep.paper else {}
    shown = measure(sweep, results)
    columns = list(dict.fromkeys(cell.column for cell in sweep.cells))
    body = []
    for row in dict.fromkeys(cell.row for cell in sweep.cells):
        cells = [cell for cell in sweep.cells if cell.row == row and cell.name in results]
        ours = {cell.column: score(results[cell.name], shown) for cell in cells}
        marks = {c: "*" if (row, c) in marked and differs(s, marked[row, c]) else "" for c, s in ours.items()}
        body.append([row, "ours", *(f"{ours[c]}{marks[c]}" if c in ours else "" for c in columns)])
        if any((row, c) in paper for c in columns):
            body.append(["", "paper", *(str(paper[row, c]) if (row, c) in paper else "" for c in columns)])
    return ["method", "", *columns], body


def made_elsewhere(results: Results, version: str) -> dict[str, int]:
    """Return how many results other versions of efvfl have made, by version: they are shown, and not repeated."""
    every = [str(result.versions.get("efvfl", "unknown")) for done in results.values() for result in done]
    return {other: every.count(other) for other in sorted(set(every)) if other != version}


def on_screen(sweep: Sweep, results: Results, comparable: bool = True) -> Table:
    """Return the table for the terminal: a row per compressor, our score above the paper's."""
    headings, body = rows_of(sweep, results, comparable)
    seeds = min((len(r) for r in results.values()), default=0)
    shown = measure(sweep, results)
    over = "one seed" if seeds == 1 else f"mean ± std over {seeds} seeds"
    heading = f"{sweep.title}: {shown.title}{shown.unit}, {over}"
    table = Table(title=heading)
    methods = list(dict.fromkeys(row[0] for row in body if row[0]))
    table.add_column("compressor", no_wrap=True)
    for method in methods:
        table.add_column(method, justify="right", no_wrap=True)
    for i, column in enumerate(headings[2:], start=2):
        ours = [row[i] for row in body if row[1] == "ours"]
        paper = _paper_cells(body, methods, i)
        table.add_row(column, *(f"{o}\n[dim]paper {p}[/]" if p else o for o, p in zip(ours, paper, strict=True)))
    if any("*" in cell for row in body for cell in row):
        table.caption = "* more than two of the paper's standard deviations away"
    return table


def _paper_cells(body: list[list[str]], methods: list[str], column: int) -> list[str]:
    """Return the paper's score of every method, empty if it has none."""
    cells, method = dict.fromkeys(methods, ""), ""
    for row in body:
        method = row[0] or method
        if row[1] == "paper":
            cells[method] = row[column]
    return [cells[method] for method in methods]


def markdown(sweep: Sweep, results: Results, comparable: bool = True) -> str:
    """Return the table of a task as Markdown."""
    return as_markdown(*rows_of(sweep, results, comparable))


def as_markdown(headings: list[str], body: list[list[str]]) -> str:
    """Return a table as Markdown.

    >>> print(as_markdown(["method", "accuracy"], [["SVFL", "90.1"]]))
    | method | accuracy |
    | --- | --- |
    | SVFL | 90.1 |
    """
    lines = [headings, ["---"] * len(headings), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def communication(sweep: Sweep, results: Results) -> tuple[list[str], list[list[str]]]:
    """Return the megabytes that every cell sent in a run: up, down, and up by the paper's formula."""
    body = []
    for cell in sweep.cells:
        if cell.name in results:
            last = {
                n: mean(r.columns[n][-1] for r in results[cell.name]) for n in ("bytes_up", "bytes_down", "paper_bits")
            }
            sent = [last["bytes_up"], last["bytes_down"], last["paper_bits"] / 8]
            body.append([cell.row, cell.column, *(f"{n / 1e6:,.2f}" for n in sent)])
    return ["method", "compressor", "MB up", "MB down", "MB up, paper's formula"], body


def totals(sweep: Sweep, results: Results) -> tuple[list[str], list[list[str]]]:
    """Return Table 1, measured: the megabytes until the mean of |grad f|^2 over the epochs is at most the error."""
    body = []
    for cell in sweep.cells:
        ends = [_reached(result.columns["gradient"], sweep.error) for result in results.get(cell.name, [])]
        if not ends:
            continue
        row = [cell.row, cell.column, f"{sum(end is not None for end in ends)} of {len(ends)}"]
        done = [(end, result) for end, result in zip(ends, results[cell.name], strict=True) if end is not None]
        row.append(f"{mean(end + 1 for end, _ in done):.0f}" if done else "")
        for name in ("bytes_up", "bytes_down"):
            row.append(f"{mean(result.columns[name][end] for end, result in done) / 1e6:,.2f}" if done else "")
        body.append(row)
    return ["method", "compressor", "seeds that reach it", "epochs", "MB up", "MB down"], body


def _reached(gradient: list[float], error: float) -> int | None:
    """Return the index of the first record where the running mean is at most `error`, or None."""
    return next((i for i, total in enumerate(accumulate(gradient)) if total <= error * (i + 1)), None)
