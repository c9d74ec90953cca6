"""A loss and metrics of one's own, named in a file or given in Python: trained with, recorded, and in results' keys."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from networks import config
from problems import problem
from torch import Tensor

from efvfl import train
from efvfl.config import user_code
from efvfl.config.run_file import RunConfig
from efvfl.errors import ConfigError
from efvfl.experiments.experiment_file import Job, parse
from efvfl.runs import report
from efvfl.runs.build import head_outputs

SOURCE = """
import torch
from torch.nn.functional import cross_entropy
from efvfl import Loss

def hits(output, y):
    return float((output.argmax(dim=1) == y).double().mean())

def worst(output, y):
    return min(float((output.argmax(dim=1)[y == k] == k).double().mean()) for k in y.unique())

def smooth():
    return Loss("any name", lambda o, y: cross_entropy(o, y, label_smoothing=0.1), "hits", hits, "classes")

number = Loss("n", lambda o, y: (o - y).square().mean(), "x", lambda o, y: 0.0, "numbers")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delitem(sys.modules, "loss_of_mine", raising=False)
    importlib.invalidate_caches()
    (tmp_path / "loss_of_mine.py").write_text(SOURCE)
    user_code.look_in(tmp_path)
    return tmp_path


def test_a_file_names_a_loss_and_metrics(mine: Path) -> None:
    run = config(epochs=1, loss="loss_of_mine:smooth", metrics=["loss_of_mine:worst"])
    [record] = train(run, mine / "run", base=mine)
    for scores in (record.train, record.validation, record.test):
        assert list(scores) == ["loss", "hits", "worst"]
    [plain] = train(config(epochs=1, metrics=["loss_of_mine:worst"]), mine / "plain", base=mine)
    assert list(plain.train) == ["loss", "accuracy", "worst"]
    assert plain.surrogate_loss != record.surrogate_loss  # it was trained with
    assert "hits" in report.write(mine / "run").read_text()
    assert head_outputs("loss_of_mine:smooth", 7) == 7
    assert head_outputs("loss_of_mine:number", 7) == 1


def test_the_key_of_a_result_follows_the_code(mine: Path) -> None:
    job = Job("a", RunConfig(loss="loss_of_mine:smooth"), mine)
    before = job.key
    (mine / "loss_of_mine.py").write_text(SOURCE.replace("0.1", "0.2"))
    assert job.key != before
    text = '[base]\nloss = "loss_of_mine:smooth"\n[[run]]\nname = "a"\n'
    assert parse('title = "t"\n' + text, "mine", mine).metric == "hits"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"loss": "loss_of_mine:nothing"}, "cannot import the loss 'loss_of_mine:nothing'"),
        ({"loss": "math:pi"}, "expected an efvfl.Loss, or a function that returns one, got 3.14"),
        ({"metrics": ["loss_of_mine:nothing"]}, "cannot import the metric"),
        ({"metrics": ["math:pi"]}, "metrics: expected functions with different names, got 'math:pi'"),
        ({"metrics": ["loss_of_mine:worst"] * 2}, "metrics: expected functions with different names"),
    ],
)
def test_a_mistake_is_named(settings: dict[str, object], error: str, mine: Path) -> None:
    with pytest.raises(ConfigError, match=error):
        train(config(**settings), mine / "run", base=mine)


def test_several_metrics_from_python() -> None:
    def share_of_zeros(output: Tensor, y: Tensor) -> float:
        return float((output.argmax(dim=1) == 0).double().mean())

    federation = problem(metrics={"zeros": share_of_zeros})
    [record] = federation.fit(1)
    output = federation.predict(federation.splits["train"].features)
    assert record.train["zeros"] == share_of_zeros(output, torch.zeros(0))
    assert list(record.train) == ["loss", "accuracy", "zeros"]
    with pytest.raises(ConfigError, match="metrics: expected functions of output and labels"):
        problem(metrics={"accuracy": share_of_zeros})
