"""Weights of classes and of rows: a rare class or a row of weight counts more, and steps keep their size."""

import pytest
import torch
import torch.nn.functional as F
from problems import columns, problem

from efvfl import Loss
from efvfl.core.losses import LOSSES, class_weights, weighted
from efvfl.core.targets import scaled
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


ROW_WEIGHTS = torch.tensor([2.0, 0.0, 1.0, 5.0], dtype=torch.float64)


@pytest.mark.parametrize("name", LOSSES)
def test_a_row_counts_with_its_weight(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(4, 2 if name == "cross_entropy" else 1, generator=generator, dtype=torch.float64)
    loss = LOSSES[name]
    alone = torch.stack([loss(output[i : i + 1], LABELS[i : i + 1]) for i in range(4)])
    assert float(loss(output, LABELS, ROW_WEIGHTS)) == pytest.approx(float((alone * ROW_WEIGHTS).sum()) / 4)


def test_targets_of_several_numbers_have_one_weight_a_row() -> None:
    output, target = torch.zeros(4, 2), torch.tensor([[1.0, 2.0], [9.0, 9.0], [0.0, 0.0], [0.0, 2.0]])
    assert float(LOSSES["mse"](output, target, ROW_WEIGHTS)) == pytest.approx((2 * 2.5 + 5 * 2) / 4)


def test_weights_of_classes_and_rows_multiply_and_keep_a_mean_of_one() -> None:
    weights = scaled(ROW_WEIGHTS, 4)
    assert weights is not None
    of_class = class_weights("balanced", LABELS, 2, weights)
    assert float((of_class[LABELS] * weights).mean()) == pytest.approx(1)
    total = [float((of_class[LABELS] * weights)[k == LABELS].sum()) for k in (0, 1)]
    assert total[0] == pytest.approx(total[1])  # balanced: both classes weigh alike in all
    output = torch.tensor([0.3, -2.0, 1.0, 0.5], dtype=torch.float64)
    each = F.binary_cross_entropy_with_logits(output, LABELS.double(), reduction="none")
    found = weighted(LOSSES["binary_cross_entropy"], of_class)(output, LABELS, weights)
    assert float(found) == pytest.approx(float((each * of_class[LABELS] * weights).mean()))


def test_scaled_weights_stay_as_they_are_to_the_last_bit() -> None:
    large = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e307
    once = scaled(large, 1000)
    assert once is not None
    twice = scaled(once, 1000)
    assert twice is not None
    assert torch.equal(once, twice)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (torch.ones(3), r"expected one number for each of 4 rows, got \(3,\)"),
        (torch.ones(4, 2), r"expected one number for each of 4 rows, got \(4, 2\)"),
        (torch.tensor([1.0, -1.0, 1.0, 1.0]), "expected finite numbers of 0 or more"),
        (torch.tensor([1.0, float("nan"), 1.0, 1.0]), "expected finite numbers of 0 or more"),
        (torch.zeros(4), "are all zero"),
    ],
)
def test_what_is_no_weight_is_refused(wrong: torch.Tensor, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        scaled(wrong, 4)


def test_a_loss_of_ones_own_needs_the_losses_of_rows() -> None:
    own = Loss("own", F.cross_entropy, "none", lambda output, target: 0.0)
    weights = torch.arange(60.0)
    with pytest.raises(ConfigError, match="loss 'own': rows have weights, so expected `each`"):
        problem(loss=own, weights=weights)
    with pytest.raises(ConfigError, match="loss 'own': rows have weights, so expected `each`"):
        problem(loss=own, validation=(columns(), torch.zeros(60, dtype=torch.int64), weights))
