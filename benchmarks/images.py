"""Image networks relative to central SGD: the paper's ResNet18 of half width on quarter images, MVCNN on 12 views."""

from __future__ import annotations

from benchmarks.lines import Line
from benchmarks.step import PARTIES, WIDTH, Network, against_central
from efvfl.models.vision import mvcnn, resnet18

VIEW = (1, 32, 32)
RESNET = Network(lambda: resnet18(3, WIDTH, channels=32), (3, 16, 16), rate=0.01)
MVCNN = Network(lambda: mvcnn(VIEW, WIDTH, "small", channels=8), VIEW, rate=0.01)
MODELNET = 3_991  # objects in ModelNet10's training set


def lines(full: bool) -> list[Line]:
    """Measure both; central SGD trains the same local models and head with one optimiser."""
    return [*_resnet(full), *_mvcnn(full)]


def _resnet(full: bool) -> list[Line]:
    out = []
    for parties in (PARTIES, 2, 12) if full else (PARTIES,):
        found = against_central(
            128, rounds=7 if full and parties == PARTIES else 4, inner=1, samples=512, parties=parties, network=RESNET
        )
        for labels in ("private", "shared"):
            what = f"ResNet18 of half width, quarters of 32 x 32, batch 128, K = {parties}, {labels} labels"
            target = 1.1 if parties == PARTIES else None
            out.append(found.line(f"{labels} topk", f"images-resnet-{labels}-{parties}", what, target))
    return out


def _mvcnn(full: bool) -> list[Line]:
    out = []
    for parties, batch in ((12, 128), (2, 128), (4, 128), (12, 1024), (12, 0)) if full else ((12, 128),):
        samples = 2 * batch or MODELNET
        found = against_central(
            batch, rounds=9 if batch == 128 else 4, inner=1, samples=samples, parties=parties, network=MVCNN
        )
        for labels in ("private", "shared"):
            size = f"batch {batch:,}" if batch else f"full batch of {MODELNET:,}"
            what = f"MVCNN, views of 32 x 32, {size}, K = {parties}, {labels} labels"
            out.append(found.line(f"{labels} topk", f"images-mvcnn-{batch or 'full'}-{labels}-{parties}", what))
    return out
