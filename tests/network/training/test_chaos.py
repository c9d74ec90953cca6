"""Whatever happens to participants: the end is the same bit for bit, or somebody says why not (`make chaos`)."""

import random
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import federation
from faults.cases import CASES
from faults.ends import between_ends, differences
from faults.federation import Federation
from faults.kinds import FAULTS, Fault
from faults.participant import Participant
from faults.proxy import Proxy
from faults.scenario import Lab, Plan

from efvfl.network.training.autosave import CHECKPOINT
from efvfl.util import checkpoint

EPOCHS = 8
SAME = {  # faults after which nobody may refuse
    "private": ["kill", "power-failure", "freeze", "kill"],
    "shared": ["kill", "power-failure", "cut-line"],
    "aggregate": ["kill", "stop", "trickle"],
    "pipelined": ["kill", "silent-line", "power-failure"],
    "stale": ["kill", "freeze", "power-failure", "slow-line"],
    "stale-shared": ["kill", "stop", "cut-line"],
    "stale-window": ["kill", "freeze-for-long"],
    "asynchronous": ["kill", "power-failure", "kill"],  # compared with the replay of who reported when
    "tables": ["power-failure", "old-set"],
    "workers": ["kill-worker", "kill"],
}
DAMAGE = [  # what must not pass unnoticed: all went on with other numbers, or ended with a traceback, once
    ("private", "flip-checkpoint"),
    ("private", "changed-weights"),
    ("tables", "torn-checkpoint"),
    ("tables", "flip-encoder"),
    ("stale", "old-folder"),
    ("stale-shared", "flip-checkpoint"),
    ("pipelined", "full-disk"),
]


def in_turn(case: str, names: list[str], seed: int = 0, save: int = 10) -> Plan:
    """These faults, spread over the first half of a run."""
    return Plan(case, seed, save, tuple((0.1 + 0.5 * i / len(names), name) for i, name in enumerate(names)))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_faults_that_change_nothing(case: str, tmp_path: Path) -> None:
    lab = Lab.prepare(tmp_path, EPOCHS)
    outcome = lab.play(in_turn(case, SAME[case]), {} if CASES[case].stale else lab.calm(case))
    assert outcome.kind == "equal", outcome
    assert outcome.done  # on a slow machine a run may be over before all faults had their turn


@pytest.mark.slow
@pytest.mark.attack(
    by="a disk",
    tries="flipped bits, torn files, an old copy of a folder, no space left, while real processes train",
    outcome="the same bits at the end, or a refusal with a reason; `make chaos` tries hundreds",
)
@pytest.mark.parametrize(("case", "fault"), DAMAGE)
def test_damage_is_survived_or_named(case: str, fault: str, tmp_path: Path) -> None:
    lab = Lab.prepare(tmp_path, EPOCHS)
    outcome = lab.play(in_turn(case, [fault], save=3), {} if CASES[case].stale else lab.calm(case))
    assert outcome.kind in ("equal", "refused"), outcome
    assert outcome.done


# The lab sees what must not be.


def unnoticeable(run: Federation, chance: random.Random) -> str:
    """Change a party's model by a tiny bit, with a valid checkpoint: nobody but the party could know."""
    assert run["top-left"].stop()
    path = run["top-left"].folder / CHECKPOINT
    state = checkpoint.load(path)
    state["party"]["block"]["module"]["1.weight"][0, 0] += 1e-3
    checkpoint.save(path, state)
    run["top-left"].start()
    return "a weight"


def freeze_for_good(run: Federation, chance: random.Random) -> str:
    run.server.signal(signal.SIGSTOP)
    return "the server"


def wrong_command(run: Federation, chance: random.Random) -> str:
    assert run["top-left"].kill()
    run["top-left"].words = ["jion"]
    run["top-left"].start()
    return "an unknown command"


