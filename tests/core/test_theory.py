"""The theory holds in running code: constants in closed form, float64, linear parties and a fusion without parameters.

The parties' outputs are added, so with blocks of columns X_1 ... X_K the error of row n is
r_n = sum_k X_k[n] x_k - y_n, and f(x) = 1/N sum_n phi(r_n) with |phi''| <= curvature. Then

- every |X_k|_2 is 1, so H = 1 (the proofs use no more than the spectral norm);
- the Hessian of Phi by (H_1, ..., H_K) is 1/N diag(phi'') (x) 1 1^T, and |1 1^T| = K: L_Phi = curvature K / N;
- the Hessian of f is 1/N X^T diag(phi'') X, and |X|^2 <= sum_k |X_k|^2 = K: L_f = curvature |X|^2 / N <= L_Phi = L;
- for phi = r^2 / 2, f is strongly convex, hence PL, with mu = sigma_min(X)^2 / N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from efvfl import Agreement, Federation, Loss, Method, Optimizer, Ramp, Setup, TopK, Training, cvfl, efvfl, federate
from efvfl.core import theory
from efvfl.core.theory import Labels, Problem, Step
from efvfl.errors import ConfigError

KEEP = TopK(0.2)
SLACK = 1 + 1e-9  # float64 may round a bound that is met with equality
STEPS = 560  # least squares at condition number 4: the gap falls below 1e-10


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def loss_of(phi: Callable[[Tensor], Tensor]) -> Loss:
    return Loss("mean of phi", lambda output, y: phi(output - y).mean(), "nothing", lambda output, y: 0.0)


SQUARES = loss_of(lambda r: r.square() / 2)
BOUNDED = loss_of(lambda r: r.square() / (1 + r.square()))  # phi'' = (2 - 6 r^2) / (1 + r^2)^3, from -1/2 to 2 (r = 0)


@dataclass(frozen=True)
class Table:
    """Columns of K parties, every block of spectral norm 1, and labels of shape (N, 1)."""

    blocks: list[Tensor]
    labels: Tensor

    @classmethod
    def random(cls, seed: int, columns: list[int], scale: float, error: float, samples: int = 40) -> Table:
        """Labels are those of a linear model of this scale, plus errors."""
        rng = torch.Generator().manual_seed(seed)
        blocks = [torch.randn(samples, d, generator=rng, dtype=torch.float64) for d in columns]
        blocks = [block / torch.linalg.matrix_norm(block, 2) for block in blocks]
        truth = scale * torch.randn(sum(columns), 1, generator=rng, dtype=torch.float64)
        errors = error * torch.randn(samples, 1, generator=rng, dtype=torch.float64)
        return cls(blocks, torch.cat(blocks, 1) @ truth + errors)

    @property
    def whole(self) -> Tensor:
        return torch.cat(self.blocks, 1)

    def problem(self, curvature: float = 1.0, labels: Labels = "shared") -> Problem:
        """The constants of this file's first lines; mu is that of least squares."""
        samples, parties = len(self.labels), len(self.blocks)
        singular = torch.linalg.svdvals(self.whole)
        smooth = curvature * parties / samples
        assert curvature * float(singular[0]) ** 2 / samples <= smooth
        alpha = KEEP.alpha((samples, 1))
        return Problem(parties, smooth, alpha, mu=float(singular[-1]) ** 2 / samples, labels=labels)

    def federation(self, loss: Loss, method: Method, eta: float, agreement: Agreement, **batches: Any) -> Federation:
        """Start at x^0 = (1, ..., 1)."""
        models = [nn.Linear(x.shape[1], 1, bias=False).double() for x in self.blocks]
        for model in models:
            nn.init.ones_(model.weight)
        return federate(
            self.blocks,
            self.labels,
            models,
            nn.Identity(),
            method=method,
            agreement=agreement,
            training=Training(loss=loss, optimizer=Optimizer("SGD", {"lr": eta}), **batches),
            setup=Setup(combine="sum"),
        )

    def represent(self, x: Tensor) -> Tensor:
        """H_k(x_k) of points of shape (points, d): shape (points, K, N)."""
        parts = x.split([block.shape[1] for block in self.blocks], dim=1)
        return torch.stack([part @ block.T for part, block in zip(parts, self.blocks, strict=True)], 1)

    def errors(self, x: Tensor) -> Tensor:
        return x @ self.whole.T - self.labels[:, 0]

    def gap(self, x: Tensor) -> Tensor:
        """f - f* of least squares, as |X (x - x*)|^2 / 2N: the same number without cancellation."""
        best = torch.linalg.lstsq(self.whole, self.labels).solution[:, 0]
        gap: Tensor = ((x - best) @ self.whole.T).square().sum(1) / (2 * len(self.labels))
        return gap

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient of least squares."""
        return self.errors(x) @ self.whole / len(self.labels)

    def row_updates(self, x: Tensor, g: Tensor, labels: Labels) -> Tensor:
        """Every row's share of the update vector of least squares, equation (3) or (5): shape (points, N, d)."""
        total = g.sum(1, keepdim=True) - self.labels[:, 0]
        seen = total - g + self.represent(x) if labels == "shared" else total.expand_as(g)
        return torch.cat([seen[:, k, :, None] * block for k, block in enumerate(self.blocks)], 2)


