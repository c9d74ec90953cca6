"""What the workers of a party run in tests: small federations in a group of processes, or a command under torchrun."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from problems import columns, everything, problem
from torch import Tensor, nn

from efvfl import Agreement, CachedSteps, Federation, Optimizer, SharedLabels, TopK, efvfl
from efvfl.cli import quick_start
from efvfl.cli.main import main
from efvfl.core.block import Block
from efvfl.core.local_model import PlainModel
from efvfl.errors import ConfigError, WorkerError
from efvfl.models.vision import resnet18
from efvfl.network.workers import worker_group
from efvfl.network.workers.group_model import GroupModel
from efvfl.network.workers.worker_group import WorkerGroup
from efvfl.training.measure import represent
from efvfl.util import checkpoint

WORKERS = 3
PLACE = 1  # of the party that has workers
ADAM = Optimizer("Adam", {"lr": 0.05}, "StepLR", {"step_size": 2, "gamma": 0.5})
DECAY = Optimizer("SGD", {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.1})


class Spare(nn.Module):
    """A model one of whose parameters takes no part."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, width)
        self.spare = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


def normed(inputs: int, width: int) -> nn.Module:
    """For files: 'worker_scenes:normed'."""
    return nn.Sequential(nn.Linear(inputs, width), nn.BatchNorm1d(width))


def spare() -> nn.Module:
    return Spare(3, 4)


def grouped() -> nn.Module:
    """An image model, on images of 8 x 8 made of the columns."""
    return nn.Sequential(nn.Linear(3, 192), nn.Unflatten(1, (3, 8, 8)), resnet18(3, 4, channels=8, norm="group"))


@dataclass(frozen=True)
class Case:
    """A federation of three parties, and how many steps it runs."""

    options: dict[str, Any] = field(default_factory=dict)  # of `federate`
    optimizer: Optimizer = ADAM
    own: Callable[[], nn.Module] = spare  # the model of the party that has workers
    steps: int = 7
    epochs: int = 0  # in place of steps: then it is looked at, and may end early

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return self.own().double()

    def federation(self) -> Federation:
        own = self.model(seed=5)
        models = [nn.Linear(5, 4).double(), own, nn.Linear(4, 4).double()]
        return problem(optimizer=self.optimizer, models=models, **self.options)


NOISE = (columns(rows=30, seed=5), torch.arange(30) % 3)  # labels that nothing tells
CASES = {
    "fewer rows than workers": Case({"batch_size": 29, "method": efvfl(TopK(0.3))}),  # 29, 29 and 2 of 60
    "full batch": Case({}, DECAY),
    "all rows, local steps": Case(
        {"batch_size": 16, "agreement": Agreement(SharedLabels(local_steps=2), reports="all")}, DECAY
    ),
    "window, all rows, replicas": Case(
        {"batch_size": 16, "agreement": Agreement(SharedLabels(fusion="replicate", local_steps=2), "all", 3)}
    ),
    "window, cached steps": Case(
        {"batch_size": 29, "method": efvfl(TopK(0.3)), "agreement": Agreement(pipeline=4, cached=CachedSteps(2, 3))}
    ),
    "early stopping": Case(
        {"batch_size": 16, "method": efvfl(TopK(0.3)), "patience": 2, "validation": NOISE},
        Optimizer("Adam", {"lr": 0.05}, "ReduceLROnPlateau", {"patience": 0, "factor": 0.5}),
        epochs=12,
    ),
    "group normalisation": Case({"batch_size": 20}, Optimizer("SGD", {"lr": 0.01, "momentum": 0.5}), grouped),
}


def alone(case: Case) -> tuple[list[Tensor], Tensor]:
    """What one worker comes to: everything a run leaves, and what the party says of its rows."""
    made = case.federation()
    if case.epochs:
        last = made.fit(case.epochs, gradient=False)[-1]
        assert last.kept < last.epoch
        assert made.server.block.rate < 0.05
    for _ in range(0 if case.epochs else case.steps):
        made.step()
    return everything(made), represent(made.models[PLACE], columns()[PLACE])


@dataclass(frozen=True)
class Left:
    """What a worker comes to."""

    copy: dict[str, Any]  # of module and optimiser
    all: list[Tensor]  # rank 0: as `alone`
    represented: Tensor | None


