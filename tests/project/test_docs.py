"""What the documents show works as shown."""

import re
import textwrap
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from documents import blocks
from paths import ROOT
from problems import everything, problem, same

from efvfl import TopK, efvfl
from efvfl.compress import REGISTRY, base, decode
from efvfl.config.run_file import PartyConfig, RunConfig, read
from efvfl.config.watching import Watching
from efvfl.core.memories import MEMORIES
from efvfl.data import digits
from efvfl.experiments.experiment_file import parse as parse_experiment
from efvfl.network.ops.audit_log import CONTENTS
from efvfl.runs.build import make_optimizer


def test_the_documented_diff_trains(capsys: pytest.CaptureFixture[str]) -> None:
    (diff,) = blocks("docs/first-federation.md", "diff")
    added = [line[1:] for line in diff.splitlines() if line[:1] in "+ "]
    removed = [line[1:] for line in diff.splitlines() if line[:1] in "- "]
    assert len([line for line in added if line.strip()]) <= 15
    train = digits().train
    for code, epochs in ((added, 60), (removed, 60)):
        torch.manual_seed(0)
        scope = {"quadrants": list(train.features), "labels": train.labels}
        source = "\n".join(code).replace(f"epochs={epochs}", "epochs=2").replace(f"range({epochs})", "range(2)")
        exec(compile(source, "docs", "exec"), scope)
    assert capsys.readouterr().out.startswith("1 {'loss':")


def test_the_documented_run_files_are_read() -> None:
    whole, warm_up = blocks("docs/run-files.md", "toml")
    assert make_optimizer(tomllib.loads(warm_up)["optimizer"]).scheduler == "SequentialLR"
    table = tomllib.loads(whole)
    party = table.pop("party")
    assert table.pop("private_seed") == 7  # TOML has no word for its default, none
    config = read(RunConfig, table, "docs")
    # Every key is documented, with its default. (An optimiser's empty scheduler says the same as none.)
    config.optimizer.pop("scheduler")
    # What these are if they are left out depends on the data: here they are shown as for arrays.
    assert Watching.of(config, tables=False) == Watching.of(RunConfig(), tables=False)
    assert replace(config, observe_every=None, patience=None, evaluation=None) == RunConfig()
    for name, value in vars(RunConfig()).items():
        assert name in table or name in ("party", "private_seed"), f"{name} is not documented"
        if hasattr(value, "__dataclass_fields__"):
            assert set(table[name]) == set(value.__dataclass_fields__)
    assert set(party[0]) == set(PartyConfig.__dataclass_fields__)
    assert read(PartyConfig, party[0], "docs").name == "top-left"


def test_the_documented_experiments_are_read() -> None:
    plain, grid = (parse_experiment(text, "docs") for text in blocks("docs/reproduce.md", "toml"))
    assert [cell.name for cell in plain.cells] == ["svfl", "efvfl"]
    assert len(grid.cells) == 2 * 2 + 2
    text = (ROOT / "docs/reproduce.md").read_text(encoding="utf-8")
    assert f"`{grid.cells[0].name}`" in text


def test_the_documented_compressor_fulfils_the_contract() -> None:
    source, tried = blocks("docs/adding-a-compressor.md", "python")
    scope: dict[str, object] = {"__name__": "every_other"}
    try:
        exec(compile(source, "docs", "exec"), scope)
        exec(compile(tried, "docs", "exec"), scope)
        compressor = REGISTRY["every_other"]()
        block = torch.randn(5, 3).numpy()
        packets = [compressor.encode(block, key) for key in (0, 1)]
        total = decode(packets[0]) + decode(packets[1])  # type: ignore[operator]
        assert (total == block).all()
        assert {len(p.body) for p in packets} == {1 + 4 * 8, 1 + 4 * 7}
    finally:
        REGISTRY.pop("every_other", None)
        base._BY_CODE.pop(200, None)


def test_the_documented_memory_fulfils_the_contract_and_trains() -> None:
    memory, tried = blocks("docs/adding-a-memory.md", "python")
    scope: dict[str, Any] = {"__name__": "ahead"}
    try:
        exec(compile(memory, "docs", "exec"), scope)
        exec(compile(tried, "docs", "exec"), scope)
        ahead: Any = MEMORIES["ahead"]
        assert ahead is scope["Ahead"]
        runs = [problem(efvfl(TopK(0.2), memory=rule)) for rule in (ahead(0.3), ahead(0.0), None)]
        for run in runs:
            for step in range(4):
                run.step(hold=step == 3)
        assert same(everything(runs[1]), everything(runs[2]))  # which is EF21
        assert not same(everything(runs[0]), everything(runs[2]))
    finally:
        MEMORIES.pop("ahead", None)


def test_the_documented_python_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source, _, watched, away, fusion, mapped = blocks("docs/python.md", "python")
    scope: dict[str, object] = {}
    exec(compile(source, "docs", "exec"), scope)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["1", "2", "3", "4", "5", "6"]
    assert len(scope["predictions"]) == 5  # type: ignore[arg-type]
    exec(compile(watched, "docs", "exec"), scope)  # goes on with the same federation
    assert capsys.readouterr().out.startswith("slowest step: ")
    assert list((tmp_path / "runs" / "curves").glob("events.out.tfevents.*"))
    exec(compile(away, "docs", "exec"), {})  # which asserts what it says
    for block in (fusion, mapped):
        exec(compile(textwrap.dedent(block), "docs", "exec"), {})
        assert capsys.readouterr().out.startswith("{'loss':")


def test_the_documented_run_from_python_trains_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = blocks("docs/python.md", "python")[1]
    exec(compile(source, "docs", "exec"), {})
    assert capsys.readouterr().out.startswith("4 ")
    assert len((tmp_path / "runs" / "digits" / "records.jsonl").read_text().splitlines()) == 4


def test_every_codec_is_in_the_wire_document() -> None:
    text = (ROOT / "docs/wire.md").read_text(encoding="utf-8")
    for name, cls in REGISTRY.items():
        assert f"| {cls.code} | {name} |" in text
    assert TopK.code == 1


def test_what_the_audit_prints_is_in_the_protocol_document() -> None:
    rows = re.findall(r"^\| ([\w, -]+) \| [A-Z, ]+ \| (.+) \|$", (ROOT / "docs/protocol.md").read_text(), re.M)
    told = {kind: text for kinds, text in rows for kind in kinds.split(", ")}
    kinds = {kind for kind in CONTENTS if not kind.startswith(("ask-", "answer-"))}
    assert {kind: told.get(kind) for kind in kinds - {"stop", "bye"}} == {
        k: CONTENTS[k] for k in kinds - {"stop", "bye"}
    }


def anchors(file: Path) -> set[str]:
    """The names of a page's headings, as links write them."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    for file in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")):
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", file.read_text(encoding="utf-8")):
            if "://" not in target:
                page = file.parent / target if target else file
                assert page.exists(), f"{file.name} links to {target}"
                assert not anchor or anchor in anchors(page), f"{file.name} links to {target}#{anchor}"


def test_the_index_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs/index.md").read_text(encoding="utf-8")))
    parts = {"index.md", "results-notes.md"}  # results.md includes its notes
    assert linked | parts >= {page.name for page in (ROOT / "docs").glob("*.md")}