@dataclass(frozen=True)
class Trace:
    """Where a run was: x^t of shape (T + 1, d) and G^t of shape (T + 1, K, N), for t = 0 ... T."""

    x: Tensor
    g: Tensor
    distortion: Tensor  # D^t, shape (T + 1,)
    updates: Tensor  # g^t, shape (T, d)


def points(federation: Federation, steps: int, after: Callable[[int], None] = lambda t: None) -> Tensor:
    """x^0 ... x^T; `after` is called at each t > 0, where the parties hold x^t and their memories G^t."""

    def here() -> Tensor:
        return torch.cat([model.weight.detach().reshape(-1) for model in federation.models])  # type: ignore[operator]

    x = [here()]
    for t in range(1, steps + 1):
        federation.step()
        x.append(here())
        after(t)
    return torch.stack(x)


def follow(table: Table, federation: Federation, steps: int, eta: float, exact: bool = False) -> Trace:
    """Run, and check on the way that the federation's own D agrees with the definition."""
    measured = {0: federation.distortion()}
    memories: list[Tensor] = []

    def remember(t: int) -> None:
        memories.append(torch.stack([party.up.memory.g[:, 0] for party in federation.parties.values()]))
        if t % 100 == 1:
            measured[t] = federation.distortion()

    x = points(federation, steps, remember)
    h = table.represent(x)
    first = h[0] if exact else torch.stack([largest(block) for block in h[0]])  # G^0 = C(H(x^0)), sent with step 0
    g = torch.cat([first[None], torch.stack(memories)])
    distortion = (g - h).square().sum((1, 2))
    for t, value in measured.items():
        assert value == pytest.approx(float(distortion[t]), rel=1e-9, abs=1e-25)
    return Trace(x, g, distortion, (x[:-1] - x[1:]) / eta)


