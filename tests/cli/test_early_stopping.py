"""What commands say of a run that stopped early."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from networks import Network, config

from efvfl.cli.main import main
from efvfl.cli.sessions import serve
from efvfl.runs import report

RUN = """
epochs = 40
patience = 1
observe_gradient = false
optimizer = { name = "SGD", lr = 20.0 }
[data]
subset = 60
"""
STOPPED = "epochs: no better validation loss for 1. The model of epoch"


def test_run_and_report_say_which_model_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text(RUN, encoding="utf-8")
    assert main(["run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")]) == 0
    assert f"{STOPPED}" in capsys.readouterr().out
    assert STOPPED in report.page(tmp_path / "out")
    assert main(["run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out"), "--resume"]) == 0
    assert STOPPED in capsys.readouterr().out  # it had stopped already


def test_serve_says_it_too(tmp_path: Path) -> None:
    told: list[str] = []
    status: Any = SimpleNamespace(say=lambda text, **numbers: told.append(text))
    with Network(config(epochs=30, patience=1, optimizer={"name": "SGD", "lr": 20.0}), tmp_path) as network:
        network.run()
        assert network.serving is not None
        serve._train(network.serving, status)
    assert sum(STOPPED in text for text in told) == 1
