"""A party on several machines: workers that share the passes of its local model, compared with one worker."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchrun_command
import worker_scenes
from meetings import same
from networks import TIMEOUTS, WAITING, process_of
from ports import free_port
from problems import close
from torch import Tensor
from warm_processes import PATIENT, WARM
from worker_scenes import CASES, SCENES, WORKERS

from efvfl.cli.main import main
from efvfl.config import run_file as configs
from efvfl.network.links.connecting import dial
from efvfl.network.links.connections import Hooks
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.listening import listen
from efvfl.network.training import build, participant_data, questions
from efvfl.network.training.party_process import PartyProcess
from efvfl.network.training.server_process import ServerProcess
from efvfl.network.workers import worker_group
from efvfl.runs.build import load_data, make_federation
from efvfl.util import checkpoint

pytestmark = pytest.mark.slow  # groups of processes


# A group of three processes, without a network.


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came of all scenes at every worker."""
    folder = tmp_path_factory.mktemp("crew")
    ports = [free_port() for _ in SCENES]
    workers = [WARM.Process(target=worker_scenes.play, args=(rank, ports, folder)) for rank in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENT)
        worker.kill()
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * WORKERS
    return [checkpoint.load(folder / f"{rank}.safetensors") for rank in range(WORKERS)]


def tensors(state: Any) -> list[Tensor]:
    """All tensors of a state."""
    if isinstance(state, dict | list | tuple):
        parts = state.values() if isinstance(state, dict) else state
        return [tensor for part in parts for tensor in tensors(part)]
    return [state] if isinstance(state, Tensor) else []


@pytest.mark.parametrize("case", CASES)
def test_workers_come_to_what_one_comes_to(played: list[dict[str, Any]], case: str) -> None:
    """Parameters, memories and representations, to the last bits of float64; a parameter without gradient stays."""
    expected, represented = worker_scenes.alone(CASES[case])
    first = played[0][case]
    assert close(first["all"], expected, 1e-10)
    assert close([first["represented"]], [represented], 1e-10)


@pytest.mark.parametrize("case", CASES)
def test_all_copies_are_equal(played: list[dict[str, Any]], case: str) -> None:
    """Bit for bit, the optimiser's state included, though the others began with another model."""
    copies = [left[case]["copy"] for left in played]
    assert copies[0]["optimizer"]
    assert all(same(copy, copies[0]) for copy in copies[1:])


def test_dropout_follows_from_key_and_worker(played: list[dict[str, Any]]) -> None:
    first, again, later = played[0]["masks"]
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    parts = first.chunk(WORKERS)
    assert not any(torch.equal(parts[0], part) for part in parts[1:])
    assert sorted(first.unique().tolist()) == [0.0, 2.0]


def test_a_model_that_changes_a_buffer_is_refused(played: list[dict[str, Any]]) -> None:
    for left in played:
        assert left["counting"] == (
            "the local model of 'a' changes its buffer 'passes' at every pass, and 3 workers would each have their "
            "own: use a layer without running statistics, or one worker."
        )


@pytest.mark.parametrize("scene", ["silent", "deserted"])
def test_nobody_waits_for_ever(played: list[dict[str, Any]], scene: str) -> None:
    for left in played[1:]:
        assert left[scene].startswith("the worker of rank 0 of 'a' is gone or silent (")


# What is refused at the start, by a process that believes to be one of two workers.


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TORCHELASTIC_RUN_ID", "test"), ("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)


def test_without_torchrun_there_is_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # others set it too
    assert (worker_group.size(), worker_group.rank()) == (1, 0)


@pytest.mark.usefixtures("two")
def test_batch_normalisation_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, '{ name = "worker_scenes:normed", options = { inputs = 6, width = 4 }, width = 4 }')
    assert main(["join", str(file), "--party", "north", "--insecure", "--dir", str(tmp_path / "north")]) == 2
    text = (
        "efvfl: the local model of 'north' has batch normalisation at '1' (BatchNorm1d), and 2 workers would each "
        "normalise by their own rows: use group normalisation (resnet18: options = { norm = 'group' }), or one worker."
    )
    assert text in capsys.readouterr().err


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("command", ["run", "serve", "predict"])
def test_commands_that_one_must_do_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """`serve` too, if the label holder has no columns."""
    file = write(tmp_path, "{ width = 4 }")
    assert main([command, str(file)]) == 2
    assert f"torchrun started 2 workers of `efvfl {command}`" in capsys.readouterr().err