def largest(v: Tensor) -> Tensor:
    """Top-k of 20 % by sorting."""
    places = v.abs().argsort(descending=True)[: len(v) // 5]
    return torch.zeros_like(v).index_copy(0, places, v[places])


def squares(v: Tensor) -> Tensor:
    return v.square().sum(1)


def powers(base: float, count: int) -> Tensor:
    return torch.tensor(base, dtype=torch.float64) ** torch.arange(count, dtype=torch.float64)


# Theorem 2 and the lemmas: least squares, full batch, top-k 20 %.

REGRESSION = Table.random(seed=1, columns=[3, 3], scale=1.0, error=1.0)  # L / mu is 4.2


@pytest.fixture(scope="module", params=["shared", "private"])
def labels(request: pytest.FixtureRequest) -> Labels:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def run(labels: Labels) -> Trace:
    eta = theory.sufficient_step(REGRESSION.problem(labels=labels)).eta
    steps = STEPS if labels == "shared" else 660  # K + 1 makes the step smaller
    federation = REGRESSION.federation(SQUARES, efvfl(KEEP), eta, Agreement(labels=labels))
    return follow(REGRESSION, federation, steps, eta)


@pytest.mark.slow
def test_lemma1_bounds_the_surrogate_offset_at_every_step(labels: Labels, run: Trace) -> None:
    problem = REGRESSION.problem(labels=labels)
    by_hand = REGRESSION.row_updates(run.x, run.g, labels).mean(1)[:-1]
    assert torch.allclose(run.updates, by_hand, rtol=1e-6, atol=1e-14)
    offset = squares(run.updates - REGRESSION.gradient(run.x)[:-1])
    share = offset / (theory.lemma1_bound(problem, 1.0) * run.distortion[:-1])
    assert share.max() <= 1
    assert share.max() > 0.01  # the surrogates do differ from the representations


@pytest.mark.slow
def test_lemma2_bounds_the_distortion_at_every_step(labels: Labels, run: Trace) -> None:
    problem, norms = REGRESSION.problem(labels=labels), squares(run.updates)
    step = theory.sufficient_step(problem)
    now, then = run.distortion[:-1], run.distortion[1:]
    for t in range(len(norms)):
        best = step.eta * math.sqrt(norms[t] / now[t])  # the eps for which the lemma says most
        for eps in (best, step.eps):
            assert then[t] <= theory.lemma2_bound(problem, Step(step.eta, eps), float(now[t]), float(norms[t]))
    closest = then / ((1 - problem.alpha) * (now.sqrt() + step.eta * norms.sqrt()).square())
    assert closest.max() > 0.5  # less than twice as small as the lemma says


@pytest.mark.slow
def test_the_gap_falls_linearly_at_the_sufficient_step_size(labels: Labels, run: Trace) -> None:
    problem, gap = REGRESSION.problem(labels=labels), REGRESSION.gap(run.x)
    assert 4 < problem.smooth / problem.mu < 5
    step = theory.sufficient_step(problem)
    assert gap[-1] < 1e-10

    values = gap + theory.lyapunov_constant(problem, step) * run.distortion
    assert float(values[7]) == pytest.approx(theory.lyapunov(problem, step, float(gap[7]), float(run.distortion[7])))
    for t in range(0, len(values), 100):
        assert values[t] <= theory.theorem2_bound(problem, step, t, float(values[0])) * SLACK
    rate = 1 - step.eta * problem.mu
    assert (values <= powers(rate, len(values)) * values[0] * SLACK).all()

    logs = gap.log()[60:]  # a line, at least as steep as the theorem says
    times = torch.arange(len(logs), dtype=torch.float64)
    line = torch.linalg.lstsq(torch.stack([times, torch.ones_like(times)], 1), logs[:, None]).solution[:, 0]
    assert line[0] < math.log(rate)
    assert (logs - times * line[0] - line[1]).abs().max() < 0.05 * (logs[0] - logs[-1])


def direct_gaps(compressor: TopK, steps: int = STEPS) -> Tensor:
    eta = theory.sufficient_step(REGRESSION.problem()).eta
    federation = REGRESSION.federation(SQUARES, cvfl(compressor), eta, Agreement(labels="shared"))
    return REGRESSION.gap(points(federation, steps))


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["shared"], indirect=True)
def test_direct_compression_stalls(labels: Labels, run: Trace) -> None:
    direct, feedback = direct_gaps(KEEP, STEPS // 2), REGRESSION.gap(run.x)
    assert float(direct[0]) == pytest.approx(float(feedback[0]))
    assert direct.min() > 1e4 * feedback[-1]
    assert direct[-1] > 0.9 * direct[STEPS // 4]  # it stays where it is


@pytest.mark.slow
def test_direct_compression_converges_if_it_vanishes() -> None:
    gap = direct_gaps(TopK(Ramp(0.1, 1.0, 200)), 600)
    assert gap[-1] < 1e-10 < 1e-6 < gap[200]


# Theorem 1: a nonconvex loss, full batch, top-k 20 %. The labels fit a model exactly, so f* = 0.

NONCONVEX = Table.random(seed=0, columns=[3, 3, 3], scale=3.0, error=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["compressed", "exact"])
def test_theorem1_bounds_the_mean_gradient_of_a_nonconvex_run(start: Any) -> None:
    problem = NONCONVEX.problem(curvature=2.0)
    eta = theory.theorem1_step(problem)
    federation = NONCONVEX.federation(BOUNDED, efvfl(KEEP, start=start), eta, Agreement(labels="shared"))
    trace = follow(NONCONVEX, federation, 800, eta, exact=start == "exact")
    assert (trace.distortion[0] == 0) == (start == "exact")
    assert trace.distortion[1] > 0

    r = NONCONVEX.errors(trace.x)
    assert ((1 - 3 * r.square()) < 0).any(1)[:600].all()  # somewhere phi'' < 0
    value = (r.square() / (1 + r.square())).mean(1)
    gradients = squares((2 * r / (1 + r.square()).square()) @ NONCONVEX.whole / len(NONCONVEX.labels))
    sums = gradients[:-1].cumsum(0)  # over t < T
    bounds = [
        theory.theorem1_bound(problem, eta, steps, float(value[0]), float(trace.distortion[0]))
        for steps in range(1, len(sums) + 1)
    ]
    share = sums / torch.arange(1, len(sums) + 1) / torch.tensor(bounds, dtype=torch.float64)
    assert share.max() <= 1
    assert share.max() > (0.4 if start == "exact" else 0.2)  # and not by far


# Theorem 2's neighbourhood: mini-batches, reports over all rows.

NOISY = Table.random(seed=0, columns=[2, 2], scale=30.0, error=1.0)
BATCH = 20


@pytest.mark.slow
def test_a_mini_batch_run_ends_in_theorem2s_neighbourhood() -> None:
    problem = NOISY.problem()
    step = theory.sufficient_step(problem)
    samples, seeds, steps = len(NOISY.labels), range(2), 600
    gaps, distortions, variances = [], [], []
    for seed in seeds:
        federation = NOISY.federation(
            SQUARES,
            efvfl(KEEP),
            step.eta,
            Agreement(labels="shared", reports="all"),
            batch_size=BATCH,
            batch_order="independent",
            seed=seed,
        )
        trace = follow(NOISY, federation, steps, step.eta)
        shares = NOISY.row_updates(trace.x, trace.g, "shared")[:-1]
        chosen = torch.stack([shares[t, federation.server.batches.rows(t)].mean(0) for t in range(steps)])
        assert torch.allclose(trace.updates, chosen, rtol=1e-6, atol=1e-12)
        # B of N rows without replacement: the mean's variance is (N - B) / (N - 1) times that of one row over B.
        spread = (shares - shares.mean(1, keepdim=True)).square().sum(2).mean(1)
        variances.append(spread * (samples - BATCH) / (samples - 1))
        noise = (trace.updates - shares.mean(1))[-400:]
        expected = float(variances[-1][-400:].mean()) / BATCH
        assert float(squares(noise).mean()) == pytest.approx(expected, rel=0.2)
        assert noise.mean(0).square().sum() < 0.02 * expected  # unbiased (Assumption 3)
        gaps.append(NOISY.gap(trace.x))
        distortions.append(trace.distortion)
    sigma2, gap, distortion = torch.stack(variances), torch.stack(gaps).mean(0), torch.stack(distortions).mean(0)

    whole = replace(problem, variance=float(sigma2.max()), batch=BATCH)
    last = replace(whole, variance=float(sigma2[:, -200:].max()))  # the theorem may start anywhere
    assert gap[0] > 4 * theory.neighbourhood(whole)  # it starts outside
    assert gap[-200:].mean() < theory.neighbourhood(last) < theory.neighbourhood(whole)
    assert gap[-200:].min() > 1e-6  # batches do make noise
    values = gap + theory.lyapunov_constant(whole, step) * distortion
    rate = 1 - step.eta * problem.mu
    assert (values <= powers(rate, steps + 1) * values[0] + theory.neighbourhood(whole)).all()


# The formulas.

PROBLEM = Problem(parties=3, smooth=5.0, alpha=0.75, derivative=2.0, mu=1.0, variance=6.0, batch=2)


def test_constants_by_hand() -> None:
    assert theory.rho1(PROBLEM) == 3 * 16 * (1.5 / 0.75 - 1) ** 2
    assert theory.rho2(PROBLEM) == 3 * 4 * 25 / 0.5
    eta = theory.theorem1_step(PROBLEM)
    assert eta == pytest.approx(1 / (5 * math.sqrt(48) + 5))
    noise = (1 + eta * 5 * 48) * eta * 5 * 6 / 2
    assert theory.theorem1_bound(PROBLEM, eta, 10, 7.0, 11.0) == pytest.approx(14 / (10 * eta) + noise + 600 * 11 / 10)
    assert theory.lemma1_bound(PROBLEM, 7.0) == 3 * 4 * 25 * 7
    # (1 - alpha)(1 + eps) = 0.375 and (1 - alpha)(1 + 1/eps) = 0.75
    assert theory.lemma2_bound(PROBLEM, Step(0.1, 0.5), 8.0, 2.0) == pytest.approx(
        0.375 * 8 + 0.75 * 0.01 * 4 * (2 + 3)
    )
    assert theory.neighbourhood(PROBLEM) == 6 / (2 * 2 * 1)
    low, high = theory.lyapunov_interval(PROBLEM, Step(0.01, 0.5))
    assert low == pytest.approx(0.01 * 3 * 4 * 25 / (2 * (0.625 - 0.01)))
    assert high == pytest.approx((1 - 0.05) / (2 * 0.01 * 0.75 * 4))
    assert theory.lyapunov(PROBLEM, Step(0.01, 0.5), 2.0, 3.0) == 2 + low * 3
    assert theory.theorem2_bound(PROBLEM, Step(0.01, 0.5), 4, 9.0) == pytest.approx(0.99**4 * 9 + 1.5)


def test_without_compression_this_is_gradient_descent() -> None:
    problem = replace(PROBLEM, alpha=1.0, variance=0.0)
    assert theory.rho1(problem) == 0
    eta = 1 / problem.smooth
    assert theory.theorem1_step(problem) == theory.sufficient_step(problem).eta == eta
    assert theory.stated_step(problem).eta == pytest.approx(eta)
    assert theory.theorem1_bound(problem, eta, 10, 7.0) == pytest.approx(2 * 7 / (10 * eta))
    assert theory.lemma2_bound(problem, theory.stated_step(problem), 1.0, 1.0) == 0
    assert theory.theorem2_bound(problem, theory.sufficient_step(problem), 1, 10.0) == pytest.approx(10 * (1 - 1 / 5))


def test_private_labels_count_one_block_more() -> None:
    private, more = replace(PROBLEM, labels="private"), replace(PROBLEM, parties=4)
    step = Step(0.005, 0.4)
    for formula in (
        theory.rho1,
        theory.rho2,
        theory.theorem1_step,
        theory.sufficient_step,
        lambda problem: theory.lemma1_bound(problem, 2.0),
        lambda problem: theory.theorem1_bound(problem, 0.001, 9, 2.0, 3.0),
        lambda problem: theory.lyapunov_interval(problem, step),
    ):
        assert formula(private) == formula(more) != formula(PROBLEM)


def condition(problem: Problem, eta: float, eps: float) -> float:
    """What the proof of Theorem 2 needs, multiplied out: at most 0."""
    theta, beta = 1 - (1 - problem.alpha) * (1 + eps), (1 - problem.alpha) * (1 + 1 / eps)
    u, ratio = eta * problem.smooth, problem.mu / problem.smooth
    return u * u * (beta * problem.parties * problem.derivative**4 - ratio) + u * (theta + ratio) - theta


@pytest.mark.parametrize("alpha", [0.001, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize(("parties", "derivative"), [(1, 1.0), (4, 1.0), (2, 3.0)])
@pytest.mark.parametrize("mu", [0.0, 0.1, 2.0])
def test_no_eps_allows_more_than_the_sufficient_step(alpha: float, parties: int, derivative: float, mu: float) -> None:
    problem = Problem(parties, 2.0, alpha, derivative, mu)
    step = theory.sufficient_step(problem)
    assert 0 < step.eps < alpha / (1 - alpha)
    assert 0 < step.eta < 1 / problem.smooth
    assert step.eta * mu < 1 - (1 - alpha) * (1 + step.eps)
    assert condition(problem, step.eta, step.eps) == pytest.approx(0, abs=1e-12)
    low, high = theory.lyapunov_interval(problem, step)
    assert low == pytest.approx(high)
    every_eps = [alpha / (1 - alpha) * i / 1000 for i in range(1, 1000)]
    assert all(condition(problem, step.eta * 1.0001, eps) > 0 for eps in every_eps)
    if mu == 0:  # Theorem 1's condition, of which it takes a simpler root
        u = step.eta * problem.smooth
        assert theory.rho1(problem) * u * u + u == pytest.approx(1)
        assert theory.theorem1_step(problem) < step.eta


def test_steps_grow_with_alpha_and_shrink_with_parties() -> None:
    for size in (theory.theorem1_step, lambda p: theory.sufficient_step(p).eta, lambda p: theory.stated_step(p).eta):
        steps = [size(replace(PROBLEM, alpha=i / 50)) for i in range(1, 51)]
        assert all(a < b for a, b in pairwise(steps))
    for size in (theory.theorem1_step, lambda p: theory.sufficient_step(p).eta):
        steps = [size(replace(PROBLEM, parties=k)) for k in range(1, 20)]
        assert all(a > b for a, b in pairwise(steps))


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("parties", [1, 2, 10])
def test_the_stated_step_is_too_large_for_the_proof(alpha: float, parties: int) -> None:
    problem = Problem(parties, 1.0, alpha, mu=1 / 16)
    stated, sufficient = theory.stated_step(problem), theory.sufficient_step(problem)
    assert stated.eta**2 * (1 - 1 / 16) + stated.eta / 16 == pytest.approx(alpha**2)
    assert stated.eta > sufficient.eta
    for i in range(1, 1000):
        low, high = theory.lyapunov_interval(problem, Step(stated.eta, alpha / (1 - alpha) * i / 1000))
        assert low > high
    with pytest.raises(ConfigError, match="sufficient_step"):
        theory.lyapunov_constant(problem, stated)
    with pytest.raises(ConfigError, match="sufficient_step"):
        theory.theorem2_bound(problem, stated, 10, 1.0)


def test_the_stated_step_is_the_smaller_one_at_condition_number_one() -> None:
    problem = Problem(1, 1.0, 0.1, mu=1.0)
    assert theory.stated_step(problem).eta == pytest.approx(0.01)
    assert theory.sufficient_step(problem).eta > 0.03


def test_table1_by_hand() -> None:
    # k = 6 of N E = 8; rho1 = K, so eta is 1 / (4 (3 + 1)) shared, 1 / (4 (sqrt(10) + 1)) private, 1/4 without.
    problem = Problem(parties=9, smooth=4.0, alpha=0.75)
    rows = {row.method: row for row in theory.table1(problem, samples=4, width=2, gap=3.0, error=0.5)}
    private = math.ceil(2 * 3 * 4 * (math.sqrt(10) + 1) / 0.5)
    assert {name: (row.up, row.down, row.steps) for name, row in rows.items()} == {
        "svfl": (72, 72, 48),
        "cvfl": (54, 60, None),
        "efvfl": (54, 60, 192),
        "efvfl, private labels, sparse cotangents": (54, 54, private),
        "efvfl, private labels, exact cotangents": (54, 72, private),
    }
    assert private == 200
    assert (rows["efvfl"].total_up, rows["efvfl"].total_down) == (54 * 192, 60 * 192)
    assert rows["efvfl, private labels, exact cotangents"].total_down == 72 * 200
    assert (rows["cvfl"].total_up, rows["cvfl"].total_down) == (None, None)
    assert "O(1/delta^2)" in rows["cvfl"].order
    assert theory.table1(replace(problem, labels="private"), 4, 2, 3.0, 0.5) == tuple(rows.values())
    steps = theory.theorem1_steps(problem, 3.0, 0.5)
    bounds = [theory.theorem1_bound(problem, theory.theorem1_step(problem), t, 3.0) for t in (steps - 1, steps)]
    assert bounds[1] <= 0.5 < bounds[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"parties": 0},
        {"batch": 0},
        {"alpha": 0.0},
        {"alpha": 1.5},
        {"smooth": 0.0},
        {"derivative": -1.0},
        {"variance": -1.0},
        {"variance": math.nan},
        {"mu": 6.0},
        {"labels": "hidden"},
    ],
)
def test_impossible_constants_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=str(next(iter(wrong.values())))):
        replace(PROBLEM, **wrong)


def test_bounds_that_do_not_hold_are_refused() -> None:
    with pytest.raises(ConfigError, match="theorem1_step"):
        theory.theorem1_bound(PROBLEM, 2 * theory.theorem1_step(PROBLEM), 10, 1.0)
    with pytest.raises(ConfigError, match="positive PL constant"):
        theory.neighbourhood(replace(PROBLEM, mu=0.0))
