"""A run with asynchronous parties leaves who reported when, and `efvfl run --replay` trains the same model again."""

from pathlib import Path

import pytest
import torch

from efvfl.cli.main import main
from efvfl.training.arrivals import load_arrivals
from efvfl.util import checkpoint

FILE = """
epochs = 6
batch_size = 40
observe_every = 3
agreement = {{ asynchronous = {{ reports = 3, most_stale = 4 }} }}
data = {{ subset = 120 }}
{party}
"""
SLOW = '[[party]]\nname = "top-left"\nreport_seconds = 3.5\n'


def test_a_run_is_replayed_from_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, other = tmp_path / "slow.toml", tmp_path / "other.toml"
    file.write_text(FILE.format(party=SLOW), encoding="utf-8")
    other.write_text(FILE.format(party=""), encoding="utf-8")  # whatever the speeds
    folders = [tmp_path / name for name in ("recorded", "replayed", "even")]
    assert main(["run", str(file), "--out", str(folders[0])]) == 0
    assert main(["run", str(other), "--out", str(folders[1]), "--replay", str(folders[0])]) == 0
    assert main(["run", str(other), "--out", str(folders[2])]) == 0
    arrivals = [load_arrivals(folder) for folder in folders]
    assert arrivals[0] == arrivals[1] != arrivals[2]
    assert sum("top-left" not in names for names in arrivals[0]) >= 6
    states = [checkpoint.load(folder / "checkpoint.safetensors")["federation"]["server"]["block"] for folder in folders]
    recorded, replayed, even = (torch.cat([p.flatten() for p in state["module"].values()]) for state in states)
    assert torch.equal(recorded, replayed)
    assert not torch.equal(recorded, even)
    capsys.readouterr()
    assert main(["run", str(other), "--out", str(tmp_path / "none"), "--replay", str(tmp_path)]) == 2
    assert "cannot read who reported when from" in " ".join(capsys.readouterr().err.split())
