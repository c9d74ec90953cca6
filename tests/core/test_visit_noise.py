"""Noise at every visit of a label: where it enters, how large it is, how it is counted, and that nothing repeats it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import classes, columns, everything, head, parameters, problem, same
from torch import Tensor, nn

from efvfl import (
    QSGD,
    Agreement,
    CachedSteps,
    Federation,
    Loss,
    Optimizer,
    PrivateLabels,
    Protection,
    Record,
    TopK,
    VisitNoise,
    efvfl,
)
from efvfl.config.run_file import RunConfig, load
from efvfl.core import label_account
from efvfl.core.accountant import epsilon_of
from efvfl.core.losses import LOSSES, slope_bound, weighted
from efvfl.core.noise import digest_of, normal
from efvfl.core.visit_noise import most_visits
from efvfl.data import digits
from efvfl.errors import CheckpointError, ConfigError, LimitError
from efvfl.runs import spent_file
from efvfl.runs.build import make_federation, make_loss
from efvfl.runs.report_tables import privacy
from efvfl.util import checkpoint
from efvfl.util.rng import derive

NOISY = Protection(visits=VisitNoise(noise=3.0))
CACHED = Agreement(PrivateLabels(), cached=CachedSteps(steps=2, batches=3))
BINARY: dict[str, Any] = {"loss": "binary_cross_entropy", "labels": (classes(columns()) > 0).double()}


def one_output() -> nn.Module:
    return nn.Linear(4, 1).double()


def of_step(run: Federation) -> tuple[Tensor, list[Tensor]]:
    """Take a step that changes nothing; return the derivative by the combination, and those by x0's parameters."""
    contexts = []
    honest = run.server.label_mode.answers
    run.server.label_mode.answers = lambda *given: contexts.append(given[0]) or honest(*given)  # type: ignore
    run.step(hold=True)
    return contexts[0].slope, [p.grad.clone() for p in run.fusion.parameters() if p.grad is not None]


@pytest.mark.parametrize("batch", [0, 16])
def test_cotangents_and_the_gradient_of_x0_follow_from_one_noisy_derivative(batch: int) -> None:
    still = Optimizer("SGD", {"lr": 0.0})
    run = problem(batch_size=batch, protect=NOISY, optimizer=still)
    slope, gradients = of_step(run)
    rows = run.server.batches.rows(0)
    h = run.fusion.combine([model(x[rows]).detach() for model, x in zip(run.models, columns(), strict=True)])
    h.requires_grad_()
    output, labels = run.fusion.head(h), classes(columns())[rows]
    (exact,) = torch.autograd.grad(nn.functional.cross_entropy(output, labels), output, retain_graph=True)
    assert run.server.noise is not None
    draws = normal(derive(derive(run.server.noise.key, "step", 0, 0), digest_of(exact)), tuple(exact.shape))
    noisy = exact + draws * 3.0 / len(h)  # sigma is about a row's own loss, and the loss is a mean over rows
    run.fusion.zero_grad()
    output.backward(noisy)
    assert h.grad is not None
    assert torch.allclose(slope, h.grad, rtol=1e-12, atol=1e-14)
    found = [p.grad for p in run.fusion.parameters() if p.grad is not None]
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(gradients, found, strict=True))
    assert float((noisy - exact).std() * len(h)) == pytest.approx(3.0, rel=0.3)


def test_no_noise_is_the_run_of_before() -> None:
    runs = [problem(efvfl(TopK(0.3), QSGD(4)), batch_size=16, protect=p) for p in (None, Protection(), NOISY)]
    for run in runs:
        for _ in range(5):
            run.step()
    assert same(everything(runs[0]), everything(runs[1]))
    assert not same(parameters(runs[0]), parameters(runs[2]))
    assert "noise" not in runs[0].server.state_dict()
    assert Record(epoch=1, step=1, surrogate_loss=0.0, spent={}).to_json().endswith('"window": null}')


def test_the_same_visit_has_the_same_noise_and_no_other_has_it() -> None:
    def slope(**options: Any) -> Tensor:
        return of_step(problem(batch_size=16, optimizer=Optimizer("SGD", {"lr": 0.0}), **options))[0]

    labels = classes(columns())
    other = labels.clone()
    row = int(problem(batch_size=16).server.batches.rows(0)[0])  # type: ignore[index]
    other[row] = (other[row] + 1) % 3
    noisy, exact = slope(protect=NOISY), slope()
    assert torch.equal(noisy, slope(protect=NOISY))
    noise = noisy - exact
    changed = slope(protect=NOISY, labels=other) - slope(labels=other)
    # Had both the same noise, the difference of the two would be that of one row's label, without any noise.
    assert float((noise[1:] - changed[1:]).abs().max()) > 0.1 * float(noise.abs().max())
    run = problem(batch_size=0, protect=NOISY, optimizer=Optimizer("SGD", {"lr": 0.0}))
    first, second = of_step(run)[0], of_step(run)[0]  # nothing has changed but the number of the step
    assert not torch.allclose(first, second)


