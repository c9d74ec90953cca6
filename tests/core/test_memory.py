"""Both ends of every link hold the same memory, bit for bit, after any run."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from choices import AGREEMENTS, PAIRS
from problems import everything, memories, problem, same
from torch import nn

from efvfl import EF14, QSGD, Agreement, Decay, Link, Memory, Method, Momentum, SharedLabels, TopK, cvfl, efvfl
from efvfl.core import memory
from efvfl.core.batches import ALL
from efvfl.core.channel import Channel
from efvfl.core.memories import Direct, ErrorFeedback
from efvfl.core.memory import Keeping, MemoryEnd
from efvfl.errors import ProtocolError


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("compressor", "agreement"), PAIRS, ids=str)
def test_memories_are_equal_at_both_ends(compressor: TopK, agreement: Agreement, dtype: torch.dtype) -> None:
    method = efvfl(compressor, down=compressor, fusion=compressor)
    federation = problem(method, dtype, agreement=agreement, batch_size=16, optimizer=None, wire=True)
    for _ in federation.train(3, observe_every=2):
        pass
    links = memories(federation)
    assert len(links) >= 3  # one for each party at least
    for copies in links:
        # with aggregate, only a party and the server hold a surrogate; otherwise peers hold it too
        assert len(copies) >= 2
        assert copies[0].any()
        assert all(torch.equal(copies[0], other) for other in copies[1:])


# Without bytes, the server and the parties of one process hear a report through the same end.
@pytest.mark.parametrize("size", [16, 0])
@pytest.mark.parametrize(
    "method",
    [efvfl(QSGD(4), down=TopK(0.2)), efvfl(TopK(0.2), start="exact"), cvfl(TopK(0.2))],
    ids=["ef", "exact", "c"],
)
@pytest.mark.parametrize("agreement", AGREEMENTS[:5], ids=str)
def test_going_through_the_bytes_changes_nothing(method: Method, agreement: Agreement, size: int) -> None:
    runs = [problem(method, agreement=agreement, batch_size=size, wire=wire) for wire in (False, True)]
    records = [list(run.train(3)) for run in runs]
    assert same(*(everything(run) for run in runs))
    for left, right in zip(*records, strict=True):
        assert left.ledger == right.ledger
        assert left.surrogate_loss == right.surrogate_loss


def test_the_first_report_is_compressed_or_exact() -> None:
    for start, exact in (("compressed", False), ("exact", True)):
        federation = problem(efvfl(TopK(0.1), start=start))  # type: ignore[arg-type]
        party = federation.parties["party1"]
        party.handle(federation.server.begin()["party1"])
        h = party.block.module(party.model.features)  # type: ignore[attr-defined]
        assert torch.equal(party.up.memory.g, h) is exact


def test_an_exact_start_is_exact_at_every_rows_first_visit() -> None:
    federation = problem(efvfl(TopK(0.05), start="exact"), batch_size=16, batch_order="independent")
    seen: set[int] = set()
    kinds = set()
    for step in range(20):
        party, rows = federation.parties["party2"], federation.server.batches.rows(step)
        assert isinstance(rows, torch.Tensor)
        if step == 0:
            federation.transport.post(federation.server.begin())
        h = party.open.oldest.h.detach()
        g = party.up.memory.g[rows]
        new = [i for i, row in enumerate(rows.tolist()) if row not in seen]
        assert torch.equal(g[new], h[new])
        kinds.add(len(party.open.unanswered(party.step)[0].packets[2]))
        seen |= set(rows.tolist())
        federation.step()
    assert kinds == {1, 2}  # batches of new rows or old ones, and batches with both
    federation.step(hold=True)
    assert all(torch.equal(a, b) for a, *rest in memories(federation) for b in rest)


def test_full_batch_exact_start_has_no_distortion_at_first() -> None:
    exact = next(iter(problem(efvfl(TopK(0.1), start="exact")).train(1)))
    compressed = next(iter(problem(efvfl(TopK(0.1))).train(1)))
    assert exact.distortion < compressed.distortion
    assert problem(efvfl(TopK(0.1), start="exact")).distortion() == 0
    assert problem(efvfl(TopK(0.1))).distortion() > 0


def test_a_start_at_the_mean_sends_it_once_and_both_ends_start_there() -> None:
    federation = problem(efvfl(TopK(0.1), start="mean"), batch_size=16, agreement=Agreement("shared"))
    party, rows = federation.parties["party2"], federation.server.batches.rows(0)
    federation.transport.post(federation.server.begin())
    h = party.open.oldest.h.detach()
    mean, rest = party.open.unanswered(0)[0].packets[2]
    assert mean.shape == h.shape[1:]
    assert rest.shape == h.shape
    others = torch.ones(len(federation.server.labels), dtype=torch.bool).index_fill_(0, rows, False)  # type: ignore[arg-type]
    assert torch.equal(party.up.memory.g[others], h.mean(0).expand(int(others.sum()), -1))
    bits = TopK(0.1).paper_bits((16, h.shape[1])) + 32 * h.shape[1]
    for step in range(12):
        federation.step(hold=step == 11)
        if step == 0:
            assert federation.driver.paper_bits == len(federation.parties) * bits
        else:
            assert all(
                len(reply.packets[p.number]) == 1
                for p in federation.parties.values()
                for reply in p.open.unanswered(p.step)
            )
    assert all(torch.equal(a, b) for a, *rest in memories(federation) for b in rest)


def test_a_mean_that_is_missing_or_misshapen_is_refused() -> None:
    federation = problem(efvfl(TopK(0.1), start="mean"), batch_size=16)
    replies = {name: p.handle(federation.server.begin()[name]) for name, p in federation.parties.items()}
    report = replies["party1"]
    rest = report.packets[1][1]
    for packets, text in (((rest,), "expected 2 packets, got 1"), ((rest, rest), "its mean: expected shape")):
        with pytest.raises(ProtocolError, match=text):
            federation.server.respond(replies | {"party1": replace(report, packets={1: packets})})


def test_direct_compression_has_no_exact_start() -> None:
    with pytest.raises(ValueError, match="needs a memory with surrogates: 'direct' has none"):
        MemoryEnd(Direct(), (3, 2), torch.float32, Keeping("exact"))


@pytest.mark.parametrize("rows", [ALL, torch.tensor([4, 0, 2])])
def test_memory_contract(rows: torch.Tensor | slice) -> None:
    """Residual plus surrogate before is the value; absorbing the residual itself gives the value."""
    value = torch.randn(5, 2)[rows]
    for rule in (Direct(), ErrorFeedback()):
        memory = MemoryEnd(rule, (5, 2), torch.float32)
        first = memory.absorb(rows, memory.residual(rows, value) * 0.5).clone()
        if memory.keeps:
            assert torch.equal(memory.g[rows], first)
            assert torch.allclose(memory.residual(rows, value) + first, value)
        assert torch.allclose(memory.absorb(rows, memory.residual(rows, value)), value)
        fresh = MemoryEnd(rule, (5, 2), torch.float32)
        fresh.load_state_dict(memory.state_dict())
        assert torch.equal(fresh.residual(rows, value), memory.residual(rows, value))


def test_batches_that_overlap_do_not_disturb_other_rows() -> None:
    memory = MemoryEnd(ErrorFeedback(), (6, 1), torch.float64)
    truth = torch.zeros(6, 1, dtype=torch.float64)
    for a, b in itertools.combinations(range(6), 2):
        rows = torch.tensor([b, a])
        memory.absorb(rows, torch.tensor([[1.0 + a], [2.0 + b]], dtype=torch.float64))
        truth[b] += 1.0 + a
        truth[a] += 2.0 + b
    assert torch.equal(memory.g, truth)


def test_one_forward_pass_a_step_and_one_update_of_running_statistics() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 4)
            self.norm = nn.BatchNorm1d(4)
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += self.training
            return self.norm(self.linear(x))  # type: ignore[no-any-return]

    for agreement in (
        Agreement(labels="private"),
        Agreement(labels="shared"),
        Agreement(SharedLabels(local_steps=3)),
    ):
        models: list[nn.Module] = [Counting(), nn.Linear(3, 4), nn.Linear(4, 4)]
        federation = problem(efvfl(TopK(0.5)), torch.float32, models=models, agreement=agreement, batch_size=16)
        list(federation.train(2))
        counting = models[0]
        assert isinstance(counting, Counting)
        assert counting.calls == 8 * agreement.local_steps
        assert counting.norm.num_batches_tracked == 8 * agreement.local_steps


# What docs/theory.md says of single rows.


def visits(
    memory: Memory, values: Iterable[torch.Tensor], ratio: float = 0.25
) -> Iterator[tuple[torch.Tensor, Channel]]:
    """Send these values of a few rows, one after another; yield what arrives, and the sender's end."""
    rows, channel = (
        torch.arange(4),
        Channel(
            Link(TopK(ratio), memory),
            MemoryEnd(memory, (4, 3), torch.float64, Keeping(sends=True)),
            (3,),
            torch.float64,
        ),
    )
    for step, value in enumerate(values):
        yield channel.send(rows, value, step)[1], channel


