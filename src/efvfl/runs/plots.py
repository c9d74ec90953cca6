"""Plots of records."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from efvfl.training.record import Record
from efvfl.util.extras import optional
from efvfl.util.files import write_atomically

COLOURS = {"SVFL": "#4c566a", "CVFL": "#d08770", "EF-VFL": "#2e7d6b"}


def draw_runs(path: Path, runs: Mapping[str, Sequence[Record]], title: str, metric: str = "accuracy") -> None:
    """Draw two panels: training loss by epoch, and the validation metric by megabytes sent, both directions."""
    with optional("plots", "a picture of a run"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, records in runs.items():
        colour = COLOURS.get(name)
        left.plot([r.epoch for r in records], [r.train["loss"] for r in records], label=name, color=colour)
        sent = [(r.bytes_up + r.bytes_down) / 1e6 for r in records]
        right.plot(sent, [r.validation.get(metric, float("nan")) for r in records], label=name, color=colour)
    losses = [r.train["loss"] for records in runs.values() for r in records]
    left.set(xlabel="epoch", ylabel="training loss", yscale="log" if min(losses, default=1) > 0 else "linear")
    right.set(xlabel="megabytes sent, both directions", ylabel=f"validation {metric}", xscale="log")
    for axes in (left, right):
        axes.grid(True, alpha=0.3)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=144)
    write_atomically(path, image.getvalue())
