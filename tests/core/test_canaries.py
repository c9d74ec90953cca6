"""The canary audit holds, has the power to find faults, and finds three that were planted."""

import pytest
import torch
from benchmarks.canaries import DEVIATIONS, audit, audit_rows
from torch import Tensor

from efvfl.core import row_protection, visit_noise
from efvfl.core.noise import normal

NOISE, EPOCHS = 4.0, 4


def test_no_attack_on_labels_beats_the_guarantee_and_the_best_one_reaches_it() -> None:
    found = audit(NOISE, EPOCHS)
    assert found.allowed == pytest.approx(0.638, abs=0.001)  # Phi(mu / sqrt 2) with mu = sqrt(4) / 4
    assert found.holds
    # An audit that could not find anything would hold as well: this attack is as good as any can be.
    assert found.best + DEVIATIONS * found.deviation > found.allowed


def test_nor_does_one_on_rows() -> None:
    found = audit_rows(2 * NOISE, EPOCHS)  # two rows are twice as far apart as two labels
    assert found.allowed == pytest.approx(0.638, abs=0.001)
    assert found.holds
    assert found.best + DEVIATIONS * found.deviation > found.allowed


def dropped(key: int, shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def with_one_key(key: int, shape: tuple[int, ...]) -> Tensor:
    return normal(0, shape)


def too_small(key: int, shape: tuple[int, ...]) -> Tensor:
    return normal(key, shape) / 2


@pytest.mark.parametrize("fault", [dropped, with_one_key, too_small])
def test_planted_faults_are_found(fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit_noise, "normal", fault)
    found = audit(NOISE, EPOCHS)
    assert found.allowed == pytest.approx(0.638, abs=0.001)  # what is stated does not know of the fault
    assert not found.holds


@pytest.mark.parametrize("fault", [dropped, with_one_key, too_small])
def test_so_are_those_in_the_noise_of_rows(fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_protection, "normal", fault)
    assert not audit_rows(2 * NOISE, EPOCHS).holds
