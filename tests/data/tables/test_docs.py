"""The page about tables shows what works."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

PAGE = ROOT / "docs" / "tables.md"


def test_the_documented_lines_encode_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{i:04},name {i},{i % 3:02},{i * i},{i % 2}\n" for i in range(50))
    (tmp_path / "customers.csv").write_text(f"customer,name,branch,income,defaulted\n{rows}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(code, "docs/tables.md", "exec"), scope)
    numbers = scope["numbers"]
    assert isinstance(numbers, np.ndarray)
    assert numbers.shape == (50, 4)
    assert scope["encoder"].names == ["branch = 00", "branch = 01", "branch = 02", "income"]  # type: ignore[attr-defined]
    assert scope["kept"].ids[:2] == ["0", "1"]  # type: ignore[attr-defined]
