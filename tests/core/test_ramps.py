"""Compression that vanishes like 1 / sqrt(t), by a name or by a function of your own, and the identity as the end."""

import math
from pathlib import Path

import pytest
from problems import classes, columns, everything, head, local_models, problem, same

from efvfl import QSGD, Agreement, Identity, Ramp, SharedLabels, TopK, cvfl, efvfl, federate
from efvfl.config import user_code
from efvfl.config.compressors import compressor_from
from efvfl.config.run_file import MethodConfig, RunConfig
from efvfl.errors import ConfigError
from efvfl.experiments.experiment_file import Job

COMPRESSED = Agreement(SharedLabels(fusion="compress"))


def half(done: float) -> float:
    return min(done, 1.0) / 2


def test_what_is_left_out_falls_like_one_over_the_root_of_the_step() -> None:
    ramp = Ramp(0.1, 1.0, 25, "inverse_sqrt")
    for step in (0, 1, 75, 10**6):
        assert 1 - ramp.at(step) == pytest.approx(0.9 / math.sqrt(1 + step / 25))
    assert 1 - Ramp(0.1, 1.0, 25, "inverse").at(75) == pytest.approx(0.9 / 4)


def test_a_ramp_goes_as_your_own_function_says() -> None:
    assert [Ramp(2, 10, 4, half).at(step) for step in (0, 2, 4, 9)] == [2, 4, 6, 6]
    assert TopK(Ramp(0.1, 0.5, 10, half)).at(10).ratio == pytest.approx(0.3)
    with pytest.raises(ConfigError, match=r"own shape: expected a share from 0 to 1 at 0.5, got 1.5"):
        Ramp(0.1, 0.5, 10, lambda done: 1.5).at(5)


def test_both_ends_agree_on_a_ramp_from_the_step_alone() -> None:
    ramp = Ramp(0.1, 1.0, 3, "inverse_sqrt")
    here, through_bytes = (problem(cvfl(TopK(ramp)), batch_size=16, wire=wire) for wire in (False, True))
    record, again = here.fit(2)[-1], through_bytes.fit(2)[-1]
    assert same(everything(here), everything(through_bytes))
    assert record.ledger == again.ledger
    expected = sum(TopK(ramp.at(t)).paper_bits((b, 4)) for t, b in enumerate([16, 16, 16, 12] * 2)) * 3
    assert record.paper_bits == again.paper_bits == expected


def test_a_file_names_the_function(tmp_path: Path) -> None:
    source = "def slow(done):\n    return min(done, 1.0) ** 2\n"
    (tmp_path / "ramp_of_mine.py").write_text(source)
    user_code.look_in(tmp_path)
    table = {"name": "topk", "ratio": {"start": 0.2, "stop": 0.6, "steps": 10, "shape": "ramp_of_mine:slow"}}
    made = compressor_from(table)
    assert isinstance(made, TopK)
    assert made.at(5).ratio == pytest.approx(0.3)
    named = compressor_from({**table, "ratio": {**table["ratio"], "shape": "inverse_sqrt"}})  # type: ignore[dict-item]
    assert named == TopK(Ramp(0.2, 0.6, 10, "inverse_sqrt"))
    with pytest.raises(ConfigError, match="cannot import the ramp's shape 'ramp_of_mine:quick'"):
        compressor_from({"name": "topk", "ratio": {**table["ratio"], "shape": "ramp_of_mine:quick"}})  # type: ignore[dict-item]
    job = Job("a", RunConfig(method=MethodConfig(compressor=table)), tmp_path)
    before = job.key
    (tmp_path / "ramp_of_mine.py").write_text(source.replace("2", "3"))
    assert job.key != before


@pytest.mark.parametrize("method", [cvfl, efvfl])
def test_the_identity_is_the_last_point_of_a_sweep_over_compressors_of_the_fusion_model(method: object) -> None:
    """It was refused as no compressor at all, with CVFL."""
    exact = problem(method(QSGD(4), fusion=Identity()), agreement=COMPRESSED, batch_size=16)  # type: ignore[operator]
    sent = problem(method(QSGD(4)), agreement=Agreement(SharedLabels(fusion="send")), batch_size=16)  # type: ignore[operator]
    exact.fit(2)
    sent.fit(2)
    if method is cvfl:
        assert same(everything(exact), everything(sent))
    assert exact.distortions()["block 0"] < 1e-25
    built = MethodConfig("cvfl", {"name": "qsgd", "bits": 4}, fusion={"name": "identity"}).build()
    assert built.compresses_fusion


def test_no_compressor_for_the_fusion_model_is_still_refused() -> None:
    x = columns()
    with pytest.raises(ConfigError, match="a method without a compressor for the fusion model"):
        federate(x, classes(x), local_models(), head(), method=cvfl(QSGD(4)), agreement=COMPRESSED)
