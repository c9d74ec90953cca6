"""Every block of code in every document is run, or it is said here why it cannot be."""

import ast
import configparser
import contextlib
import io
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documents import DOCUMENTS, Block, blocks, blocks_of
from paths import ROOT

from efvfl import Momentum, TopK
from efvfl.cli.main import _parser, main
from efvfl.config import own_file
from efvfl.config.run_file import RunConfig, load, read
from efvfl.experiments import experiment_file
from efvfl.runs.run import train

BLOCKS = [block for file in DOCUMENTS for block in blocks_of(file)]

# What has a test of its own, which also looks at what comes out.
OWN_TESTS = {
    "docs/adding-a-compressor.md": "tests/project/test_docs.py::test_the_documented_compressor_fulfils_the_contract",
    "docs/adding-a-memory.md": "tests/project/test_docs.py::test_the_documented_memory_fulfils_the_contract_and_trains",
    "docs/estimators.md": "tests/runs/test_estimators.py::test_the_documented_example_runs",
    "docs/python.md": "tests/project/test_docs.py::test_the_documented_python_runs",
    "docs/tables.md": "tests/data/tables/test_docs.py::test_the_documented_lines_encode_a_table",
}

# Files of TOML that belong to a test of their own.
OWN_TOML = {
    "docs/run-files.md": "tests/project/test_docs.py::test_the_documented_run_files_are_read",
    "docs/deploy.md": "tests/project/test_blocks.py::test_the_files_of_a_deployment",
    "docs/reproduce.md": "tests/project/test_blocks.py::test_the_experiment_file",
    "docs/first-federation.md": "tests/project/test_blocks.py::test_files_and_commands_of_a_tutorial",
    "docs/own-model.md": "tests/project/test_blocks.py::test_files_and_commands_of_a_tutorial",
    "docs/own-method.md": "tests/project/test_blocks.py::test_a_method_of_ones_own_in_a_file",
    "docs/credit.md": "tests/project/test_credit.py::test_two_tables_become_predictions_and_equal_one_process",
    "docs/flights.md": "tests/project/test_flights.py::test_three_tables_become_predictions_with_all_and_without_one",
}

# Who runs the commands of a page: the page itself is played, or the same commands in a federation of the test's own.
COMMANDS: dict[str, list[str]] = {
    "README.md": ["tests/cli/test_main.py::test_demo"],
    "docs/alignment.md": ["tests/cli/test_align.py::test_all_end_well_with_the_same_list"],
    "docs/commands.md": [
        "tests/project/test_first_day.py::test_every_command_of_the_page_is_played",
        "tests/cli/test_plan.py::test_a_table_and_the_lines_to_paste",
        "tests/cli/test_next_month.py::test_all_end_well",
        "tests/cli/test_attack.py::test_a_folder_is_not_trained_again",
    ],
    "docs/comparison.md": [
        "tests/project/test_comparison.py::test_every_method_trains_and_what_is_done_is_not_done_again"
    ],
    "docs/deploy.md": ["tests/cli/test_federation.py::test_predict_ids"],
    "docs/first-day.md": ["tests/project/test_first_day.py::test_every_command_of_the_page_is_played"],
    "docs/first-federation.md": ["tests/project/test_blocks.py::test_files_and_commands_of_a_tutorial"],
    "docs/operations.md": [
        "tests/network/doctor/test_doctor.py::test_both_ends_see_the_line_the_clocks_and_the_estimate"
    ],
    "docs/own-model.md": ["tests/project/test_blocks.py::test_files_and_commands_of_a_tutorial"],
    "docs/privacy.md": ["tests/cli/test_attack.py::test_a_folder_is_not_trained_again"],
    "docs/reproduce.md": [
        "tests/cli/test_main.py::test_data_list",
        "tests/experiments/test_experiments.py::test_quick_works_offline",
    ],
    "docs/service.md": ["tests/network/predict/test_service.py::test_predictions_are_those_of_one_process"],
    "docs/slow-lines.md": ["tests/cli/test_plan.py::test_a_table_and_the_lines_to_paste"],
    "docs/subsets.md": ["tests/network/predict/test_subsets.py::test_a_file_of_predictions_goes_without_a_dead_party"],
    "docs/tables.md": ["tests/cli/test_next_month.py::test_all_end_well"],
    "docs/workers.md": ["tests/network/workers/test_worker_group.py::test_a_party_with_two_workers_in_a_federation"],
    "examples/containers/README.md": [
        "tests/project/test_containers.py::test_every_service_runs_a_command_of_ours_in_a_folder_of_its_own"
    ],
    "examples/two_banks/README.md": [
        "tests/project/test_two_banks.py::test_it_stops_cleanly_goes_on_and_equals_one_process"
    ],
}

