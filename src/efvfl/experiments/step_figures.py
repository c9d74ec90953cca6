"""What happens step by step, from the notes of results: residuals, contractions that were really reached, bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from efvfl.experiments.experiment_file import FigureSpec
from efvfl.experiments.results import Result
from efvfl.experiments.tables import Results
from efvfl.runs.plots import tidy
from efvfl.util.extras import optional

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = NDArray[np.float64]

RESIDUAL, LOST = "residual up ", "lost up "  # columns of notes begin so; a party's name follows


def residual(result: Result) -> Values:
    """Return |v|, the norm of what all parties together had to send with each step that is noted."""
    found: Values = np.sqrt(_sum(result, RESIDUAL))
    return found


def contraction(result: Result) -> Values:
    """Return the alpha that was reached over all parties: |C(v) - v|^2 = (1 - alpha) |v|^2; 1 if there was nothing.

    Definition 1 is about the mean over the compressor's draws; a single step may be worse.
    """
    had, lost = _sum(result, RESIDUAL), _sum(result, LOST)
    found: Values = 1 - np.divide(lost, had, out=np.zeros_like(lost), where=had != 0)
    return found


def megabytes(result: Result) -> Values:
    """Return the megabytes that were sent until then, in both directions."""
    steps = result.steps
    found: Values = (np.array(steps["bytes_up"]) + np.array(steps["bytes_down"])) / 1e6
    return found


def _sum(result: Result, prefix: str) -> Values:
    columns = [np.array(column) for name, column in result.steps.items() if name.startswith(prefix)]
    found: Values = np.nansum(columns, axis=0) if columns else np.full(len(result.steps["step"]), np.nan)
    return found


PLOTS: Sequence[tuple[str, str, Callable[[Result], Values]]] = (
    ("norm of the residual, uplink", "log", residual),
    ("contraction reached, uplink", "linear", contraction),
    ("MB sent, both ways", "log", megabytes),
)


def draw(
    figure: FigureSpec, results: Results, labels: dict[str, str], style: Callable[[str], dict[str, Any]]
) -> Figure:
    """Return a row of plots for each panel; runs without notes are left out, seeds are shown by their mean."""
    with optional("plots", "a figure"):
        from matplotlib.figure import Figure

    lines = len(figure.panels)
    canvas = Figure(figsize=(12.8, 2.6 * lines), layout="constrained")
    grid = canvas.subplots(lines, len(PLOTS), squeeze=False)
    for panel, row in zip(figure.panels, grid, strict=True):
        for name in panel.runs:
            if noted := [result for result in results.get(name, []) if result.steps]:
                for axes, (_, _, values) in zip(row, PLOTS, strict=True):
                    mean = np.mean([values(result) for result in noted], axis=0)
                    axes.plot(noted[0].steps["step"], mean, label=labels[name], linewidth=0.8, **style(name))
        for axes, (title, scale, _) in zip(row, PLOTS, strict=True):
            axes.set(xlabel="step", ylabel=title, yscale=scale, title=panel.title)
            tidy(axes)
    handles, names = grid[0][0].get_legend_handles_labels()
    if names:
        canvas.legend(handles, names, loc="outside upper center", ncols=min(6, len(names)), frameon=False)
    return canvas
