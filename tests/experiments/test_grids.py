"""What an experiment file varies and what `--epochs`, `--device` and a file for output do to it."""

import json
import logging
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from efvfl.cli.main import main
from efvfl.config.run_file import PartyConfig, PartyTrainingConfig, RunConfig
from efvfl.errors import ConfigError
from efvfl.experiments import reproduce
from efvfl.experiments.experiment_file import Sweep, changed, parse
from efvfl.experiments.figures import draw
from efvfl.experiments.reproduce import Overrides
from efvfl.experiments.results import Result
from efvfl.experiments.shorter import with_epochs
from efvfl.experiments.tables import Score, made_elsewhere

GRID = """
title = "Grid"
[base]
epochs = 2
data = { subset = 60 }
method = { compressor = { name = "topk", ratio = 0.5 } }
[grid]
batch_size = [20, 30]
method.compressor.ratio = [0.1, 0.2]
"""
RUNS = """
[[run]]
name = "ef"
row = "EF-VFL"
[[run]]
name = "plain"
grid = { optimizer.lr = [0.5] }
method = { name = "svfl" }
[[run]]
name = "once"
grid = {}
[[figure]]
name = "all"
left = "loss"
panels = [{ title = "all", runs = ["ef", "once"] }]
"""


def settings(sweep: Sweep) -> list[tuple[str, int, float]]:
    return [(c.name, c.config.batch_size, c.config.method.compressor["ratio"]) for c in sweep.cells]


def test_a_grid_is_every_combination_of_any_keys() -> None:
    assert settings(parse(GRID, "mine")) == [
        ("mine-batch_size=20-ratio=0.1", 20, 0.1),
        ("mine-batch_size=20-ratio=0.2", 20, 0.2),
        ("mine-batch_size=30-ratio=0.1", 30, 0.1),
        ("mine-batch_size=30-ratio=0.2", 30, 0.2),
    ]
    [cell, *_] = parse(GRID, "mine").cells
    assert (cell.row, cell.column, cell.config.method.compressor["name"]) == (
        "mine",
        "batch_size = 20, ratio = 0.1",
        "topk",
    )
    assert len({job.key for job in parse(GRID, "mine").jobs()}) == 4


def test_runs_share_the_grid_or_have_their_own() -> None:
    sweep = parse(GRID + RUNS, "mine")
    assert [cell.name for cell in sweep.cells][:1] == ["ef-batch_size=20-ratio=0.1"]
    assert [cell.name for cell in sweep.cells][4:] == ["plain-lr=0.5", "once"]
    assert sweep.cells[4].config.optimizer["lr"] == 0.5
    assert sweep.figures[0].panels[0].runs == tuple(cell.name for cell in sweep.cells if cell.name != "plain-lr=0.5")
    columns = {"epoch": [1.0], "train_loss": [0.5], "test_accuracy": [0.5], "bytes_up": [8.0], "bytes_down": [8.0]}
    done = {cell.name: [Result(cell.name, {}, columns | {"paper_bits": [9.0]}, {}, {})] for cell in sweep.cells}
    drawn = draw(sweep, sweep.figures[0], done, "sent")
    names = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert names == [*(f"EF-VFL, batch_size = {b}, ratio = {r}" for b in (20, 30) for r in (0.1, 0.2)), "once"]


