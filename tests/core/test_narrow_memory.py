"""Memories in bfloat16: both ends round alike, and everyone works with the rounded surrogate."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from absence_lab import AWAY, memory_of, stale_config
from absence_runs import run
from choices import AGREEMENTS, COMPRESSORS, PAIRS
from networks import assert_same, config, networked, reference
from numpy.typing import NDArray
from problems import everything, memories, problem, same

from efvfl import Agreement, Identity, Link, Method, TopK, efvfl
from efvfl.config.run_file import RunConfig, read
from efvfl.core.batches import ALL
from efvfl.core.memories import ErrorFeedback
from efvfl.core.memory import Keeping, MemoryEnd
from efvfl.errors import CheckpointError, ConfigError
from efvfl.util import checkpoint

NARROW = torch.bfloat16
UNIT = 2.0**-8  # the largest relative error of one rounding


def narrow(agreement: Agreement) -> Agreement:
    return replace(agreement, memory_dtype="bfloat16")


def rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to the nearest bfloat16, ties to even, by the bits alone."""
    bits: NDArray[Any] = values.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return bits.astype(np.uint32).view(np.float32)


@pytest.mark.parametrize(("compressor", "agreement"), PAIRS, ids=str)
def test_memories_are_equal_at_both_ends(compressor: TopK, agreement: Agreement) -> None:
    method = efvfl(compressor, down=compressor, fusion=compressor)
    federation = problem(method, torch.float32, agreement=narrow(agreement), batch_size=16, optimizer=None)
    for _ in range(9):
        federation.step()
    for party in federation.parties.values():
        report = party.open.oldest
        assert torch.equal(report.surrogate, party.up.surrogate(report.rows))  # what is used is what is remembered
        assert report.surrogate.dtype == torch.float32
    federation.step(hold=True)
    links = memories(federation)
    of_rows = [copies for copies in links if copies[0].dim() == 2]
    assert all(g.dtype == NARROW for copies in of_rows for g in copies)
    assert all(copies[0].dtype == torch.float32 for copies in links if copies[0].dim() == 1)  # the fusion model's
    for copies in links:
        assert copies[0].any()
        assert all(torch.equal(copies[0], other) for other in copies[1:])


@pytest.mark.parametrize("order", [ALL, torch.tensor([5, 0, 3])])
def test_the_memory_is_the_rounded_sum(order: torch.Tensor | slice) -> None:
    generator = torch.Generator().manual_seed(0)
    memory = MemoryEnd(ErrorFeedback(), (6, 3), torch.float32, Keeping(narrow=NARROW))
    truth = np.zeros((6, 3), dtype=np.float32)
    for _ in range(200):
        decoded = torch.randn((6, 3), generator=generator)[order] * 0.1
        place = order if isinstance(order, slice) else order.numpy()
        truth[place] = rounded(truth[place] + decoded.numpy())
        surrogate = memory.absorb(order, decoded)
        assert surrogate.dtype == torch.float32
        assert (surrogate.numpy() == truth[place]).all()
        assert (memory.g.float().numpy() == truth).all()
        value = torch.randn((6, 3), generator=generator)[order]
        assert (memory.residual(order, value).numpy() == value.numpy() - truth[place]).all()


def test_errors_of_rounding_do_not_add_up() -> None:
    """The next change is taken against the rounded memory, so what was lost is sent again: the error has a floor."""
    federation = problem(Method("lossless", Link(Identity(), ErrorFeedback())), agreement=narrow(Agreement()))
    for _ in range(30):
        federation.step()
    for party in federation.parties.values():
        h, surrogate = party.open.oldest.h.detach(), party.open.oldest.surrogate
        assert not torch.equal(h, surrogate)
        assert bool(((surrogate - h).abs() <= UNIT * h.abs() * (1 + UNIT)).all())


@pytest.mark.parametrize("compressor", COMPRESSORS[:3], ids=lambda c: c.name)
def test_the_distortion_of_a_report_that_is_tried_out_is_that_of_the_report(compressor: TopK) -> None:
    federation = problem(efvfl(compressor), agreement=narrow(Agreement()), batch_size=16)
    for _ in range(8):
        federation.step(hold=True)
        tried = federation.distortion()
        federation.transport.post(federation.server.begin())
        assert federation.distortion() == pytest.approx(tried, rel=1e-9)


@pytest.mark.parametrize("agreement", AGREEMENTS[:1] + AGREEMENTS[2:5], ids=str)
def test_going_through_bytes_or_a_checkpoint_changes_nothing(agreement: Agreement, tmp_path: Path) -> None:
    options = {"agreement": narrow(agreement), "batch_size": 16}
    method = efvfl(TopK(0.2), down=TopK(0.2))
    runs = [problem(method, torch.float32, wire=wire, **options) for wire in (False, True, False)]
    for each in runs[:2]:
        for _ in range(5):
            each.step()
    checkpoint.save(tmp_path / "state", runs[0].state_dict())
    runs[2].load_state_dict(checkpoint.load(tmp_path / "state"))
    for each in runs:
        for _ in range(5):
            each.step()
    assert same(everything(runs[0]), everything(runs[1]))
    assert same(everything(runs[0]), everything(runs[2]))
    wide = problem(method, torch.float32, agreement=agreement, batch_size=16)
    with pytest.raises(CheckpointError, match=r"expected a saved memory of .* torch.float32, got .* torch.bfloat16"):
        wide.load_state_dict(runs[0].state_dict())


@pytest.mark.system
def test_a_network_equals_one_process(tmp_path: Path) -> None:
    for agreement in ({}, {"labels": "shared"}):
        chosen = config(agreement={**agreement, "memory_dtype": "bfloat16"})
        assert_same(reference(chosen), networked(chosen, tmp_path / str(len(agreement)), "faulty"))


def test_a_party_that_was_away_gets_the_rounded_surrogate(tmp_path: Path) -> None:
    serving, parties = run(tmp_path, stale_config(agreement={"memory_dtype": "bfloat16"}), leaves_at=6, back_at=12)
    assert any(AWAY in record.absent for record in serving.records)
    for channel, party in zip(serving.server.channels.values(), parties.values(), strict=True):
        assert memory_of(channel).dtype == NARROW
        assert torch.equal(memory_of(channel), memory_of(party.up))


def test_what_cannot_be_rounded_is_refused() -> None:
    with pytest.raises(ConfigError, match="an exact start needs a memory in the values' own dtype"):
        MemoryEnd(ErrorFeedback(), (3, 2), torch.float32, Keeping("exact", narrow=NARROW))
    with pytest.raises(ConfigError, match="memory_dtype: expected one of '', 'bfloat16', got 'float8'"):
        Agreement(memory_dtype="float8")  # type: ignore[arg-type]
    for setting, table in (
        ("memory_dtype", {"agreement": {"memory_dtype": "bfloat16"}}),
        ("memory", {"memory": "mapped"}),
    ):
        with pytest.raises(ConfigError, match=f"{setting}.* does not go with a method without (a memory|surrogates)"):
            read(RunConfig, {"method": {"name": "svfl"}, **table}, "test")
