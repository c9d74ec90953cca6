"""What each party of a run is worth: computed when training ends, shown by a command and in the report."""

import json
import os
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from missing_rows import align, settings, write
from networks import Network
from sklearn.metrics import roc_auc_score

from efvfl.cli.main import main
from efvfl.config.run_file import DataConfig, RunConfig
from efvfl.errors import DataError
from efvfl.network.training.panel import PartyPanel
from efvfl.runs import report, run
from efvfl.runs.party_worth import VALUES, Worth, auc, load_values, read_values

NAMES = ["bank", "telco", "shop"]
# Many test rows: what they say is then nearly exact, and the interval around validation rows has to contain it.
CONFIG = settings("telco", "shop", epochs=15, data={"validation": 0.2, "test": 0.6})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of a training in which rows were missing, over wires and in one process."""
    folder, before = tmp_path_factory.mktemp("worth"), Path.cwd()
    write(folder, {"telco": 0.7, "shop": 0.6}, rows=700)
    os.chdir(folder)
    try:
        align(CONFIG, folder / "net")
        with Network(CONFIG, folder / "net") as network:
            network.run()
        run.train(CONFIG, folder / "whole")
    finally:
        os.chdir(before)
    return folder


def brute_force(worth: Worth) -> dict[str, float]:
    """Values as the mean over all orders of what a party adds when it comes."""
    metric = {frozenset(names): estimate.value for names, estimate in worth.subsets}
    orders = list(permutations(NAMES))
    return {
        name: sum(metric[frozenset(o[: o.index(name) + 1])] - metric[frozenset(o[: o.index(name)])] for o in orders)
        / len(orders)
        for name in NAMES
    }


def test_a_run_leaves_what_its_parties_are_worth(trained: Path) -> None:
    worth = read_values(trained / "net" / "server")
    assert worth == read_values(trained / "whole")  # the same rows, as the server was sent them
    assert (worth.split, worth.metric) == ("validation", "auc")
    assert 100 < worth.rows < 200
    assert worth.subsets[0][0] == []
    assert worth.subsets[-1][0] == NAMES
    assert len(worth.subsets) == 8
    nobody, everybody = worth.subsets[0][1], worth.subsets[-1][1]
    assert nobody.value == 0.5
    assert everybody.value > 0.8
    assert {name: e.value for name, e in worth.values.items()} == pytest.approx(brute_force(worth), abs=1e-12)
    total = sum(e.value for e in worth.values.values())
    assert total == pytest.approx(everybody.value - nobody.value, abs=1e-12)
    assert all(e.low <= e.value <= e.high for _, e in worth.subsets)


def test_the_command_and_the_report_show_it(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worth = read_values(trained / "whole")
    assert main(["value", str(trained / "whole")]) == 0
    said = capsys.readouterr().out
    assert "bank + telco + shop" in said
    assert f"{worth.values['shop'].value:.4f}" in said
    assert f"On {worth.rows} validation rows" in said
    assert main(["value", str(trained / "whole"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["values"]["telco"]["value"] == worth.values["telco"].value
    page = report.page(trained / "whole")
    assert "What each party is worth" in page
    assert "AUC of every subset of parties" in page
    assert "<td>bank + shop</td>" in page


def test_a_run_that_was_not_trained_for_subsets_has_none(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.train(RunConfig(epochs=1, data=DataConfig(subset=60), observe_gradient=False), tmp_path)
    assert main(["value", str(tmp_path)]) == 2
    assert f"there is no {VALUES} in" in capsys.readouterr().err
    assert "What each party is worth" not in report.page(tmp_path)
    (tmp_path / VALUES).write_text('{"split": "test"}')
    with pytest.raises(DataError, match="expected what parties are worth in"):
        load_values(tmp_path)


def test_with_a_party_dead_for_good_predictions_are_as_good_as_the_table_promised(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    with Network(CONFIG, trained / "net") as network:
        serving = network.serve()
        serving.requests.told.clear()
        panel = PartyPanel.convene(serving.plan, serving.requests.presence, (), 0.0)
        network.join_all()
        serving.requests.idle(lambda: {"shop", "telco"} <= set(serving.requests.connections))
        first = serving.predict(serving.data.ids["test"][:50], panel)
        assert any("telco" in outcome.parties for outcome in first.outcomes)
        network.revive = False
        network.joinings["telco"].stopping.set()  # for good
        serving.requests.idle(lambda: "telco" not in serving.requests.connections)
        promised = {tuple(n): e for n, e in read_values(trained / "net" / "server").subsets}["bank", "shop"]
        reached = {}
        for split in ("validation", "test"):
            found = serving.predict(serving.data.ids[split], panel)
            assert all(outcome.ok for outcome in found.outcomes)
            assert {outcome.parties for outcome in found.outcomes} == {("bank",), ("bank", "shop")}
            reached[split] = auc(found.output, serving.data.labels[split])
        # The same rows: the table saw them as they were sent for the evaluation, which is rounded.
        assert reached["validation"] == pytest.approx(promised.value, abs=0.005)
        assert promised.low <= reached["test"] <= promised.high
        serving.finish()


def test_auc() -> None:
    rng = np.random.default_rng(0)
    for ties in (3, 1000):
        labels, scores = rng.integers(0, 2, 200), rng.integers(0, ties, 200) / 7
        found = auc(torch.from_numpy(scores), torch.from_numpy(labels))
        assert found == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
        two = torch.stack([torch.zeros(200), torch.from_numpy(scores)], dim=1)
        assert auc(two, torch.from_numpy(labels)) == pytest.approx(found)
    assert np.isnan(auc(torch.ones(3), torch.ones(3)))
