"""Plots of records."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.runs.line import Line, shared_line_seconds
from efvfl.training.record import Record
from efvfl.util.extras import optional
from efvfl.util.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The colours of pages (assets/style.css), so that pictures look as they do.
TEAL, ORANGE, BLUE, GREY, VIOLET, RED = "#0b7a75", "#bf4f0f", "#2b5fc7", "#6b7685", "#7b45b8", "#b3261e"
INK, SOFT, LINE = "#1f2733", "#5b6675", "#dfe3e8"
COLOURS = {"SVFL": GREY, "CVFL": ORANGE, "EF-VFL": TEAL, "+ cached": BLUE}
TICKS = 6  # of a logarithmic axis, at most

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # x and y by name


def draw_run(path: Path, name: str, records: Sequence[Record], metric: str = "accuracy") -> None:
    """Draw two panels: training loss by epoch, and the validation metric by megabytes sent, both directions."""
    losses = [r.train["loss"] for r in records]
    scale = "log" if min(losses, default=1) > 0 else "linear"
    left = Chart({name: ([r.epoch for r in records], losses)}, {"xlabel": "epoch", "ylabel": "training loss"})
    _draw(path, name, Chart(left.curves, {**left.settings, "yscale": scale}), _by_bytes({name: records}, metric))


def draw_race(path: Path, runs: Mapping[str, Sequence[Record]], title: str, line: Line) -> None:
    """Draw two panels: the validation accuracy by seconds on a line, and by megabytes sent, both directions."""
    seconds = {n: ([shared_line_seconds(r, line) for r in rs], _metric(rs, "accuracy")) for n, rs in runs.items()}
    where = f"seconds at {line.up / 1e6:g} Mbit/s and {1e3 * line.round_trip:g} ms (arithmetic)"
    settings = {"xlabel": where, "ylabel": "validation accuracy", "xscale": "log"}
    _draw(path, title, Chart(seconds, settings), _by_bytes(runs, "accuracy"))


@dataclass(frozen=True)
class Chart:
    """One half of a picture."""

    curves: Curves
    settings: Mapping[str, str]  # of matplotlib's axes


def _by_bytes(runs: Mapping[str, Sequence[Record]], metric: str) -> Chart:
    sent = {n: ([(r.bytes_up + r.bytes_down) / 1e6 for r in rs], _metric(rs, metric)) for n, rs in runs.items()}
    settings = {"xlabel": "megabytes sent, both directions", "ylabel": f"validation {metric}", "xscale": "log"}
    return Chart(sent, settings)


def _metric(records: Sequence[Record], metric: str) -> list[float]:
    return [record.validation.get(metric, float("nan")) for record in records]


def _draw(path: Path, title: str, *panels: Chart) -> None:
    with optional("plots", "a picture of a run"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for name, (x, y) in panel.curves.items():
            axes.plot(x, y, label=name, color=COLOURS.get(name, COLOURS["EF-VFL"]), linewidth=2)
        axes.set(**panel.settings)
        tidy(axes)
    figure.suptitle(title, color=INK)
    if len(panels[0].curves) > 1:
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=144)
    write_atomically(path, image.getvalue())


def tidy(axes: Axes) -> None:
    """Give axes the look of our pages: a quiet grid, no box, and marks that do not collide."""
    axes.grid(True, color=LINE)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    axes.tick_params(which="both", colors=SOFT, length=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(SOFT)
        if axis.get_scale() == "log":
            low, high = sorted(axis.get_view_interval())
            marks = log_marks(low, high, _room(axes) if axis is axes.xaxis else TICKS)
            axis.set_ticks(marks, [_text(mark) for mark in marks])
            axis.set_ticks([], minor=True)


def _room(axes: Axes) -> int:
    """Return how many marks are side by side below axes, as wide as they are among those of the figure."""
    place = axes.get_subplotspec()
    columns = place.get_gridspec().ncols if place else 1
    return max(3, min(TICKS, int(1.4 * axes.figure.get_figwidth() / columns)))  # type: ignore[union-attr]


def _text(mark: float) -> str:
    return f"{mark / 1e6:g}M" if mark >= 1e6 else f"{mark / 1e3:g}k" if mark >= 1e3 else f"{mark:g}"


def log_marks(low: float, high: float, most: int = TICKS) -> list[float]:
    """Return a few round numbers between two: 1, 2, 5 of every decade if they fit, else 1 and 3, else 1 alone.

    Two that are close to each other have none of these between them, but evenly spaced ones.

    >>> log_marks(0.35, 0.42), log_marks(0.5, 200.0)
    ([0.36, 0.38, 0.4, 0.42], [1.0, 3.0, 10.0, 30.0, 100.0])
    """
    if high < 3 * low:
        power = floor(log10(high - low))
        step = next(s for d in (0.1, 0.2, 0.5, 1, 2, 5) if (high - low) / (s := d * 10**power) <= most - 1)
        first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
        return [float(f"{n * step:.6g}") for n in range(first, last + 1)]
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    for digits in (range(1, 10), (1, 2, 5), (1, 3), (1,)):
        found = [float(f"{digit}e{power}") for power in decades for digit in digits]
        inside = [mark for mark in found if low <= mark <= high]
        if len(inside) <= most:
            return inside
    return inside[:: ceil(len(inside) / most)]