def moving(steps: int, change: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    start, *changes = torch.randn(steps, 4, 3, generator=generator, dtype=torch.float64)
    return [start + change * sum(changes[:step], start=torch.zeros(())) for step in range(steps)]


def test_what_arrived_by_ef14_sums_up_to_what_was_sent_but_for_the_last_error() -> None:
    values = moving(30, 0.5)
    arrived = list(visits(EF14(), values))
    total, last = sum(a for a, _ in arrived), arrived[-1][1].memory.own["e"]
    assert last.any()
    assert torch.allclose(total + last, torch.stack(values).sum(0), rtol=0, atol=1e-12)
    direct = sum(a for a, _ in visits(Direct(), values))
    assert not torch.allclose(direct + last, torch.stack(values).sum(0), atol=0.1)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.9, 1.0])
def test_a_decaying_memory_has_the_floor_of_the_theory(keep: float) -> None:
    (value,) = moving(1, 0.0)
    *_, (surrogate, _) = visits(Decay(keep), [value] * 200)
    loss = (1 - TopK(0.25).alpha((4, 3))) ** 0.5
    floor = loss * (1 - keep) / (1 - keep * loss) * float(value.norm())
    reached = float((value - surrogate).norm())
    assert reached <= floor + 1e-9
    assert (reached > 0.01) is (keep < 1)


