"""CheckpointPolicy at step t, loading in a new process and going on equals not stopping: same bytes, same model."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import classes, columns, everything, problem, same
from resuming import CASES, federation, fingerprint, go_on
from torch import nn
from warm_processes import PATIENT, WARM

from efvfl import Federation, Method, Optimizer, TopK, cvfl, efvfl, svfl
from efvfl.errors import CheckpointError
from efvfl.util import checkpoint as checkpoints

# After the first step: each start of memories and way of the fusion model, all rows, and windows.
EARLY = (
    "private",
    "private-all-rows",
    "private-exact-start",
    "private-mean-start",
    "relay-send",
    "aggregate-compress",
    "pipelined-direct",
    "window-replicate",
)


@pytest.mark.parametrize(
    ("case", "stop"),
    [*((case, 6) for case in CASES), *(pytest.param(case, 1, marks=pytest.mark.slow) for case in EARLY)],
)
def test_going_on_in_a_new_object_equals_not_stopping(case: str, stop: int, tmp_path: Path) -> None:
    run = federation(case)
    for _ in range(stop):
        run.step()
    checkpoints.save(tmp_path / "state", run.state_dict())
    expected = fingerprint(run, stop)
    resumed = federation(case)
    resumed.load_state_dict(checkpoints.load(tmp_path / "state"))
    assert fingerprint(resumed, stop) == expected
    assert same(everything(run), everything(resumed))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["private", "relay-replicate"])
def test_going_on_in_a_new_process_equals_not_stopping(case: str, tmp_path: Path) -> None:
    run = federation(case)
    for _ in range(5):
        run.step()
    checkpoints.save(tmp_path / "state", run.state_dict())
    other = WARM.Process(target=go_on, args=(case, tmp_path / "state", 5, tmp_path / "fingerprint"))
    other.start()
    other.join(PATIENT)
    assert other.exitcode == 0
    assert (tmp_path / "fingerprint").read_text() == fingerprint(run, 5)


@pytest.mark.slow
def test_going_on_after_a_mend_and_after_the_switch_to_sending() -> None:
    for stop in (7, 10, 22):  # after one mend, two, and the switch
        run = federation("relay-replicate")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(stop):
                run.step()
                with torch.no_grad():
                    next(run.parties["party2"].label_mode.fusion.parameters()).view(-1)[0] += 1e-4  # type: ignore[attr-defined]
        resumed = federation("relay-replicate")
        resumed.load_state_dict(run.state_dict())
        assert resumed.server.label_mode.sender.mends == run.server.label_mode.sender.mends != [0, 0, 0]  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for each in (run, resumed):
                for _ in range(8):
                    each.step()
        assert run.ledger.table() == resumed.ledger.table()
        assert same(everything(run), everything(resumed))


def test_a_state_is_a_snapshot() -> None:
    run = federation("private")
    run.step()
    saved = run.state_dict()
    expected = fingerprint(run, 1)
    for _ in range(2):  # loading twice: two federations must not share what they load
        again = federation("private")
        again.load_state_dict(saved)
        assert fingerprint(again, 1) == expected


def test_a_state_that_does_not_fit_is_refused() -> None:
    def state(method: Method, **options: object) -> dict[str, object]:
        run = problem(method, batch_size=16, **options)  # type: ignore[arg-type]
        run.step()
        return run.state_dict()

    feedback = problem(efvfl(TopK(0.2)), batch_size=16)
    direct = problem(cvfl(TopK(0.2)), batch_size=16)
    with pytest.raises(CheckpointError, match="no memory"):
        feedback.load_state_dict(state(cvfl(TopK(0.2))))
    with pytest.raises(CheckpointError, match=r"memory .direct. has none"):
        direct.load_state_dict(state(efvfl(TopK(0.2))))
    with pytest.raises(CheckpointError, match="another start"):
        feedback.load_state_dict(state(efvfl(TopK(0.2), start="exact")))
    x = [v[:50] for v in columns()]
    with pytest.raises(CheckpointError, match=r"a memory of \(50, 4\)"):
        feedback.load_state_dict(state(efvfl(TopK(0.2)), features=x, labels=classes(x)))
    with pytest.raises(CheckpointError, match="does not fit"):
        feedback.load_state_dict(state(efvfl(TopK(0.2)), head=nn.Linear(4, 5).double()))


def test_a_state_of_other_parties_is_refused() -> None:
    saved = federation("private").state_dict()
    saved["parties"] = {"alice": {}}
    with pytest.raises(CheckpointError, match="alice"):
        federation("private").load_state_dict(saved)


def test_files_are_whole_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = {"a": torch.arange(3), "b": [1, (2.5, None), b"\x00\xff"], 7: {"nested": True}, "nan": float("inf")}
    checkpoints.save(path, state)  # type: ignore[arg-type]
    loaded = checkpoints.load(path)
    assert torch.equal(loaded.pop("a"), torch.arange(3))
    assert loaded == {k: v for k, v in state.items() if k != "a"}
    whole = path.read_bytes()
    for cut in (0, 7, 60, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError, match="cannot read the checkpoint"):
            checkpoints.load(path)
    with pytest.raises(CheckpointError, match="cannot be saved"):
        checkpoints.save(path, {"a": object()})
    with pytest.raises(CheckpointError, match="cannot read"):
        checkpoints.load(tmp_path / "nothing")
    assert [p.name for p in tmp_path.iterdir()] == ["state"]  # no half-written file is left


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    checkpoints.save(path, {"a": 1})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left.*unchanged"):
        checkpoints.save(path, {"a": 2})
    monkeypatch.undo()
    assert checkpoints.load(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


@pytest.mark.slow
def test_a_refused_state_leaves_everything_as_it_was() -> None:
    def run(lr: Optimizer, **options: object) -> Federation:
        made = problem(efvfl(TopK(0.2)), batch_size=16, optimizer=lr, **options)  # type: ignore[arg-type]
        for _ in range(3):
            made.step()
        return made

    adam, sgd = Optimizer("Adam", {"lr": 0.1}), Optimizer("SGD", {"lr": 0.1})
    decayed = Optimizer("Adam", {"lr": 0.1}, "StepLR", {"step_size": 1})
    broken = run(adam).state_dict()
    broken["parties"]["party3"]["up"] = {}
    unsaid = run(adam).state_dict()
    unsaid["driver"]["losses"] = None
    old = {"server": {}, "parties": {}, "ledger": {}, "batches": {}, "losses": [], "seconds": 0.0}
    for state, error in (
        (run(sgd).state_dict(), "another optimiser"),
        (run(decayed).state_dict(), "another learning-rate scheduler"),
        (broken, "does not fit this federation: 'memory'"),
        (unsaid, "does not fit"),
        ({}, r"expected a saved state with \['batches', .*, got \[\]"),
        ([], "expected a saved state with .*, got list"),
        (old, "saved by efvfl 0.1, which saved other things: go on with that version, or start anew"),
    ):
        kept, alone = run(adam), run(adam)
        with pytest.raises(CheckpointError, match=error):
            kept.load_state_dict(state)  # type: ignore[arg-type]
        assert fingerprint(kept, 3) == fingerprint(alone, 3)


def test_a_state_of_other_rows_or_batches_is_refused_without_any_memory_too() -> None:
    saved = problem(svfl(), batch_size=16).state_dict()
    x = [v[:50] for v in columns()]
    changes: list[dict[str, Any]] = [{"features": x, "labels": classes(x)}, {"batch_size": 15}, {"seed": 1}]
    for options in changes:
        with pytest.raises(CheckpointError, match="it has batches of"):
            problem(svfl(), **({"batch_size": 16} | options)).load_state_dict(saved)
