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


def race_of(text: str) -> dict[str, list[float]]:
    """Rounds, bytes, savings, seconds on the line, times sooner and accuracy by method, from the table in a text."""
    units = {"kB": 1e3, "MB": 1e6}
    found = {}
    for row in (line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")):
        name, *cells, _ = (cell.strip() for cell in row)  # seconds on this machine vary
        parts = [cell.split() for cell in cells if cell and cell != "never"]
        found[name] = [float(number) * (units.get(unit[0], 1) if unit else 1) for number, *unit in parts]
    return found


@pytest.mark.slow
def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    picture = tmp_path / "demo.png"
    assert str(picture) in out.replace("\n", "")
    with Image.open(picture) as image:
        assert image.size[0] > 1000
    measured, shown = race_of(out), race_of((ROOT / "docs/demo.md").read_text(encoding="utf-8"))
    assert set(measured) == set(shown) == {"SVFL", "CVFL", "EF-VFL", "+ cached"}
    for name, found in measured.items():  # the page tells what comes out, on any processor
        assert found[-1] == pytest.approx(shown[name][-1], abs=4)
        assert found[:-1] == pytest.approx(shown[name][:-1], rel=0.15)
        if len(found) > 1:  # it gets to the target
            rounds, sent, _, line, _, _ = found
            assert line == pytest.approx(rounds * 0.020 + sent * 8 / 10e6, abs=0.1)
    fewer, sooner, accuracy = ({name: row[i] for name, row in measured.items() if len(row) > 1} for i in (2, 4, 5))
    assert "CVFL" not in sooner
    assert fewer["EF-VFL"] > 15
    assert fewer["+ cached"] > 40
    assert sooner["+ cached"] > 10
    assert accuracy["+ cached"] > accuracy["SVFL"] - 1


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
    left = {"records.jsonl", "run.png", "outputs.parquet", "settings.json", "models.json"}
    left |= {"checkpoint.safetensors", "checkpoint.previous.safetensors", "status.json"}
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
    assert "was made with other settings (seed: 0 then, 5 now)" in capsys.readouterr().err


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
