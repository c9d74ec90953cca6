"""The paper's theory as numbers: step sizes, bounds and communication totals of a problem with known constants.

The symbols are the paper's: K parties, L-smooth, representations with a derivative of at most H, a compressor that
contracts by alpha, PL constant mu, and a step size eta. D is the distortion, the sum over k of |G_k - H_k(x_k)|^2.
With private labels K becomes K + 1 in every constant (Appendix A), and block 0 has no distortion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from efvfl.errors import ConfigError

Labels = Literal["private", "shared"]


@dataclass(frozen=True)
class Problem:
    """The constants of Assumptions 1 to 5 and of Definition 1."""

    parties: int  # K
    smooth: float  # L, the larger of f's and Phi's
    alpha: float  # E|C(v) - v|^2 <= (1 - alpha) |v|^2; 1: no compression
    derivative: float = 1.0  # H, of every H_k; the proofs need no more than its spectral norm
    mu: float = 0.0  # |grad f|^2 >= 2 mu (f - f*); 0: not known to hold
    variance: float = 0.0  # sigma^2: a batch's update vector is off by at most sigma^2 / B in the mean square
    batch: int = 1  # B
    labels: Labels = "shared"

    def __post_init__(self) -> None:
        """Refuse constants that no problem has."""
        if self.parties < 1 or self.batch < 1:
            raise ConfigError(
                f"expected at least 1 party and batches of at least 1, got {self.parties} and {self.batch}."
            )
        if not 0 < self.alpha <= 1:
            raise ConfigError(f"expected 0 < alpha <= 1, got {self.alpha}.")
        if not (self.smooth > 0 and self.derivative > 0 and self.variance >= 0):
            raise ConfigError(
                "expected positive smooth and derivative, and a variance that is not negative, got "
                f"{self.smooth}, {self.derivative} and {self.variance}."
            )
        if not 0 <= self.mu <= self.smooth:
            raise ConfigError(f"expected mu of at most smooth = {self.smooth}, as every PL constant is, got {self.mu}.")
        if self.labels not in ("shared", "private"):
            raise ConfigError(f"labels: expected 'shared' or 'private', got {self.labels!r}.")

    @property
    def count(self) -> int:
        """How often a block's distortion enters Lemma 1: K with shared labels, K + 1 with private ones."""
        return self.parties + (self.labels == "private")

    @property
    def noise(self) -> float:
        """sigma^2 / B."""
        return self.variance / self.batch


@dataclass(frozen=True)
class Step:
    """A step size of Theorem 2, and the eps of Young's inequality that goes with it."""

    eta: float
    eps: float


def lemma1_bound(problem: Problem, distortion: float) -> float:
    """Return the bound on the surrogate offset, |g - grad f|^2 <= K H^2 L^2 D (Lemma 1)."""
    return problem.count * (problem.derivative * problem.smooth) ** 2 * distortion


def lemma2_bound(problem: Problem, step: Step, distortion: float, update: float) -> float:
    """Return the bound on the next distortion, given this one and `update` = |g|^2 (Lemma 2; any eps > 0).

    D' <= (1 - alpha) (1 + eps) D + (1 - alpha) (1 + 1/eps) eta^2 H^2 (|g|^2 + sigma^2 / B).
    """
    theta, beta = _theta_beta(problem, step.eps)
    return (1 - theta) * distortion + beta * (step.eta * problem.derivative) ** 2 * (update + problem.noise)


def _theta_beta(problem: Problem, eps: float) -> tuple[float, float]:
    """Return theta = 1 - (1 - alpha)(1 + eps) and beta = (1 - alpha)(1 + 1/eps)."""
    nu = 1 - problem.alpha
    return 1 - nu * (1 + eps), nu * (1 + 1 / eps) if nu else 0.0


def rho1(problem: Problem) -> float:
    """K H^4 ((1 + sqrt(1 - alpha)) / alpha - 1)^2 (Theorem 1)."""
    root = math.sqrt(1 - problem.alpha)
    return problem.count * problem.derivative**4 * ((1 + root) / problem.alpha - 1) ** 2


def rho2(problem: Problem) -> float:
    """K H^2 L^2 / (1 - sqrt(1 - alpha)) (Theorem 1)."""
    return problem.count * (problem.derivative * problem.smooth) ** 2 / (1 - math.sqrt(1 - problem.alpha))


