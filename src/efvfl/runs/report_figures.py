"""The figures of a run's report: training curves, prediction curves, and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from efvfl.runs import html, metrics
from efvfl.training.record import Record
from efvfl.util.extras import optional

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Visible on white and on black pages.
COLOURS = {"surrogates": "#8a93a8", "train": "#5e81ac", "validation": "#d08770", "test": "#2a9d8f"}
Curve = tuple[Sequence[float], Sequence[float]]


def _panels(count: int) -> tuple[Figure, list[Any]]:
    with optional("plots", "a drawing"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * count, 3.4), layout="constrained")
    panels = [figure.add_subplot(1, count, place + 1) for place in range(count)]
    for axes in panels:
        axes.grid(True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.patch.set_alpha(0)
    return figure, panels


def _lines(axes: Any, curves: Mapping[str, Curve], **labels: str) -> None:
    for name, (x, y) in curves.items():
        axes.plot(x, y, label=name, color=COLOURS.get(name), marker="." if len(x) < 30 else None)
    axes.set(**labels)
    if len(curves) > 1:
        axes.legend(frameon=False)


def training(records: Sequence[Record]) -> Iterator[str]:
    """Yield figures of loss and metric by epoch, and of the distance between surrogates and representations."""
    losses = {"surrogates": _curve([(r.epoch, r.surrogate_loss) for r in records])}
    losses |= {split: _scores(records, split, "loss") for split in ("train", "validation", "test")}
    named = [name for r in records for split in (r.train, r.validation, r.test) for name in split if name != "loss"]
    with html.inked():
        figure, panels = _panels(2 if named else 1)
        _lines(panels[0], _drawn(losses), xlabel="epoch", ylabel="loss", title="Loss")
        if named:
            curves = {split: _scores(records, split, named[0]) for split in ("train", "validation", "test")}
            _lines(panels[1], _drawn(curves), xlabel="epoch", ylabel=named[0], title=named[0].capitalize())
        yield html.drawing(figure, "training", "Loss and metric by epoch")
        distortion = _curve([(r.epoch, r.distortion) for r in records])
        figure, panels = _panels(2 if distortion[0] else 1)
        _lines(panels[0], {"surrogates": losses["surrogates"]}, xlabel="epoch", ylabel="loss", title="On surrogates")
        if distortion[0]:
            positive = min(distortion[1]) > 0
            _lines(panels[1], {"train": distortion}, xlabel="epoch", ylabel="squared distance", title="Distortion")
            panels[1].set_yscale("log" if positive else "linear")
        yield html.drawing(figure, "surrogates", "Loss on surrogates, and distortion, by epoch")
    if not distortion[0]:
        yield "<p>Nobody sees all representations over a network, so there is no distortion here.</p>"


def _scores(records: Sequence[Record], split: str, name: str) -> Curve:
    return _curve([(r.epoch, getattr(r, split).get(name, float("nan"))) for r in records])


def _curve(points: Sequence[tuple[int, float]]) -> Curve:
    known = [(x, y) for x, y in points if isfinite(y)]
    return [x for x, _ in known], [y for _, y in known]


def _drawn(curves: Mapping[str, Curve]) -> dict[str, Curve]:
    return {name: curve for name, curve in curves.items() if curve[0]}


def binary(splits: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]) -> str:
    """Return a figure of the ROC, precision-recall and calibration curves of labels and probabilities."""
    with html.inked():
        figure, (left, middle, right) = _panels(3)
        diagonal = {"linestyle": ":", "color": COLOURS["surrogates"]}
        left.plot([0, 1], [0, 1], **diagonal)
        right.plot([0, 1], [0, 1], **diagonal)
        bins = {split: np.array(metrics.calibration(*pair)).reshape(-1, 3) for split, pair in splits.items()}
        curves: dict[str, Any] = {split: metrics.roc(*pair) for split, pair in splits.items()}
        _lines(left, curves, xlabel="share of false positives", ylabel="share of true positives", title="ROC")
        curves = {split: metrics.precision_recall(*pair) for split, pair in splits.items()}
        _lines(middle, curves, xlabel="recall", ylabel="precision", title="Precision and recall")
        curves = {split: (table[:, 0], table[:, 1]) for split, table in bins.items()}
        _lines(right, curves, xlabel="predicted probability", ylabel="observed share", title="Calibration")
        return html.drawing(figure, "binary", "ROC, precision-recall and calibration curves")


def sent(measured: Mapping[str, tuple[int, int]], full: Mapping[str, tuple[int, int]]) -> str:
    """Return a bar chart of the bytes up and down by party, next to those of SVFL."""
    with html.inked():
        figure, panels = _panels(2)
        places = np.arange(len(measured))
        for way, (axes, title) in enumerate(zip(panels, ("Up", "Down"), strict=True)):
            for shift, table, name, colour in (
                (-0.2, full, "SVFL", COLOURS["surrogates"]),
                (0.2, measured, "this run", COLOURS["test"]),
            ):
                values = [table[party][way] / 1e6 for party in measured]
                axes.bar(places + shift, values, 0.4, label=name, color=colour)
            axes.set(title=title, ylabel="megabytes", xticks=places, xticklabels=list(measured))
            axes.set_axisbelow(True)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
        return html.drawing(figure, "sent", "Megabytes sent by party, beside SVFL")
