"""`efvfl demo`: four parties, each with one quadrant of a handwritten digit, and three ways to train them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from efvfl.config.run_file import FusionConfig, MethodConfig, RunConfig
from efvfl.data import digits
from efvfl.runs.build import make_federation
from efvfl.runs.plots import draw_runs
from efvfl.runs.terminal import comparison, train_with_bar
from efvfl.training.record import Record
from efvfl.util.extras import left_out

COMPRESSOR = {"name": "qsgd", "bits": 4}
BASE = {"epochs": 60, "batch_size": 128, "optimizer": {"name": "SGD", "lr": 4.0}, "fusion": FusionConfig("mean")}


def run_demo(out: Path, console: Console, seed: int = 0) -> dict[str, list[Record]]:
    """Train SVFL, CVFL and EF-VFL at the same settings; print a table and draw a picture."""
    console.print(
        "[bold]Four parties[/] hold one quadrant each of 8x8 handwritten digits; a server holds the labels and keeps "
        "them [bold]private[/].\nSVFL sends float32, CVFL 4-bit quantised blocks both ways, EF-VFL the quantised "
        "[bold]change[/] against what both ends remember.\n"
    )
    torch.set_num_threads(1)  # the blocks are small: a second thread would only wait for the first
    data = digits(seed)
    runs: dict[str, list[Record]] = {}
    for title, name in (("SVFL", "svfl"), ("CVFL", "cvfl"), ("EF-VFL", "efvfl")):
        method = MethodConfig(name, COMPRESSOR, COMPRESSOR)  # type: ignore[arg-type]
        config = RunConfig(seed=seed, method=method, **BASE)  # type: ignore[arg-type]
        federation = make_federation(config, data)
        runs[title] = list(train_with_bar(federation, config.epochs, console, title))
    console.print(comparison(runs))
    picture = (out / "demo.png").resolve()
    with left_out(partial(console.print, soft_wrap=True, markup=False)):
        draw_runs(picture, runs, "Handwritten digits, four parties, private labels, qsgd 4 bit both ways")
        console.print(f"Picture: {picture}", soft_wrap=True)
    return runs
