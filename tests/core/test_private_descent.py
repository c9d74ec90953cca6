"""DP-SGD in a local model: gradients of single rows, how far one moves their sum, the noise, and what it is worth."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import assert_same, config, networked, reference
from problems import everything, local_models, parameters, problem, same
from torch import Tensor, nn

from efvfl import Agreement, CachedSteps, Federation, Optimizer, RowProtection, SharedLabels, TopK, efvfl
from efvfl.core.accountant import epsilon_of
from efvfl.core.private_descent import PrivateDescent, clipped_sums
from efvfl.errors import CheckpointError, ConfigError
from efvfl.util import checkpoint

NOISY = RowProtection(clip=1.0, noise=4.0, gradient_clip=0.5, gradient_noise=3.0)
ROWS = {"party2": NOISY}


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2)).double()


def sums(module: nn.Module, x: Tensor, cotangents: Tensor, clip: float) -> list[Tensor]:
    return clipped_sums(module, dict(module.named_parameters()), x, cotangents, clip)


@pytest.mark.parametrize("clip", [0.05, 1e9])
def test_gradients_of_rows_are_those_of_autograd(clip: float) -> None:
    module, x, cotangents = network(), torch.randn(300, 3).double(), torch.randn(300, 2).double()
    expected = [torch.zeros_like(p) for p in module.parameters()]
    for row, cotangent in zip(x, cotangents, strict=True):
        found = torch.autograd.grad((module(row[None])[0] * cotangent).sum(), list(module.parameters()))
        norm = math.sqrt(sum(float(part.square().sum()) for part in found))
        for total, part in zip(expected, found, strict=True):
            total += part * min(1.0, clip / norm)
    assert all(torch.allclose(a, b) for a, b in zip(sums(module, x, cotangents, clip), expected, strict=True))


@settings(deadline=None, derandomize=True, max_examples=15)
@given(st.integers(0, 10**6), st.floats(1e-3, 10))
def test_no_row_moves_the_sum_further_than_twice_the_clip(seed: int, clip: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    module, x = network(), torch.randn(4, 3, generator=generator).double() * 9
    cotangents = torch.randn(4, 2, generator=generator).double() * 9
    other, turned = x.clone(), cotangents.clone()
    other[1], turned[1] = torch.randn(3, generator=generator).double() * 99, -cotangents[1]
    pairs = zip(sums(module, x, cotangents, clip), sums(module, other, turned, clip), strict=True)
    assert math.sqrt(sum(float((a - b).square().sum()) for a, b in pairs)) <= 2 * clip * (1 + 1e-9)


def test_numbers_that_are_not_finite_do_not_pass_the_clip() -> None:
    module, x = network().float(), torch.randn(3, 3)
    cotangents = torch.tensor([[3e38, -3e38], [float("inf"), 1.0], [1.0, 1.0]])
    norm = math.sqrt(sum(float(part.double().square().sum()) for part in sums(module, x * 1e3, cotangents, 0.5)))
    assert norm <= 3 * 0.5 * (1 + 1e-6)


def test_without_clipping_and_noise_it_is_the_step_of_before() -> None:
    plain = RowProtection(clip=1.0, noise=4.0)
    nearly = replace(plain, gradient_clip=1e9, gradient_noise=1e-30)
    runs = [problem(efvfl(TopK(0.5)), batch_size=16, protect_rows={"party2": p}) for p in (plain, nearly)]
    for run in runs:
        run.step(hold=True)  # one: noise follows from the last bit of what it is added to
    for a, b in zip(parameters(runs[0]), parameters(runs[1]), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)
    assert runs[0].parties["party2"].descent is None
    assert isinstance(runs[1].parties["party2"].descent, PrivateDescent)


def test_the_noise_has_the_size_that_was_asked_for_and_is_of_this_step_alone() -> None:
    """With a rate of 1 the change of the parameters is the noisy mean."""

    def moved(chosen: RowProtection, steps: int = 1) -> list[Tensor]:
        run = problem(batch_size=16, protect_rows={"party2": chosen}, optimizer=Optimizer("SGD", {"lr": 1.0}))
        before = [p.detach().clone() for p in run.models[1].parameters()]
        for _ in range(steps):
            run.step(hold=True)
        return [a - b.detach() for a, b in zip(before, run.models[1].parameters(), strict=True)]

    quiet = replace(NOISY, gradient_noise=1e-30)
    draws = torch.cat([(a - b).flatten() for a, b in zip(moved(NOISY), moved(quiet), strict=True)]) * 16
    assert float(draws.std()) == pytest.approx(0.5 * 3.0, rel=0.35)
    wide = replace(NOISY, gradient_noise=300.0)
    assert float(torch.cat([p.flatten() for p in moved(wide)]).std() * 16) == pytest.approx(150, rel=0.35)
    first, second = moved(wide), [b - a for a, b in zip(moved(wide), moved(wide, 2), strict=True)]
    assert not any(torch.allclose(a, b, rtol=0.01) for a, b in zip(first, second, strict=True))


def test_both_mechanisms_are_accounted_for() -> None:
    run = problem(batch_size=16, protect_rows=ROWS)
    (promise,) = run.promises(2)
    assert "the columns of each row at party2, given how they were encoded" in promise
    spent = run.fit(2)[-1].spent["rows of party2"]
    visits = float(spent["visits"])
    assert visits == 3  # two epochs, and a prediction
    mu = math.sqrt(visits * ((2 / 4.0) ** 2 + (2 / 3.0) ** 2))
    assert spent["epsilon"] == pytest.approx(epsilon_of(mu, 1e-5))
    assert "given its local model" in problem(protect_rows={"party2": RowProtection(1.0, 4.0)}).promises(1)[0]


def test_a_resumed_run_has_the_noise_it_would_have_had(tmp_path: Path) -> None:
    def build(chosen: RowProtection = NOISY) -> Federation:
        return problem(efvfl(TopK(0.3)), batch_size=16, protect_rows={"party2": chosen})

    run = build()
    for _ in range(5):
        run.step()
    checkpoint.save(tmp_path / "state", run.state_dict())
    resumed = build()
    resumed.load_state_dict(checkpoint.load(tmp_path / "state"))
    for going in (run, resumed):
        for left in reversed(range(4)):
            going.step(hold=left == 0)
    assert same(everything(run), everything(resumed))
    with pytest.raises(CheckpointError, match="restore protect"):
        build(replace(NOISY, gradient_noise=9.0)).load_state_dict(run.state_dict())


def test_over_wires_as_in_one_process(tmp_path: Path) -> None:
    protect = {"clip": 1.0, "noise": 4.0, "gradient_clip": 0.5, "gradient_noise": 3.0}
    chosen = config(party=[{"name": "top-right", "protect": protect, "private_seed": 8}], evaluation="compressed")
    assert_same(reference(chosen), networked(chosen, tmp_path))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"agreement": Agreement(SharedLabels())}, "expected private labels without a pipeline"),
        ({"agreement": Agreement(pipeline=2)}, "expected private labels without a pipeline"),
        ({"agreement": Agreement(cached=CachedSteps(steps=1))}, "expected private labels without a pipeline"),
        ({"dropout": True}, "without dropout"),
    ],
)
def test_what_is_not_covered_is_refused(options: dict[str, Any], error: str) -> None:
    models = local_models()
    if options.pop("dropout", False):
        models[1] = nn.Sequential(models[1], nn.Dropout(0.1))
    with pytest.raises(ConfigError, match=error):
        problem(batch_size=16, protect_rows=ROWS, models=models, **options)


@pytest.mark.parametrize(
    "wrong",
    [{"gradient_clip": 1.0}, {"gradient_noise": 1.0}, {"clip": 1.0, "gradient_clip": 1.0, "gradient_noise": 1.0}],
)
def test_half_a_protection_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="need each other"):
        RowProtection(**wrong)
