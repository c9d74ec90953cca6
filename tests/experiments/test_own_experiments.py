"""`efvfl reproduce my.toml`: data, models and losses of one's own, and mistakes found before anything trains."""

import json
from pathlib import Path

import numpy as np
import pytest

from efvfl.cli.main import main
from efvfl.config.run_file import RunConfig, read
from efvfl.errors import ConfigError
from efvfl.experiments.experiment_file import Job, load, parse
from efvfl.experiments.jobs import run_all
from efvfl.network.training.participant_data import load as hold

pytestmark = pytest.mark.usefixtures("warm_pool")

OWN = """
title = "Own"
[base]
epochs = 2
[[run]]
name = "svfl"
row = "SVFL"
column = "none"
method = { name = "svfl" }
[[run]]
name = "ef"
row = "EF-VFL"
column = "topk"
"""
FIGURE = """
[[figure]]
name = "curve"
left = "loss"
panels = [{ title = "both", runs = ["svfl", "ef"] }]
"""
NPZ = 'data = { name = "npz", path = "mine.npz" }\n'


def with_base(*lines: str) -> str:
    return OWN.replace("[base]\n", "\n".join(["[base]", *lines, ""]))


def save_arrays(folder: Path, seed: int = 0, **changes: object) -> None:
    draw = np.random.default_rng(seed)
    x = {name: draw.standard_normal((60, 3)) for name in ("bank", "telco")}
    np.savez(folder / "mine.npz", **x, **({"y": (x["bank"][:, 0] > 0).astype(int)} | changes))  # type: ignore[arg-type]


def reproduce(folder: Path, text: str, *options: str, command: str = "reproduce") -> int:
    """Run from another folder than the file's: nothing may depend on where one stands."""
    file = folder / "exp.toml"
    file.write_text(text)
    workers = ["--workers", "1"] if command == "reproduce" else []
    return main([command, str(file), "--out", str(folder / "results"), *workers, *options])


def results(folder: Path) -> list[Path]:
    return sorted((folder / "results" / "exp").glob("*.json"))


def test_arrays_beside_the_file_are_found_and_other_arrays_are_other_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_arrays(tmp_path)
    assert reproduce(tmp_path, with_base(NPZ)) == 0
    assert "Own: test accuracy (%)" in " ".join(capsys.readouterr().out.split())
    first = results(tmp_path)
    assert len(first) == 2
    assert reproduce(tmp_path, with_base(NPZ)) == 0
    assert results(tmp_path) == first  # nothing was trained again
    save_arrays(tmp_path, seed=1)
    assert reproduce(tmp_path, with_base(NPZ), "--quick", "--epochs", "2") == 0  # digits are no substitute for these
    assert len(results(tmp_path)) == 4


def test_a_model_beside_the_file_is_found_and_its_source_is_in_the_key(tmp_path: Path) -> None:
    source = "from torch import nn\ndef net(size): return nn.Linear(16, size)\n"
    (tmp_path / "sweep_net.py").write_text(source)
    model = 'model = { name = "sweep_net:net", options = { size = 4 } }\ndata = { name = "digits" }'
    assert reproduce(tmp_path, with_base(model)) == 0
    assert len(results(tmp_path)) == 2
    jobs = load(str(tmp_path / "exp.toml")).jobs()
    keys = [job.key for job in jobs]
    assert {path.name for path in results(tmp_path)} == {job.file for job in jobs}
    (tmp_path / "sweep_net.py").write_text(source.replace("16, size", "16, size, False"))
    assert all(job.key != key for job, key in zip(jobs, keys, strict=True))


def test_keys_of_runs_that_bring_nothing_along_do_not_depend_on_the_folder(tmp_path: Path) -> None:
    job = parse(OWN, "own").jobs()[0]
    assert Job(job.cell, job.config, tmp_path).key == job.key


def test_regression_is_measured_by_r2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_arrays(tmp_path, y=np.linspace(0, 1, 60))
    assert reproduce(tmp_path, with_base('loss = "mse"', "optimizer = { lr = 0.1 }", NPZ) + FIGURE) == 0
    assert "Own: test r2, one seed" in " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "results" / "exp" / "exp.html").read_text()
    assert "<h2>Test r2</h2>" in page
    last = json.loads(results(tmp_path)[-1].read_text())["columns"]["test_r2"][-1]
    assert f">{last:.3f}<" in page


def test_without_test_rows_and_names_of_rows_the_table_says_what_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = with_base('data = { name = "digits", test = 0.0 }')
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("row", "column")))
    assert reproduce(tmp_path, text, "--epochs", "1") == 0
    table = " ".join(capsys.readouterr().out.split("Written")[0].split())
    assert "Own: validation accuracy (%)" in table
    assert "svfl" in table
    assert "ef" in table


@pytest.mark.parametrize(
    ("text", "options", "error"),
    [
        (
            OWN.replace("EF-VFL", "SVFL").replace("topk", "none"),
            [],
            "runs 'svfl' and 'ef' have the same row 'SVFL' and column 'none'",
        ),
        (OWN.replace('"SVFL"', "3"), [], "run 'svfl': row: expected a string, got 3"),
        (OWN.replace('name = "ef"\n', ""), [], "expected runs with unique names, got ['svfl', '']"),
        (OWN, ["--epochs", "0"], "epochs: expected at least 1, because without training there is no result, got 0"),
        (OWN, ["--epochs", "0", "--quick"], "epochs: expected at least 1, because"),
        (OWN, ["--seeds", "1", "1"], "seeds: expected one or more different seeds, got [1, 1]"),
        (
            OWN.replace('title = "Own"', 'title = "Own"\nseeds = []'),
            [],
            "seeds: expected one or more different seeds, got []",
        ),
        (OWN.replace('"topk"\n', '"topk"\nloss = "mse"\n'), [], "measured by accuracy and by r2 do not fit"),
        (
            OWN.replace('"topk"\n', '"topk"\nmethod = { compressor = { name = "topk", ratio = 0 } }\n'),
            [],
            "run 'ef': topk's ratio: expected a number above 0",
        ),
        (with_base(NPZ), [], "run 'svfl': cannot read"),
        (with_base('data = { name = "digitz" }'), [], "Did you mean 'digits'?"),
    ],
)
def test_mistakes_are_found_before_anything_trains(
    text: str, options: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(tmp_path, text, *options) == 2
    assert error in capsys.readouterr().err
    assert results(tmp_path) == []


def test_a_bad_cell_of_a_later_seed_is_named(tmp_path: Path) -> None:
    text = OWN.replace('"topk"\n', '"topk"\noptimizer = { name = "SGD", lr = -1.0 }\n')
    with pytest.raises(ConfigError, match=r"run 'ef': optimizer: torch\.optim\.SGD does not take"):
        run_all(parse(text, "own").jobs(), tmp_path, workers=1)
    assert not list(tmp_path.glob("*.json"))


def test_figures_without_results_name_the_command_that_makes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(tmp_path, OWN + FIGURE, command="figures") == 2
    assert f"run `efvfl reproduce {tmp_path / 'exp.toml'}` first" in " ".join(capsys.readouterr().err.split())


def test_a_subset_is_refused_where_each_participant_reads_its_own_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.ones((9, 2)))
    np.savez(tmp_path / "labels.npz", y=np.arange(9) % 2)
    table = {"data": {"path": "labels.npz", "subset": 3}, "party": [{"name": "bank", "data": {"path": "own.npz"}}]}
    with pytest.raises(ConfigError, match="subset = 3 is set, but it would have no effect"):
        hold(read(RunConfig, table, "run"), tmp_path, "bank")
