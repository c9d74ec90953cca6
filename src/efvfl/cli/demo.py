"""`efvfl demo`: four parties, each with one quadrant of a handwritten digit, and four ways to train them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from efvfl.config.run_file import MethodConfig, RunConfig
from efvfl.data import digits
from efvfl.runs.build import make_federation
from efvfl.runs.candidates import ROW_7, TERNARY, Setting, with_setting
from efvfl.runs.line import Line
from efvfl.runs.plots import draw_race
from efvfl.runs.terminal import race, train_with_bar
from efvfl.training.record import Record
from efvfl.util.extras import left_out

COMPRESSOR = {"name": "qsgd", "bits": 4}
BASE = RunConfig(epochs=40, batch_size=128, optimizer={"name": "SGD", "lr": 4.0}, observe_gradient=False)
TARGET = 0.9  # of the validation rows right
LINE = Line()


def configs() -> dict[str, RunConfig]:
    """Return the four runs by name."""
    found = {
        title: replace(BASE, method=MethodConfig(name, COMPRESSOR, COMPRESSOR))
        for title, name in (("SVFL", "svfl"), ("CVFL", "cvfl"), ("EF-VFL", "efvfl"))
    }
    return found | {"+ cached": with_setting(BASE, Setting(TERNARY, ROW_7, cached=9))}


def run_demo(out: Path, console: Console, seed: int = 0) -> dict[str, list[Record]]:
    """Train SVFL, CVFL, EF-VFL as in the paper and with cached steps; print a table and draw a picture."""
    console.print(
        "[bold]Four parties[/] hold one quadrant each of 8x8 handwritten digits; a server holds the labels and keeps "
        "them [bold]private[/].\nSVFL sends float32, CVFL 4-bit quantised blocks both ways, EF-VFL the quantised "
        "[bold]change[/] against what both ends remember.\n'+ cached' is EF-VFL with changes rounded to three values, "
        "and [bold]nine more updates[/] between two rounds from what is remembered.\n"
    )
    torch.set_num_threads(1)  # the blocks are small: a second thread would only wait for the first
    data = digits(seed)
    runs: dict[str, list[Record]] = {}
    for title, config in configs().items():
        federation = make_federation(replace(config, seed=seed), data)
        runs[title] = list(train_with_bar(federation, config.epochs, console, title, gradient=False))
    console.print(race(runs, TARGET, LINE))
    picture = (out / "demo.png").resolve()
    with left_out(partial(console.print, soft_wrap=True, markup=False)):
        draw_race(picture, runs, "Handwritten digits, four parties, private labels", LINE)
        console.print(f"Picture: {picture}", soft_wrap=True)
    return runs
