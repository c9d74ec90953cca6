"""Pictures: in the colours of the pages, and with marks that can be read."""

import re
from itertools import pairwise

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from efvfl.runs import html, plots


@pytest.mark.parametrize("columns", [2, 4])
@pytest.mark.parametrize("ends", [(7.0, 6500.0), (0.06, 6500.0), (0.35, 0.42), (1.0, 3e7)])
def test_marks_of_a_logarithmic_axis_do_not_collide(columns: int, ends: tuple[float, float]) -> None:
    figure = Figure(figsize=(3.2 * columns, 2.6), layout="constrained")
    for axes in figure.subplots(1, columns):
        axes.plot(ends, [0.1, 0.9])
        axes.set(xscale="log", xlabel="MB sent", ylabel="accuracy")
        plots.tidy(axes)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axes in figure.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert len(boxes) >= 2
        assert all(left.x1 + 3 < right.x0 for left, right in pairwise(boxes)), [
            t.get_text() for t in axes.get_xticklabels()
        ]


def test_colours_are_those_of_the_pages() -> None:
    light = html.asset("style.css").partition("@media")[0]
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", light))
    for name in ("teal", "orange", "blue", "grey", "violet", "red", "ink", "soft", "line"):
        assert colours[name] == getattr(plots, name.upper())
