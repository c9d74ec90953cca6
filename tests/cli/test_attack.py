"""`efvfl attack` on the command line: a file is trained, a folder is attacked as it is."""

import json
from pathlib import Path

import pytest

from efvfl.cli.main import main

RUN = """
epochs = 2
batch_size = 32
data = { subset = 160, validation = 0.05, test = 0.1 }
model = { width = 4 }
method = { compressor = { name = "topk", ratio = 0.3 }, down = { name = "topk", ratio = 0.3 } }
"""
FEW = ["--known", "2", "--shadow", "30"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(RUN)
    return path


def test_tables_a_picture_and_what_each_attacker_knows(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = file.parent / "found.png"
    names = ["norm", "direction", "inverse", "without-uplink"]
    line = ["attack", str(file), *FEW, "--attacks", *names, "--defences", "max-norm", "--picture", str(picture)]
    assert main(line) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "labels, told by top-left: AUC (0.5 is chance, 1 is all of them)" in out
    assert "columns of top-left, told by the server" in out
    assert "as in the file max-norm the attacker has" in out
    assert "does not apply: a length orders rows in one way" in out
    assert "without-uplink (baseline)" in out
    assert "Known to attackers: 2 labels of each class, columns of 30 rows." in out
    assert "is no proof that none does" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not (file.parent / "runs").exists()  # nothing else is written


def test_json_of_a_file_and_of_the_run_that_it_leaves(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    attack = ["--attacks", "norm", "direction", "completion", "active-completion", "inverse", "inverse-held-out"]
    assert main(["attack", str(file), "--party", "top-right", *FEW, *attack, "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert main(["run", str(file), "--out", "left"]) == 0
    capsys.readouterr()
    assert main(["attack", "left", "--party", "top-right", *FEW, *attack, "--json"]) == 0
    saved = json.loads(capsys.readouterr().out)
    assert trained["attacker"] == saved["attacker"] == {"party": "top-right", "known": 2, "shadow": 30, "seed": 0}
    assert [kind["name"] for kind in trained["attacks"]] == attack[1:]
    (one,), (other,) = trained["runs"], saved["runs"]
    assert (one["name"], other["name"]) == ("as in the file", "as saved")
    assert one["scores"] == other["scores"]
    for name in ("completion", "inverse-held-out"):  # the same model, and the same rows and draws
        assert one["found"][name] == pytest.approx(other["found"][name])
    assert set(one["found"]) == set(attack[2:])
    assert set(other["found"]) == {"direction", "completion", "inverse", "inverse-held-out"}
    assert "attack the run file to train it otherwise" in other["not_applicable"]["active-completion"]


def test_a_folder_without_memories_has_models_alone(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    file.write_text(RUN.replace("method = {", 'method = { name = "cvfl",'))
    assert main(["run", str(file), "--out", "left"]) == 0
    capsys.readouterr()
    assert main(["attack", "left", *FEW, "--attacks", "direction", "spectral", "inverse", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert set(run["found"]) == {"spectral"}
    assert set(run["not_applicable"]) == {"direction", "inverse"}
    assert "nothing of it is kept" in run["not_applicable"]["inverse"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--attacks", "nrom"], "Did you mean 'norm'?"),
        (["--defences", "marvel"], "Did you mean 'marvell'?"),
        (["--party", "nobody"], "expected one of the parties"),
        (["--known", "0"], "known: expected a number of at least 1"),
        (["--known", "500", "--attacks", "direction"], "rows are known to the attacker"),
    ],
)
def test_mistakes_end_with_one_clear_line(
    options: list[str], message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", str(file), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_is_not_trained_again(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", str(file.parent), "--defences", "max-norm"]) == 2
    assert "expected none with a folder, which is not trained again" in capsys.readouterr().err
    assert main(["attack", str(file.parent)]) == 2
    assert "cannot read the checkpoint" in capsys.readouterr().err
