"""Memories in scratch files: the same run bit for bit, the same checkpoints, and nothing left behind."""

import gc
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from networks import assert_same, config, networked, reference
from problems import everything, problem, same
from recovery import FrameFate, disturbed, rows, small, undisturbed  # noqa: F401
from torch import Tensor

from efvfl import QSGD, Agreement, Federation, Link, SharedLabels, TopK, efvfl
from efvfl.cli.main import main
from efvfl.core.channel import Channel
from efvfl.core.memories import ErrorFeedback
from efvfl.core.memory import Keeping, MemoryEnd, Start
from efvfl.errors import CheckpointError, ConfigError
from efvfl.network.links.frame import FrameKind
from efvfl.util import checkpoint, mapped

AGREEMENTS = [
    Agreement(),
    Agreement(reports="all"),
    Agreement(labels="shared"),
    Agreement(SharedLabels(downlink="aggregate", fusion="replicate")),
    Agreement(memory_dtype="bfloat16"),
]


def made(agreement: Agreement, folder: Path | None) -> Federation:
    return problem(efvfl(TopK(0.2), down=QSGD(4)), torch.float32, agreement=agreement, batch_size=16, mapped=folder)


def parts(file: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and body of a checkpoint; safetensors writes the header's metadata in any order."""
    start = 8 + int.from_bytes(file[:8], "little")
    return json.loads(file[8:start]), file[start:]


def saved(federation: Federation, path: Path) -> tuple[dict[str, Any], bytes]:
    state = federation.state_dict()
    state["driver"]["seconds"] = 0.0  # which alone depends on the clock
    checkpoint.save(path, state)
    return parts(path.read_bytes())


@pytest.mark.parametrize("agreement", AGREEMENTS, ids=str)
def test_a_mapped_run_is_the_same_run_and_saves_the_same_bytes(agreement: Agreement, tmp_path: Path) -> None:
    runs = {folder: made(agreement, folder) for folder in (None, tmp_path / "scratch")}
    for run in runs.values():
        for _ in range(6):
            run.step()
    left, right = (saved(run, tmp_path / "state") for run in runs.values())
    assert left == right
    resumed = {folder: made(agreement, folder) for folder in runs}
    for run in resumed.values():
        run.load_state_dict(checkpoint.load(tmp_path / "state"))
    for run in (*runs.values(), *resumed.values()):
        for _ in range(5):
            run.step()
    first, *others = (everything(run) for run in (*runs.values(), *resumed.values()))
    assert all(same(first, other) for other in others)


def test_a_file_is_what_safetensors_makes_in_ram(tmp_path: Path) -> None:
    run = made(Agreement(memory_dtype="bfloat16"), tmp_path)
    run.step()
    state: dict[str, Any] = run.state_dict() | {"ä": [torch.tensor(1.5), torch.empty(0), b"", torch.ones(2, 3).T]}
    state |= {str(dtype): torch.ones(5).to(dtype) for dtype in checkpoint._DTYPES}
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(checkpoint._strip(state, tensors))
    expected = safetensors.torch.save(tensors, metadata={"efvfl": checkpoint.FORMAT, "tree": tree})
    checkpoint.save(tmp_path / "state", state)
    whole = (tmp_path / "state").read_bytes()
    header, data = parts(whole)
    assert header.pop("digest")["data_offsets"] == [len(data) - 32, len(data)]
    assert (header, data[:-32]) == parts(expected)
    assert data[-32:] == hashlib.blake2b(whole[:-32], digest_size=32).digest()
    loaded = checkpoint.load(tmp_path / "state")
    assert all(torch.equal(loaded[str(dtype)], state[str(dtype)]) for dtype in checkpoint._DTYPES)
    with pytest.raises(CheckpointError, match=r"a tensor of torch.float8_e5m2, which cannot be saved"):
        checkpoint.save(tmp_path / "state", {"a": torch.ones(2).to(torch.float8_e5m2)})


def test_a_state_of_a_mapped_memory_is_a_snapshot(tmp_path: Path) -> None:
    run = made(Agreement(), tmp_path)
    for _ in range(3):
        run.step()
    state = run.state_dict()
    before = [party["up"]["memory"]["g"].clone() for party in state["parties"].values()]
    for _ in range(4):
        run.step()
    assert same(before, [party["up"]["memory"]["g"] for party in state["parties"].values()])
    assert not same(before, [party.up.memory.g for party in run.parties.values()])


def maps(folder: Path) -> int:
    """How many files of a folder this process has mapped."""
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is mapped")
def test_scratch_files_have_no_name_and_go_with_the_federation(tmp_path: Path) -> None:
    run = made(Agreement(labels="shared"), tmp_path)
    run.step()
    assert maps(tmp_path) == 3 + 3  # the server's, through which parties hear each other, and each party's own
    assert not list(tmp_path.iterdir())  # so that none is left, whatever becomes of the process
    del run
    gc.collect()
    assert maps(tmp_path) == 0


def test_the_digest_of_a_memory_is_what_it_was(tmp_path: Path) -> None:
    """Two releases must agree on it: over every name and its bytes, in order."""
    starts: tuple[Start, ...] = ("compressed", "exact")
    for start in starts:
        digests = set()
        for folder in (None, tmp_path):
            memory = MemoryEnd(ErrorFeedback(), (5, 2), torch.float32, Keeping(start, folder=folder))
            memory.absorb(torch.tensor([3, 1]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
            digests.add(Channel(Link(TopK(0.5)), memory, (2,), torch.float32).digest())
        expected = hashlib.blake2b(digest_size=8)
        expected.update(b"g" + memory.g.numpy().tobytes())
        if memory.seen is not None:
            expected.update(b"seen" + memory.seen.numpy().tobytes())
        assert digests == {expected.hexdigest()}


def with_rows(state: object, count: int) -> int:
    """How many tensors of a state have so many rows."""
    if isinstance(state, Tensor):
        return int(state.dim() == 2 and len(state) == count)
    inner = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return sum(with_rows(part, count) for part in inner)


@pytest.mark.parametrize(("downlink", "held"), [("aggregate", 1), ("relay", 3)])
def test_with_the_combination_a_party_holds_its_own_memory_only(downlink: str, held: int) -> None:
    agreement = Agreement(SharedLabels(downlink=downlink))  # type: ignore[arg-type]
    run = problem(efvfl(TopK(0.2)), agreement=agreement, batch_size=16)
    run.step()
    for party in run.parties.values():
        assert with_rows(party.state_dict(), len(run.server.labels)) == held
    assert with_rows(run.server.state_dict(), len(run.server.labels)) == 3


FRUGAL = """
import json, resource, sys
from pathlib import Path
import torch
from efvfl import Link, TopK
from efvfl.util import checkpoint
from efvfl.core.channel import Channel
from efvfl.core.memories import ErrorFeedback
from efvfl.core.memory import Keeping, MemoryEnd

def anonymous(field="RssAnon"):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))

folder, room = Path(sys.argv[1]), 16 << 20
memory = MemoryEnd(ErrorFeedback(), (1 << 20, 16), torch.float32, Keeping(folder=folder))
channel = Channel(Link(TopK(0.1)), memory, (16,), torch.float32)
channel.memory.g.fill_(1.0)  # 64 MB
channel.digest()
resource.setrlimit(resource.RLIMIT_DATA, (anonymous("VmData") + room, resource.RLIM_INFINITY))
channel.digest()
checkpoint.save(folder / "state", channel.state_dict())
try:
    channel.memory.g.clone()
except RuntimeError:
    refused = True  # so the limit would have stopped a copy in RAM
resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
before = anonymous()
state = checkpoint.load(folder / "state")
channel.load_state_dict(state)
print(json.dumps({"refused": refused, "loading": anonymous() - before, "room": room}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc and RLIMIT_DATA tell what is anonymous")
def test_nothing_copies_a_mapped_memory_into_ram(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FRUGAL, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["refused"]
    assert found["loading"] < found["room"]
    assert (tmp_path / "state").stat().st_size > 64 << 20


def test_a_disk_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mapped, "_reserve", full)
    with pytest.raises(ConfigError, match=r"a file of 160 bytes .* No space left on device.*keep memories in RAM"):
        mapped.zeros((10, 4), torch.float32, tmp_path)
    assert not list(tmp_path.iterdir())


# Over the network, and from a file of settings.


def test_over_a_network_each_may_choose_and_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert_same(reference(config()), networked(config(memory="mapped"), tmp_path / "run"))


@pytest.mark.parametrize("who", ["", "left"], ids=["server", "party"])
def test_who_is_killed_goes_on_from_its_checkpoint(rows: Path, who: str, tmp_path: Path) -> None:
    run = small(rows, save_steps=2, memory="mapped")
    fate = FrameFate(FrameKind.REPLY, "in" if who == "" else "out", nth=6)
    assert_same(undisturbed(rows, "private"), disturbed(run, tmp_path, who, fate))
    assert fate.events >= 6


@pytest.mark.slow
def test_a_run_may_go_on_with_its_memories_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "out"
    text = 'batch_size = 200\nobserve_gradient = false\nmemory = "{}"\n[data]\nsubset = 400\n'
    file.write_text(text.format("ram"))
    assert main(["run", str(file), "--out", str(out), "--epochs", "1"]) == 0
    file.write_text(text.format("mapped"))
    assert main(["run", str(file), "--out", str(out), "--epochs", "2", "--resume"]) == 0
    assert "Going on after epoch 1." in capsys.readouterr().out
    assert {path.suffix for path in out.iterdir()} == {".jsonl", ".json", ".png", ".parquet", ".safetensors"}
