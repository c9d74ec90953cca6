"""`efvfl plan` on the command line."""

import json
import tomllib
from pathlib import Path

import pytest

from efvfl.cli.main import main
from efvfl.config.run_file import RunConfig, read
from efvfl.runs import candidates

RUN = """
epochs = 4
batch_size = 64
[data]
subset = 300
[optimizer]
name = "SGD"
lr = 2.0
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(candidates, "SETTINGS", candidates.SETTINGS[:2])  # the others take time
    path = tmp_path / "mine.toml"
    path.write_text(RUN)
    return path


def test_a_table_and_the_lines_to_paste(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    line = ["--round-trip", "100", "--up", "1", "--down", "2"]
    assert main(["plan", str(file), *line, "--target", "accuracy=0.2", "--seconds", "300"]) == 0
    out, err = capsys.readouterr()
    assert "To a validation accuracy of 0.2" in out
    for heading in ("setting", "rounds", "time", "MB up", "against"):
        assert heading in out
    assert "SVFL" in out
    assert "as in the file" in out
    assert "settings" in err
    text = " ".join(out.split())
    assert "the time is arithmetic: every party has a line of 100 ms, 1 Mbit/s up and 2 down" in text
    _, _, lines = out.partition("In the file:\n")
    assert read(RunConfig, tomllib.loads(lines), "pasted").batch_size in (64, 256)


def test_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(file), "--target", "loss=2.5", "--seconds", "300", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["metric"], found["target"]) == ("loss", 2.5)
    assert found["line"] == {"round_trip": 0.02, "up": 1e7, "down": 1e7}
    assert found["settings"][0]["ending"] == "reached"
    assert found["toml"].startswith("batch_size = ")


def test_a_target_out_of_reach(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(file), "--target", "1.5", "--seconds", "1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "No setting reached accuracy of 1.5 in the time of the trial, so none is recommended" in out
    assert "stopped after" in out
    assert "batch_size" not in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "auk"], "Did you mean 'auc'?"),
        (["--up", "0"], "rate up: expected a number above 0"),
        (["--round-trip", "-1"], "round trip: expected a time of at least 0"),
        (["--seconds", "0"], "seconds: expected a number above 0"),
    ],
)
def test_mistakes_end_with_one_clear_line(
    options: list[str], message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(file), *options]) == 2
    assert message in capsys.readouterr().err
