"""The charts of a run's report: training curves, predictions, and bytes. assets/chart.js draws them in the browser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from efvfl.runs import metrics
from efvfl.runs.html import Chart
from efvfl.training.record import Record
from efvfl.training.values import ValueEstimate

SPLITS = ("train", "validation", "test")
COLOURS = {"surrogates": "violet", "train": "grey", "validation": "blue", "test": "teal"}
ALONE = "label holder alone"
BINS = 30  # of a histogram
Curve = tuple[Sequence[float], Sequence[float]]
Scored = tuple[NDArray[Any], NDArray[Any]]  # labels, and probabilities or predictions


def training(records: Sequence[Record]) -> Iterator[Chart]:
    """Yield charts of loss and metric by epoch, of the metric by bytes, and of how far surrogates are off."""
    losses = {"surrogates": _curve([(r.epoch, r.surrogate_loss) for r in records])}
    losses |= {split: _scores(records, split, "loss") for split in SPLITS}
    epoch = {"label": "epoch"}
    note = "Surrogates: training rows as the server sees them, compressed"
    yield _chart("Loss by epoch", losses, epoch, {"label": "loss"}) | {"note": note}
    named = [name for r in records for split in SPLITS for name in getattr(r, split) if name != "loss"]
    if named:
        curves = {split: _scores(records, split, named[0]) for split in SPLITS}
        title = named[0].replace("_", " ").capitalize()
        yield _chart(f"{title} by epoch", curves, epoch, {"label": title.lower()})
        sent = {split: _by_bytes(records, split, named[0]) for split in ("validation", "test")}
        if any(len(x) > 1 for x, _ in sent.values()):
            label = {"label": "megabytes sent, both directions", "name": "MB"}
            yield _chart(f"{title} by bytes", sent, label, {"label": title.lower()})
    distortion = _curve([(r.epoch, r.distortion) for r in records])
    if distortion[0]:
        scale = {"label": "squared distance", "scale": "log"}
        note = "How far what the server has is from what the parties have"
        yield _chart("Distortion by epoch", {"surrogates": distortion}, epoch, scale) | {"note": note}


def _chart(title: str, curves: Mapping[str, Curve], x: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
    series = [
        {"name": name, "colour": COLOURS.get(name, "teal"), "x": _rounded(curve[0]), "y": _rounded(curve[1])}
        for name, curve in curves.items()
        if len(curve[0])
    ]
    return {"title": title, "x": dict(x), "y": dict(y), "series": series}


def _rounded(values: Any) -> list[float]:
    """Return numbers with as many digits as a chart can show: a page of a long run stays small."""
    return [float(f"{float(value):.6g}") for value in values]


def _scores(records: Sequence[Record], split: str, name: str) -> Curve:
    return _curve([(r.epoch, getattr(r, split).get(name, float("nan"))) for r in records])


def _by_bytes(records: Sequence[Record], split: str, name: str) -> Curve:
    sent = [(r.bytes_up + r.bytes_down) / 1e6 for r in records]
    return _curve([(x, getattr(r, split).get(name, float("nan"))) for x, r in zip(sent, records, strict=True)])


def _curve(points: Sequence[tuple[float, float]]) -> Curve:
    known = [(x, y) for x, y in points if isfinite(x) and isfinite(y)]
    return [x for x, _ in known], [y for _, y in known]


def _parts(title: str, curves: Mapping[str, Curve], across: str, up: str, **more: Any) -> Chart:
    """Return a chart of what was predicted, by split, and by the label holder alone."""
    unit = {"min": 0, "max": 1}
    chart = _chart(title, curves, {"label": across} | more.pop("x", unit), {"label": up} | more.pop("y", unit))
    for series in chart["series"]:
        if series["name"] == ALONE:
            series |= {"colour": "orange", "dashed": True}
    return chart | more


def binary(parts: Mapping[str, Scored]) -> Iterator[Chart]:
    """Yield ROC, precision-recall, calibration and lift of labels and probabilities."""
    curves: dict[str, Curve] = {name: _floats(metrics.roc(*part)) for name, part in parts.items()}
    yield _parts("ROC", curves, "share of false positives", "share of true positives", diagonal=True)
    curves = {name: _floats(metrics.precision_recall(*part)) for name, part in parts.items()}
    yield _parts("Precision and recall", curves, "recall", "precision")
    yield _calibration({name: metrics.calibration(*part) for name, part in parts.items()}, "predicted probability")
    curves = {name: _floats(metrics.lift(*part)) for name, part in parts.items()}
    note = "How many times more of class 1 are among the rows with the highest scores than among all"
    yield _parts("Lift", curves, "share of rows, highest scores first", "lift", y={"min": 0}, level=1, note=note)


def _floats(curve: tuple[NDArray[Any], NDArray[Any]]) -> Curve:
    return curve[0].tolist(), curve[1].tolist()


def _calibration(bins: Mapping[str, list[tuple[float, float, int]]], x: str) -> Chart:
    curves: dict[str, Curve] = {name: ([b[0] for b in of], [b[1] for b in of]) for name, of in bins.items()}
    return _parts("Calibration", curves, x, "observed share", diagonal=True, note="Ten groups of equally many rows")


def multiclass(parts: Mapping[str, Scored]) -> Iterator[Chart]:
    """Yield how often the most probable class is right, by its probability, and by class."""
    bins, right = {}, {}
    for name, (labels, p) in parts.items():
        hit = p.argmax(axis=1) == labels
        bins[name] = metrics.calibration(hit.astype(float), p.max(axis=1))
        classes = np.unique(labels).astype(int)
        right[name] = (classes.tolist(), [float(hit[labels == k].mean()) for k in classes])
    yield _calibration(bins, "probability of the predicted class")
    yield _parts("Rows that are predicted right, by class", right, "class", "share", x={})


def regression(parts: Mapping[str, Scored]) -> Iterator[Chart]:
    """Yield observed by predicted values in ten groups of rows, and how errors are distributed."""
    means: dict[str, Curve] = {}
    errors: dict[str, Curve] = {}
    every = np.concatenate([labels - guess for labels, guess in parts.values()])
    low, high = np.quantile(every, [0.005, 0.995]) if len(every) else (0.0, 0.0)
    for name, (labels, guess) in parts.items():
        groups = np.array_split(np.argsort(guess, kind="stable"), min(10, len(guess)))
        means[name] = [float(guess[g].mean()) for g in groups], [float(labels[g].mean()) for g in groups]
        counts, edges = np.histogram(labels - guess, BINS, (low, high) if low < high else None)
        errors[name] = ((edges[:-1] + edges[1:]) / 2).tolist(), (counts / max(1, len(guess))).tolist()
    note = "Means of ten groups of equally many rows"
    yield _parts("Observed by predicted", means, "predicted", "observed", x={}, y={}, diagonal=True, note=note)
    yield _parts("Errors", errors, "observed less predicted", "share of rows", x={}, y={"min": 0})


def worth(metric: str, subsets: Mapping[str, ValueEstimate], values: Mapping[str, ValueEstimate]) -> Iterator[Chart]:
    """Yield the metric of every subset of parties, and the value of every party, with their intervals."""
    yield _ranges(f"{metric[0].upper()}{metric[1:]} of every subset of parties", metric, "teal", subsets)
    yield _ranges("What each party adds, in the mean over all orders", metric, "violet", values) | {"zero": True}


def columns(metric: str, found: Mapping[str, Mapping[str, ValueEstimate]]) -> Iterator[Chart]:
    """Yield for every party by how much the metric falls without a column."""
    for party, values in found.items():
        if values:
            yield _ranges(
                f"{metric[0].upper()}{metric[1:]} lost without a column of {party}", metric, "blue", values
            ) | {"zero": True}


def _ranges(title: str, label: str, colour: str, found: Mapping[str, ValueEstimate]) -> dict[str, Any]:
    rows = [[name, *_rounded((e.value, e.low, e.high))] for name, e in found.items()]
    return {"title": title, "x": {"label": label}, "series": [{"name": label, "colour": colour}], "ranges": rows}


def sent(measured: Mapping[str, tuple[int, int]], full: Mapping[str, tuple[int, int]]) -> Chart:
    """Return bars of the bytes by party and direction, beside those of SVFL."""
    rows = [
        [f"{name}, {direction}", [full[name][way], measured[name][way]]]
        for name in measured
        for way, direction in enumerate(("up", "down"))
    ]
    series = [{"name": "uncompressed (SVFL)", "colour": "grey"}, {"name": "this run", "colour": "teal"}]
    return {"title": "Bytes sent, by party", "series": series, "rows": rows}
