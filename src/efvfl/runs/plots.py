"""Plots of records."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from efvfl.runs.line import Line, shared_line_seconds
from efvfl.training.record import Record
from efvfl.util.extras import optional
from efvfl.util.files import write_atomically

COLOURS = {"SVFL": "#4c566a", "CVFL": "#d08770", "EF-VFL": "#8fc1b5", "+ cached": "#1f5a4d"}

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
            axes.plot(x, y, label=name, color=COLOURS.get(name))
        axes.set(**panel.settings)
        axes.grid(True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=144)
    write_atomically(path, image.getvalue())
