"""What participants have spent on what they protect is in their folders, and `efvfl audit` says it."""

import json
from pathlib import Path

import pytest
from networks import Network, config

from efvfl.cli.main import main
from efvfl.network.ops.audit_log import FILE
from efvfl.runs import spent_file

NOISY = config(
    protect={"visits": {"epsilon": 8.0}},
    party=[{"name": "top-right", "protect": {"clip": 1.0, "noise": 4.0}, "private_seed": 8}],
    evaluation="compressed",
    private_seed=7,
)


def test_both_sides_say_what_they_have_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Network(NOISY, tmp_path) as network:
        server = network._served()
        assert server.promise.startswith("This run will spend epsilon = 8 at delta = 1e-05 after 2 visits: the label")
        network.run()
    folders = {name: tmp_path / name for name in ("server", "top-right", "top-left")}
    for folder in folders.values():
        (folder / FILE).touch()  # what was sent is another test's
    assert server.records[-1].spent == server.driver.spent()
    assert spent_file.load(folders["server"]) == server.driver.spent()
    assert list(spent_file.load(folders["top-right"])) == ["rows of top-right"]
    assert spent_file.load(folders["top-left"]) == {}
    assert main(["audit", str(folders["server"])]) == 0
    assert "spent on labels: epsilon = 8 at delta = 1e-05, 2 visits" in " ".join(capsys.readouterr().out.split())
    assert main(["audit", str(tmp_path), "--json"]) == 0
    tables = {table["participant"]: table for table in json.loads(capsys.readouterr().out)}
    assert tables["top-right"]["spent"]["rows of top-right"]["visits"] == 4
    assert "spent" not in tables["top-left"]
