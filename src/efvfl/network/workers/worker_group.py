"""A party on several machines: workers that share the passes of its local model.

torchrun starts them. The worker of rank 0 is the party: it alone has the stream, the codec, the log and the checkpoint.
The others hold the same columns and a copy of the local model, and wait for its orders. Each computes a part of the
batch's rows, gradients are added up, and all take the same step, so that the copies stay equal. What travels between
them are numbers of an order and tensors of a known size; nothing is pickled.

A worker keeps the graph of its part of a forward pass until it is told to learn from it. With a pipeline, as many are
open as there are steps under way, each with a copy of the parameters it was computed with.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum, IntFlag
from functools import partial
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor, nn

from efvfl.core.batches import ALL, Rows, take
from efvfl.core.block import Block, flatten, unflatten
from efvfl.core.local_model import forward, represent
from efvfl.errors import ConfigError, EfvflError, WorkerError
from efvfl.network.workers.meeting import meet
from efvfl.util import checkpoint
from efvfl.util.rng import derive

SECONDS = 600.0  # how long a worker waits for another one, at the start and later
QUIET = 30.0  # seconds after which rank 0 says that it is still there
_KEYS = (1 << 63) - 1  # what an order has room for, and all that a generator takes


def size() -> int:
    """Return how many workers torchrun started; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def rank() -> int:
    """Return which of the workers this is, from 0."""
    return int(os.environ["RANK"]) if size() > 1 else 0


def refuse(command: str) -> None:
    """Refuse to do as often as there are workers what one must do alone."""
    if size() > 1:
        raise ConfigError(
            f"torchrun started {size()} workers of `efvfl {command}`, but they can only share the work of `join`, and "
            "of `serve` where the label holder has columns: start this command without torchrun."
        )


class _Order(IntEnum):
    """What rank 0 tells the others; each comes with up to three numbers."""

    IDLE = 0
    STATE = 1  # step, bytes: take over my model and optimiser
    FORWARD = 2  # rows (they follow; 0: all rows), with which parameters, key
    BACKWARD = 3  # step, pass: here is the cotangent of a forward pass, learn from it
    REPRESENT = 4  # rows: here are some, in evaluation mode
    END = 5


class _With(IntFlag):
    """Which parameters a forward pass is computed with: those that learn, or copies of them."""

    COPIES = 1
    GIVEN = 2  # as they were at another time: they follow


@dataclass(frozen=True)
class _Pass:
    """A worker's part of a forward pass."""

    h: Tensor | None  # with its graph; None: there was no row for it
    leaves: Mapping[str, Tensor]  # the copies of the parameters that it was computed with, if any


