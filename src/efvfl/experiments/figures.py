"""The figures of an experiment from its results: mean and standard deviation over seeds. Nothing is trained here."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from efvfl.experiments import step_figures
from efvfl.experiments.experiment_file import Cell, FigureSpec, Sweep
from efvfl.experiments.results import Result
from efvfl.experiments.tables import Results, measure
from efvfl.runs.plots import COLOURS, tidy
from efvfl.util.extras import optional
from efvfl.util.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = NDArray[np.float64]
Axis = Literal["paper", "sent", "steps"]  # megabytes by the paper's formula, or measured both ways; or steps

_TITLES: dict[Axis, str] = {
    "paper": "communication by the paper's formula",
    "sent": "bytes really sent",
    "steps": "step by step",
}


def axes_of(figure: FigureSpec) -> dict[Axis, str]:
    """Return how a figure is drawn, once or twice, and a title for each."""
    return {axis: title for axis, title in _TITLES.items() if (axis == "steps") == (figure.by == "step")}


def _style(row: str, label: str) -> dict[str, Any]:
    if label != row:  # one of several lines of its method
        return {}
    name = row.split(" (")[0]
    return {"color": COLOURS.get(name.split(",")[0]), "linestyle": "--" if "(PL)" in row else "-"}


def _labels(cells: Sequence[Cell]) -> dict[str, str]:
    """Return what a panel calls its cells: their rows, or also their columns where a row has several."""
    rows = [cell.row for cell in cells]
    return {c.name: c.row if rows.count(c.row) == 1 else f"{c.row}, {c.column}" for c in cells}


def _stack(results: Sequence[Result], column: str) -> Values:
    return np.array([result.columns[column] for result in results], dtype=np.float64)


def _left(results: Sequence[Result], kind: str) -> Values:
    if kind == "loss":
        return _stack(results, "train_loss")
    norms = _stack(results, "gradient")
    relative: Values = norms / norms[:, :1]  # relative to its value after the first epoch, as in the paper
    return relative


def _megabytes(results: Sequence[Result], axis: Axis) -> Values:
    bits = 8 * (_stack(results, "bytes_up") + _stack(results, "bytes_down"))
    megabytes: Values = (_stack(results, "paper_bits") if axis == "paper" else bits).mean(0) / 8e6
    return megabytes


def _band(axes: Any, x: Values, values: Values, label: str, style: dict[str, Any]) -> None:
    centre, spread = values.mean(0), values.std(0)
    [line] = axes.plot(x, centre, label=label, **style)
    # Not below the minimum: mean - std may be negative, which a logarithmic axis cannot show.
    low = np.maximum(centre - spread, values.min(0))
    axes.fill_between(x, low, centre + spread, color=line.get_color(), alpha=0.15, linewidth=0)


def draw(sweep: Sweep, figure: FigureSpec, results: Results, axis: Axis) -> Figure:
    """Return the figure in the paper's layout, two panels per row, each with two plots; or one of steps."""
    rows = {cell.name: cell.row for cell in sweep.cells}
    labels: dict[str, str] = {}
    for panel in figure.panels:
        labels |= _labels([cell for cell in sweep.cells if cell.name in panel.runs])
    if axis == "steps":
        return step_figures.draw(figure, results, labels, lambda name: _style(rows[name], labels[name]))
    with optional("plots", "a figure"):
        from matplotlib.figure import Figure

    columns = min(2, len(figure.panels))
    lines = -(-len(figure.panels) // columns)
    canvas = Figure(figsize=(6.4 * columns, 2.6 * lines), layout="constrained")
    grid = canvas.subplots(lines, 2 * columns, squeeze=False)
    shown = measure(sweep, results, ("validation", "test", "train"))
    for i, panel in enumerate(figure.panels):
        left, right = grid[i // columns][2 * (i % columns) : 2 * (i % columns) + 2]
        for name in (run for run in panel.runs if run in results):
            style, done = _style(rows[name], labels[name]), results[name]
            _band(left, _stack(done, "epoch")[0], _left(done, figure.left), labels[name], style)
            _band(right, _megabytes(done, axis), _stack(done, shown.column), labels[name], style)
        left.set(xlabel="epoch", ylabel="squared gradient norm" if figure.left == "gradient" else "training loss")
        left.set(yscale="log", title=panel.title)
        right.set(xlabel="MB, paper's formula" if axis == "paper" else "MB sent, both ways", xscale="log")
        right.set(ylabel=shown.title)
        for axes in (left, right):
            tidy(axes)
    for axes in [a for line in grid for a in line][2 * len(figure.panels) :]:
        axes.remove()
    handles, names = grid[0][0].get_legend_handles_labels()
    canvas.legend(handles, names, loc="outside upper center", ncols=min(6, len(names)), frameon=False)
    return canvas


def image(canvas: Figure, form: Literal["svg", "png"]) -> bytes:
    """Return a figure as the bytes of a file; equal figures give equal bytes."""
    with optional("plots", "a figure"):
        import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "efvfl"}):
        canvas.savefig(out, format=form, dpi=110, metadata={"Date": None} if form == "svg" else None)
    return out.getvalue()


def write(sweep: Sweep, results: Results, folder: Path) -> list[Path]:
    """Write every figure of an experiment, with both axes, as SVG and PNG; return the paths."""
    paths = []
    for figure in sweep.figures:
        for axis in axes_of(figure):
            canvas = draw(sweep, figure, results, axis)
            for form in ("svg", "png"):
                path = folder / f"{sweep.name}-{figure.name}-{axis}.{form}"
                write_atomically(path, image(canvas, form), public=True)
                paths.append(path)
    return paths
