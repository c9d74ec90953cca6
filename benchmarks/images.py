"""Networks for images against central SGD: the paper's ResNet18 of half width on quarter images, MVCNN on 12 views."""

from __future__ import annotations

from benchmarks.lines import Line
from benchmarks.step import WIDTH, Network, against_central
from efvfl.vision import mvcnn, resnet18

VIEW = (1, 32, 32)
RESNET = Network(lambda: resnet18(3, WIDTH, channels=32), (3, 16, 16), rate=0.01)
MVCNN = Network(lambda: mvcnn(VIEW, WIDTH, "small", channels=8), VIEW, rate=0.01)


def lines(full: bool) -> list[Line]:
    """Measure both; central SGD trains the same local models and head with one optimiser."""
    out = []
    found = against_central(128, rounds=9 if full else 4, inner=1, samples=512, network=RESNET)
    for labels in ("private", "shared"):
        what = f"ResNet18 of half width, quarters of 32 x 32, batch 128, K = 4, {labels} labels"
        out.append(found.line(f"{labels} topk", f"images-resnet-{labels}", what, 1.1))
    for parties, batch in ((12, 128), (2, 128), (4, 128), (12, 1024)) if full else ((12, 128),):
        found = against_central(batch, rounds=9, inner=1, samples=2 * batch, parties=parties, network=MVCNN)
        for labels in ("private", "shared"):
            what = f"MVCNN, views of 32 x 32, batch {batch:,}, K = {parties}, {labels} labels"
            out.append(found.line(f"{labels} topk", f"images-mvcnn-{batch}-{labels}-{parties}", what))
    return out