def copy_of(block: Block) -> dict[str, Any]:
    state = block.state_dict()
    return {"module": state["module"], "optimizer": state["optimizer"]["state"]}


def train(case: Case) -> Left:
    """Train with workers; in the middle, rank 0 goes on from a saved state in which reports are out."""
    x = columns()[PLACE]
    made = case.federation()
    batches, window = made.server.batches, made.window
    if worker_group.rank():
        block = Block(case.model(seed=6), case.optimizer, batches.per_epoch)  # with parameters that nobody asked for
        WorkerGroup(block, x, "party2", window).work()
        return Left(copy_of(block), [], None)
    party = made.parties["party2"]
    assert isinstance(party.model, PlainModel)
    group = WorkerGroup(party.block, x, "party2", window)
    party.model = party.open.model = GroupModel(group, party.model.key)
    if case.epochs:
        made.fit(case.epochs, gradient=False)
    for step in range(0 if case.epochs else case.steps):
        if step == case.steps // 2:
            state = party.state_dict()
            party.block.load_vector(torch.zeros_like(party.block.vector()))
            group.share()  # all have gone wrong, and what is loaded must reach all
            party.load_state_dict(state)
        made.step()
        worker_group.QUIET = 0.0
        group.idle()
    represented = group.represent(x)
    group.leave(None, None, None)
    return Left(copy_of(party.block), everything(made), represented)


def masks() -> list[Tensor]:
    """What dropout leaves of rows that are all the same, twice at one step and once at another."""
    block = Block(nn.Dropout(0.5), None)
    group = WorkerGroup(block, torch.ones(60, 4), "a")
    if group.rank:
        group.work()
        return []
    found = [group.forward(slice(None), 3, key) for key in (11, 11, 1 << 63 | 12)]
    group.leave(None, None, None)
    return found


class Counting(nn.Linear):
    """A layer that remembers."""

    passes: Tensor

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x)


def counting() -> str:
    """The error that a model gets which changes a buffer."""
    group = WorkerGroup(Block(Counting(), None), torch.ones(60, 4), "a")
    try:
        group.forward(slice(None), 0, 1) if group.rank == 0 else group.work()
    except ConfigError as error:
        dist.destroy_process_group()
        return str(error)
    raise AssertionError("it was not noticed")


def silent() -> str:
    """The error that workers get when rank 0 says nothing."""
    group = WorkerGroup(Block(nn.Linear(4, 2), None), torch.ones(60, 4), "a", seconds=2.0)
    if group.rank == 0:
        time.sleep(3.5)
        dist.destroy_process_group()
        return ""
    try:
        group.work()
    except WorkerError as error:
        dist.destroy_process_group()
        return str(error)
    raise AssertionError("it ended by itself")


def deserted() -> str:
    """The error that workers get when rank 0 ends without a word; this is the last scene."""
    group = WorkerGroup(Block(nn.Linear(4, 2), None), torch.ones(60, 4), "a")
    if group.rank == 0:
        return ""
    try:
        group.work()
    except WorkerError as error:
        return str(error)
    raise AssertionError("it ended by itself")


SCENES: dict[str, Callable[[], Any]] = {
    **{name: partial(train, case) for name, case in CASES.items()},
    "masks": masks,
    "counting": counting,
    "silent": silent,
    "deserted": deserted,
}


def play(rank: int, ports: list[int], folder: Path) -> None:
    """Be one worker in all scenes, one after another, and leave what came of them in a file."""
    quick_start.without_compiler()
    torch.set_num_threads(1)
    found = {}
    for (name, scene), port in zip(SCENES.items(), ports, strict=True):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORKERS), "TORCHELASTIC_RUN_ID": "test"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        left = scene()
        found[name] = dict(vars(left)) if isinstance(left, Left) else left
    checkpoint.save(folder / f"{rank}.safetensors", found)


def command() -> int:
    """Run `efvfl` as one of torchrun's workers; leave its process number, and at the end its copy of the model."""
    folder, mark = Path(os.environ["CREW_FOLDER"]), f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{worker_group.rank()}"
    (folder / f"{mark}.pid").write_text(str(os.getpid()))
    work = WorkerGroup.work

    def noted(self: WorkerGroup) -> None:
        work(self)
        checkpoint.save(folder / f"copy-{self.rank}.safetensors", copy_of(self.block))

    WorkerGroup.work = noted  # type: ignore[method-assign]
    return main(sys.argv[1:])
