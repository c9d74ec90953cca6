"""What noise is worth: the epsilon that a mechanism has spent after so many visits, and the noise for a target.

A visit tells others a value with Gaussian noise. If the value of one visit can differ by at most `sensitivity` between
two data sets that are neighbours, and the noise has the standard deviation `noise`, then T visits are mu-GDP with
mu = sensitivity sqrt(T) / noise, also if later visits depend on what earlier ones told (Dong, Roth and Su, *Gaussian
Differential Privacy*). Its delta at an epsilon is closed-form (Balle and Wang, *Improving the Gaussian Mechanism*).
Nothing is gained from sampling: everybody knows the batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from efvfl.errors import ConfigError

LARGEST = 1e9  # an epsilon that is larger says nothing, and is infinite here


@dataclass(frozen=True)
class Accountant:
    """Accounts for one thing that is protected: whose it is, towards whom, by what, and what it costs.

    >>> labels = Accountant("the label of each training row", "all parties", "noise at every visit", 1.0, 8.0)
    >>> round(labels.epsilon(visits=20), 3)
    2.258
    >>> round(labels.with_noise_for(epsilon=1.0, visits=20).noise, 2)
    16.68
    >>> print(Accountant("a row of bank", "the server", "clipping alone").statement(20))
    No guarantee: a row of bank, towards the server (clipping alone).
    """

    protects: str  # what, and whose
    against: str  # towards whom
    mechanism: str
    sensitivity: float = 0.0  # how far the value of one visit can differ between neighbours, as an L2 norm
    noise: float = 0.0  # standard deviation in every entry, in the same unit; 0: nothing is guaranteed
    once: float = 0.0  # epsilon of a single release before the first visit, of which all else is post-processing
    delta: float = 1e-5  # at which epsilon is told; a single release needs none

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta: expected a number between 0 and 1, got {self.delta:g}: such as 1e-5.")

    @property
    def guarantees(self) -> bool:
        """Whether anything is."""
        return self.once > 0 or self.noise > 0

    def mu(self, visits: float) -> float:
        """Return mu of Gaussian differential privacy after so many visits; infinite where nothing is guaranteed."""
        if not visits or not self.sensitivity:
            return 0.0
        return self.sensitivity * math.sqrt(visits) / self.noise if self.noise else math.inf

    def epsilon(self, visits: float) -> float:
        """Return epsilon after so many visits, at delta; infinite where nothing is guaranteed."""
        if self.once or not self.guarantees:
            return self.once or math.inf
        return epsilon_of(self.mu(visits), self.delta)

    def visits_within(self, epsilon: float) -> float:
        """Return how many visits there may be until more than epsilon is spent; a whole number or infinity."""
        if self.once:
            return math.inf if self.once <= epsilon else 0
        if not self.noise:
            return 0
        most = (mu_of(epsilon, self.delta) * self.noise / self.sensitivity) ** 2
        found = math.floor(most * (1 + 1e-9))
        return found if self.epsilon(found) <= epsilon * (1 + 1e-9) else found - 1

    def with_noise_for(self, epsilon: float, visits: float) -> Accountant:
        """Return the same with the least noise that spends at most epsilon in so many visits."""
        noise = self.sensitivity * math.sqrt(visits) / mu_of(epsilon, self.delta)
        return replace(self, noise=noise)

    def spent(self, visits: float) -> dict[str, float | str]:
        """Return what a record says of it."""
        delta = 0.0 if self.once or not self.guarantees else self.delta
        return {"epsilon": self.epsilon(visits), "delta": delta, "visits": float(visits), "by": self.mechanism}

    def statement(self, visits: float, verb: str = "spends") -> str:
        """Return one sentence for people."""
        what = f"{self.protects}, towards {self.against} ({self.mechanism})"
        if not self.guarantees:
            return f"No guarantee: {what}."
        at = "" if self.once else f" at delta = {self.delta:g} after {visits:,.0f} visits"
        return f"This run {verb} epsilon = {self.epsilon(visits):.4g}{at}: {what}."


def delta_of(mu: float, epsilon: float) -> float:
    """Return the smallest delta at which mu-GDP is (epsilon, delta)-DP.

    >>> round(delta_of(1.0, 0.0), 4)  # the total variation distance of N(0, 1) and N(1, 1)
    0.3829
    """
    if mu == 0 or math.isinf(mu):
        return float(mu > 0)
    low, high = _log_cdf(-epsilon / mu + mu / 2), epsilon + _log_cdf(-epsilon / mu - mu / 2)
    return max(0.0, -math.exp(low) * math.expm1(min(0.0, high - low)))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon at which mu-GDP is (epsilon, delta)-DP; infinite beyond all use.

    >>> round(epsilon_of(1.0, 1e-5), 3)
    4.377
    """
    if math.isinf(mu) or delta_of(mu, LARGEST) > delta:
        return math.inf
    return 0.0 if delta_of(mu, 0.0) <= delta else _root(lambda epsilon: delta_of(mu, epsilon) > delta)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu at which mu-GDP is (epsilon, delta)-DP.

    >>> round(mu_of(4.377, 1e-5), 3)
    1.0
    """
    return _root(lambda mu: delta_of(mu, epsilon) <= delta)


def auc_within(mu: float) -> float:
    """Return the largest AUC of any attack that tells two neighbours apart, under mu-GDP: Phi(mu / sqrt 2).

    >>> auc_within(0.0), round(auc_within(1.0), 3)
    (0.5, 0.76)
    """
    return math.exp(_log_cdf(mu / math.sqrt(2)))


def _log_cdf(x: float) -> float:
    """Return the logarithm of the standard normal distribution function, far into its tails."""
    return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))


def _root(below: Callable[[float], bool]) -> float:
    """Return where a condition that holds at small numbers ceases to hold, by bisection to the last bit."""
    high = 1.0
    while below(high) and high < LARGEST:
        high *= 2
    low = 0.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if below(middle) else (low, middle)
    return high
