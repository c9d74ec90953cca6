"""Metrics against scikit-learn, against values by hand, and where they are not defined."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics as theirs

from efvfl.core import losses
from efvfl.errors import ConfigError, DataError
from efvfl.runs import metrics

RNG = np.random.default_rng(0)
Y = (RNG.random(2000) < 0.3).astype(np.int64)
P = np.clip(0.3 * Y + 0.6 * RNG.random(2000), 0, 1)
CLASSES = RNG.integers(0, 4, 500)
SHARES = RNG.dirichlet(np.ones(4), 500)


def test_binary_metrics_are_those_of_scikit_learn() -> None:
    found = metrics.binary(Y, P)
    assert found["auc"] == pytest.approx(theirs.roc_auc_score(Y, P))
    assert found["average_precision"] == pytest.approx(theirs.average_precision_score(Y, P))
    assert found["log_loss"] == pytest.approx(theirs.log_loss(Y, P))
    assert found["brier"] == pytest.approx(theirs.brier_score_loss(Y, P))
    assert found["accuracy"] == pytest.approx(theirs.accuracy_score(Y, P > 0.5))


def test_binary_metrics_by_hand() -> None:
    found = metrics.binary([0, 0, 1, 1], [0.1, 0.6, 0.4, 0.9])
    assert found["auc"] == 0.75  # three of the four pairs are in order
    assert found["average_precision"] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert found["ks"] == 0.5
    assert found["brier"] == pytest.approx((0.01 + 0.36 + 0.36 + 0.01) / 4)
    assert found["log_loss"] == pytest.approx(-(2 * math.log(0.9) + 2 * math.log(0.4)) / 4)
    assert found["accuracy"] == 0.5
    assert found["calibration_error"] == pytest.approx((0.1 + 0.6 + 0.6 + 0.1) / 4)


def test_ks_is_the_largest_distance_of_the_two_distributions() -> None:
    thresholds = np.unique(P)
    low, high = (np.searchsorted(np.sort(P[k == Y]), thresholds, side="right") / np.sum(k == Y) for k in (0, 1))
    assert metrics.binary(Y, P)["ks"] == pytest.approx(np.abs(low - high).max())


def test_calibration_bins_hold_equally_many_rows() -> None:
    table = metrics.calibration(Y, P, 8)
    assert [rows for _, _, rows in table] == [250] * 8
    order = np.argsort(P)
    assert table[0][0] == pytest.approx(P[order[:250]].mean())
    assert table[-1][1] == pytest.approx(Y[order[-250:]].mean())


def test_equal_probabilities_share_a_bin_whatever_the_order_of_rows() -> None:
    y, p = np.array([1, 0, 1, 0, 1, 1]), np.array([0.5, 0.5, 0.5, 0.5, 0.9, 0.9])
    table = metrics.calibration(y, p, 3)
    assert [(round(said, 9), seen, rows) for said, seen, rows in table] == [(0.5, 0.5, 4), (0.9, 1.0, 2)]
    assert np.allclose(metrics.calibration(y[::-1], p[::-1], 3), table)


def test_perfectly_calibrated_predictions_have_no_calibration_error() -> None:
    p = np.repeat([0.2, 0.8], 10)
    y = np.array([1] * 2 + [0] * 8 + [1] * 8 + [0] * 2)
    assert metrics.binary(y, p)["calibration_error"] == pytest.approx(0)


def test_curves_are_thinned_and_keep_their_ends_and_area() -> None:
    x, up = metrics.roc(Y, P)
    assert 100 < len(x) == len(up) <= 200
    assert (x[0], up[0], x[-1], up[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(up, x) == pytest.approx(theirs.roc_auc_score(Y, P), abs=0.005)
    recall, precision = metrics.precision_recall(Y, P)
    assert 100 < len(recall) == len(precision) <= 200
    assert (recall[0], precision[0], recall[-1]) == (0, 1, 1)
    assert (np.diff(recall) >= 0).all()
    assert precision[-1] == pytest.approx(Y.mean(), abs=0.01)


def test_a_short_curve_is_whole() -> None:
    x, up = metrics.roc([0, 1, 0, 1], [0.1, 0.2, 0.3, 0.4])
    assert list(zip(x, up, strict=True)) == [(0, 0), (0, 0.5), (0.5, 0.5), (0.5, 1), (1, 1)]


def test_multiclass_metrics_are_those_of_scikit_learn() -> None:
    found = metrics.multiclass(CLASSES, SHARES)
    assert found["accuracy"] == pytest.approx(theirs.accuracy_score(CLASSES, SHARES.argmax(axis=1)))
    assert found["log_loss"] == pytest.approx(theirs.log_loss(CLASSES, SHARES))
    assert found["auc"] == pytest.approx(theirs.roc_auc_score(CLASSES, SHARES, multi_class="ovr"))


def test_a_class_that_no_row_has_is_left_out_of_the_mean_auc() -> None:
    chosen = CLASSES != 3
    found = metrics.multiclass(CLASSES[chosen], SHARES[chosen])["auc"]
    each = [theirs.roc_auc_score(CLASSES[chosen] == k, SHARES[chosen, k]) for k in range(3)]
    assert found == pytest.approx(np.mean(each))


def test_regression_metrics_by_hand() -> None:
    assert metrics.regression([1.0, 2.0, 3.0], [1.0, 2.0, 6.0]) == pytest.approx(
        {"rmse": math.sqrt(3), "mae": 1.0, "r2": 1 - 9 / 2}
    )


@pytest.mark.parametrize("only", [0, 1])
def test_one_class_leaves_ranking_undefined_and_the_rest_defined(only: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = metrics.binary([only] * 4, [0.1, 0.2, 0.8, 0.9])
        several = metrics.multiclass([only] * 4, SHARES[:4])
        curves = [metrics.roc([only] * 4, P[:4]), metrics.precision_recall([only] * 4, P[:4])]
    assert {name for name, value in found.items() if math.isnan(value)} == {"auc", "average_precision", "ks"}
    assert found["accuracy"] == 0.5
    assert {name for name, value in several.items() if math.isnan(value)} == {"auc"}
    assert all(len(x) == len(y) == 0 for x, y in curves)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_makes_everything_undefined(bad: float) -> None:
    results = [
        metrics.binary([0, 1], [0.5, bad]),
        metrics.binary([bad, 1], [0.5, 0.5]),
        metrics.multiclass([0, 1], [[0.5, 0.5], [bad, 0.5]]),
        metrics.multiclass([0, bad], [[0.5, 0.5], [0.5, 0.5]]),
        metrics.regression([1.0, 2.0], [1.0, bad]),
        metrics.of_loss("binary_cross_entropy", torch.tensor([math.nan, bad]), torch.tensor([0, 1])),
    ]
    assert all(math.isnan(value) for found in results for value in found.values())
    assert metrics.calibration([0, 1], [0.5, bad], 10) == []
    assert len(metrics.roc([0, 1], [0.5, bad])[0]) == 0


def test_no_rows_and_one_row_are_not_measured_beyond_what_is_defined() -> None:
    assert all(math.isnan(value) for value in metrics.binary([], []).values())
    assert all(math.isnan(value) for value in metrics.regression([], []).values())
    one = metrics.regression([1.0], [2.0])
    assert (one["rmse"], one["mae"]) == (1, 1)
    assert math.isnan(one["r2"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.binary([0, 2], [0.5, 0.5]), "expected labels 0 and 1, got 2"),
        (lambda: metrics.binary([0, 1], [0.5, -3.0]), "expected probabilities between 0 and 1, got -3"),
        (lambda: metrics.binary([0, 1, 1], [0.5, 0.5]), "expected 3 predictions, one per label, got 2"),
        (
            lambda: metrics.multiclass([0, 2], [[0.5, 0.5]] * 2),
            "labels: expected whole numbers from 0 to 1, got 0 to 2",
        ),
        (
            lambda: metrics.multiclass([0, 1], [[0.5, 0.1]] * 2),
            "probabilities of every row to sum to 1, got 0.6",
        ),
        (lambda: metrics.multiclass([0, 1], [0.5, 0.5]), "shape"),
        (lambda: metrics.regression([0.0, 1.0], [[0.0], [1.0]]), "shape"),
    ],
)
def test_input_that_cannot_be_meant_is_refused(call: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()  # type: ignore[operator]


def test_every_loss_has_its_metrics() -> None:
    logits = torch.tensor([[-1.0], [2.0], [0.5], [-0.5]])
    yes = torch.tensor([0, 1, 0, 1])
    p = torch.sigmoid(logits.double()).flatten().numpy()
    assert metrics.of_loss("binary_cross_entropy", logits, yes) == metrics.binary(yes, p)
    two = torch.cat([torch.zeros_like(logits), logits], dim=1)
    assert metrics.of_loss("cross_entropy", two, yes) == pytest.approx(metrics.binary(yes, p))
    three = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    found = metrics.of_loss("cross_entropy", three, torch.tensor([0, 1, 2, 1]))
    assert found["log_loss"] == pytest.approx(float(losses.LOSSES["cross_entropy"](three, torch.tensor([0, 1, 2, 1]))))
    for name in ("mse", "huber"):
        numbers = metrics.of_loss(name, logits, torch.tensor([0.0, 1.0, 1.0, 2.0]))
        assert numbers["mae"] == pytest.approx((1 + 1 + 0.5 + 2.5) / 4)
    assert set(losses.LOSSES) == {"binary_cross_entropy", "cross_entropy", "mse", "huber"}


def test_labels_between_0_and_1_are_measured_as_numbers() -> None:
    found = metrics.of_loss("binary_cross_entropy", torch.zeros(2, 1), torch.tensor([0.25, 0.75]))
    assert found["mae"] == 0.25


def test_an_unknown_loss_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'mse'"):
        metrics.of_loss("mze", torch.zeros(1), torch.zeros(1))


def test_r2_of_several_outputs_is_the_mean_of_each_ones() -> None:
    draw = torch.Generator().manual_seed(0)
    target = torch.randn(50, 3, generator=draw) * torch.tensor([1.0, 10.0, 0.1]) + torch.tensor([0.0, 100.0, -5.0])
    output = target + torch.randn(50, 3, generator=draw) * torch.tensor([0.5, 20.0, 0.01])
    metric = losses.lookup("mse").metric
    each = [
        1 - float((output[:, j] - target[:, j]).square().sum() / (target[:, j] - target[:, j].mean()).square().sum())
        for j in range(3)
    ]
    assert metric(output, target) == pytest.approx(sum(each) / 3, rel=1e-4)
    assert metric(output, target) == pytest.approx(theirs.r2_score(target, output), rel=1e-6)
    for j in range(3):  # one output, also as a column
        single = theirs.r2_score(target[:, j], output[:, j])
        assert metric(output[:, j : j + 1], target[:, j]) == pytest.approx(single, rel=1e-6)
    still = torch.ones(50, 1)
    assert metric(torch.cat([output, still], 1), torch.cat([target, still], 1)) == pytest.approx(
        (sum(each) + 1) / 4, 1e-4
    )
    assert metric(still + 1, still) == theirs.r2_score(still, still + 1) == 0