class WorkerGroup:
    """One worker of a party: rank 0 calls the methods of a party, the others `work`."""

    def __init__(self, block: Block, features: Tensor, name: str, window: int = 1, seconds: float = SECONDS) -> None:
        """Meet the other workers; up to `window` reports are open, and one waits for another for so many seconds."""
        self.block = block
        self.features = features
        self.name = name
        self.window = window
        self.rank, self.size = rank(), size()
        self._passes = 0  # how many there were
        self._kept: dict[int, _Pass] = {}  # the last ones that were not learnt from, by number
        self._step = 0  # the scheduler has come to the end of all steps below this one
        self._told = time.monotonic()  # when the last order was given
        _refuse_batch_norm(block.module, name, self.size)
        backend = "cpu:gloo,cuda:nccl" if any(p.is_cuda for p in block.parameters) else "gloo"
        with self._together():
            store, wait = meet(self.rank, self.size, SECONDS), timedelta(seconds=seconds)
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=wait)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            other = "a worker" if self.rank == 0 else "the worker of rank 0"
            reason = str(error).partition(". ")[0]  # gloo goes on at length
            raise WorkerError(
                f"{other} of {self.name!r} is gone or silent ({reason}). All must start again, from the checkpoint: "
                "`torchrun --max-restarts` does so by itself."
            ) from error

    def _part(self, count: int, rank: int) -> slice:
        """Return a worker's part of so many rows; what is left over goes to the first ones."""
        each, more = divmod(count, self.size)
        start = rank * each + min(rank, more)
        return slice(start, start + each + (rank < more))

    def _count(self, rows: Rows) -> int:
        return len(self.features) if isinstance(rows, slice) else len(rows)

    def _compute(self, rows: Rows, key: int, leaves: Mapping[str, Tensor]) -> tuple[int, Tensor | None]:
        """Compute this worker's part of some rows, if there is a row for it, and keep it; return its number and it."""
        part = self._part(self._count(rows), self.rank)
        some = part.start < part.stop
        h = self._forward(part if isinstance(rows, slice) else rows[part], key, leaves) if some else None
        self._passes += 1
        self._kept[self._passes] = _Pass(h, leaves)
        for old in list(self._kept)[: -self.window]:  # of reports that the server went on without
            del self._kept[old]
        return self._passes, h

    def _forward(self, chosen: Rows, key: int, leaves: Mapping[str, Tensor]) -> Tensor:
        """Return the representation of this worker's rows."""
        before = {name: (id(b), b._version) for name, b in self.block.module.named_buffers()}
        x, key = take(self.features, chosen), derive(key, self.rank)
        h = forward(self.block.module, x, chosen, key, self.name, leaves)
        for name, buffer in self.block.module.named_buffers():
            if before[name] != (id(buffer), buffer._version):
                raise ConfigError(
                    f"the local model of {self.name!r} changes its buffer {name!r} at every pass, and {self.size} "
                    "workers would each have their own: use a layer without running statistics, or one worker."
                )
        return h

    def _add_up(self) -> None:
        """Make every worker's gradient the sum of all; one that nobody has stays none, as with one worker."""
        parameters = self.block.parameters
        used = torch.tensor([float(p.grad is not None) for p in parameters])
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        total = flatten([*grads, used.to(grads[0].device)], self.block.dtype)
        total = total if total.is_cuda else total.cpu()
        with self._together():
            dist.all_reduce(total)
        unflatten(total, [*grads, used])
        for parameter, gradient, count in zip(parameters, grads, used.tolist(), strict=True):
            parameter.grad = gradient if count else None

    # Rank 0.

    def _tell(self, order: _Order, *numbers: int) -> None:
        with self._together():
            dist.broadcast(torch.tensor([order, *numbers, 0, 0, 0][:4]), 0)
        self._told = time.monotonic()

    def _collect(self, own: Tensor, count: int) -> Tensor:
        """Return the rows of all workers, without a graph."""
        h = torch.empty((count, *own.shape[1:]), dtype=own.dtype)
        h[self._part(count, 0)] = own.detach()
        for worker in range(1, self.size):
            part = h[self._part(count, worker)]
            if len(part):
                with self._together():
                    dist.recv(part, worker)
        return h

    def _send(self, values: Tensor) -> list[dist.Work]:
        """Send every other worker its part of some rows."""
        parts = {worker: values[self._part(len(values), worker)] for worker in range(1, self.size)}
        with self._together():
            sent = [dist.isend(part.contiguous(), worker) for worker, part in parts.items() if len(part)]
        return [work for work in sent if work is not None]

    def share(self, step: int = 0) -> None:
        """Give all workers the model, the optimiser and its schedule as they are here, before this step."""
        data = bytearray(checkpoint.to_bytes(self.block.state_dict()))
        self._tell(_Order.STATE, step, len(data))
        with self._together():
            dist.broadcast(torch.frombuffer(data, dtype=torch.uint8), 0)

    def forward(self, rows: Rows, step: int, key: int, leaves: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the representation of some rows, to be learnt from at a step; its backward pass is shared as well.

        `leaves` are copies of the parameters, now or at another time, where the graph must outlive an update.
        """
        key, leaves = key & _KEYS, leaves or {}
        self._order_forward(rows, key, leaves)
        number, own = self._compute(rows, key, leaves)
        assert own is not None, "rank 0 has the first row"
        h = self._collect(own, self._count(rows))
        if own.requires_grad:
            learn = partial(self._backward, own, step, number)
            h.requires_grad_().register_hook(learn)  # type: ignore[no-untyped-call]
        return h

    def _order_forward(self, rows: Rows, key: int, leaves: Mapping[str, Tensor]) -> None:
        named = dict(self.block.module.named_parameters())
        given = any(not torch.equal(leaf, named[name]) for name, leaf in leaves.items())
        how = _With.COPIES * bool(leaves) | _With.GIVEN * given
        self._tell(_Order.FORWARD, 0 if isinstance(rows, slice) else len(rows), how, key)
        with self._together():
            if not isinstance(rows, slice):
                dist.broadcast(rows, 0)
            if given:
                dist.broadcast(flatten(list(leaves.values()), torch.float64).cpu(), 0)

    def _backward(self, own: Tensor, step: int, number: int, cotangent: Tensor) -> None:
        """Find the gradient of all workers, from the cotangent of a pass that is still kept."""
        leaves = self._kept.pop(number).leaves
        self._tell(_Order.BACKWARD, step, number)
        sent = self._send(cotangent)
        own.backward(cotangent[: len(own)])  # type: ignore[no-untyped-call]
        with self._together():
            for work in sent:
                work.wait()
        self.block.take_gradients(leaves)
        self._add_up()
        named = dict(self.block.module.named_parameters())
        for name, leaf in leaves.items():  # where the block will look for it
            leaf.grad = named[name].grad

    def represent(self, x: Tensor, alone: bool = False) -> Tensor:
        """Return the exact representation of some rows, in evaluation mode."""
        self._tell(_Order.REPRESENT, len(x), alone)
        sent = self._send(x.to(self.features.dtype))
        own = represent(self.block.module, x[self._part(len(x), 0)], alone)
        with self._together():
            for work in sent:
                work.wait()
        return self._collect(own, len(x))

    def idle(self) -> None:
        """Say that rank 0 is still there, if the others have not heard of it for long."""
        if time.monotonic() - self._told > QUIET:
            self._tell(_Order.IDLE)

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Send the others home; after a crash they find out by themselves, because the connection is gone."""
        if kind is None or (issubclass(kind, EfvflError) and not issubclass(kind, WorkerError)):
            with contextlib.suppress(WorkerError):
                self._tell(_Order.END)
        dist.destroy_process_group()

    # The others.

    def work(self) -> None:
        """Do as rank 0 says, until it says that this is the end."""
        while True:
            order = torch.zeros(4, dtype=torch.int64)
            with self._together():
                dist.broadcast(order, 0)
            match order.tolist():
                case [_Order.STATE, step, length, _]:
                    self._take_over(step, length)
                case [_Order.FORWARD, count, how, key]:
                    self._follow(count, _With(how), key)
                case [_Order.BACKWARD, step, number, _]:
                    self._learn(step, number)
                case [_Order.REPRESENT, count, alone, _]:
                    self._represent(count, bool(alone))
                case [_Order.END, *_]:
                    dist.destroy_process_group()
                    return

    def _reply(self, values: Tensor) -> None:
        with self._together():
            dist.send(values.contiguous(), 0)

    def _receive(self, into: Tensor) -> Tensor:
        with self._together():
            dist.recv(into, 0)
        return into

    def _take_over(self, step: int, length: int) -> None:
        data = torch.empty(length, dtype=torch.uint8)
        with self._together():
            dist.broadcast(data, 0)
        self.block.load_state_dict(checkpoint.from_bytes(data.numpy().tobytes()))
        self._step = step
        self._kept.clear()

    def _follow(self, count: int, how: _With, key: int) -> None:
        """Compute this worker's part of a forward pass."""
        rows: Rows = torch.empty(count, dtype=torch.int64) if count else ALL
        leaves = self.block.leaves() if how else {}
        with self._together():
            if isinstance(rows, Tensor):
                dist.broadcast(rows, 0)
            if _With.GIVEN in how:
                values = torch.empty(sum(leaf.numel() for leaf in leaves.values()), dtype=torch.float64)
                dist.broadcast(values, 0)
                unflatten(values, list(leaves.values()))
        _, h = self._compute(rows, key, leaves)
        if h is not None:
            self._reply(h.detach())

    def _learn(self, step: int, number: int) -> None:
        for ended in range(self._step, step):
            self.block.end_step(ended)
        self._step = step
        self.block.zero_grad()
        done = self._kept.pop(number)
        if done.h is not None:
            done.h.backward(self._receive(torch.empty_like(done.h)))  # type: ignore[no-untyped-call]
        self.block.take_gradients(done.leaves)
        self._add_up()
        self.block.update()

    def _represent(self, count: int, alone: bool) -> None:
        part = self._part(count, self.rank)
        if part.start < part.stop:
            shape = (part.stop - part.start, *self.features.shape[1:])
            x = self._receive(torch.empty(shape, dtype=self.features.dtype))
            self._reply(represent(self.block.module, x, alone))


def _refuse_batch_norm(module: nn.Module, name: str, workers: int) -> None:
    for path, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
            raise ConfigError(
                f"the local model of {name!r} has batch normalisation at {path!r} ({type(part).__name__}), and "
                f"{workers} workers would each normalise by their own rows: use group normalisation (resnet18: options "
                "= { norm = 'group' }), or one worker."
            )