# Federations on loopback: a party under torchrun, everybody else in this process.

FILE = """
seed = 4
epochs = 4
batch_size = 33
private_seed = 70
label_holder = "{label_holder}"
agreement = {agreement}
[data]
path = "labels.npz"
validation = 0.1
test = 0.0
[model]
hidden = [8]
width = 4
[optimizer]
name = "SGD"
lr = 0.5
momentum = 0.9
scheduler = {{ name = "StepLR", step_size = 1, gamma = 0.9 }}
[network]
save_steps = 3
[[party]]
name = "north"
data = {{ path = "north.npz" }}
private_seed = 71
model = {north}
[[party]]
name = "south"
data = {{ path = "south.npz" }}
private_seed = 72
"""
ROWS = 240
MODEL = "{ hidden = [8], width = 4 }"
OVERLAPPING = "{ pipeline = 3, cached = { steps = 1, batches = 2 } }"


def write(folder: Path, north: str = MODEL, label_holder: str = "", agreement: str = "{}") -> Path:
    """Write a federation file and what its participants hold."""
    chance = np.random.default_rng(9)
    x = {name: chance.normal(size=(ROWS, 6)).astype(np.float32) for name in ("north", "south")}
    ids = np.array([f"row-{i}" for i in range(ROWS)])
    np.savez(folder / "labels.npz", y=(x["north"][:, :3] + x["south"][:, :3]).argmax(axis=1), ids=ids)
    for name, columns in x.items():
        np.savez(folder / f"{name}.npz", x=columns, ids=ids)
    file = folder / "fed.toml"
    file.write_text(FILE.format(north=north, label_holder=label_holder, agreement=agreement))
    return file


