"""What the committed results show, and what a short run shows by itself."""

import pytest
from paths import ROOT

from efvfl.config.run_file import MethodConfig, RunConfig
from efvfl.core.agreement import Agreement
from efvfl.data import digits
from efvfl.experiments import experiment_file
from efvfl.experiments.tables import collect, paper_scores, score
from efvfl.runs.build import make_federation

RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def mnist() -> dict[tuple[str, str], object]:
    plan = experiment_file.load("mnist")
    results = collect(plan, RESULTS / "mnist")
    assert set(results) == {cell.name for cell in plan.cells}
    assert all(len(done) == 5 for done in results.values())
    return {(cell.row, cell.column): results[cell.name] for cell in plan.cells}


def test_mnist_is_reproduced(mnist: dict[tuple[str, str], list[object]]) -> None:
    """Every SVFL and EF-VFL cell is within two of the paper's standard deviations, or better."""
    for cell, paper in paper_scores("mnist").items():
        if cell[0] != "CVFL":
            assert score(mnist[cell]).mean >= paper.mean - 2 * paper.std, cell  # type: ignore[arg-type]


def test_error_feedback_is_never_worse_on_mnist(mnist: dict[tuple[str, str], list[object]]) -> None:
    for row, column in mnist:
        if row == "EF-VFL":
            ours, theirs = mnist["EF-VFL", column], mnist["CVFL", column]
            assert score(ours).mean >= score(theirs).mean, column  # type: ignore[arg-type]


def test_the_gradient_vanishes_with_error_feedback_and_without_compression_but_not_with_direct_compression() -> None:
    ends = {}
    for name in ("svfl", "cvfl", "efvfl"):
        config = RunConfig(
            batch_size=0,
            method=MethodConfig(name, {"name": "topk", "ratio": 0.02}),  # type: ignore[arg-type]
            agreement=Agreement(labels="shared"),
            optimizer={"lr": 4.0},
        )
        first, *_, last = make_federation(config, digits()).train(600, observe_every=100)
        ends[name] = last.gradient / first.gradient
    assert ends["svfl"] < 0.05
    assert ends["efvfl"] < 0.05
    assert ends["cvfl"] > 0.5
