"""Weights of rows against plain loops, in float64: each row's loss counts with its weight, scaled to a mean of 1."""

import copy

import pytest
import torch
import torch.nn.functional as F
from oracle_runs import LR, schedule, topk, trained
from problems import Labels, classes, close, columns, head, local_models, problem, same
from torch import Tensor, nn

from efvfl import Agreement, CachedSteps, SharedLabels, TopK, efvfl, svfl

STEPS, SIZE = 10, 16


def some_weights() -> Tensor:
    """Small and large ones, and a few zeros."""
    weights = torch.rand(60, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 7
    return weights * (torch.arange(60) % 9 > 0)


def loss_of(output: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    weights = some_weights()
    each = F.cross_entropy(output, y[rows], reduction="none")
    return (weights[rows] / weights.mean() * each).sum() / len(rows)


def descend(modules: list[nn.Module]) -> None:
    with torch.no_grad():
        for p in (p for module in modules for p in module.parameters()):
            assert p.grad is not None
            p.sub_(LR * p.grad)
            p.grad = None


def in_one_place() -> list[Tensor]:
    x, models, top = columns(), local_models(), head()
    for rows in schedule(SIZE, STEPS):
        h = torch.stack([m(v[rows]) for m, v in zip(models, x, strict=True)]).mean(0)
        loss_of(top(h), classes(x), rows).backward()
        descend([top, *models])
    return [p.detach() for module in (top, *models) for p in module.parameters()]


def with_error_feedback(ratio: float) -> list[Tensor]:
    """Algorithm 2: parties learn from the derivative by their surrogates."""
    x, models, top = columns(), local_models(), head()
    surrogates = [torch.zeros(60, 4, dtype=torch.float64) for _ in models]
    for rows in schedule(SIZE, STEPS):
        exact = [m(v[rows]) for m, v in zip(models, x, strict=True)]
        for g, h in zip(surrogates, exact, strict=True):
            g[rows] += topk(ratio)(h.detach() - g[rows])
        leaves = [g[rows].clone().requires_grad_() for g in surrogates]
        loss_of(top(torch.stack(leaves).mean(0)), classes(x), rows).backward()
        for h, leaf in zip(exact, leaves, strict=True):
            h.backward(leaf.grad)
        descend([top, *models])
    return [p.detach() for module in (top, *models) for p in module.parameters()]


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_without_compression_it_is_weighted_sgd_in_one_place(labels: Labels) -> None:
    run = problem(svfl(), agreement=Agreement(labels=labels), batch_size=SIZE, weights=some_weights())
    assert close(trained(run, STEPS), in_one_place())
    assert not close(trained(problem(svfl(), batch_size=SIZE), STEPS), in_one_place())


def test_with_error_feedback_it_is_the_weighted_algorithm() -> None:
    run = problem(efvfl(TopK(0.2)), batch_size=SIZE, weights=some_weights())
    assert close(trained(run, STEPS), with_error_feedback(0.2))


def test_replicas_of_the_fusion_model_repeat_the_weighted_update() -> None:
    agreement = Agreement(SharedLabels(fusion="replicate", digest_every=1))
    run = problem(efvfl(TopK(0.2)), agreement=agreement, batch_size=SIZE, weights=some_weights())
    trained(run, STEPS)
    for party in run.parties.values():
        assert same([*party.label_mode.fusion.parameters()], [*run.fusion.parameters()])  # type: ignore[attr-defined]


def test_equal_weights_change_no_bit() -> None:
    plain, equal = (problem(efvfl(TopK(0.2)), batch_size=SIZE, weights=w) for w in (None, torch.full((60,), 0.3)))
    assert same(trained(plain, STEPS), trained(equal, STEPS))
    assert plain.record(gradient=False).train == equal.record(gradient=False).train


def test_the_loss_of_a_record_is_weighted_and_the_metric_is_not() -> None:
    x = columns()
    held_out = (x, classes(x), some_weights())
    run = problem(svfl(), batch_size=SIZE, weights=some_weights(), validation=held_out)
    record, everything = run.record(), torch.arange(60)
    output = run.predict(x)
    assert record.train["loss"] == pytest.approx(float(loss_of(output, classes(x), everything)))
    assert record.train["accuracy"] == pytest.approx(float((output.argmax(1) == classes(x)).double().mean()))
    assert record.validation == record.train
    with_graph = run.fusion([m(v) for m, v in zip(run.models, x, strict=True)])
    loss_of(with_graph, classes(x), everything).backward()
    slopes = [p.grad for m in (run.fusion, *run.models) for p in m.parameters()]
    by_hand = sum(float(slope.square().sum()) for slope in slopes if slope is not None)
    assert record.gradient == pytest.approx(by_hand)


def test_a_saved_run_with_cached_steps_goes_on_with_its_weights() -> None:
    agreement = Agreement(cached=CachedSteps(2))
    whole, first, second = (
        problem(efvfl(TopK(0.2)), agreement=agreement, batch_size=SIZE, weights=some_weights()) for _ in range(3)
    )
    trained(first, 5)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert same(trained(second, 3), trained(whole, 8))