@pytest.mark.parametrize("eta", [0.1, 0.5, 1.0])
def test_an_average_lags_by_no_more_than_the_theory_says(eta: float) -> None:
    values = moving(60, 0.1)
    changes = torch.stack([(a - b).norm(dim=1) for a, b in itertools.pairwise(values)])
    bound = (1 - eta) / eta * changes.max(dim=0).values
    lags = [
        (channel.memory.own["v"] - h).norm(dim=1)
        for (_, channel), h in zip(visits(Momentum(eta), values), values, strict=True)
    ]
    assert all(bool((lag <= bound + 1e-12).all()) for lag in lags)
    assert (float(lags[-1].max()) > 0.01) is (eta < 1)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_error_feedback_adds_up_as_torch_does(
    dtype: torch.dtype, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(memory, "_add", vars(memory)["_add"].py_func)
    generator = torch.Generator().manual_seed(0)
    end, plain = MemoryEnd(ErrorFeedback(), (9, 3), dtype), torch.zeros(9, 3, dtype=dtype)
    for _ in range(5):
        rows, change = torch.randperm(9, generator=generator)[:4], torch.randn(4, 3, dtype=dtype, generator=generator)
        surrogate = end.absorb(rows, change)
        plain[rows] += change
        assert torch.equal(end.g, plain)
        assert torch.equal(surrogate, plain[rows])
    untouched = surrogate.clone()
    end.absorb(rows, change)
    assert torch.equal(surrogate, untouched)  # a copy: whoever holds it does not see what comes later


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("row", [-1, 9])
def test_rows_that_are_not_there_are_refused(row: int, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        for name in ("_add", "_count_beyond"):
            monkeypatch.setattr(memory, name, vars(memory)[name].py_func)
    end = MemoryEnd(ErrorFeedback(), (9, 3), torch.float32)
    for use in (end.absorb, partial(end.stays_within, 2.0)):
        with pytest.raises(IndexError, match="expected rows below 9"):
            use(torch.tensor([row]), torch.ones(1, 3))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("odd", [0.5, 30.0, -30.0, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("narrow", [None, torch.bfloat16])
def test_a_limit_is_for_the_surrogate_that_would_follow(
    narrow: torch.dtype | None, odd: float, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(memory, "_count_beyond", vars(memory)["_count_beyond"].py_func)
    end = MemoryEnd(ErrorFeedback(), (9, 3), torch.float32, Keeping(narrow=narrow))
    rows, generator = torch.tensor([5, 0, 7]), torch.Generator().manual_seed(0)
    end.absorb(rows, torch.randn(3, 3, generator=generator))
    change, before = torch.randn(3, 3, generator=generator), end.g.clone()
    change[1, 1] = odd
    largest = float(end.after(rows, change).abs().max())
    for limit in (10.0, 1e12, largest):
        assert end.stays_within(limit, rows, change) == (largest <= limit)
    assert torch.equal(end.g, before)
    assert end.stays_within(0.0, rows[:0], change[:0])
