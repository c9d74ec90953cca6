"""Sweeps: runs a minute with one worker and with all cores, and how long the paper's MNIST table would take."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks.lines import Line
from efvfl.experiments import experiment_file
from efvfl.experiments.experiment_file import Sweep
from efvfl.experiments.jobs import run_all

EPOCHS, SEEDS = 100, 5  # of the paper's table


def seconds(plan: Sweep, workers: int) -> float:
    """Return the duration of a sweep without results, including the start of its workers."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        run_all(plan.jobs(), Path(folder), workers)
        return time.perf_counter() - started


def lines(full: bool) -> list[Line]:
    """Measure the 13 cells of the MNIST table on the small digits."""
    cores = os.cpu_count() or 1
    plan = experiment_file.changed(experiment_file.load("mnist"), seeds=(0,), epochs=200 if full else 50, data="digits")
    rates = {workers: 60 * len(plan.jobs()) / seconds(plan, workers) for workers in sorted({1, cores})}
    out = [
        Line(f"sweep-{workers}", f"13 runs on digits, {workers} at a time", rate, "runs a minute")
        for workers, rate in rates.items()
    ]
    what = f"runs a minute, {cores} at a time / 1 at a time"
    return [*out, Line("sweep-ratio", what, rates[cores] / rates[1], note="the start of the workers included")]


def mnist_table(full: bool) -> list[Line]:
    """Time the 13 cells for a few epochs, and extrapolate to 100 epochs and 5 seeds: all epochs cost the same."""
    cores, counts = os.cpu_count() or 1, (2, 12) if full else (1, 5)
    plan = experiment_file.load("mnist")
    few, more = (seconds(experiment_file.changed(plan, seeds=(0,), epochs=epochs), cores) for epochs in counts)
    an_epoch = (more - few) / (counts[1] - counts[0])
    minutes = SEEDS * (few + (EPOCHS - counts[0]) * an_epoch) / 60
    note = f"extended from {counts[0]} and {counts[1]} epochs of 13 runs, {cores} at a time: {few:.1f} and {more:.1f} s"
    return [Line("mnist-table", "MNIST table of 65 runs", minutes, "minutes", 15, note=note)]
