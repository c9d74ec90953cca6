"""A party on several machines: workers that share the passes of its local model.

torchrun starts them. The worker of rank 0 is the party: it alone has the stream, the codec, the log and the checkpoint.
The others hold the same columns and a copy of the local model, and wait for its orders. Each computes a part of the
batch's rows, gradients are added up, and all take the same step, so that the copies stay equal. What travels between
them are numbers of an order and tensors of a known size; nothing is pickled.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import IntEnum
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from efvfl.core.batches import Batches, Rows, take
from efvfl.core.block import Block, flatten, unflatten
from efvfl.core.local_model import forward, represent
from efvfl.core.party import Party
from efvfl.errors import ConfigError, EfvflError, WorkerError
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
    FORWARD = 2  # step, whether on all rows, key
    BACKWARD = 3  # step: here is the cotangent of the last forward pass, learn from it
    REPRESENT = 4  # rows: here are some, in evaluation mode
    END = 5


class WorkerGroup:
    """One worker of a party: rank 0 calls the methods of a party, the others `work`."""

    def __init__(self, block: Block, features: Tensor, batches: Batches, name: str, seconds: float = SECONDS) -> None:
        """Meet the other workers; `seconds` is how long one waits for another from then on."""
        self.block = block
        self.features = features
        self.batches = batches
        self.name = name
        self.rank, self.size = rank(), size()
        self._kept: Tensor | None = None  # this worker's part of the last forward pass
        self._step = 0  # the scheduler has come to the end of all steps below this one
        self._told = time.monotonic()  # when the last order was given
        _refuse_batch_norm(block.module, name, self.size)
        backend = "cpu:gloo,cuda:nccl" if any(p.is_cuda for p in block.parameters) else "gloo"
        with self._together():
            store, wait = _meet(self.rank, self.size), timedelta(seconds=seconds)
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

    def _count(self, step: int, whole: bool) -> int:
        return self.batches.samples if whole else self.batches.count(step)

    def _compute(self, step: int, whole: bool, key: int) -> Tensor | None:
        """Return the representation of this worker's part of a batch, if there is a row for it."""
        part = self._part(self._count(step, whole), self.rank)
        if part.start == part.stop:
            return None
        rows = self.batches.rows(step)
        chosen = part if whole or isinstance(rows, slice) else rows[part]
        before = {name: (id(b), b._version) for name, b in self.block.module.named_buffers()}
        h = forward(self.block.module, take(self.features, chosen), chosen, derive(key, self.rank), self.name)
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

    def forward(self, rows: Rows, step: int, key: int) -> Tensor:
        """Return the representation of a step's rows; its backward pass is shared as well."""
        whole, key = isinstance(rows, slice), key & _KEYS
        self._tell(_Order.FORWARD, step, whole, key)
        own = self._compute(step, whole, key)
        assert own is not None, "rank 0 has the first row"
        h = self._collect(own, self._count(step, whole))
        self._kept = own
        if own.requires_grad:

            def backward(cotangent: Tensor) -> None:
                assert self._kept is own, "the last forward pass is the one that is learnt from"
                self._tell(_Order.BACKWARD, step)
                sent = self._send(cotangent)
                own.backward(cotangent[: len(own)])  # type: ignore[no-untyped-call]
                with self._together():
                    for work in sent:
                        work.wait()
                self._add_up()

            h.requires_grad_().register_hook(backward)  # type: ignore[no-untyped-call]
        return h

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
                case [_Order.FORWARD, step, whole, key]:
                    self._kept = self._compute(step, bool(whole), key)
                    if self._kept is not None:
                        self._reply(self._kept.detach())
                case [_Order.BACKWARD, step, _, _]:
                    self._learn(step)
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
        self._step, self._kept = step, None

    def _learn(self, step: int) -> None:
        for ended in range(self._step, step):
            self.block.end_step(ended)
        self._step = step
        self.block.zero_grad()
        if self._kept is not None:
            self._kept.backward(self._receive(torch.empty_like(self._kept)))  # type: ignore[no-untyped-call]
        self._add_up()
        self.block.update()

    def _represent(self, count: int, alone: bool) -> None:
        part = self._part(count, self.rank)
        if part.start < part.stop:
            shape = (part.stop - part.start, *self.features.shape[1:])
            x = self._receive(torch.empty(shape, dtype=self.features.dtype))
            self._reply(represent(self.block.module, x, alone))


class GroupModel:
    """The local model of a party whose passes are shared by a group of workers; this is the one of rank 0."""

    def __init__(self, group: WorkerGroup, key: int) -> None:
        """Give all workers the model as it is here. The key is private to the party and seeds dropout."""
        self.group = group
        self.key = key
        self.block = group.block
        group.share()

    def forward(self, rows: Rows, step: int, turn: int = 0, values: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return H_k(x_k) of these rows; its backward pass is shared as well.

        `values` are not needed: the models of a group change no buffers, and a group has no pipeline.
        """
        return self.group.forward(rows, step, derive(self.key, step, turn))

    def represent(self, x: Tensor, alone: bool = False) -> Tensor:
        """Return the representation of rows in evaluation mode."""
        return self.group.represent(x, alone)

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Restore x_k here and at all other workers."""
        self.block.load_state_dict(state)
        self.group.share(step)


def workers_of(party: Party) -> WorkerGroup | None:
    """Return the workers that share a party's computing, if there are any."""
    return party.model.group if isinstance(party.model, GroupModel) else None


def _meet(rank: int, size: int) -> Store:
    """Return a store that the workers of this start have to themselves.

    torchrun's own outlives a restart, with the addresses of the dead in it, and who looks there too early dials them.
    So every worker asks for a new place under a word that nobody has used before, and rank 0 answers until all
    are there.
    """
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=SECONDS)))
    word = secrets.token_hex(8)
    if rank:
        store.set(f"hello {rank}", word)
        place = store.get(f"answer to {word}").decode()
        store.set(f"{place} {rank}", "here")
        return PrefixStore(place, store)
    absent, ends = set(range(1, size)), time.monotonic() + SECONDS
    while absent:
        for other in sorted(absent):
            if store.check([f"hello {other}"]):  # perhaps a dead one's, and then there will be another
                store.set(f"answer to {store.get(f'hello {other}').decode()}", word)
        absent = {other for other in absent if not store.check([f"{word} {other}"])}
        if time.monotonic() > ends:
            raise RuntimeError(f"workers {sorted(absent)} did not come within {SECONDS:,.0f} seconds")
        time.sleep(0.01)
    return PrefixStore(word, store)


def _refuse_batch_norm(module: nn.Module, name: str, workers: int) -> None:
    for path, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
            raise ConfigError(
                f"the local model of {name!r} has batch normalisation at {path!r} ({type(part).__name__}), and "
                f"{workers} workers would each normalise by their own rows: use group normalisation (resnet18: options "
                "= { norm = 'group' }), or one worker."
            )
