"""Defences do what they say, and attacks that they are against find less."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attacked import EPOCHS, KNOWS, federation, watched
from torch import Tensor, nn

from efvfl import Federation, Optimizer, Protection, RowProtection, Training, VisitNoise, federate
from efvfl.core.accountant import auc_within
from efvfl.errors import ConfigError
from efvfl.runs.attacks import bench, catalogue, defences
from efvfl.runs.attacks.distance_correlation import distance_correlation


def found(made: Federation, *names: str) -> dict[str, float]:
    outcomes = bench.attack_all(watched(made), catalogue.chosen(names), KNOWS)
    return {name: value for name, value in outcomes.items() if isinstance(value, float)}


def defended(defence: defences.Defence) -> Federation:
    made = federation()
    defence(made)
    return made


def batch(rows: int, width: int = 3) -> tuple[Tensor, Any]:
    """Cotangents of two classes, and the context of a step that has their labels."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(rows, generator=generator) < 0.25).double()
    sizes = torch.rand(rows, 1, generator=generator).double() + 0.1
    line = torch.ones(1, width).double()
    cotangent = torch.where(labels[:, None] > 0, -3 * sizes, sizes) * line
    return cotangent, SimpleNamespace(targets=SimpleNamespace(labels=labels))


def test_max_norm_gives_all_rows_the_mean_square_of_the_longest() -> None:
    cotangent, context = batch(20)
    draws = torch.Generator().manual_seed(1)
    made = torch.stack([defences.with_equal_norms(cotangent, context, draws) for _ in range(4000)])
    squares = made.square().sum(dim=2).mean(dim=0)
    assert torch.allclose(squares, cotangent.square().sum(dim=1).max().expand(20), rtol=0.15)
    assert torch.allclose(made.mean(dim=0), cotangent, atol=0.3)  # and leaves their mean


def test_marvell_spends_its_power_and_makes_two_classes_more_alike_than_round_noise() -> None:
    cotangent, context = batch(4000)
    noisy = defences.with_marvell_noise(cotangent, context, torch.Generator().manual_seed(1))
    positive = context.targets.labels > 0.5
    apart = cotangent[positive].mean(0) - cotangent[~positive].mean(0)
    power = float((noisy - cotangent).square().sum(dim=1).mean())
    assert power == pytest.approx(defences.POWER * float(apart.square().sum()), rel=0.1)
    rounded = torch.randn(cotangent.shape, generator=torch.Generator().manual_seed(2)).double()
    isotropic = cotangent + rounded * (power / cotangent.shape[1]) ** 0.5

    def divergence(values: Tensor) -> float:
        """The sum of both divergences between two Gaussians along the line between their means."""
        along = values @ apart / apart.norm()
        parts = [along[~positive], along[positive]]
        (u, v), gap = (part.var() for part in parts), float((parts[0].mean() - parts[1].mean()).square())
        return float((u + gap) / v + (v + gap) / u) / 2 - 1

    assert divergence(noisy) < 0.75 * divergence(isotropic) < divergence(cotangent)
    one = torch.ones(5, 3).double()
    alone = SimpleNamespace(targets=SimpleNamespace(labels=torch.ones(5)))
    assert defences.with_marvell_noise(one, alone, torch.Generator()).equal(one)  # type: ignore[arg-type]


def test_distance_correlation() -> None:
    x, other = (torch.randn(300, 2, generator=torch.Generator().manual_seed(k)) for k in range(2))
    assert float(distance_correlation(x, 2 * x + 1)) == pytest.approx(1.0, abs=1e-3)
    assert float(distance_correlation(x, other)) < 0.2
    assert 0.3 < float(distance_correlation(x, x.square() + 0.1 * other)) < 0.9  # not linear, and still seen


def test_each_defence_lowers_what_it_is_against() -> None:
    plain = found(federation(), "norm", "direction", "spectral", "inverse")
    assert found(defended(defences.max_norm), "norm")["norm"] < plain["norm"] - 0.05
    with_marvell = found(defended(defences.marvell), "norm", "direction")
    assert with_marvell["direction"] < plain["direction"] - 0.03
    assert found(defended(defences.unlike_columns), "inverse")["inverse"] > plain["inverse"] + 0.1
    assert found(defended(defences.unlike_labels), "spectral")["spectral"] < plain["spectral"]


def test_noise_with_an_epsilon_holds_attacks_on_labels_or_on_rows_near_chance() -> None:
    visits = VisitNoise(epsilon=1.0, epochs=EPOCHS)
    made = federation(protect=Protection(visits=visits), rate=0.02)
    direction = found(made, "direction")["direction"]
    noise = made.server.noise
    assert noise is not None
    assert direction <= auc_within(noise.accountant.mu(EPOCHS)) + 0.1  # some deviations of 400 rows
    assert found(federation(), "inverse", "inverse-held-out")["inverse"] < 0.5
    guarded = found(federation(rows=RowProtection(1.0, 16.0)), "inverse", "inverse-held-out", "generative")
    assert min(guarded.values()) > 0.9


def test_what_a_defence_is_not_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="marvell: expected labels 0 and 1"):
        defences.marvell(_classes("sum"))
    for name in ("max-norm", "unlike-labels"):
        defences.DEFENCES[name](_classes("sum"))
    with pytest.raises(ConfigError, match=r"unlike-labels: expected classes and fusion\.combine"):
        defences.unlike_labels(_classes("concat"))


def _classes(combine: Any) -> Federation:
    from efvfl import Setup

    x = {"a": torch.randn(12, 2), "b": torch.randn(12, 2)}
    head = nn.Linear(4 if combine == "concat" else 2, 3)
    labels = torch.arange(12) % 3
    training = Training(Optimizer("SGD", {"lr": 0.1}), 4)
    return federate(x, labels, [nn.Linear(2, 2), nn.Linear(2, 2)], head, training=training, setup=Setup(combine))
