"""A party whose local model two workers of torchrun share, against one worker: ResNet18 of half width, one thread each.

Both take whole steps of a federation of one party (encoding, decoding and the server's part included), in turn and in
one process: the second worker has nothing to do while the first one works alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import torch
from torch import nn

from benchmarks.lines import Line, ratio, table
from benchmarks.timing import Timing, alternate
from efvfl import Federation, Optimizer, TopK, Training, efvfl, federate
from efvfl.core.block import Block
from efvfl.models.vision import resnet18
from efvfl.network.workers import worker_group
from efvfl.network.workers.group_model import GroupModel
from efvfl.network.workers.worker_group import WorkerGroup

ROWS, BATCH, WIDTH, CLASSES = 1024, 128, 16, 10
NAME = "party"
OPTIMIZER = Optimizer("SGD", {"lr": 0.01, "momentum": 0.9})


def model() -> nn.Module:
    torch.manual_seed(0)
    return resnet18(3, WIDTH, norm="group")


def federation() -> Federation:
    torch.manual_seed(1)
    x, y = torch.randn(ROWS, 3, 16, 16), torch.randint(0, CLASSES, (ROWS,))
    method, head = efvfl(TopK(0.1)), nn.Linear(WIDTH, CLASSES)
    return federate(
        {NAME: x},
        y,
        [model()],
        head,
        method=method,
        training=Training(optimizer=OPTIMIZER, batch_size=BATCH),
    )


def run_worker(rounds: int) -> None:
    """Be one of the two; rank 0 prints what it measured."""
    torch.set_num_threads(1)
    one, two = federation(), federation()
    x, per_epoch = two.splits["train"].features[0], two.server.batches.per_epoch
    if worker_group.rank():
        WorkerGroup(Block(model(), OPTIMIZER, per_epoch), x, NAME).work()
        return
    party = two.parties[NAME]
    group = WorkerGroup(party.block, x, NAME)
    party.model = party.open.model = GroupModel(group, 0)
    found = alternate({"one": one.step, "two": two.step}, rounds, warm=2)
    group.leave(None, None, None)
    print(json.dumps({name: timing.samples for name, timing in found.items()}))


def against_one(rounds: int) -> dict[str, Timing]:
    """Return milliseconds a step of one worker and of two."""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "benchmarks.workers")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *launch, str(rounds)], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return {name: Timing(samples) for name, samples in json.loads(done.stdout).items()}


def lines(full: bool) -> list[Line]:
    """Measure for the suite."""
    found = against_one(rounds=40 if full else 12)
    what = f"ResNet18 of half width, 16 x 16, batch {BATCH}: one worker / two of torchrun, one thread each"
    return [replace(ratio("workers", what, found["one"], found["two"], target=1.6), floor=True)]


def main() -> None:
    """Print the ratio."""
    print(table(lines(full=False)))


if __name__ == "__main__":
    run_worker(int(sys.argv[1])) if worker_group.size() > 1 else main()
