"""Halves of MNIST images as the server reconstructs them, beside the true ones."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.attacks.jobs import SHADOW
from benchmarks.attacks.problems import GUEST, TASKS
from benchmarks.attacks.settings import NAMED, build
from efvfl.runs.attacks import views
from efvfl.runs.attacks.generative import SMALL, generate
from efvfl.runs.attacks.inverse_network import reconstruct
from efvfl.runs.plots import INK, SOFT
from efvfl.util.files import write_atomically

FILE = Path(__file__).parent.parent.parent / "docs" / "results" / "attacks.png"
SHOWN = ("SVFL", "CVFL, top-k 10 %", "EF-VFL, top-k 10 %", "C: guest's rows, ε = 16")
IMAGES, SEED = 12, 0


def draw(path: Path = FILE) -> None:
    """Train each setting, reconstruct some training rows that are in no shadow sample, and draw them."""
    from matplotlib.figure import Figure

    torch.set_num_threads(1)
    task = TASKS["MNIST halves"]
    data = task.load(SEED)
    columns = data.train.features[data.names.index(GUEST)]
    shadow = torch.randperm(len(columns), generator=torch.Generator().manual_seed(SEED))[:SHADOW]
    chosen = torch.tensor([row for row in range(100) if row not in set(shadow.tolist())])[:IMAGES]
    lines: list[tuple[str, Tensor]] = [("true", columns[chosen])]
    for name in SHOWN:
        federation = build(task, data, NAMED[name], SEED)
        party = views.party_of(federation, GUEST)
        seen = views.watch_uplink(federation, party)
        federation.fit(task.epochs, observe_every=task.epochs, gradient=False)
        lines.append((f"{name}: inverse", reconstruct(seen.received, columns, shadow, SEED)[chosen]))
        level, spread, model = columns.mean(dim=0), columns.std(dim=0), party.block.module
        lines.append((f"{name}: generative", generate(seen.last, model, level, spread, SMALL, SEED)[chosen]))
    assert task.shape is not None, "they are images"
    figure = Figure(figsize=(8.5, 0.85 * len(lines)), layout="constrained")
    low, high = float(columns.min()), float(columns.max())
    for row, (name, images) in enumerate(lines):
        for place, image in enumerate(images):
            axes = figure.add_subplot(len(lines), IMAGES, row * IMAGES + place + 1)
            axes.imshow(image.reshape(task.shape).numpy(), cmap="gray_r", vmin=low, vmax=high)
            axes.set(xticks=[], yticks=[])
            for spine in axes.spines.values():
                spine.set_visible(False)
            if not place:
                colour = INK if not row else SOFT
                axes.set_ylabel(name, rotation=0, ha="right", va="center", color=colour, fontsize=8)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    write_atomically(path, image.getvalue())