def theorem1_step(problem: Problem) -> float:
    """Return the largest step size of Theorem 1, 1 / (sqrt(rho1) L + L); gradient descent's 1 / L for alpha = 1."""
    return 1 / (math.sqrt(rho1(problem)) * problem.smooth + problem.smooth)


def theorem1_bound(problem: Problem, eta: float, steps: int, gap: float, distortion: float = 0.0) -> float:
    """Return the bound on the mean of |grad f(x^t)|^2 over t < `steps` (Theorem 1).

    2 gap / (eta T) + (1 + eta L rho1) eta L sigma^2 / B + rho2 D0 / T, with gap = f(x^0) - f* and D0 = `distortion`
    after the first report: 0 if that one is exact.
    """
    if not 0 < eta <= theorem1_step(problem) * (1 + 1e-12):
        raise ConfigError(f"expected eta of at most {theorem1_step(problem)} (theorem1_step), got {eta}.")
    length = eta * problem.smooth
    start = 2 * gap / eta + rho2(problem) * distortion
    return start / steps + (1 + length * rho1(problem)) * length * problem.noise


def stated_step(problem: Problem) -> Step:
    """Return Theorem 2's step size as printed: the largest eta with eta^2 L^2 (1 - mu/L) + eta mu <= alpha^2.

    **It is not enough for the theorem**, and with some compressors EF-VFL diverges at it (docs/theory.md); use
    `sufficient_step`. The proof needs a c between the two ends of W'_eps (see `lyapunov_interval`), that is

        eta^2 L^2 beta K H^4 <= (1 - eta L) (theta - eta mu),  or, multiplied out,
        eta^2 L^2 (beta K H^4 - mu/L) + eta L (theta + mu/L) <= theta.                                      (*)

    There it puts 1 in the place of beta K H^4 >= 1 and leaves out eta L theta >= 0. Both make the left side smaller:
    the result, eta^2 L^2 (1 - mu/L) + eta mu <= theta, follows from (*), but (*) does not follow from it. It is
    necessary (for that eps), not sufficient. In the end theta becomes alpha^2 <= theta. For mu << L and small alpha
    what is printed allows about alpha / L, and (*) only alpha / (2 sqrt(K) H^2 L). (That last replacement is on the
    safe side, and for mu near L it may outweigh the rest: then the printed step is the smaller one.)
    """
    squared, mu = problem.alpha**2, problem.mu
    bend = problem.smooth * (problem.smooth - mu)
    eps = problem.alpha if problem.alpha <= 0.5 else 1 - problem.alpha
    return Step(2 * squared / (mu + math.sqrt(mu * mu + 4 * bend * squared)), eps)


def sufficient_step(problem: Problem) -> Step:
    """Return the largest step size that Theorem 2's proof really covers, and its eps in (0, alpha / (1 - alpha)).

    With nu = 1 - alpha and u = eta L, the condition (*) of `stated_step` reads

        nu (u^2 K H^4 / eps + (1 - u) eps) + nu (u^2 K H^4 + 1 - u) <= (1 - u) (1 - eta mu).

    The left side is smallest at eps = u sqrt(K) H^2 / sqrt(1 - u), where it is nu (1 - u) (1 + eps)^2. So the best eps
    is known, and what remains is nu (1 + eps)^2 <= 1 - eta mu. Its left side grows with eta and its right side falls:
    halving the interval finds the one crossing. There theta - eta mu = (1 - eta mu) eps / (1 + eps) is positive, hence
    eta < theta / mu, and u < 1. Without compression every eps will do, and eta is gradient descent's 1 / L.
    """
    if problem.alpha == 1:
        return Step(1 / problem.smooth, 1.0)
    strength = math.sqrt(problem.count) * problem.derivative**2
    low, high = 0.0, 1.0
    while low < (u := (low + high) / 2) < high:
        holds = (1 - problem.alpha) * (1 + u * strength / math.sqrt(1 - u)) ** 2 <= 1 - u * problem.mu / problem.smooth
        low, high = (u, high) if holds else (low, u)
    return Step(low / problem.smooth, low * strength / math.sqrt(1 - low))