@pytest.mark.parametrize("agreement", [Agreement(), CACHED])
def test_a_resumed_run_has_the_noise_and_the_count_it_would_have_had(agreement: Agreement, tmp_path: Path) -> None:
    def build() -> Federation:
        return problem(efvfl(TopK(0.3)), batch_size=16, agreement=agreement, protect=NOISY)

    run = build()
    for _ in range(5):
        run.step()
    checkpoint.save(tmp_path / "state", run.state_dict())
    resumed = build()
    resumed.load_state_dict(checkpoint.load(tmp_path / "state"))
    for going in (run, resumed):
        for left in reversed(range(6)):
            going.step(hold=left == 0)
    assert same(everything(run), everything(resumed))
    assert run.server.noise
    assert resumed.server.noise
    assert torch.equal(run.server.noise.visits, resumed.server.noise.visits)
    for protect in (Protection(visits=VisitNoise(2.0)), Protection()):
        with pytest.raises(CheckpointError, match=r"restore protect\.visits"):
            problem(efvfl(TopK(0.3)), batch_size=16, agreement=agreement, protect=protect).load_state_dict(
                run.state_dict()
            )


@pytest.mark.parametrize("order", ["shuffle", "independent"])
@pytest.mark.parametrize("agreement", [Agreement(), CACHED])
@pytest.mark.parametrize("batch", [0, 16])
def test_visits_are_those_that_were_announced(order: str, agreement: Agreement, batch: int) -> None:
    run = problem(batch_size=batch, batch_order=order, agreement=agreement, protect=NOISY)
    account, noise = label_account.of(run.server), run.server.noise
    assert account
    assert noise
    for step in range(1, 10):
        run.step()
        assert noise.most == most_visits(run.server.plan, step) == account.visits()
    # Every use of labels is counted: as many rows as were ever given to the loss.
    assert int(noise.visits.sum()) == (9 * 60 if batch == 0 else label_account.rows_in(run.server.batches, 9)) + (
        0 if agreement is not CACHED else _cached_rows(run)
    )


