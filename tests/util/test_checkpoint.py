"""Checkpoints notice every bit that has changed, and the one before is there when it is needed."""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from efvfl.errors import CheckpointError, DamagedError
from efvfl.util import checkpoint
from efvfl.util.files import write_atomically

STATE: dict[str, Any] = {
    "step": 3,
    "weights": torch.arange(5.0),
    "name": "x",
    "raw": b"\x00\xff",
    "none": torch.empty(0),
}


def step_of(state: dict[str, Any]) -> int:
    return int(state["step"])


@pytest.mark.attack(
    by="a disk",
    tries="flips a bit of a checkpoint, at each of its bytes",
    outcome="refused: a digest of the whole content is in the file",
)
def test_a_bit_that_changed_on_disk_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    checkpoint.save(path, STATE)
    whole = path.read_bytes()
    for place in range(len(whole)):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << place % 8
        path.write_bytes(spoilt)
        with pytest.raises(DamagedError, match=r"state.safetensors"):
            checkpoint.load(path)
    for cut in (whole[:-1], whole + b"\x00", whole[1:], whole[:40], b""):
        path.write_bytes(cut)
        with pytest.raises(DamagedError, match=r"cannot read the checkpoint .* it is damaged \("):
            checkpoint.load(path)


def test_a_file_is_still_safetensors(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "state.safetensors", STATE)
    found = safetensors.torch.load_file(tmp_path / "state.safetensors")
    assert any(torch.equal(tensor, STATE["weights"]) for tensor in found.values())


def test_a_checkpoint_without_a_digest_is_of_another_version(tmp_path: Path) -> None:
    """As efvfl wrote them before, and as others do."""
    path = tmp_path / "old.safetensors"
    for metadata in ({"efvfl": "1", "tree": json.dumps(["dict", []])}, {}, None):
        safetensors.torch.save_file({"0": torch.zeros(2)}, path, metadata=metadata)
        with pytest.raises(
            CheckpointError, match=r"not a checkpoint of this version of efvfl: go on with the one"
        ) as error:
            checkpoint.load(path)
        assert not isinstance(error.value, DamagedError)


def test_the_one_before_is_kept_and_used_if_the_last_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.safetensors"
    for step in (1, 2, 3):
        checkpoint.save(path, {"step": step}, keep=True)
    assert step_of(checkpoint.load_kept(path)) == 3
    assert step_of(checkpoint.load(checkpoint.previous(path))) == 2
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert step_of(checkpoint.load_kept(path)) == 2
    assert "is damaged: going on from the checkpoint before it" in caplog.text
    assert not path.exists()
    assert checkpoint.exists(path)
    assert step_of(checkpoint.load_kept(path)) == 2  # a crash now is no harm
    checkpoint.save(path, {"step": 4}, keep=True)
    assert [step_of(checkpoint.load(p)) for p in (checkpoint.previous(path), path)] == [2, 4]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "state.damaged.safetensors",
        "state.previous.safetensors",
        "state.safetensors",
    ]


def test_if_both_are_damaged_nothing_is_used_and_nothing_renamed(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    for step in (1, 2):
        checkpoint.save(path, {"step": step}, keep=True)
    for one in (path, checkpoint.previous(path)):
        one.write_bytes(one.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedError, match=r"state.previous.safetensors: it is damaged"):
        checkpoint.load_kept(path)
    assert path.exists()


class Died(BaseException):
    """Ends a save at a system call, as a power failure would."""


def dying(call: Callable[..., Any], after: bool) -> Callable[..., Any]:
    def died(*arguments: Any, **named: Any) -> Any:
        if after:
            call(*arguments, **named)
        raise Died

    return died


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["link", "replace", "fsync"])
@pytest.mark.parametrize("nth", [0, 1])
def test_whenever_a_save_is_cut_short_a_good_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, nth: int, after: bool
) -> None:
    path, calls = tmp_path / "state.safetensors", [0]
    for step in (1, 2):
        checkpoint.save(path, {"step": step}, keep=True)
    real, dead = getattr(os, name), dying(getattr(os, name), after)

    def call(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        return (dead if calls[0] == nth + 1 else real)(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, call)
        if name == "link" and nth:
            checkpoint.save(path, {"step": 3}, keep=True)
        else:
            with pytest.raises(Died):
                checkpoint.save(path, {"step": 3}, keep=True)
    assert step_of(checkpoint.load(path)) in (2, 3)
    assert step_of(checkpoint.load(checkpoint.previous(path))) in (1, 2)
    checkpoint.save(path, {"step": 4}, keep=True)
    assert step_of(checkpoint.load(path)) == 4


def test_a_file_system_without_links_keeps_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    for step in (1, 2):
        checkpoint.save(tmp_path / "state.safetensors", {"step": step}, keep=True)
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]
    assert step_of(checkpoint.load_kept(tmp_path / "state.safetensors")) == 2


# Who may read a file.


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A process that keeps nothing to itself, unless it says so."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_their_owners_alone(tmp_path: Path, open_umask: None) -> None:
    write_atomically(tmp_path / "private", b"ids")
    write_atomically(tmp_path / "public", b"figures", public=True)
    checkpoint.save(tmp_path / "state", STATE)
    assert [mode(tmp_path / name) for name in ("private", "public", "state")] == [0o600, 0o666, 0o600]
