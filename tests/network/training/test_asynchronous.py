"""Asynchronous parties over wires: who reports when depends on time, and everything else follows from that."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from absence_lab import memory_of
from networks import Fate, Network, Outcome, assert_same, config, process_of, reference

from efvfl.config.run_file import RunConfig
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.training.arrivals import load_arrivals

SLOW = "top-right"
MODES: dict[str, dict[str, Any]] = {
    "private": {"method": {"compressor": {"name": "topk", "ratio": 0.2}, "down": {"name": "qsgd", "bits": 4}}},
    "exact start": {"method": {"compressor": {"name": "topk", "ratio": 0.2}, "start": "exact"}},
    "label holder": {"label_holder": "bottom-left", "method": {"compressor": {"name": "qsgd", "bits": 4}}},
    "shared": {
        "agreement": {"labels": "shared", "downlink": "aggregate", "local_steps": 2},
        "method": {"compressor": {"name": "topk", "ratio": 0.2}},
        "optimizer": {"name": "Adam", "lr": 0.02, "scheduler": {"name": "StepLR", "step_size": 3, "gamma": 0.9}},
    },
    "evaluated by messages": {"patience": 9, "batch_order": "independent"},
}


def asynchronous(mode: str, save_steps: int = 1000, **quorum: Any) -> RunConfig:
    """Four epochs of three steps, with a record of every second; three of four reports are enough."""
    given = dict(MODES[mode])
    agreement = given.pop("agreement", {}) | {"asynchronous": {"reports": 3, "most_stale": 5} | quorum}
    return config(epochs=4, observe_every=2, agreement=agreement, network={"save_steps": save_steps}, **given)


class Slow(Fate):
    """Takes its time for every request; perhaps it ends at an event."""

    def __init__(self, seconds: float, at: int = 0) -> None:
        super().__init__(at)
        self.seconds = seconds

    def event(self, *seen: object) -> None:
        if len(seen) == 3 and isinstance(seen[2], Frame) and (seen[2].kind, seen[1]) == (FrameKind.REQUEST, "in"):
            time.sleep(self.seconds)
        super().event()


def run(made: RunConfig, folder: Path, fates: Callable[[str], Fate], lives: int = 1) -> tuple[Outcome, Network]:
    with Network(made, folder, lives=lives, fates=fates) as network:
        return network.run(), network


def assert_replayed(made: RunConfig, folder: Path, found: Outcome) -> list[list[str]]:
    """The same run in one process, with the reports that came then at every step, ends with the same bits."""
    arrivals = load_arrivals(folder / "server")
    again = reference(made, arrivals)
    assert_same(replace(found, copies={}), replace(again, copies={}))
    return arrivals


@pytest.mark.parametrize("mode", MODES)
def test_a_slow_party_holds_nobody_up_and_the_run_can_be_replayed_in_one_process(tmp_path: Path, mode: str) -> None:
    made = asynchronous(mode)
    found, network = run(made, tmp_path, lambda name: Slow(0.03 if name == SLOW else 0.0))
    arrivals = assert_replayed(made, tmp_path, found)
    assert len(arrivals) == 12
    assert sum(SLOW not in names for names in arrivals) >= 3, "steps went without it"
    assert all(len(arrivals[step]) == 4 for step in (5, 11)), "before a record all are waited for"
    assert {process_of(joining).party.step for joining in network.joinings.values()} == {12}


def kills(seed: int, count: int) -> Callable[[str], Fate]:
    """So many lives end at a random event, of anybody; the slow party is slow in all of its own."""
    chance, left = Random(seed), [count]

    def fate(name: str) -> Fate:
        at = chance.randint(3, 40) if left[0] and chance.random() < 0.8 else 0
        left[0] -= at > 0
        return Slow(0.01 if name == SLOW else 0.0, at)

    return fate


@pytest.mark.parametrize("mode", ["private", "shared", "label holder"])
@pytest.mark.parametrize("save_steps", [2, 1000])
def test_whoever_is_killed_the_end_is_that_of_the_undisturbed_replay(
    tmp_path: Path, mode: str, save_steps: int
) -> None:
    made = asynchronous(mode, save_steps)
    found, network = run(made, tmp_path, kills(save_steps, 4), lives=6)
    assert_replayed(made, tmp_path, found)
    lives = sum(6 - len(spare) for spare in network.spare.values())
    assert lives > len(network.names), "somebody has died"


def test_both_ends_remember_the_same(tmp_path: Path) -> None:
    made = asynchronous("private")
    with Network(made, tmp_path, fates=lambda name: Slow(0.02 if name == SLOW else 0.0)) as network:
        network.run()
        assert network.serving is not None
        for name, joining in network.joinings.items():
            held = network.serving.server.channels[name]
            assert torch.equal(memory_of(held), memory_of(process_of(joining).party.up)), name


def test_a_deadline_is_enough(tmp_path: Path) -> None:
    made = asynchronous("private", reports=0, deadline_seconds=0.005)
    found, _ = run(made, tmp_path, lambda name: Slow(0.05 if name == SLOW else 0.0))
    arrivals = assert_replayed(made, tmp_path, found)
    assert any(SLOW not in names for names in arrivals)