def test_values_may_be_lists_and_tables_and_keys_that_end_alike_are_told_apart() -> None:
    more = """
model.hidden = [[], [8, 4]]
model.name = ["mlp"]
method.compressor = [{ name = "topk", ratio = 0.1 }, { name = "qsgd", bits = 4 }]
method.name = ["efvfl"]
"""
    sweep = parse(GRID.replace("method.compressor.ratio = [0.1, 0.2]\n", more), "mine")
    assert [cell.column for cell in sweep.cells][:2] == [
        "batch_size = 20, hidden = none, model.name = mlp, compressor = topk (ratio 0.1), method.name = efvfl",
        "batch_size = 20, hidden = none, model.name = mlp, compressor = qsgd (bits 4), method.name = efvfl",
    ]
    assert sweep.cells[-1].config.model.hidden == (8, 4)
    assert "/" not in "".join(cell.name for cell in sweep.cells)


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ("[20, 30]", "20", r"grid: batch_size: expected a list of values, got 20: write batch_size = \[...\]"),
        ("[20, 30]", "[]", "grid: batch_size: expected a list of values"),
        ("[20, 30]", "[20, 20]", "expected different values of a key"),
        ("batch_size", "batchsize", "unknown key 'batchsize'. Did you mean 'batch_size'"),
        ("batch_size = [20, 30]", "seed = [1, 2]", "grid: seed: list seeds as `seeds`"),
        ("batch_size", "epochs.more", "epochs.more needs a table at epochs, got 2"),
        ("[20, 30]", str(list(range(9000))), "expected at most 10,000 combinations, got more"),
    ],
)
def test_a_mistake_in_a_grid_is_named(before: str, after: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse(GRID.replace(before, after), "mine")


def test_a_run_does_not_set_what_the_grid_varies() -> None:
    with pytest.raises(ConfigError, match="run 'a': batch_size is set, and"):
        parse(GRID + '[[run]]\nname = "a"\nbatch_size = 3\n', "mine")
    with pytest.raises(ConfigError, match="run 'a': grid: expected a table with lists of values, got 3"):
        parse(GRID + '[[run]]\nname = "a"\ngrid = 3\n', "mine")


def test_other_epochs_stretch_what_the_rate_follows() -> None:
    def config(**scheduler: object) -> RunConfig:
        own = PartyConfig("bank", training=PartyTrainingConfig({"name": "SGD", "lr": 1.0, "scheduler": scheduler}))
        return RunConfig(epochs=100, optimizer={"name": "SGD", "lr": 1.0, "scheduler": scheduler}, party=(own,))

    short = with_epochs(config(name="CosineAnnealingLR", T_max=100, eta_min=0.001), 20)
    assert short.epochs == 20
    assert short.optimizer["scheduler"] == {"name": "CosineAnnealingLR", "T_max": 20, "eta_min": 0.001}
    assert short.party[0].training.optimizer["scheduler"]["T_max"] == 20
    steps = with_epochs(config(name="MultiStepLR", milestones=[40, 60, 80], gamma=0.5), 5).optimizer["scheduler"]
    assert steps == {"name": "MultiStepLR", "milestones": [2, 3, 4], "gamma": 0.5}
    assert with_epochs(config(name="MultiStepLR", milestones=[40, 41]), 1).optimizer["scheduler"]["milestones"] == [
        1,
        2,
    ]
    assert with_epochs(config(name="StepLR", step_size=30), 1).optimizer["scheduler"]["step_size"] == 1
    assert with_epochs(config(name="StepLR", step_size=30), 200).optimizer["scheduler"]["step_size"] == 60
    plain = RunConfig(epochs=100)
    assert with_epochs(plain, 20).optimizer == plain.optimizer


def test_a_sweep_with_other_epochs_or_another_device_has_them_everywhere() -> None:
    text = GRID.replace(
        "[grid]", 'optimizer = { lr = 1.0, scheduler = { name = "CosineAnnealingLR", T_max = 2 } }\n[grid]'
    )
    sweep = changed(parse(text, "mine"), epochs=10, device="mps")
    assert {cell.config.optimizer["scheduler"]["T_max"] for cell in sweep.cells} == {10}
    assert {cell.config.model.device for cell in sweep.cells} == {"mps"}


def test_the_device_is_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is trained: this machine has no such device, and that is said before the first run."""
    file = tmp_path / "mine.toml"
    file.write_text(GRID)
    assert main(["reproduce", str(file), "--out", str(tmp_path), "--device", "mps", "--workers", "1"]) == 2
    assert "mps" in capsys.readouterr().err


@pytest.mark.usefixtures("warm_pool")
def test_a_sweep_says_how_far_it_is_where_its_output_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reproduce, "SAID_SECONDS", 0.0)
    file = tmp_path / "mine.toml"
    file.write_text(GRID.replace("[20, 30]", "[30]").replace("[0.1, 0.2]", "[0.1]").replace("epochs = 2", "epochs = 3"))
    printed = Console(file=StringIO())
    with caplog.at_level(logging.INFO, "efvfl"):
        reproduce.reproduce(str(file), tmp_path / "out", Overrides(), printed, workers=1)
    said = [record.getMessage() for record in caplog.records]
    cell = "mine-batch_size=30-ratio=0.1, seed 0"
    assert [line for line in said if line == f"0 of 1 runs done, at work: {cell}, epoch 1"]
    assert said[-1] == f"1 of 1 runs done: {cell}"
    [result] = (tmp_path / "out" / "mine").glob("*.json")
    assert json.loads(result.read_text())["config"]["batch_size"] == 30


def test_one_seed_shows_no_spread() -> None:
    assert str(Score(91.04, 0.0, 1)) == "91.0"
    assert str(Score(91.04, 0.0, 2)) == "91.0 ± 0.0"
    assert str(Score(91.6, 0.1)) == "91.6 ± 0.1"  # of the paper


def test_results_of_another_version_are_named_because_they_are_not_repeated() -> None:
    results = [Result("a", {}, {}, {}, {"efvfl": version}) for version in ("0.1.0", "0.2.0", "0.1.0")]
    assert made_elsewhere({"a": results}, "0.2.0") == {"0.1.0": 2}
    assert made_elsewhere({"a": results[1:2]}, "0.2.0") == {}
    assert made_elsewhere({"a": [Result("a", {}, {}, {}, {})]}, "0.2.0") == {"unknown": 1}
