"""A model that was trained for subsets of parties predicts with whoever is here, and says whose columns it used."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import Network, process_of
from services import AWAY, NAMES, PATIENTLY, Running, Trained, check, error
from warm_processes import PATIENT

from efvfl.errors import ConfigError
from efvfl.network.training.panel import PartyPanel

OTHERS = [name for name in NAMES if name != AWAY]
OWN = "top-left"
PROMPTLY = replace(PATIENTLY, wait=0.0, source="live")


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("sampled"), label_holder=OWN, subsets="sampled")


def forget(running: Running, name: str, rows: list[str]) -> None:
    """Have a party lack rows."""
    places: dict[str, Any] = process_of(running.network.joinings[name]).represent.places  # type: ignore[attr-defined]
    for row in rows:
        del places[row]


def resting_on(running: Running, ids: list[str], parties: list[str], trained: Trained) -> None:
    """The answer is what these parties predict in one process, and says so."""
    response = running.predict(ids)
    assert response.status_code == 200, response.text
    rows = response.json()["predictions"]
    assert [row["parties"] for row in rows] == [parties] * len(ids)
    np.testing.assert_allclose([row["probabilities"] for row in rows], trained.shares(ids, parties), atol=1e-6)


def test_who_goes_is_done_without_and_who_comes_back_is_used_again(
    start: Callable[..., Running], sampled: Trained
) -> None:
    running, ids = start(PROMPTLY, of=sampled), ["test:0", "train:3", "test:0"]
    resting_on(running, ids, [OWN], sampled)  # the label holder alone
    running.join(*NAMES[1:])
    resting_on(running, ids, NAMES, sampled)
    check(running.predict(ids), sampled, ids)
    running.leave(AWAY)
    resting_on(running, ids, OTHERS, sampled)
    running.join(AWAY)
    resting_on(running, ids, NAMES, sampled)


def test_rows_that_a_party_lacks_are_predicted_by_the_others(start: Callable[..., Running], sampled: Trained) -> None:
    running = start(replace(PROMPTLY, source="cached"), of=sampled)
    running.join(*NAMES[1:])
    forget(running, AWAY, ["test:1"])
    for _ in range(2):  # asked for, then remembered
        rows = running.predict(["test:0", "test:1", "nobody"]).json()["predictions"]
        assert [row["status"] for row in rows] == ["ok", "ok", "unknown"]
        assert [row.get("parties") for row in rows] == [NAMES, OTHERS, None]
        assert rows[2]["lacking"] == NAMES
        np.testing.assert_allclose(rows[1]["probabilities"], sampled.shares(["test:1"], OTHERS)[0], atol=1e-6)
    assert len(running.asked) == 2 * len(NAMES[1:])  # "nobody" may not exist, and is asked for before the others
    running.leave(AWAY)
    resting_on(running, ["test:0"], NAMES, sampled)  # its row was kept
    assert error(running.predict(["nobody"]), 404)["unknown"] == ["nobody"]


def test_a_party_that_is_required_is_not_done_without(start: Callable[..., Running], sampled: Trained) -> None:
    running = start(replace(PROMPTLY, required=(AWAY,)), of=sampled)
    running.join(*NAMES[1:])
    forget(running, AWAY, ["test:1"])
    rows = running.predict(["test:0", "test:1"]).json()["predictions"]
    assert rows[0]["parties"] == NAMES
    assert rows[1] == {"id": "test:1", "status": "unknown", "lacking": [AWAY]}
    running.leave(AWAY)
    assert error(running.predict(["test:0", "test:1"]), 503)["missing"] == [AWAY]
    running.batcher.caches[AWAY].put(["test:0"], np.zeros((1, 4), dtype=np.float32))
    rows = running.predict(["test:0", "test:2"]).json()["predictions"]
    assert [row["status"] for row in rows] == ["ok", "away"]
    assert rows[1]["away"] == [AWAY]


def test_a_party_that_is_on_its_way_is_waited_for(start: Callable[..., Running], sampled: Trained) -> None:
    running = start(replace(PROMPTLY, wait=PATIENT), of=sampled)
    running.join(*OTHERS[1:])
    future = running.batcher.submit(["test:0"])
    running.until(future.running)
    running.join(AWAY)
    assert [outcome.parties for outcome in future.result(PATIENT).outcomes] == [tuple(NAMES)]


def test_what_does_not_go_together(start: Callable[..., Running], sampled: Trained) -> None:
    with pytest.raises(ConfigError, match="was trained for subsets of parties"):
        start(replace(PROMPTLY, fallback="mean"), of=sampled)
    with pytest.raises(ConfigError, match="'nobody' is not a party of this model"):
        start(replace(PROMPTLY, required=("nobody",)), of=sampled)
    with pytest.raises(ConfigError, match="expected --wait of 0 seconds or more, got -1"):
        start(replace(PROMPTLY, wait=-1.0), of=sampled)


def test_a_model_for_all_parties_does_not_do_without_any(start: Callable[..., Running], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this model was trained for all parties together"):
        start(replace(PATIENTLY, wait=1.0))
    running = start(replace(PATIENTLY, required=(AWAY,)))
    running.join(*OTHERS)
    assert running.decline(["test:0"]) == [AWAY]


def test_a_file_of_predictions_goes_without_a_dead_party(sampled: Trained, tmp_path: Path) -> None:
    """As `efvfl predict` does it; the next questions find the party again."""
    with Network(sampled.config, tmp_path) as network:
        network.run()
    with Network(sampled.config, tmp_path) as network:
        serving = network.serve()
        serving.requests.told.clear()
        panel = PartyPanel.convene(serving.plan, serving.requests.presence, (), 0.0)
        for name in OTHERS[1:]:
            network.join(name)
        network.watch = lambda: None
        serving.requests.idle(lambda: len(serving.requests.connections) == len(OTHERS) - 1)
        found = serving.predict(["test:0", "nobody", "test:1"], panel)
        assert [outcome.text() for outcome in found.outcomes] == [
            "ok",
            f"not held by {', '.join(OTHERS)}; {AWAY} is away",
            "ok",
        ]
        assert found.outcomes[0].parties == tuple(OTHERS)
        shares = found.output.double().softmax(dim=1)
        np.testing.assert_allclose(shares, sampled.shares(["test:0", "test:1"], OTHERS), atol=1e-6)
        network.join(AWAY)
        serving.requests.idle(lambda: len(serving.requests.connections) == len(OTHERS))
        assert serving.predict(["test:0"], panel).outcomes[0].parties == tuple(NAMES)
        serving.finish()