# Words that begin a line of which only the commands of ours are tried: what they do is of others, or needs a network,
# a container engine or several machines.
OTHERS = {"pip", "python3", "curl", "torchrun", "docker", "cp", "mv"}


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def python_pages() -> list[str]:
    return sorted({block.file for block in of("python")} - set(OWN_TESTS))


def test_every_block_says_what_it_is_and_somebody_tries_it() -> None:
    tried = {"python", "toml", "sh", "bash", "json", "ini"}
    shown = {"text", "mermaid"}  # what is printed, and pictures
    diff = [block.file for block in of("diff")]
    assert {block.language for block in BLOCKS} - tried - shown == {"diff"}
    assert diff == ["docs/first-federation.md"]  # run by test_docs.py, as it is before and after
    assert {block.file for block in of("sh", "bash")} == set(COMMANDS)
    for place in [*OWN_TESTS.values(), *OWN_TOML.values(), *(name for names in COMMANDS.values() for name in names)]:
        file, _, name = place.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, place


def told(source: str, printed: dict[int, str], scope: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """Run statements one after the other; return what the comments beside some of them say, and what came out."""
    found = {}
    lines = source.splitlines()
    for node in ast.parse(source).body:
        said = re.search(r"  # ([-\d. ]+)$", lines[(node.end_lineno or node.lineno) - 1])
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            if isinstance(node, ast.Expr):
                value = eval(compile(ast.Expression(node.value), "docs", "eval"), scope)
                printed[node.lineno] = out.getvalue() or str(value)
            else:
                exec(compile(ast.Module([node], []), "docs", "exec"), scope)
        if said and isinstance(node, ast.Expr):
            numbers = zip(said[1].split(), printed[node.lineno].split(), strict=True)
            shown = [f"{float(got):.{len(wanted.partition('.')[2])}f}" for wanted, got in numbers]
            found[node.lineno] = (said[1], " ".join(shown))
    return found


@pytest.mark.parametrize("page", python_pages())
def test_the_python_of_a_page_runs_and_gives_the_numbers_beside_it(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    printed: dict[int, str] = {}
    scope: dict[str, Any] = {"__name__": "page"}
    for source in blocks(page, "python"):
        for line, (said, got) in told(source, printed, scope).items():
            assert got == said, f"{page}, line {line} of its block"
    if page == "docs/first-federation.md":
        assert scope["record"].test["accuracy"] > 0.8
    if page == "docs/own-method.md":
        before, after = map(float, printed[max(printed)].split())
        assert after < before


def test_comments_are_compared() -> None:
    assert told("x = 2.258\nx  # 2.26\nprint(x, 7)  # 2.3 7\n", {}, {}) == {2: ("2.26", "2.26"), 3: ("2.3 7", "2.3 7")}
    assert told("3.0  # 4.0\n", {}, {}) == {1: ("4.0", "3.0")}


HOLDER = """
label_holder = "host"
data = { name = "table", align = "psi", validation = 0.2, test = 0.2 }
[[party]]
name = "host"
data = { path = "host.csv", id = "customer", label = "left" }
[[party]]
name = "bank"
data = { path = "bank.csv", id = "customer" }
[[party]]
name = "telco"
data = { path = "telco.csv", id = "customer" }
"""


def laid_over(base: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Return settings with those of a block in their place; parties are known by their names."""
    merged = dict(base)
    for key, value in part.items():
        if key == "party":
            parties = {each["name"]: each for each in base["party"]}
            for each in value:
                parties[each["name"]] = laid_over(parties[each["name"]], each)
            merged[key] = list(parties.values())
        elif isinstance(value, dict):
            merged[key] = laid_over(merged.get(key, {}), value)
        else:
            merged[key] = value
    return merged


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the tables of three parties."""
    folder = tmp_path_factory.mktemp("tables")
    chance = np.random.default_rng(0)
    values = chance.normal(size=(3, 90))
    left = (values.sum(axis=0) > 0).astype(int)
    for name, column in zip(("host", "bank", "telco"), values, strict=True):
        lines = [f"c{n:03},{x:.3f}" + (f",{left[n]}" if name == "host" else "") for n, x in enumerate(column)]
        head = "customer,value" + (",left" if name == "host" else "")
        (folder / f"{name}.csv").write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("block", [block for block in of("toml") if block.file not in OWN_TOML], ids=str)
def test_settings_of_a_page_train(block: Block, tables: Path, tmp_path: Path) -> None:
    part = tomllib.loads(block.text)
    on_tables = {"party", "data"} & set(part) or block.file == "docs/tables.md"
    base = tomllib.loads(HOLDER) if on_tables else {"data": {"subset": 100}}
    config = read(RunConfig, laid_over(base, part) | {"epochs": 2, "batch_size": 25}, str(block))
    records = train(config, tmp_path / "run", base=tables)
    assert records[-1].epoch == 2


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/first-federation.md", "docs/own-model.md"])
def test_files_and_commands_of_a_tutorial(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (settings,), (commands,) = blocks(page, "toml"), blocks(page, "sh")
    (name,) = set(re.findall(r"(\w+\.toml)", commands))
    assert page == "docs/own-model.md" or f"`{name}`" in (ROOT / page).read_text(encoding="utf-8")
    fewer = settings.replace("epochs = 60", "epochs = 6").replace('name = "digits"', 'name = "digits"\nsubset = 300')
    Path(name).write_text(fewer, encoding="utf-8")
    if page == "docs/own-model.md":
        Path("nets.py").write_text(blocks(page, "python")[1], encoding="utf-8")
    for line in commands.splitlines():
        assert main(shlex.split(line, comments=True)[1:]) == 0, line
    (records,) = Path("runs").glob("*/records.jsonl")
    epochs = [json.loads(line)["epoch"] for line in records.read_text().splitlines()]
    assert epochs == list(range(1, tomllib.loads(fewer)["epochs"] + 1))


def test_a_method_of_ones_own_in_a_file(tmp_path: Path) -> None:
    source, (settings,) = blocks("docs/own-method.md", "python")[1], blocks("docs/own-method.md", "toml")
    (name,) = re.findall(r"^# ([\w.]+)", source)
    (tmp_path / name).write_text(source, encoding="utf-8")
    (tmp_path / "run.toml").write_text(f"epochs = 2\n[data]\nsubset = 100\n{settings}", encoding="utf-8")
    try:
        assert train(tmp_path / "run.toml", tmp_path / "run")[-1].epoch == 2
        method = load(tmp_path / "run.toml").method.build()
    finally:
        sys.modules.pop("growing", None)
    assert (method.up.memory, method.up.compressor.at(60)) == (Momentum(0.5), TopK(0.3))


def test_the_files_of_a_deployment(tmp_path: Path) -> None:
    federation, *own = blocks("docs/deploy.md", "toml")
    for text in (federation, *own):
        (name,) = re.findall(r"^# ([\w.]+)", text)
        tmp_path.joinpath(name.rstrip(",")).write_text(text, encoding="utf-8")
    bank, who = own_file.open_run(tmp_path / "bank.toml")
    assert who is not None
    assert (who.name, who.serves) == ("bank", False)
    assert [party.model.hidden for party in bank.party if party.model is not None] == [(64,)]
    holder, who = own_file.open_run(tmp_path / "holder.toml")
    assert who is not None
    assert who.serves
    assert (holder.method, holder.agreement) == (bank.method, bank.agreement)


def test_the_experiment_file() -> None:
    text, grid = blocks("docs/reproduce.md", "toml")
    sweep = experiment_file.parse(text, "mine")
    assert [cell.name for cell in sweep.cells] == ["svfl", "efvfl"]
    assert len(experiment_file.parse(grid, "rates").cells) == 6  # two rates with two compressors, and two of svfl


def test_what_walk_throughs_show_is_in_the_files_of_their_examples() -> None:
    def within(part: Any, whole: Any) -> bool:
        if isinstance(part, dict):
            return all(key in whole and within(value, whole[key]) for key, value in part.items())
        if isinstance(part, list) and part and isinstance(part[0], dict):
            return all(any(within(each, other) for other in whole) for each in part)
        return bool(part == whole)

    for name in ("credit", "flights"):
        (shown,) = blocks(f"docs/{name}.md", "toml")
        whole = tomllib.loads((ROOT / "examples" / name / "federation.toml").read_text(encoding="utf-8"))
        assert within(tomllib.loads(shown), whole), name
    assert not within({"data": {"align": "none"}}, whole)


def commands_of(block: Block) -> list[list[str]]:
    """Return the words of every command in a block."""
    text = block.text.replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("block", of("sh", "bash"), ids=str)
def test_every_command_is_one_that_there_is(block: Block) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in commands_of(block):
        program = words[0].rpartition("/")[2]
        if "efvfl" in words and program == "torchrun":
            program, words = "efvfl", words[words.index("efvfl") :]
        if program == "efvfl":
            _parser().parse_args(words[1:])
        elif program == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.M), words
        else:
            assert program in OTHERS, words


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json_is_read(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", of("ini"), ids=str)
def test_units_start_commands_that_there_are(block: Block) -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.read_string(block.text)
    words = shlex.split(unit["Service"]["ExecStart"])
    assert words[0] == "/opt/efvfl/bin/efvfl"
    _parser().parse_args(words[1:])
