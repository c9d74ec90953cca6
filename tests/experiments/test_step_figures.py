"""Figures by step, from results of runs with `note_every`."""

from pathlib import Path

import numpy as np

from efvfl.experiments import figures, step_figures, tables
from efvfl.experiments.experiment_file import parse
from efvfl.experiments.jobs import run_job
from efvfl.experiments.results import Result

TOML = """
title = "Steps"
seeds = [0]
[base]
epochs = 1
batch_size = 300
note_every = 2
data = { name = "digits" }
agreement = { labels = "shared" }
[[run]]
name = "topk"
row = "EF-VFL"
method = { compressor = { name = "topk", ratio = 0.1 } }
[[figure]]
name = "steps"
by = "step"
panels = [{ title = "top-k", runs = ["topk"] }]
"""


def test_contraction_and_residual_are_of_all_parties_together() -> None:
    steps = {"step": [1.0, 2.0], "bytes_up": [1e6, 2e6], "bytes_down": [0.0, 1e6]}
    steps |= {"residual up a": [9.0, 0.0], "residual up b": [16.0, 0.0], "residual down a": [7.0, 7.0]}
    steps |= {"lost up a": [1.0, 0.0], "lost up b": [4.0, 0.0], "lost down a": [7.0, 7.0]}
    found = Result("topk", {}, {}, {}, {}, steps)
    assert step_figures.residual(found).tolist() == [5.0, 0.0]
    assert step_figures.contraction(found).tolist() == [0.8, 1.0]  # 1 - 5 / 25, and 1 where nothing was to be sent
    assert step_figures.megabytes(found).tolist() == [1.0, 3.0]


def test_a_figure_by_step_draws_what_a_run_has_noted(tmp_path: Path) -> None:
    sweep = parse(TOML, "steps")
    for job in sweep.jobs():
        run_job(job, tmp_path)
    results = tables.collect(sweep, tmp_path)
    [done] = results["topk"]
    assert done.steps["step"] == [2.0, 4.0]
    [figure] = sweep.figures
    assert list(figures.axes_of(figure)) == ["steps"]
    residual, contraction, megabytes = figures.draw(sweep, figure, results, "steps").axes
    for axes, expected in (
        (residual, step_figures.residual(done)),
        (contraction, step_figures.contraction(done)),
        (megabytes, step_figures.megabytes(done)),
    ):
        [line] = axes.get_lines()
        assert np.array_equal(line.get_xdata(), done.steps["step"])
        assert np.array_equal(line.get_ydata(), expected)
    assert 0.1 < step_figures.contraction(done)[0] < 1  # top-k 10 % of a block keeps more than a tenth of its energy
