"""The contract of memories, for the ones in this library and for yours: `check_memory(YourMemory(...))`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from efvfl.compress import Compressor, Identity, TopK
from efvfl.core.batches import ALL, Rows
from efvfl.core.channel import Channel
from efvfl.core.memories.base import MEMORIES, Memory
from efvfl.core.memory import Keeping, MemoryEnd
from efvfl.core.methods import Link

ROWS, WIDTH, STEPS = 7, 3, 24


def check_memory(memory: Memory) -> None:
    """Raise AssertionError, and say why, unless a memory does what the library relies on.

    It is sent through both ends of a link, on rows in any order: with values of both precisions, in RAM and in files,
    rounded, saved in between, with every start, and as the vector of a fusion model.

    >>> from efvfl import Momentum
    >>> check_memory(Momentum(eta=0.3))
    """
    name = type(memory).__name__
    _require(
        MEMORIES.get(getattr(memory, "name", "")) is type(memory), f"{name} is not registered: use @register(NAME)."
    )
    _require(
        hash(memory) == hash(replace(memory)) and memory == replace(memory), f"{name}: use @dataclass(frozen=True)."
    )
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (torch.float32, torch.float64):
            plain = Keeping()
            sent = _run(memory, dtype, plain)
            _require(_run(memory, dtype, plain) == sent, f"{name} does not send the same twice.")
            _require(_run(memory, dtype, plain, saves=True) == sent, f"{name} goes on differently after a checkpoint.")
            in_files = _run(memory, dtype, Keeping(folder=Path(folder)), saves=True)
            _require(in_files == sent, f"{name} sends something else when its tensors lie in files.")
        for keeping in _other_ways(memory):
            _run(memory, torch.float32, keeping, saves=True)
    _check_first_visit(memory)
    _check_rows_are_independent(memory)


def _other_ways(memory: Memory) -> Iterator[Keeping]:
    if memory.surrogate:
        yield Keeping(narrow=torch.bfloat16)
        yield Keeping("exact")
        yield Keeping("mean", first=True)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def _visits() -> Iterator[Rows]:
    """Yield rows in any order: some soon again, some late, all at once, none."""
    generator = torch.Generator().manual_seed(5)
    for step in range(STEPS):
        if step % 8 == 7:
            yield ALL
        else:
            yield torch.randperm(ROWS, generator=generator)[: step % 5]


@dataclass
class _Ends:
    """Both ends of one link."""

    sender: Channel
    receiver: Channel

    @classmethod
    def of(
        cls, memory: Memory, compressor: Compressor, dtype: torch.dtype, keeping: Keeping, vector: bool = False
    ) -> _Ends:
        link = Link(compressor, memory, keeping.start, compressor if keeping.first else None)
        shape: tuple[int, ...] = (ROWS,) if vector else (ROWS, WIDTH)
        ends = [MemoryEnd(memory, shape, dtype, replace(keeping, sends=sends)) for sends in (True, False)]
        return cls(*(Channel(link, end, shape[1:], dtype) for end in ends))

    def carry(self, rows: Rows, value: Tensor, step: int) -> tuple[bytes, Tensor]:
        """Send a value, and check that both ends hold the same afterwards; return the bytes and the surrogate."""
        name, memory, before = type(self.sender.memory.rule).__name__, self.sender.memory, _flat(self.sender)
        original = value.clone()
        tried = memory.residual(rows, value)
        _require(torch.equal(tried, memory.residual(rows, value)), f"{name}.residual does not return the same twice.")
        packets, here = self.sender.send(rows, value, step)
        _require(torch.equal(value, original), f"{name} changes the value that it is given.")
        decoded = self.receiver.decode(rows, packets, len(value))
        arrived = decoded.clone()
        expected = self.receiver.memory.after(rows, decoded)
        there = self.receiver.receive(rows, packets, decoded)
        _require(torch.equal(decoded, arrived), f"{name}.after changes what it is given.")
        _require(torch.equal(here, there), f"{name}: both ends have different surrogates.")
        _require(not packets or memory.keeps or torch.equal(there, expected), f"{name}.after is not a function.")
        _require(self.sender.digest() == self.receiver.digest(), f"{name}: both ends remember different surrogates.")
        _require(not self.receiver.memory.own, f"{name}: the receiver holds what only the sender should.")
        _require(all(bool(t.isfinite().all()) for t in _flat(self.sender)), f"{name} remembers what is not finite.")
        _require(len(value) > 0 or _same(before, _flat(self.sender)), f"{name} changes although no row is sent.")
        return b"".join(packet.body for packet in packets), here.clone()

    def saved_and_loaded(self, fresh: _Ends) -> _Ends:
        """Return new ends that go on from what these remember."""
        fresh.sender.load_state_dict(self.sender.state_dict())
        fresh.receiver.load_state_dict(self.receiver.state_dict())
        return fresh


def _flat(channel: Channel) -> list[Tensor]:
    return [tensor.clone() for tensor in (*channel.memory.tensors().values(), *channel.memory.own.values())]


def _same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def _run(memory: Memory, dtype: torch.dtype, keeping: Keeping, saves: bool = False) -> list[bytes]:
    """Return the bytes that a run sends, of rows and then of a vector; with `saves`, through checkpoints."""
    found = []
    for vector in (False, True):
        compressor = TopK(0.4)
        ends = _Ends.of(memory, compressor, dtype, keeping, vector)
        generator = torch.Generator().manual_seed(3)
        for step, rows in enumerate([ALL] * STEPS if vector else _visits()):
            whole = torch.randn((ROWS,) if vector else (ROWS, WIDTH), generator=generator, dtype=dtype)
            found.append(ends.carry(rows, whole[rows], step)[0])
            if saves:
                ends = ends.saved_and_loaded(_Ends.of(memory, compressor, dtype, keeping, vector))
    return found


def _check_first_visit(memory: Memory) -> None:
    """What is sent of a row for the first time is its value: without loss it arrives as it is."""
    ends = _Ends.of(memory, Identity(), torch.float64, Keeping())
    for step, rows in enumerate((torch.tensor([4, 1]), torch.tensor([0, 6, 2]))):
        value = torch.randn(len(rows), WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        arrived = ends.carry(rows, value, step)[1]
        _require(torch.allclose(arrived, value), f"{type(memory).__name__}: a first report does not arrive as it is.")


def _check_rows_are_independent(memory: Memory) -> None:
    """What becomes of a row does not depend on the rows beside it. Without loss: a compressor sees the whole block."""
    together, alone = (_Ends.of(memory, Identity(), torch.float64, Keeping()) for _ in range(2))
    generator = torch.Generator().manual_seed(9)
    for step in range(4):
        value = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator)
        whole = together.carry(ALL, value, step)[1]
        single = [alone.carry(torch.tensor([row]), value[row : row + 1], step)[1] for row in reversed(range(ROWS))]
        same = torch.allclose(whole, torch.cat(single[::-1]))
        _require(same, f"{type(memory).__name__}: what becomes of a row depends on the others beside it.")