def raise_in_process(run: Federation, chance: random.Random) -> str:
    """A participant that is given what is no list of words."""
    assert run["top-left"].kill()
    run["top-left"].words = [1]  # type: ignore[list-item]
    run["top-left"].start()
    return "an error of ours"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        (unnoticeable, "SILENT", "differences"),
        (freeze_for_good, "HANG", "nothing has happened for 3 s"),
        (wrong_command, "UNEXPECTED", "top-left 2: error: argument COMMAND: invalid choice"),
        (raise_in_process, "TRACEBACK", "TypeError"),
    ],
)
def test_the_lab_tells_bad_ends_apart(
    fault: Any, kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAULTS, "bad", Fault(fault))
    if kind == "HANG":
        monkeypatch.setattr(federation, "STALL", 3.0)
    lab = Lab.prepare(tmp_path, 4)
    outcome = lab.play(in_turn("private", ["bad"]), lab.calm("private") if kind == "SILENT" else {})
    assert (outcome.kind, outcome.bad) == (kind, True), outcome
    assert text in outcome.text


def test_a_seed_always_gives_the_same_plan() -> None:
    assert Plan.draw("stale", 7) == Plan.draw("stale", 7) != Plan.draw("stale", 8)
    drawn = [Plan.draw(case, seed) for case in CASES for seed in range(60)]
    assert {name for plan in drawn for _, name in plan.faults} == set(FAULTS)
    assert all(0 < moment < 0.8 for plan in drawn for moment, _ in plan.faults)
    only = Plan.draw("tables", 3, ["flip-rows", "kill-worker"])  # tables have no workers
    assert {name for _, name in only.faults} == {"flip-rows"}


def test_a_difference_would_be_found() -> None:
    a = {"server": {"x": torch.zeros(3), "losses": [1.0, 2.0]}, "records": [{"epoch": 1}]}
    assert not list(differences(a, {"server": {"x": torch.zeros(3), "losses": [1.0, 2.0]}, "records": [{"epoch": 1}]}))
    b = {"server": {"x": torch.tensor([0.0, 0, 1]), "losses": [1.0, 2.5]}, "records": []}
    assert sorted(differences(a, b)) == ["/records", "/server/losses/1", "/server/x"]


def ended(away: dict[str, int]) -> dict[str, Any]:
    """What two participants leave, as far as both ends of a line know it."""

    def memory() -> dict[str, Any]:
        return {"memory": {"g": torch.zeros(2)}}

    block = {"module": {"w": torch.zeros(2)}}
    theirs = {"down": memory(), "peers": {"a": memory()}, "fusion": {"block": block, "mends": 0}}
    party = {"step": 9, "up": memory(), "label_mode": theirs}
    server = {"step": 9, "block": block, "channels": {"a": memory()}, "label_mode": {"down": {"a": memory()}}}
    requests = {"number": 10, "presence": {"left": away}}
    found: dict[str, Any] = {"server": {"server": server, "requests": requests}, "a": {"party": party, "handled": 10}}
    return found | {"records": [{"epoch": 1}], "records file": [{"epoch": 1}]}


def test_ends_that_do_not_remember_the_same_would_be_found() -> None:
    assert not list(between_ends(ended({})))
    for wrong in ("up", "down", "peers", "fusion", "handled"):
        found = ended({})
        theirs = found["a"]["party"]["label_mode"]
        if wrong == "up":
            found["a"]["party"]["up"]["memory"]["g"] += 1
        elif wrong == "handled":
            found["a"]["handled"] = 9
        elif wrong == "fusion":
            theirs["fusion"] = {"block": {"module": {"w": torch.ones(2)}}, "mends": 0}
        else:
            theirs[wrong] = {"memory": {"g": torch.ones(2)}} if wrong == "down" else {"a": {"memory": {"g": 1}}}
        assert len(list(between_ends(found))) == 1, wrong
        found["server"]["requests"]["presence"]["left"] = {"a": 3}
        assert not list(between_ends(found)), "it was away to the end"


def test_a_line_can_be_silent_and_slow_and_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy(listener.getsockname()[1])
        here = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
        there, _ = listener.accept()
        here.sendall(b"one")
        assert there.recv(10) == b"one"
        proxy.forwarding.clear()
        here.sendall(b"two")
        there.settimeout(0.05)
        with pytest.raises(TimeoutError):
            there.recv(10)
        proxy.heal()
        there.settimeout(10)
        assert there.recv(10) == b"two"
        proxy.cut()
        assert here.recv(10) == there.recv(10) == b""
        proxy.close()
        here.close()
        there.close()


def test_a_participant_that_was_never_started_is_not_there(tmp_path: Path) -> None:
    nobody = Participant("server", tmp_path, tmp_path / "certs")
    assert not nobody.alive
    assert nobody.code is None
    assert nobody.said == nobody.all_said == ""