def _cached_rows(run: Federation) -> int:
    batches, total = run.server.batches, 0
    for step in range(9):
        places = sorted({past % 3: past for past in range(max(0, step - 2), step + 1)}.items())
        due = [places[(step * 2 + turn) % len(places)][1] for turn in range(2)]
        total += sum(batches.count(past) for past in due)
    return total


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.sampled_from(["cross_entropy", "binary_cross_entropy", "huber"]), st.booleans(), st.integers(0, 10**6))
def test_no_label_moves_a_derivative_further_than_the_bound(name: str, weigh: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    loss = LOSSES[name]
    if weigh and name != "huber":
        loss = weighted(loss, torch.rand(3, generator=generator, dtype=torch.float64) * 4 + 0.1)
    size = 3 if name == "cross_entropy" else 1
    output = (torch.randn(1, size, generator=generator, dtype=torch.float64) * 8).requires_grad_()
    labels = (
        [torch.tensor([y]) for y in range(3)] if name == "cross_entropy" else [torch.tensor([0]), torch.tensor([1])]
    )
    if name == "huber":
        labels = [torch.randn(1, generator=generator, dtype=torch.float64) * 9 for _ in range(3)]
    slopes = [torch.autograd.grad(loss(output, y), output)[0] for y in labels]
    bound = slope_bound(loss)
    assert bound is not None
    assert max(float((a - b).norm()) for a in slopes for b in slopes) <= bound * (1 + 1e-9)


def test_the_bounds_are_reached() -> None:
    """A bound that is larger than need be would cost noise for nothing."""
    sure = torch.tensor([[50.0, 0.0, 0.0]], requires_grad=True)
    slopes = [torch.autograd.grad(LOSSES["cross_entropy"](sure, torch.tensor([y])), sure)[0] for y in (0, 1)]
    assert float((slopes[0] - slopes[1]).norm()) == pytest.approx(slope_bound(LOSSES["cross_entropy"]))
    weights = torch.tensor([0.5, 4.0])
    assert slope_bound(weighted(LOSSES["binary_cross_entropy"], weights)) == 4.0
    assert slope_bound(replace(LOSSES["huber"], function=LOSSES["mse"].function)) is None
    assert slope_bound(LOSSES["mse"]) is None


def test_weights_of_rows_count_in_the_sensitivity() -> None:
    weights = torch.ones(60)
    weights[7] = 5.0
    run = problem(batch_size=16, protect=NOISY, weights=weights)
    assert run.server.noise
    assert run.server.noise.accountant.sensitivity == pytest.approx(math.sqrt(2) * 5 * 60 / 64)


def test_a_target_decides_the_noise_and_ends_the_run(tmp_path: Path) -> None:
    protect = Protection(visits=VisitNoise(epsilon=2.0, delta=1e-6, epochs=3))
    run = problem(batch_size=16, protect=protect, head=one_output(), **BINARY)
    (promise,) = run.promises(3)
    assert promise.startswith("This run will spend epsilon = 2 at delta = 1e-06 after 3 visits: the label of each")
    records = run.fit(3)
    spent = [float(record.spent["labels"]["epsilon"]) for record in records]
    assert run.server.noise
    noise = run.server.noise.accountant.noise
    assert spent == [pytest.approx(epsilon_of(math.sqrt(t) / noise, 1e-6)) for t in (1, 2, 3)]
    assert spent[-1] == pytest.approx(2.0)
    assert Record.from_json(records[-1].to_json()).spent == records[-1].spent
    (html,) = privacy(records[-1])
    assert "labels: epsilon = 2 at delta = 1e-06, 3 visits" in html
    assert list(privacy(Record(epoch=1, step=1, surrogate_loss=0.0))) == []
    spent_file.save(tmp_path, records[-1].spent)
    assert spent_file.lines(spent_file.load(tmp_path)) == spent_file.lines(records[-1].spent)
    with pytest.raises(LimitError, match=r"visited 4 times, and protect\.visits\.epsilon allows 3"):
        run.fit(4)


def test_clipping_and_noise_of_cotangents_have_an_honest_number_or_none() -> None:
    """x0 learns from exact labels, so one label may change all later cotangents: every row that is sent counts."""
    for combine, copies in (("mean", 1), ("concat", 3)):
        run = problem(combine=combine, batch_size=16, protect=Protection(0.5, 100.0))
        account = label_account.of(run.server)
        assert account
        expected = epsilon_of(2 * math.sqrt(copies * 2 * 60) / 100, 1e-5)
        assert account.accountant.epsilon(account.visits_after(8)) == pytest.approx(expected)
        assert run.fit(2)[-1].spent["labels"]["epsilon"] == pytest.approx(expected)
    bare = problem(protect=Protection(0.5))
    assert bare.promises(3)[0].startswith("No guarantee: the label of each training row")
    assert bare.fit(1)[0].spent["labels"]["epsilon"] == math.inf
    held = (columns(), classes(columns()))
    decided = problem(protect=Protection(0.5, 100.0), validation=held, patience=2)
    assert decided.promises(3)[0].startswith("No guarantee")
    assert problem().promises(3) == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[protect.visits]\nnoise = -1", "visits.noise: expected at least 0, got -1"),
        ("[protect.visits]\nnoise = 1\ndelta = 0", "visits.delta: expected at least 1e-300, got 0"),
        ("[protect.visits]\nsigma = 1", r"unknown key 'sigma'"),
        ("[protect]\nclip = 1\nvisits = { noise = 1.0 }", "protect.visits does not go with protect.clip"),
        ("[protect.visits]\nnoise = 1\n[data]\nstratify = true", "protect.visits does not go with data.stratify"),
        ("class_weights = 'balanced'\n[protect.visits]\nnoise = 1", "protect.visits does not go with class_weights"),
        ("[protect.visits]\nnoise = 1\n[agreement]\nlabels = 'shared'", "protect does not go with shared labels"),
        ("[protect.visits]\nnoise = 1\n[agreement]\nsubsets = 'sampled'", "does not go with protect"),
    ],
)
def test_mistakes_are_answered(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError, match=error):
        load(tmp_path / "run.toml")


def test_losses_and_labels_without_a_bound_are_refused() -> None:
    own = Loss("cross_entropy", nn.functional.cross_entropy, "zero", lambda output, target: 0.0)
    for options in ({"loss": own}, {"loss": "mse", "labels": torch.rand(60), "head": one_output()}):
        with pytest.raises(ConfigError, match="a loss whose derivative has a known bound"):
            problem(protect=NOISY, **options)
    many: dict[str, Any] = {"loss": "binary_cross_entropy", "labels": torch.ones(60, 3), "head": head()}
    with pytest.raises(ConfigError, match=r"labels of shape \(60, 3\)"):
        problem(protect=NOISY, **many)
    with pytest.raises(ConfigError, match="needs the number of epochs"):
        problem(protect=Protection(visits=VisitNoise(epsilon=1.0)))
    with pytest.raises(ConfigError, match=r"would spend epsilon = 6.573, and protect\.visits\.epsilon allows 1"):
        problem(protect=Protection(visits=VisitNoise(noise=2.0, epsilon=1.0, epochs=4)))


def test_a_run_file_reaches_the_server_and_weights_of_classes_are_taken_as_they_are() -> None:
    config = RunConfig(epochs=5, protect=Protection(visits=VisitNoise(epsilon=3.0)), class_weights=(2.0,) * 10)
    run = make_federation(config, digits())
    account = label_account.of(run.server)
    assert account
    assert account.accountant.sensitivity == pytest.approx(2 * math.sqrt(2))
    assert account.accountant.epsilon(account.visits_after(5 * run.server.batches.per_epoch)) == pytest.approx(3.0)
    skewed = replace(config, class_weights=(7.0, *(1.0,) * 9))
    loss = make_loss(skewed, "cross_entropy", digits().train.targets, 10)
    assert slope_bound(loss) == pytest.approx(7 * math.sqrt(2))
