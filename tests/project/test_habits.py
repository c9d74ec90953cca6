"""The files around the code say the same as the code: hooks and workflow run what `make check` runs, versions agree."""

import re
import tomllib
from typing import Any

import pytest
from paths import ROOT

import efvfl

yaml: Any = pytest.importorskip("yaml")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_hooks_run_the_tools_of_the_check() -> None:
    (repo,) = load(".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    entries = {hook["id"]: hook["entry"] for hook in repo["hooks"]}
    assert set(entries) == {"ruff-format", "ruff", "mypy"}
    check = re.search(r"^check:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert check
    lines = check[1].replace("$(BIN)", ".venv/bin")
    for entry in entries.values():
        assert entry.removesuffix(" --force-exclude") in lines


def test_the_workflow_runs_targets_there_are_with_every_python_that_is_supported() -> None:
    (job,) = load(".github/workflows/ci.yml")["jobs"].values()
    ends = re.compile(r"Python :: (3\.\d+)$")
    named = [found[1] for line in PROJECT["classifiers"] if (found := ends.search(line))]
    assert job["strategy"]["matrix"]["python"] == named == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={named[0]}"
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert {"make check", "make test"} <= set(runs)
    for run in runs:
        assert re.search(rf"^{run.removeprefix('make ')}:", MAKEFILE, re.MULTILINE), run


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    citation = load("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == efvfl.__version__
    paper = citation["preferred-citation"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert paper["title"] in readme
    assert [author["family-names"] for author in paper["authors"]] == ["Valdeira", "Xavier", "Soares", "Chi"]


def test_the_version_has_a_section_in_the_changelog() -> None:
    assert f"## [{efvfl.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_templates_are_forms() -> None:
    for name in ("bug", "feature"):
        form = load(f".github/ISSUE_TEMPLATE/{name}.yml")
        fields = [part for part in form["body"] if part["type"] != "markdown"]
        assert form["name"]
        assert form["description"]
        assert len({part["id"] for part in fields}) == len(fields) >= 3
        assert all(part["attributes"]["label"] for part in fields)


def test_links_in_the_files_around_the_code_lead_somewhere() -> None:
    for name in ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / name).read_text(encoding="utf-8")):
            assert "://" in target or (ROOT / target).exists(), f"{name}: {target}"
