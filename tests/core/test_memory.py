"""Both ends of every link hold the same memory, bit for bit, after any run."""

import itertools
from dataclasses import replace

import pytest
import torch
from choices import AGREEMENTS, PAIRS
from problems import everything, memories, problem, same
from torch import nn

from efvfl import QSGD, Agreement, Method, SharedLabels, TopK, cvfl, efvfl
from efvfl.core.batches import ALL
from efvfl.core.memory import Direct, ErrorFeedback, make
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
        assert torch.equal(party.up.memory.g, h) is exact  # type: ignore[attr-defined]


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
        g = party.up.memory.g[rows]  # type: ignore[attr-defined]
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
    assert torch.equal(party.up.memory.g[others], h.mean(0).expand(int(others.sum()), -1))  # type: ignore[attr-defined]
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
    with pytest.raises(ValueError, match="needs memory = 'error_feedback'"):
        make("direct", (3, 2), torch.float32, "exact")
    with pytest.raises(ValueError, match="'direct' or 'error_feedback'"):
        make("forgetful", (3, 2), torch.float32)


@pytest.mark.parametrize("rows", [ALL, torch.tensor([4, 0, 2])])
def test_memory_contract(rows: torch.Tensor | slice) -> None:
    """Residual plus surrogate before is the value; absorbing the residual itself gives the value."""
    value = torch.randn(5, 2)[rows]
    for memory in (Direct(), ErrorFeedback((5, 2), torch.float32)):
        first = memory.absorb(rows, memory.residual(rows, value) * 0.5).clone()
        if isinstance(memory, ErrorFeedback):
            assert torch.equal(memory.g[rows], first)
            assert torch.allclose(memory.residual(rows, value) + first, value)
        assert torch.allclose(memory.absorb(rows, memory.residual(rows, value)), value)
        fresh = Direct() if isinstance(memory, Direct) else ErrorFeedback((5, 2), torch.float32)
        fresh.load_state_dict(memory.state_dict())
        assert torch.equal(fresh.residual(rows, value), memory.residual(rows, value))


def test_batches_that_overlap_do_not_disturb_other_rows() -> None:
    memory = ErrorFeedback((6, 1), torch.float64)
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
