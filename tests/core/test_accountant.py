"""The accountant: its epsilon is that of an independent package, and what it says is what it computes."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools import dp_oracle

from efvfl import Accountant
from efvfl.core.accountant import auc_within, delta_of, epsilon_of, mu_of
from efvfl.errors import ConfigError

ROWS = json.loads(dp_oracle.FILE.read_text(encoding="utf-8"))["rows"]


def gaussian(noise: float, delta: float = 1e-5, sensitivity: float = 1.0) -> Accountant:
    return Accountant("a label", "others", "noise", sensitivity, noise, delta=delta)


def test_epsilon_is_that_of_dp_accounting() -> None:
    assert len(ROWS) == len(dp_oracle.NOISES) * len(dp_oracle.VISITS) * len(dp_oracle.DELTAS)
    for noise, visits, delta, epsilon in ROWS:
        assert gaussian(noise, delta).epsilon(visits) == pytest.approx(epsilon, rel=1e-4)
        assert gaussian(noise * 3, delta, sensitivity=3.0).epsilon(visits) == pytest.approx(epsilon, rel=1e-4)


def test_the_recorded_values_are_those_of_the_package() -> None:
    pytest.importorskip("dp_accounting")
    for noise, visits, delta, epsilon in ROWS[::13]:
        assert dp_oracle.oracle(noise, visits, delta) == pytest.approx(epsilon, rel=1e-4)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(epsilon=st.floats(0.01, 50), delta=st.floats(1e-12, 1e-2), visits=st.integers(1, 10**6))
def test_noise_for_a_target_spends_the_target(epsilon: float, delta: float, visits: int) -> None:
    found = gaussian(0.0, delta).with_noise_for(epsilon, visits)
    assert found.epsilon(visits) == pytest.approx(epsilon, rel=1e-6)
    assert found.visits_within(epsilon) == visits
    assert delta_of(found.mu(visits), epsilon) == pytest.approx(delta, rel=1e-6)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(noise=st.floats(0.1, 100), epsilon=st.floats(0.05, 30))
def test_a_budget_allows_as_many_visits_as_it_pays_for_and_no_more(noise: float, epsilon: float) -> None:
    found = gaussian(noise)
    allowed = found.visits_within(epsilon)
    assert found.epsilon(allowed) <= epsilon * (1 + 1e-9)
    assert found.epsilon(allowed + 1) > epsilon


def test_delta_is_the_integral_it_stands_for() -> None:
    """delta(epsilon) is the mean of (1 - exp(epsilon - loss))+, where the loss is N(mu^2 / 2, mu^2)."""
    for mu, epsilon in ((0.3, 0.5), (1.0, 2.0), (2.5, 1.0)):
        steps = [mu * mu / 2 + mu * (-12 + 24 * (i + 0.5) / 40_000) for i in range(40_000)]
        density = [math.exp(-(((x - mu * mu / 2) / mu) ** 2) / 2) / (mu * math.sqrt(2 * math.pi)) for x in steps]
        width = 24 * mu / 40_000
        found = sum(-math.expm1(epsilon - x) * p * width for x, p in zip(steps, density, strict=True) if x > epsilon)
        assert delta_of(mu, epsilon) == pytest.approx(found, rel=1e-4)


def test_no_noise_and_no_visit() -> None:
    nothing = gaussian(0.0)
    assert not nothing.guarantees
    assert (nothing.epsilon(1), nothing.visits_within(5.0), nothing.mu(1)) == (math.inf, 0, math.inf)
    assert nothing.statement(7) == "No guarantee: a label, towards others (noise)."
    assert (gaussian(1.0).epsilon(0), gaussian(1.0).mu(0)) == (0.0, 0.0)
    assert epsilon_of(1e6, 1e-5) == math.inf
    assert delta_of(math.inf, 3.0) == 1.0
    assert auc_within(mu_of(1.0, 1e-5)) < 0.6


def test_labels_randomised_once_cost_the_same_whatever_follows() -> None:
    once = Accountant("the labels", "everybody else", "randomised once", once=2.0)
    assert [once.epsilon(visits) for visits in (1, 10**9)] == [2.0, 2.0]
    assert (once.visits_within(1.9), once.visits_within(2.0)) == (0, math.inf)
    assert once.spent(5)["delta"] == 0
    assert once.statement(5) == "This run spends epsilon = 2: the labels, towards everybody else (randomised once)."


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_delta_is_a_probability(delta: float) -> None:
    with pytest.raises(ConfigError, match="expected a number between 0 and 1"):
        gaussian(1.0, delta)