class Torchrun:
    """`efvfl` under torchrun, with two workers."""

    def __init__(self, folder: Path, *words: str, restarts: int = 0) -> None:
        self.folder = folder
        launch = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(restarts))
        self.process = subprocess.Popen(
            [sys.executable, *launch, "--master-port", str(free_port()), torchrun_command.__file__, *words],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1", "CREW_FOLDER": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill(self, life: int, rank: int) -> None:
        """Kill a worker in one of its lives."""
        os.kill(int((self.folder / f"{life}-{rank}.pid").read_text()), signal.SIGKILL)

    def end(self) -> str:
        out, _ = self.process.communicate(timeout=PATIENT)
        assert self.process.returncode == 0, out
        return out


@contextmanager
def started(folder: Path, *words: str, restarts: int = 0) -> Iterator[Torchrun]:
    made = Torchrun(folder, *words, restarts=restarts)
    try:
        yield made
    finally:
        made.process.terminate()  # it ends its workers
        made.process.communicate()


def joining(file: Path, name: str, port: int) -> Dialler:
    """A party in this process, one worker alone."""
    config = configs.load(file)
    holding = participant_data.load(config, file.parent, name)
    plan = build.make_plan(config, holding)
    party = build.build_party(config, plan, holding, name)
    about = holding.about(config, name)
    member = PartyProcess(party, file.parent / name, about, questions.QuestionHandler(party, holding))
    return Dialler(member, partial(dial, f"127.0.0.1:{port}", None, build.frame_limit(plan)), WAITING)


def states(folder: Path) -> dict[str, Any]:
    """What the participants of a run have saved at its end: models, optimisers, memories, and bytes by kind."""
    found = {name: checkpoint.load(folder / name / "checkpoint.safetensors") for name in ("server", "north", "south")}
    return {
        "ledger": found["server"]["ledger"],
        "server": found["server"]["server"],
        **{name: found[name]["party"] for name in ("north", "south")},
    }


def train(folder: Path, restarts: int = 0, watch: Callable[[Torchrun, int], None] = lambda run, step: None) -> str:
    """Train with north under torchrun; `watch` is called with the step while the server waits."""
    file = write(folder, agreement=OVERLAPPING)
    config = configs.load(file)
    serving = ServerProcess(config, participant_data.load(config, folder, ""), folder / "server", TIMEOUTS)
    limit = build.frame_limit(serving.plan)
    listening, port = listen("127.0.0.1:0", None, limit, 2, serving.requests.accept)
    south = joining(file, "south", port)
    words = ("join", "fed.toml", "--party", "north", "--dir", "north", "--insecure", "--status", "quiet")
    try:
        with started(folder, *words, "--address", f"127.0.0.1:{port}", restarts=restarts) as north:
            ends = time.monotonic() + PATIENT

            def look() -> None:
                assert time.monotonic() < ends, "this federation hangs"
                assert north.process.poll() is None, north.end()
                watch(north, serving.server.step_number)

            serving.requests.hooks = Hooks(on_tick=look)
            thread = threading.Thread(target=south.run, daemon=True)
            thread.start()
            for _ in serving.train():
                pass
            serving.requests.hooks = Hooks()
            serving.finish()
            thread.join(PATIENT)
            return north.end()
    finally:
        south.stopping.set()
        serving.requests.close()
        serving.message_log.close()
        process_of(south).message_log.close()
        listening.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("trained")
    assert "Traceback" not in train(folder)
    return folder


def test_a_party_with_two_workers_in_a_federation(trained: Path) -> None:
    """Against one worker: the same bytes of every kind, and the same parameters but for rounding."""
    config = configs.load(trained / "fed.toml")
    alone = make_federation(config, load_data(config, trained))
    list(alone.train(config.epochs, gradient=False))
    ours, expected = states(trained), alone.state_dict()
    assert ours["ledger"] == expected["ledger"]
    for name in ("north", "south"):
        pairs = zip(tensors(ours[name]["block"]), tensors(expected["parties"][name]["block"]), strict=True)
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)
    north = worker_scenes.copy_of(alone.parties["north"].block)["module"]
    assert not same(ours["north"]["block"]["module"], north)  # or there was but one worker


def test_the_copies_of_both_workers_are_equal(trained: Path) -> None:
    block = states(trained)["north"]["block"]
    copy = checkpoint.load(trained / "copy-1.safetensors")
    assert same(copy, {"module": block["module"], "optimizer": block["optimizer"]["state"]})


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_nothing(trained: Path, tmp_path: Path) -> None:
    """torchrun starts both again: rank 0 from its checkpoint, the other one from what rank 0 tells it."""
    killed: list[int] = []

    def watch(run: Torchrun, step: int) -> None:
        if step >= 6 and not killed:
            run.kill(life=0, rank=1)
            killed.append(step)

    train(tmp_path, restarts=2, watch=watch)
    assert killed
    assert same(states(tmp_path), states(trained))
    assert same(*(checkpoint.load(folder / "copy-1.safetensors") for folder in (tmp_path, trained)))


def test_the_label_holders_own_party(tmp_path: Path) -> None:
    """`serve` under torchrun, where the label holder has columns."""
    file = write(tmp_path, label_holder="south")
    config = configs.load(file)
    port = free_port()
    north = joining(file, "north", port)
    words = ("serve", "fed.toml", "--dir", "server", "--insecure", "--status", "quiet")
    try:
        with started(tmp_path, *words, "--address", f"127.0.0.1:{port}") as server:
            thread = threading.Thread(target=north.run, daemon=True)
            thread.start()
            assert "Traceback" not in server.end()
            thread.join(PATIENT)
    finally:
        north.stopping.set()
        process_of(north).message_log.close()
    alone = make_federation(config, load_data(config, tmp_path))
    list(alone.train(config.epochs, gradient=False))
    expected = alone.state_dict()
    ours = checkpoint.load(tmp_path / "server" / "checkpoint.safetensors")
    assert ours["ledger"] == expected["ledger"]
    pairs = zip(tensors(ours["party"]["block"]), tensors(expected["parties"]["south"]["block"]), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)
