"""Theorem 2's printed step size is too large in general: a compressor that overshoots makes EF-VFL diverge there.

K parties have two weights each and one row, h_k = w_k; f = z D z / 2, z the sum of all w_k and D = diag(1, 1e-3). All
parties start alike and stay alike, so each entry d of D has a state of two numbers, w and the error e = h - G of a
surrogate after it has absorbed a report: e <- -r (e + w' - w), r = sqrt(1 - alpha). The oracle is that 2 x 2 matrix.
"""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from efvfl import Agreement, Federation, Loss, Optimizer, Setup, Training, efvfl, federate
from efvfl.compress import Compressor, Identity
from efvfl.core.theory import Labels, Problem, stated_step, sufficient_step
from efvfl.wire.packet import FloatArray, Packet

ALPHA = 0.3
RATIO = math.sqrt(1 - ALPHA)  # of what is lost to what was to be sent
CURVATURE = torch.tensor([1.0, 1e-3], dtype=torch.float64)
STEPS = 340


class Overshoot(Identity):
    """C(v) = (1 + sqrt(1 - alpha)) v, which meets Definition 1 with equality."""

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        return super().encode(block * (1 + RATIO))

    def alpha(self, shape: tuple[int, ...]) -> float:
        return ALPHA


class Undershoot(Overshoot):
    """C(v) = (1 - sqrt(1 - alpha)) v: as far from v, on the side on which top-k and scaled QSGD are."""

    def encode(self, block: FloatArray, key: int = 0) -> Packet:
        return Identity.encode(self, block * (1 - RATIO))


QUADRATIC = Loss("z D z / 2", lambda z, y: (CURVATURE * z.square()).sum() / 2, "nothing", lambda z, y: 0.0)


def problem(parties: int, labels: Labels) -> Problem:
    """H = 1. The Hessian of f, and of Phi, is D for every pair of parties: L = K, mu = K / 1000."""
    return Problem(parties, float(parties), ALPHA, mu=parties * float(CURVATURE.min()), labels=labels)


def matrix(parties: int, labels: Labels, eta: float, curvature: float) -> Tensor:
    """What a step makes of (w, e) in one direction; with shared labels a party's own h is exact: K - 1 errors enter."""
    pull, errors = eta * curvature * parties, eta * curvature * (parties - (labels == "shared"))
    return torch.tensor([[1 - pull, errors], [RATIO * pull, -RATIO * (1 + errors)]], dtype=torch.float64)


def radius(parties: int, labels: Labels, eta: float) -> float:
    """The largest factor by which an error can grow in a step, in the long run."""
    found = [torch.linalg.eigvals(matrix(parties, labels, eta, float(d))).abs().max() for d in CURVATURE]
    return float(max(found))


def federation(compressor: Compressor, parties: int, labels: Labels, eta: float) -> Federation:
    """Start at z = (1, 1), where f = 0.5."""
    models = [nn.Linear(1, 2, bias=False).double() for _ in range(parties)]
    for model in models:
        nn.init.constant_(model.weight, 1 / parties)
    row = torch.ones(1, 1, dtype=torch.float64)
    return federate(
        [row] * parties,
        torch.zeros(1, 2, dtype=torch.float64),
        models,
        nn.Identity(),
        method=efvfl(compressor),
        agreement=Agreement(labels=labels),
        training=Training(loss=QUADRATIC, optimizer=Optimizer("SGD", {"lr": eta})),
        setup=Setup(combine="sum"),
    )


def values(compressor: Compressor, parties: int, labels: Labels, eta: float) -> list[float]:
    """f before every step."""
    run, found = federation(compressor, parties, labels, eta), []
    for _ in range(STEPS):
        z = torch.stack([model.weight.detach() for model in run.models]).sum(0)[:, 0]  # type: ignore[operator]
        found.append(float((CURVATURE * z.square()).sum() / 2))
        run.step()
    return found


CASES: list[tuple[int, Labels]] = [(4, "shared"), (2, "private")]


@pytest.mark.parametrize(("parties", "labels"), CASES)
def test_ef_vfl_diverges_at_the_printed_step_size(parties: int, labels: Labels) -> None:
    eta = stated_step(problem(parties, labels)).eta
    found = values(Overshoot(), parties, labels, eta)
    assert 0.5 <= found[0] < 0.501
    assert found[-1] > 1e12
    growth = (found[-1] / found[STEPS // 2]) ** (1 / (STEPS - 1 - STEPS // 2))
    assert growth == pytest.approx(radius(parties, labels, eta) ** 2, rel=1e-3)
    assert radius(parties, labels, eta) > 1.04


@pytest.mark.parametrize(("parties", "labels"), CASES)
def test_it_converges_at_the_sufficient_step_size(parties: int, labels: Labels) -> None:
    eta = sufficient_step(problem(parties, labels)).eta
    assert eta < stated_step(problem(parties, labels)).eta
    found = values(Overshoot(), parties, labels, eta)
    assert found[-1] < 1e-3 < found[0]  # what is left is the flat direction
    assert all(later <= earlier for earlier, later in pairwise(found[STEPS // 2 :]))
    assert radius(parties, labels, eta) < 1


@pytest.mark.parametrize(("parties", "labels"), CASES)
def test_a_compressor_that_falls_short_converges_at_the_printed_step_size(parties: int, labels: Labels) -> None:
    found = values(Undershoot(), parties, labels, stated_step(problem(parties, labels)).eta)
    assert found[-1] < 1e-3
