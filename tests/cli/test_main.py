"""The command line as people use it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from PIL import Image

from efvfl.cli.main import main
from efvfl.util import checkpoint

RUN = """
epochs = 3
batch_size = 200
[optimizer]
name = "SGD"
lr = 2.0
"""


def numbers(text: str) -> dict[str, list[float]]:
    """Accuracy, bytes up, bytes down, savings and seconds on a slow line by method, from the table in a text."""
    units = {"%": 1.0, "x": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6}
    found = {}
    for row in (line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")):
        name, *cells, _, line_seconds = (cell.split() for cell in row)  # seconds on this machine vary
        found[name[0]] = [*(float(number) * units[unit] for number, unit in cells), float(line_seconds[0])]
    return found


@pytest.mark.slow
def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    picture = tmp_path / "demo.png"
    assert str(picture) in out.replace("\n", "")
    with Image.open(picture) as image:
        assert image.size[0] > 1000
    assert set(numbers(out)) == {"SVFL", "CVFL", "EF-VFL"}
    shown = numbers((ROOT / "README.md").read_text(encoding="utf-8"))
    measured = numbers(out)
    for name, (score, *exact) in measured.items():  # the README tells what comes out, on any processor
        assert score == pytest.approx(shown[name][0], abs=4)
        assert exact == pytest.approx(shown[name][1:], rel=0.05)
        up, down, _, line = exact
        assert line == pytest.approx(60 * 10 * 0.020 + (up + down) * 8 / 10e6, abs=0.1)  # 10 steps an epoch
    accuracy = {name: row[0] for name, row in measured.items()}
    saved = {name: row[3] for name, row in measured.items()}
    assert accuracy["EF-VFL"] > accuracy["SVFL"] - 2
    assert accuracy["CVFL"] < accuracy["EF-VFL"] - 10
    assert saved["SVFL"] == 1
    assert saved["EF-VFL"] > 20


def test_run_resume_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(RUN)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["run", str(file), "--out", str(whole)]) == 0
    assert main(["run", str(file), "--out", str(parts), "--epochs", "1"]) == 0
    assert main(["run", str(file), "--out", str(parts), "--resume"]) == 0
    assert "Going on after epoch 1." in capsys.readouterr().out

    def records(folder: Path) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]

    assert records(whole) == records(parts)
    assert len(records(whole)) == 3
    left = {"records.jsonl", "run.png", "outputs.parquet", "settings.json"}
    left |= {"checkpoint.safetensors", "checkpoint.previous.safetensors"}
    assert {p.name for p in whole.iterdir()} == left
    (tmp_path / "taken").write_text("a file")
    assert main(["run", str(file), "--out", str(tmp_path / "taken")]) == 2
    assert "cannot write" in capsys.readouterr().err
    checkpoint.save(tmp_path / "foreign" / "checkpoint.safetensors", {"a": 1})
    assert main(["run", str(file), "--out", str(tmp_path / "foreign"), "--resume"]) == 2
    assert "was not left by `efvfl run`" in capsys.readouterr().err
    assert main(["run", str(file), "--out", str(whole)]) == 2
    assert "give --resume to go on from it" in capsys.readouterr().err
    assert main(["run", str(file), "--out", str(whole), "--resume", "--seed", "5"]) == 2
    assert "was made with other settings of seed" in capsys.readouterr().err


def test_mistakes_end_with_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("epoch = 3")
    assert main(["run", str(file)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("efvfl: mine.toml: unknown key 'epoch'. Did you mean 'epochs'?")
    assert "Traceback" not in err
    assert main(["run", str(tmp_path / "none.toml")]) == 2
    assert main(["compressors", "--rows", "0"]) == 2
    file.write_text(RUN + "[model]\n")
    assert main(["run", str(file), "--epochs", "0", "--out", str(tmp_path / "o")]) == 2
    assert "leaves nothing to train" in capsys.readouterr().err
    file.write_text(RUN.replace("2.0", "1e38") + "[model]\nlast = 'identity'\n")
    assert main(["run", str(file), "--out", str(tmp_path / "p")]) == 3
    assert "lower the learning rate" in capsys.readouterr().err


def test_compressors_table(capsys: pytest.CaptureFixture[str]) -> None:
    from efvfl.compress import REGISTRY

    assert main(["compressors"]) == 0
    out = capsys.readouterr().out
    for name in REGISTRY:
        assert name in out
    row = next(line for line in out.splitlines() if "bits=4" in line and line.startswith("│ qsgd"))
    assert float(row.split("│")[4]) < 1.3 / 8


def test_models_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "beside_the_file.py").write_text("import torch\ndef net(): return torch.nn.Linear(16, 7)\n")
    file = tmp_path / "mine.toml"
    file.write_text("epochs = 1\n[model]\nname = 'beside_the_file:net'\n")
    assert main(["run", str(file), "--out", str(tmp_path / "out")]) == 0


def test_help_is_quick() -> None:
    code = "import sys; from efvfl.cli.main import _parser; _parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_data_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    assert "fashion-mnist" in capsys.readouterr().out
    assert main(["data", "get", "digits"]) == 0
    assert main(["data", "get", "digit"]) == 2
    assert "Did you mean 'digits'" in capsys.readouterr().err


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("efvfl.cli.demo.run_demo", stop)
    assert main(["demo"]) == 130
    assert "interrupted" in capsys.readouterr().err
