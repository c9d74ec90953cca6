"""Metrics of predictions: arrays in, plain numbers out, computed by scikit-learn where possible.

Undefined metrics are NaN, without a warning: all metrics if there are no rows or a label or prediction is not finite;
AUC, average precision and KS if only one class is present; R2 of fewer than two rows. Undefined curves and tables are
empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from efvfl.core import losses
from efvfl.errors import DataError
from efvfl.util.extras import optional

Floats = NDArray[np.float64]
NAN = float("nan")
BINS = 10  # for the calibration error
POINTS = 200  # largest number of points of a curve
NEAR = 1e-3  # tolerance for the sum of the probabilities of all classes


def binary(y: ArrayLike, probability: ArrayLike) -> dict[str, float]:
    """Return the metrics of a binary prediction: labels 0 and 1, and the probability of 1, both of shape (rows,).

    `ks` is the largest distance between the two classes' distributions of the probability, `calibration_error` the mean
    distance between predicted and observed shares over ten bins with equally many rows.

    >>> scores = binary([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    >>> scores["auc"], scores["accuracy"]
    (0.75, 0.75)
    """
    truth, p = _binary_input(y, probability)
    names = ("auc", "average_precision", "ks", "log_loss", "brier", "accuracy", "calibration_error")
    found = dict.fromkeys(names, NAN)
    if not _measurable(truth, p):
        return found
    with optional("sklearn", "measuring predictions"):
        from sklearn.metrics import average_precision_score, log_loss, roc_auc_score, roc_curve

    found["log_loss"] = float(log_loss(truth, p, labels=[0, 1]))
    found["brier"] = float(np.mean((p - truth) ** 2))
    found["accuracy"] = float(np.mean((p > 0.5) == (truth == 1)))
    table = calibration(truth, p, BINS)
    found["calibration_error"] = sum(abs(predicted - observed) * rows for predicted, observed, rows in table) / len(
        truth
    )
    if _both_classes(truth):
        found["auc"] = float(roc_auc_score(truth, p))
        found["average_precision"] = float(average_precision_score(truth, p))
        false_share, true_share, _ = roc_curve(truth, p)
        found["ks"] = float(np.abs(true_share - false_share).max())
    return found


def calibration(y: ArrayLike, probability: ArrayLike, bins: int = BINS) -> list[tuple[float, float, int]]:
    """Return (mean probability, observed share, rows) for bins with equally many rows, by increasing probability.

    Equal probabilities are in the same bin, so the table does not depend on the order of rows and may have fewer bins.
    """
    truth, p = _binary_input(y, probability)
    if not _measurable(truth, p):
        return []
    first = np.searchsorted(np.sort(p), p)  # the rank of a row, the same for equal probabilities
    bin_of = first * bins // len(p)
    chosen = (bin_of == number for number in np.unique(bin_of))
    return [(float(p[rows].mean()), float(truth[rows].mean()), int(rows.sum())) for rows in chosen]


def roc(y: ArrayLike, probability: ArrayLike) -> tuple[Floats, Floats]:
    """Return the ROC curve: false and true positive rates, both from 0 to 1, at most 200 points."""
    truth, p = _binary_input(y, probability)
    if not (_measurable(truth, p) and _both_classes(truth)):
        return np.zeros(0), np.zeros(0)
    with optional("sklearn", "measuring predictions"):
        from sklearn.metrics import roc_curve

    false_share, true_share, _ = roc_curve(truth, p)
    return _thinned(false_share), _thinned(true_share)


def precision_recall(y: ArrayLike, probability: ArrayLike) -> tuple[Floats, Floats]:
    """Return the precision-recall curve: recall from 0 to 1, and precision, at most 200 points."""
    truth, p = _binary_input(y, probability)
    if not (_measurable(truth, p) and _both_classes(truth)):
        return np.zeros(0), np.zeros(0)
    with optional("sklearn", "measuring predictions"):
        from sklearn.metrics import precision_recall_curve

    precision, recall, _ = precision_recall_curve(truth, p)
    return _thinned(recall[::-1]), _thinned(precision[::-1])


def lift(y: ArrayLike, probability: ArrayLike) -> tuple[Floats, Floats]:
    """Return the lift curve: a share of rows, those with the highest probabilities, and how many times more 1s it has.

    Points are where the probability changes, so that the curve does not depend on the order of rows; at most 200.

    >>> shares, times = lift([1, 0, 1, 0], [0.9, 0.2, 0.8, 0.1])
    >>> shares.tolist(), times.round(2).tolist()
    ([0.25, 0.5, 0.75, 1.0], [2.0, 2.0, 1.33, 1.0])
    """
    truth, p = _binary_input(y, probability)
    if not (_measurable(truth, p) and _both_classes(truth)):
        return np.zeros(0), np.zeros(0)
    order = np.argsort(-p, kind="stable")
    last = np.flatnonzero(np.append(np.diff(p[order]) != 0, True))  # of rows with the same probability
    rows = last + 1
    times = np.cumsum(truth[order])[last] / rows / truth.mean()
    return _thinned(rows / len(truth)), _thinned(times)


def multiclass(y: ArrayLike, probabilities: ArrayLike) -> dict[str, float]:
    """Return accuracy, log loss and AUC of labels, shape (rows,), and probabilities, shape (rows, classes).

    The AUC is the mean over classes of one against the rest, without classes that no row or every row has.
    """
    truth, p = np.asarray(y, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    if truth.ndim != 1 or p.ndim != 2 or len(truth) != len(p) or p.shape[1] < 2:
        raise DataError(
            "expected labels of shape (rows,) and probabilities of shape (rows, classes) with two or more classes, got "
            f"{truth.shape} and {p.shape}."
        )
    if not _measurable(truth, p):
        return dict.fromkeys(("accuracy", "log_loss", "auc"), NAN)
    _check_shares(p)
    total = p.sum(axis=1, keepdims=True)
    if np.abs(total - 1).max() > NEAR:
        raise DataError(
            f"expected the probabilities of every row to sum to 1, got {total[np.abs(total - 1).argmax(), 0]:g}."
        )
    highest = p.shape[1] - 1
    classes = truth.astype(np.int64)
    if (classes != truth).any() or classes.min() < 0 or classes.max() > highest:
        raise DataError(f"labels: expected whole numbers from 0 to {highest}, got {truth.min():g} to {truth.max():g}.")
    with optional("sklearn", "measuring predictions"):
        from sklearn.metrics import log_loss

    return {
        "accuracy": float(np.mean(p.argmax(axis=1) == classes)),
        "log_loss": float(log_loss(classes, p / total, labels=np.arange(highest + 1))),
        "auc": _mean_auc(classes, p),
    }


def regression(y: ArrayLike, predicted: ArrayLike) -> dict[str, float]:
    """Return root mean squared error, mean absolute error and R2 of predictions."""
    truth, guess = np.asarray(y, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if truth.shape != guess.shape:
        raise DataError(f"expected predictions of shape {truth.shape}, like the labels, got {guess.shape}.")
    if not _measurable(truth, guess):
        return dict.fromkeys(("rmse", "mae", "r2"), NAN)
    with optional("sklearn", "measuring predictions"):
        from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    return {
        "rmse": float(root_mean_squared_error(truth, guess)),
        "mae": float(mean_absolute_error(truth, guess)),
        "r2": float(r2_score(truth, guess)) if len(truth) > 1 else NAN,
    }


def of_loss(name: str, output: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the metrics for a network trained with this loss, from its output (logits).

    Two classes give binary metrics, also with cross entropy; labels between 0 and 1 give those of a regression.
    """
    if ":" in name:
        return {}  # a loss of your own: nobody knows here what its output is, and records have its metrics
    loss = losses.lookup(name)
    values = output.detach().double()
    truth: NDArray[Any] = labels.detach().cpu().numpy()
    if loss.name == "cross_entropy":
        shares = values.softmax(dim=1).cpu().numpy()
        return binary(truth, shares[:, 1]) if shares.shape[1] == 2 else multiclass(truth, shares)
    if values.shape != labels.shape:
        values = values.reshape(labels.shape)
    if loss.name != "binary_cross_entropy":
        return regression(truth, values.cpu().numpy())
    p = values.sigmoid().cpu().numpy()
    return binary(truth, p) if np.isin(truth, (0, 1)).all() else regression(truth, p)


def _binary_input(y: ArrayLike, probability: ArrayLike) -> tuple[Floats, Floats]:
    """Return labels and probabilities after checking shapes and ranges; NaN is allowed."""
    truth, p = np.asarray(y, dtype=np.float64).reshape(-1), np.asarray(probability, dtype=np.float64).reshape(-1)
    if len(truth) != len(p):
        raise DataError(f"expected {len(truth):,} predictions, one per label, got {len(p):,}.")
    wrong = truth[np.isfinite(truth) & (truth != 0) & (truth != 1)]
    if wrong.size:
        raise DataError(f"expected labels 0 and 1, got {wrong[0]:g}.")
    _check_shares(p)
    return truth, p


def _check_shares(p: Floats) -> None:
    outside = p[np.isfinite(p) & ((p < 0) | (p > 1))]
    if outside.size:
        raise DataError(
            f"expected probabilities between 0 and 1, got {outside[0]:g}: apply sigmoid or softmax to the output first."
        )


def _measurable(truth: Floats, predicted: Floats) -> bool:
    return bool(truth.size and np.isfinite(truth).all() and np.isfinite(predicted).all())


def _both_classes(truth: Floats) -> bool:
    return bool(truth.min() != truth.max())


def _mean_auc(classes: NDArray[np.int64], p: Floats) -> float:
    with optional("sklearn", "measuring predictions"):
        from sklearn.metrics import roc_auc_score

    chosen = [k for k in range(p.shape[1]) if 0 < int((classes == k).sum()) < len(classes)]
    return float(np.mean([roc_auc_score(classes == k, p[:, k]) for k in chosen])) if chosen else NAN


def _thinned(curve: Floats) -> Floats:
    """Return at most `POINTS` evenly chosen points, including the first and the last."""
    if len(curve) <= POINTS:
        return np.array(curve)
    return curve[np.linspace(0, len(curve) - 1, POINTS).round().astype(np.int64)]
