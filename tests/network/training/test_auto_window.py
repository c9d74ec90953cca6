"""`pipeline = "auto"` over a network: windows grow and shrink on the way, and the choice survives a crash."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from networks import Fate, Network, Outcome, assert_same, federation, networked, outcome
from recovery import disturbed, rows, small

from efvfl.config.run_file import RunConfig
from efvfl.training import window_trial
from efvfl.training.record import Record
from efvfl.training.schedule import Schedule
from efvfl.training.window_trial import WindowTrial
from efvfl.wire.ledger import Ledger

__all__ = ["rows"]  # a fixture


def short(rows: Path, **more: Any) -> RunConfig:
    """30 steps with a record after 15, 30; private labels, cached steps, compression both ways."""
    agreement = {"pipeline": "auto", "cached": {"steps": 2, "batches": 3}}
    return small(rows, "window", agreement=agreement, observe_every=5, epochs=10, **more)


@pytest.fixture(autouse=True)
def three_steps_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve steps of trial."""
    monkeypatch.setattr(window_trial, "STEPS", 3)


def choosing(monkeypatch: pytest.MonkeyPatch, *windows: int) -> Iterator[int]:
    """Have trials choose these windows, one after the other."""
    left = iter(windows)

    def choose(trial: WindowTrial) -> str:
        trial.chosen = next(left)
        return f"pipeline: chose {trial.chosen}"

    monkeypatch.setattr(WindowTrial, "choose", choose)
    return left


def in_one_process(config: RunConfig, chosen: int) -> Outcome:
    """The same windows, step by step, without a network and a clock."""
    made, trial, records = federation(config), WindowTrial(), list[Record]()
    while True:
        step = made.server.step_number
        trial.chosen = chosen if trial.due(step) else trial.chosen
        per_epoch = made.server.batches.per_epoch
        schedule = Schedule(per_epoch, config.epochs, config.observe_every or 1, trial.window(step))
        if made.driver.finished(schedule):
            break
        if record := made.driver.advance(schedule, lambda: made._observe(gradient=False)):
            records.append(record)
    own = {name: Ledger() for name in made.parties}
    for name, ledger in own.items():
        ledger.bytes |= {key: n for key, n in made.ledger.bytes.items() if key[1] == name}
    return outcome(records, made.server, made.parties, made.ledger, own)


@pytest.mark.parametrize("chosen", [1, 8])
def test_over_wires_windows_grow_and_shrink_as_in_one_process(
    rows: Path, chosen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing(monkeypatch, chosen)
    run = short(rows)
    assert_same(in_one_process(run, chosen), networked(run, tmp_path))


def test_the_choice_is_logged_and_recorded(rows: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "efvfl"), Network(short(rows), tmp_path) as network:
        network.run()
        serving = network._served()
        assert serving.trial is not None
        chosen, medians = serving.trial.chosen, serving.trial.medians
        assert set(medians) == {1, 2, 4}
        assert chosen in medians
        assert [record.window for record in serving.records] == [chosen, chosen]
    assert [m for m in caplog.messages if m.startswith(f"pipeline: chose {chosen} (a step takes ")]
    assert f'"window": {chosen}' in (tmp_path / "server" / "records.jsonl").read_text()


@pytest.mark.parametrize("who", ["", "left"], ids=["server", "party"])
def test_whoever_dies_after_the_choice_it_stays(
    rows: Path, who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = short(rows)
    expected = in_one_process(run, 2)
    calm = Fate()
    choosing(monkeypatch, 2)
    assert_same(expected, disturbed(run, tmp_path / "calm", who, calm))
    for at in range(7, calm.events, calm.events // 2):
        left = choosing(monkeypatch, 2, 8)  # what a second trial would say must not matter
        assert_same(expected, disturbed(run, tmp_path / str(at), who, Fate(at)))
        assert list(left) == [8]


def test_the_checkpoint_before_the_last_knows_the_choice_too(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = short(rows)
    choosing(monkeypatch, 2, 8)
    with Network(run, tmp_path, lives=1) as network:
        network.join_all()
        serving = network._served()
        while serving.server.step_number < 14:  # two steps follow from the choice
            serving.advance()
        network.kill_server()
        newest = tmp_path / "server" / "checkpoint.safetensors"
        data = bytearray(newest.read_bytes())
        data[len(data) // 2] ^= 1
        newest.write_bytes(data)
        again = network.restart_server()
        assert again.trial is not None
        assert again.trial.chosen == 2
        assert_same(in_one_process(run, 2), network.run())
