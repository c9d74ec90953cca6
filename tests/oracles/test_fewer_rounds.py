"""Uniform rounding, first visits, cached steps and windows equal the plain loops of the second page."""

import re

import pytest
import torch
from examples import fewer_rounds_on_one_page as page
from oracle_runs import schedule, trained
from problems import classes, close, columns, head, local_models, problem
from torch import Tensor, nn

from efvfl import Agreement, CachedSteps, Identity, TopK, Uniform, cvfl, efvfl, svfl
from efvfl.compress import Compressor
from efvfl.core.batches import Batches
from efvfl.core.methods import Method

STEPS = 14  # of batches of 16 of 60 rows: more than three epochs


def plain(compressor: Compressor) -> page.Compress:
    if isinstance(compressor, Identity):
        return lambda block: block
    return page.uniform(compressor.levels) if isinstance(compressor, Uniform) else page.top_k(compressor.ratio)  # type: ignore[attr-defined]


def expected(size: int, setting: page.Setting) -> list[Tensor]:
    x, models, top = columns(), local_models(), head()
    page.vertical(x, classes(x), models, top, schedule(size, STEPS), setting)
    return [p.detach() for p in nn.ModuleList([top, *models]).parameters()]


@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize(
    ("method", "setting"),
    [
        (efvfl(Uniform(1)), page.Setting(page.uniform(1))),
        (efvfl(Uniform(7), down=Uniform(3)), page.Setting(page.uniform(7), compress_down=page.uniform(3))),
        (efvfl(TopK(0.2), first=Uniform(15)), page.Setting(page.top_k(0.2), first=page.uniform(15))),
        (efvfl(Uniform(2), first=Uniform(15)), page.Setting(page.uniform(2), first=page.uniform(15))),
        (efvfl(TopK(0.2), start="exact"), page.Setting(page.top_k(0.2), first=lambda block: block)),
        (efvfl(TopK(0.2), start="mean"), page.Setting(page.top_k(0.2), start_at_mean=True)),
        (
            efvfl(TopK(0.2), start="mean", first=Uniform(15)),
            page.Setting(page.top_k(0.2), start_at_mean=True, first=page.uniform(15)),
        ),
    ],
    ids=[
        "ternary",
        "both ways",
        "first visits",
        "first visits of the same kind",
        "exact start",
        "start at the mean",
        "start at the mean, first visits",
    ],
)
def test_what_is_sent(method: Method, setting: page.Setting, size: int) -> None:
    assert close(trained(problem(method, batch_size=size), STEPS), expected(size, setting))


@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize(
    ("steps", "batches", "angle"), [(1, 1, 180.0), (3, 3, 60.0), (2, 5, 20.0), (5, 2, 1.0), (3, 0, 60.0)]
)
@pytest.mark.parametrize("feedback", [True, False])
def test_cached_steps(feedback: bool, steps: int, batches: int, angle: float, size: int) -> None:
    setting = page.Setting(
        page.top_k(0.3),
        feedback,
        cached_steps=steps,
        cached_batches=batches or Batches(60, size, 0).per_epoch,
        angle=angle,
    )
    agreement = Agreement(cached=CachedSteps(steps, batches, angle))
    method = efvfl(TopK(0.3)) if feedback else cvfl(TopK(0.3))
    found = trained(problem(method, agreement=agreement, batch_size=size), STEPS)
    assert close(found, expected(size, setting))
    assert not close(found, trained(problem(method, batch_size=size), STEPS), 1e-4)


@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize("window", [2, 3, 5])
@pytest.mark.parametrize("cached", [0, 2])
def test_windows(cached: int, window: int, size: int) -> None:
    setting = page.Setting(
        page.uniform(1), compress_down=page.uniform(7), cached_steps=cached, cached_batches=9, window=window
    )
    agreement = Agreement(pipeline=window, cached=CachedSteps(cached, batches=9))
    found = trained(problem(efvfl(Uniform(1), down=Uniform(7)), agreement=agreement, batch_size=size), STEPS)
    assert close(found, expected(size, setting))


def test_no_cached_steps_is_the_run_without_them_bit_for_bit() -> None:
    runs = [
        trained(problem(svfl(), agreement=agreement, batch_size=16), STEPS)
        for agreement in (Agreement(), Agreement(cached=CachedSteps(0, 3, 10.0)))
    ]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.slow
def test_the_page_runs_and_cached_steps_save_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    page.main()
    lines = capsys.readouterr().out.splitlines()
    rounds = {line.split("  ")[0]: int(re.findall(r"after (\d+) rounds", line)[0]) for line in lines}
    assert rounds["EF-VFL, ternary, 9 cached steps"] <= rounds["SVFL, nothing compressed"] / 3
    assert rounds["EF-VFL, ternary"] <= rounds["SVFL, nothing compressed"]
