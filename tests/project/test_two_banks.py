"""The example of two banks: it ends well, stops cleanly, and equals the same file in one process."""

import json
import re
import shutil
from pathlib import Path

import pytest
from paths import ROOT
from warm_examples import Script

from efvfl.cli.main import main

EXAMPLE = ROOT / "examples" / "two_banks"


def running(folder: Path) -> list[str]:
    """Processes at work in a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            place = entry.resolve(strict=True)
        except OSError:  # ended meanwhile
            continue
        if place.is_relative_to(folder):
            found.append(str(entry))
    return found


@pytest.mark.slow
def test_it_stops_cleanly_goes_on_and_equals_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "two_banks"
    first = Script(EXAMPLE / "run.py", folder)
    first.wait_for("epoch 1:")
    first.interrupt()
    code, text = first.end()
    assert code == 130, text
    assert not running(folder)

    code, text = Script(EXAMPLE / "run.py", folder).end()
    assert code == 0, text
    assert not running(folder)
    (printed,) = re.findall(r"Test accuracy: ([0-9.]+), 108 of 113 rows", text)
    assert re.search(r"out +│ report +│ +18[0-9] ", text), text  # 180, and what was sent again after the stop
    for name in ("server", "bank_a", "bank_b"):
        held = {path.name for path in (folder / name / "certs").iterdir()}
        assert held == {"ca.crt", f"{name}.crt", f"{name}.key"}
    code, text = Script(EXAMPLE / "run.py", folder).end()
    assert code == 1
    assert "is there already" in text

    for path in (EXAMPLE / "federation.toml", *(folder / "rows").iterdir()):
        shutil.copy(path, tmp_path)
    assert main(["run", str(tmp_path / "federation.toml"), "--out", str(tmp_path / "run")]) == 0
    network, local = (
        json.loads((path / "records.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        for path in (folder / "server" / "run", tmp_path / "run")
    )
    assert network["test"] == local["test"]
    assert f"{local['test']['accuracy']:.4f}" == printed
    assert (network["bytes_up"], network["bytes_down"]) == (local["bytes_up"], local["bytes_down"])


def test_a_copy_has_no_lines_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    from processes import own_copy  # type: ignore[import-not-found]

    text = (EXAMPLE / "federation.toml").read_text(encoding="utf-8")
    seeds = {"server": "52014", "bank_a": "90371", "bank_b": "33808"}
    for name in seeds:
        assert [other for other, seed in seeds.items() if seed in own_copy(text, name)] == [name]
    assert "limits" not in own_copy(text, "server")
