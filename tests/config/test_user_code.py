"""Code beside a run file: what the file names is found by every command, and nothing else there is ever run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from result_files import without_times

from efvfl import train
from efvfl.cli.main import main
from efvfl.config import user_code
from efvfl.errors import ConfigError
from efvfl.experiments import experiment_file
from efvfl.experiments.jobs import run_job
from efvfl.models.mlp import imported

RUN = "epochs = 0\n[data]\nsubset = 40\n[[party]]\nname = 'top-left'\n"
SWEEP = "title = 'Own'\n[base]\nepochs = 1\ndata = { subset = 40 }\n[[run]]\nname = 'one'\nmethod = { name = 'cvfl' }\n"

# Whatever each command answers: here there are neither certificates nor tables, and nothing is left to train.
COMMANDS = {
    "run": ["run", "run.toml", "--out", "out"],
    "join": ["join", "run.toml", "--party", "nobody", "--dir", "state"],
    "serve": ["serve", "run.toml", "--dir", "state"],
    "predict": ["predict", "run.toml", "--split", "test", "--dir", "state"],
    "serve-predictions": ["serve-predictions", "run.toml", "--dir", "state"],
    "align": ["align", "run.toml", "--dir", "state"],
    "align --party": ["align", "run.toml", "--party", "top-left", "--dir", "state"],
    "figures": ["figures", "sweep.toml"],
}


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules and search paths of one test must not be found by the next one."""
    monkeypatch.setattr(user_code, "_beside", [], raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if name.startswith("beside_"):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with run files, and with a file that somebody planted under the name of an optional module."""
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "beside_planted.py").write_text("raise SystemExit('planted code has run')\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return tmp_path


@pytest.mark.attack(
    by="a file",
    tries="lies beside the run file under the name of a module that some library tries to import",
    outcome="not found by any command: the folder is not on the search path",
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_planted_module_is_not_found(folder: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(folder / word) if word.endswith(".toml") else word for word in COMMANDS[command]]
    assert main(arguments) == 2, capsys.readouterr().err
    assert str(folder) not in sys.path
    assert importlib.util.find_spec("beside_planted") is None


def test_a_planted_module_is_not_found_after_a_run_of_ones_own_model(folder: Path) -> None:
    (folder / "beside_net.py").write_text("import torch\ndef net(): return torch.nn.Linear(16, 7)\n")
    (folder / "run.toml").write_text(RUN.replace("= 0", "= 1") + "[model]\nname = 'beside_net:net'\n")
    train(folder / "run.toml", folder / "out")
    assert importlib.util.find_spec("beside_planted") is None


def test_siblings_are_found_while_the_module_is_imported_and_while_it_makes_the_model(folder: Path) -> None:
    (folder / "beside_early.py").write_text("WIDTH = 5\n")
    (folder / "beside_late.py").write_text("INPUTS = 16\n")
    (folder / "beside_maker.py").write_text(
        "import torch\nfrom beside_early import WIDTH\n"
        "def net():\n    from beside_late import INPUTS\n    return torch.nn.Linear(INPUTS, WIDTH)\n"
    )
    before = [*sys.path]
    user_code.look_in(folder)
    assert imported("beside_maker:net", {}).in_features == 16
    assert sys.path == before


def test_a_package_may_import_its_own_modules_at_any_time(folder: Path) -> None:
    (folder / "beside_package").mkdir()
    (folder / "beside_package" / "__init__.py").write_text("")
    (folder / "beside_package" / "late.py").write_text("FACTOR = 3\n")
    (folder / "beside_package" / "net.py").write_text("def later():\n    from . import late\n    return late.FACTOR\n")
    user_code.look_in(folder)
    later = user_code.attribute("beside_package.net:later")
    assert callable(later)
    assert later() == 3


def test_a_sibling_that_is_missing_when_rows_pass_through_is_named(folder: Path) -> None:
    (folder / "beside_lazy.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self): super().__init__(16, 3)\n"
        "    def forward(self, x):\n        import beside_planted\n        return super().forward(x)\n"
    )
    (folder / "run.toml").write_text(RUN + "[model]\nname = 'beside_lazy:Net'\n")
    with pytest.raises(ConfigError, match=r"does not work on its columns .* No module named 'beside_planted'"):
        train(folder / "run.toml", folder / "out")


@pytest.mark.attack(
    by="a file",
    tries="lies beside the run file under the name of an installed module",
    outcome="never imported in its place; refused where the run file names it",
)
def test_what_is_installed_is_not_shadowed(folder: Path) -> None:
    (folder / "shelve.py").write_text("def net(): raise SystemExit('planted code has run')\n")
    user_code.look_in(folder)
    with pytest.raises(ConfigError, match=r"expected the module 'shelve' to be .*shelve\.py, beside .*: rename yours"):
        imported("shelve:net", {})


def test_two_folders_with_modules_of_one_name(folder: Path) -> None:
    """The second one would silently be the first one's."""
    (folder / "beside_twin.py").write_text("import torch\ndef net(): return torch.nn.Linear(1, 1)\n")
    user_code.look_in(folder)
    imported("beside_twin:net", {})
    other = folder / "elsewhere"
    (other / "beside_twin.py").write_text("import torch\ndef net(): return torch.nn.Linear(2, 2)\n")
    user_code.look_in(other)
    with pytest.raises(ConfigError, match=r"expected the module 'beside_twin' to be .*elsewhere"):
        imported("beside_twin:net", {})


@pytest.mark.parametrize("path", [":net", "..:net", "a b:net", "a\x00b:net", "nowhere:net", "math:nothing", ":"])
def test_paths_that_name_nothing_are_refused(path: str) -> None:
    with pytest.raises((ImportError, AttributeError)):
        user_code.attribute(path)


# In processes of their own, started in the folder itself: Python puts that first by itself.


def efvfl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m efvfl` in a folder, without the settings of the one who runs the tests."""
    places = [place for place in sys.path if place and Path(place).is_dir()]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"} | {
        "PYTHONPATH": os.pathsep.join(places)
    }
    command = [sys.executable, "-m", "efvfl", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def plant(folder: Path, *names: str) -> Path:
    """Put files into the folder that leave a mark when they are run; return the mark."""
    for name in names:
        text = "from pathlib import Path\nPath(__file__).with_name('ran').write_text(__name__)\nraise ImportError\n"
        (folder / f"{name}.py").write_text(text)
    return folder / "ran"


@pytest.mark.slow
@pytest.mark.attack(
    by="a file",
    tries="gmpy2.py and safetensors.py in the folder in which `python -m efvfl run` is started",
    outcome="not run: the current folder is taken off the search path first",
)
def test_the_current_folder_is_not_searched(folder: Path) -> None:
    mark = plant(folder, "gmpy2", "safetensors", "rich")
    (folder / "run.toml").write_text(RUN.replace("= 0", "= 1"))
    done = efvfl(folder, "run", "run.toml", "--out", "out")
    assert (done.returncode, mark.exists()) == (0, False), done.stderr


@pytest.mark.slow
@pytest.mark.attack(
    by="a file",
    tries="selectors.py, tempfile.py and gmpy2.py in the folder in which `efvfl reproduce` starts two processes",
    outcome="not run by them either; a model of one's own beside the file is",
)
@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_processes_of_a_sweep_find_what_is_named_and_nothing_else(folder: Path, engine: str) -> None:
    """Their results are those of one process, too: starting Ray a second time for that would take half a minute."""
    mark = plant(folder, "gmpy2", "selectors", "tempfile")
    (folder / "beside_width.py").write_text("WIDTH = 3\n")
    (folder / "beside_net.py").write_text(
        "import torch\ndef net():\n    from beside_width import WIDTH\n    return torch.nn.Linear(16, WIDTH)\n"
    )
    (folder / "sweep.toml").write_text(SWEEP.replace("[[run]]", "model = { name = 'beside_net:net' }\n[[run]]"))
    seeds = ("--seeds", "0", "1")
    out = ("--out", "out")
    done = efvfl(folder, "reproduce", "sweep.toml", *seeds, *out, "--workers", "2", "--engine", engine)
    assert (done.returncode, mark.exists()) == (0, False), done.stderr
    for job in experiment_file.changed(experiment_file.load(str(folder / "sweep.toml")), seeds=(0, 1)).jobs():
        run_job(job, folder / "here")
    assert len(without_times(folder / "here")) == 2
    assert without_times(folder / "out" / "sweep") == without_times(folder / "here")
