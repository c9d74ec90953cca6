"""The loss that follows from the label column, where a file does not name one."""

from pathlib import Path

import polars as pl
import pytest

from efvfl import train
from efvfl.config.run_file import RunConfig, load
from efvfl.data.tables.labels import Labels
from efvfl.errors import ConfigError
from efvfl.runs.run_folder import load_settings

BINARY, CLASSES, NUMBERS = "binary_cross_entropy", "cross_entropy", "mse"


@pytest.mark.parametrize(
    ("values", "declared", "loss"),
    [
        (["yes", "no", "yes"], None, BINARY),
        ([True, False, True], None, BINARY),
        ([0, 1, 1, 0], None, BINARY),
        ([-1, 1, 1], None, BINARY),
        ([0.0, 1.0], None, BINARY),
        (["a", "b", "c"], None, CLASSES),
        ([0, 1, 2, 1], None, CLASSES),
        (list(range(60)), None, CLASSES),  # indices
        ([3, 5, 7, 5], None, CLASSES),
        (["5 %", "12 %", "20 %"], None, CLASSES),
        ([0.5, 1.25, 3.0], None, NUMBERS),
        (["1,5", "2,25", "3,0"], None, NUMBERS),
        (list(range(100, 160)), None, NUMBERS),  # whole, but many
        ([3, 5, 7, 5], "number", NUMBERS),
        ([0.5, 1.25, 3.0], "category", CLASSES),
    ],
)
def test_the_loss_follows_from_the_label(values: list[object], declared: object, loss: str) -> None:
    found = Labels.of(pl.Series("y", values), "", declared)  # type: ignore[arg-type]
    assert found.loss == loss
    assert Labels.of(pl.Series("y", values), loss, declared) == found  # type: ignore[arg-type]


FILE = """
epochs = 1
label_holder = "bank"
{more}
[[party]]
name = "bank"
data = {{ path = "bank.csv", id = "id", label = "y" }}
"""


@pytest.mark.parametrize(("more", "loss"), [("", NUMBERS), ('loss = "huber"', "huber")])
def test_a_file_may_leave_it_out_or_say_otherwise(more: str, loss: str, tmp_path: Path) -> None:
    pl.DataFrame({"id": range(60), "x": range(60), "y": [i / 8 for i in range(60)]}).write_csv(tmp_path / "bank.csv")
    (tmp_path / "run.toml").write_text(FILE.format(more=more))
    said: list[str] = []
    train(tmp_path / "run.toml", tmp_path / "out", say=said.append)
    settings = load_settings(tmp_path / "out")
    assert settings is not None
    assert settings.config["loss"] == loss
    assert ("The loss follows from the label: mse." in said) == (not more)


def test_weights_of_classes_need_classes(tmp_path: Path) -> None:
    pl.DataFrame({"id": range(60), "x": range(60), "y": [i / 8 for i in range(60)]}).write_csv(tmp_path / "bank.csv")
    (tmp_path / "run.toml").write_text(FILE.format(more='class_weights = "balanced"'))
    assert load(tmp_path / "run.toml").loss == ""  # nobody knows yet
    with pytest.raises(ConfigError, match="class_weights are set, but loss = 'mse' has no classes"):
        train(tmp_path / "run.toml", tmp_path / "out")
    with pytest.raises(ConfigError, match="class_weights are set, but loss = 'mse' has no classes"):
        RunConfig(loss="mse", class_weights="balanced")
