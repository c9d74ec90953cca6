"""The gate on branches: what it counts, and when it fails."""

import json
from pathlib import Path
from typing import Any

import pytest
from tools import branches


def report(taken: int, missing: list[list[int]]) -> dict[str, Any]:
    summary = {"num_branches": 100, "covered_branches": taken}
    return {
        "files": {
            f"src/efvfl/{name}/a.py": {"summary": summary, "missing_branches": missing} for name in branches.PACKAGES
        }
    }


@pytest.mark.parametrize(("taken", "code"), [(100, 0), (97, 0), (96, 1)])
def test_a_package_below_the_limit_fails(
    taken: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps(report(taken, [[7, 9]])))
    assert branches.main(path) == code
    out = capsys.readouterr().out
    assert f"wire      {taken:4} of  100 branches" in out
    assert "src/efvfl/core/a.py:7" in out


def test_a_package_that_was_not_measured_fails(tmp_path: Path) -> None:
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps({"files": {}}))
    assert branches.main(path) == 1
