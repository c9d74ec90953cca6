"""Weights of classes: a rare class counts more, and steps keep their size."""

import pytest
import torch

from efvfl.core.losses import class_weights
from efvfl.errors import ConfigError

LABELS = torch.tensor([0, 0, 0, 1])


def test_balanced_classes_count_alike_and_rows_have_a_mean_weight_of_one() -> None:
    weights = class_weights("balanced", LABELS, 2)
    assert float(weights[LABELS].mean()) == pytest.approx(1)
    assert float(weights[1] / weights[0]) == pytest.approx(3)


def test_weights_of_ones_own_are_scaled() -> None:
    weights = class_weights([1.0, 5.0], LABELS, 2)
    assert float(weights[LABELS].mean()) == pytest.approx(1)
    assert float(weights[1] / weights[0]) == pytest.approx(5)


@pytest.mark.parametrize("wrong", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, 1.0, 1.0]])
def test_weights_that_fit_no_classes_are_refused(wrong: list[float]) -> None:
    with pytest.raises(ConfigError, match="expected 2 positive numbers"):
        class_weights(wrong, LABELS, 2)