def lyapunov_interval(problem: Problem, step: Step) -> tuple[float, float]:
    """Return the ends of W'_eps, where c must lie (proof of Theorem 2); low > high if this step size is too large.

    eta K H^2 L^2 / (2 (theta - eta mu)) <= c <= (1 - eta L) / (2 eta beta H^2).
    """
    theta, beta = _theta_beta(problem, step.eps)
    room = theta - step.eta * problem.mu
    push = step.eta * problem.count * (problem.derivative * problem.smooth) ** 2
    slack, pull = 1 - step.eta * problem.smooth, step.eta * beta * problem.derivative**2
    return push / (2 * room) if room > 0 else math.inf, slack / (2 * pull) if pull else math.inf


def lyapunov_constant(problem: Problem, step: Step) -> float:
    """Return c, the lower end of W'_eps, which makes Theorem 2's bound smallest."""
    low, high = lyapunov_interval(problem, step)
    if not low <= high * (1 + 1e-9) or math.isinf(low):
        raise ConfigError(f"no c lies between {low} and {high}: {step} is too large. Use sufficient_step.")
    return low


def lyapunov(problem: Problem, step: Step, gap: float, distortion: float) -> float:
    """Return V = f - f* + c D, of `gap` = f - f*."""
    return gap + lyapunov_constant(problem, step) * distortion


def neighbourhood(problem: Problem) -> float:
    """Return sigma^2 / (2 B mu), what Theorem 2 leaves of the gap in the long run."""
    if problem.mu == 0:
        raise ConfigError("expected mu > 0, got 0: Theorem 2 needs a positive PL constant.")
    return problem.noise / (2 * problem.mu)


def theorem2_bound(problem: Problem, step: Step, steps: int, start: float) -> float:
    """Return the bound on V after so many steps from V_0 = `start`: (1 - eta mu)^T V_0 + sigma^2 / (2 B mu)."""
    lyapunov_constant(problem, step)  # without a c there is no bound
    return (1 - step.eta * problem.mu) ** steps * start + neighbourhood(problem)


@dataclass(frozen=True)
class Cost:
    """A column of Table 1, in values sent (not bytes: top-k's places are not counted)."""

    method: str
    up: int  # in a step, by all parties
    down: int  # in a step, to all parties; a broadcast counts once
    steps: int | None  # to reach the error; None: only the order is known
    order: str = ""  # what the paper says where it gives no constants

    @property
    def total_up(self) -> int | None:
        """Values sent up until the error is reached."""
        return None if self.steps is None else self.up * self.steps

    @property
    def total_down(self) -> int | None:
        """Values sent down until the error is reached."""
        return None if self.steps is None else self.down * self.steps


def theorem1_steps(problem: Problem, gap: float, error: float) -> int:
    """Return T = ceil(2 gap / (eta error)): full batch, exact start and Theorem 1's largest step size."""
    return math.ceil(2 * gap / (theorem1_step(problem) * error))


def table1(problem: Problem, samples: int, width: int, gap: float, error: float) -> tuple[Cost, ...]:
    """Return what every method sends until the mean of |grad f|^2 is at most `error` (Table 1; top-k, full batch).

    Top-k keeps k = alpha N E of the N E values of a party's block (`samples` times `width`). Both label modes are in
    the table, whatever the problem's own. The downlink with private labels comes twice: the paper counts k K, for
    which the cotangents would have to be k-sparse; exact ones, which Algorithm 2 sends, are N E K values. As in the
    paper, the (N E - k) K values more that an exact first report takes are not counted.
    """
    parties, block = problem.parties, samples * width
    kept = max(1, round(problem.alpha * block))
    exact = theorem1_steps(replace(problem, alpha=1.0), gap, error)
    shared = theorem1_steps(replace(problem, labels="shared"), gap, error)
    private = theorem1_steps(replace(problem, labels="private"), gap, error)
    order = "min(k O(1/sqrt(delta)), N E) O(1/delta^2), times K up and K + 1 down"
    return (
        Cost("svfl", block * parties, block * parties, exact),
        Cost("cvfl", kept * parties, kept * (parties + 1), None, order),
        Cost("efvfl", kept * parties, kept * (parties + 1), shared),
        Cost("efvfl, private labels, sparse cotangents", kept * parties, kept * parties, private),
        Cost("efvfl, private labels, exact cotangents", kept * parties, block * parties, private),
    )
