"""Rows that some parties lack, and sampled subsets: the library against loops over single rows in plain PyTorch."""

import copy
from typing import Any

import pytest
import torch
from examples import subsets_on_one_page as one_page
from oracle_runs import LR, schedule, topk, trained
from problems import (
    CLASSES,
    COLUMNS,
    ROWS,
    WIDTH,
    Labels,
    classes,
    close,
    columns,
    everything,
    head,
    local_models,
    memories,
    problem,
    same,
)
from torch import Tensor, nn

from efvfl import QSGD, Agreement, Cast, Identity, RandK, SharedLabels, TopK, cvfl, efvfl
from efvfl.core.agreement import Downlink
from efvfl.util.rng import derive, uniforms

SIZE, STEPS = 12, 10


def presence(seed: int = 7) -> Tensor:
    """The first party has two thirds of the rows, the second half of the rest and more, the third a tenth."""
    generator = torch.Generator().manual_seed(seed)
    has = torch.rand(ROWS, len(COLUMNS), generator=generator) < torch.tensor([0.7, 0.5, 0.1])
    has[~has.any(dim=1), 1] = True
    return has


def masks(has: Tensor) -> list[Tensor]:
    return [has[:, place] for place in range(has.shape[1])]


def orders(size: int = SIZE, steps: int = STEPS) -> list[list[list[int]]]:
    """The random orders that all participants derive from the seed."""
    found = []
    for step, batch in enumerate(schedule(size, steps)):
        drawn = uniforms(derive(derive(0, "batches"), "subsets", step), len(batch) * len(COLUMNS))
        found.append(torch.from_numpy(drawn).reshape(len(batch), -1).argsort(dim=1, stable=True).tolist())
    return found


def oracle(
    setting: one_page.Setting, sampled: bool, size: int = SIZE, top: nn.Module | None = None, shows: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters as a federation lists them, and the memories of the rows that parties have."""
    x, has, models = columns(), presence(), local_models()
    fused = one_page.Head(top or head(setting.combine), setting.combine, [WIDTH] * len(x), shows)
    drawn = orders(size) if sampled else None
    kept = one_page.train(x, classes(x), has, models, fused, schedule(size, STEPS), setting, drawn)
    stand_in = [torch.cat(list(fused.stand_ins)).detach()] if len(fused.stand_ins) else []
    parameters = [p.detach() for module in (fused.top, *models) for p in module.parameters()]
    return stand_in + parameters, [g[has[:, k]] for k, g in enumerate(kept)]


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("combine", ["mean", "sum", "concat"])
@pytest.mark.parametrize("labels", ["private", "shared"])
@pytest.mark.parametrize("reports", ["batch", "all"])
def test_missing_rows_equal_plain_loops_and_memories_are_equal_at_both_ends(
    labels: Labels, combine: str, sampled: bool, reports: Any
) -> None:
    setting = one_page.Setting(topk(0.3), labels == "private", combine, LR, reports == "all")
    expected, surrogates = oracle(setting, sampled)
    agreement = Agreement(labels, reports, subsets="sampled" if sampled else "off")
    federation = problem(
        efvfl(TopK(0.3)),
        agreement=agreement,
        combine=combine,
        present=masks(presence()),
        batch_size=SIZE,
        wire=True,
    )
    assert close(trained(federation, STEPS), expected)
    links = memories(federation)[: len(COLUMNS)]
    assert all(torch.equal(copies[0], other) for copies in links for other in copies[1:])
    assert close([copies[0] for copies in links], surrogates)
    if reports == "batch":  # some batches have no row of the third party: it says so in a message without a block
        third = federation.parties["party3"]
        assert any(third.batches.count(step) == 0 for step in range(STEPS))


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_a_head_that_is_told_who_is_present_equals_plain_loops(labels: Labels) -> None:
    torch.manual_seed(5)
    top = nn.Sequential(nn.Linear(WIDTH + len(COLUMNS), 6), nn.Tanh(), nn.Linear(6, CLASSES)).double()
    setting = one_page.Setting(topk(0.3), labels == "private")
    expected, _ = oracle(setting, True, top=copy.deepcopy(top), shows=True)
    federation = problem(
        efvfl(TopK(0.3)),
        head=top,
        agreement=Agreement(labels),
        present=masks(presence()),
        shows_presence=True,
        batch_size=SIZE,
    )
    assert federation.server.plan.samples_subsets  # which is the default where rows are missing
    assert close(trained(federation, STEPS), expected)


@pytest.mark.parametrize("size", [0, SIZE])
def test_aggregate_equals_relay_over_those_present(size: int) -> None:
    downlinks: list[Downlink] = ["relay", "aggregate"]
    modes = [SharedLabels(downlink=downlink, fusion="replicate", local_steps=2) for downlink in downlinks]
    options: dict[str, Any] = {"present": masks(presence()), "batch_size": size, "wire": True}
    relay, aggregate = (problem(efvfl(QSGD(4)), agreement=Agreement(m, subsets="off"), **options) for m in modes)
    assert close(trained(relay, STEPS), trained(aggregate, STEPS))


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_with_nothing_missing_and_sampling_off_nothing_changes(labels: Labels) -> None:
    """A presence in which everybody has everything is as none at all, down to the last bit and byte."""
    plain = problem(efvfl(TopK(0.2)), agreement=Agreement(labels, subsets="off"), batch_size=SIZE)
    whole = problem(
        efvfl(TopK(0.2)),
        agreement=Agreement(labels, subsets="off"),
        batch_size=SIZE,
        present=masks(torch.ones(ROWS, len(COLUMNS), dtype=torch.bool)),
    )
    assert whole.server.plan.presence is None
    assert same(trained(plain, STEPS), trained(whole, STEPS))
    assert plain.ledger.table() == whole.ledger.table()


@pytest.mark.parametrize("method", [efvfl(RandK(0.3)), cvfl(Cast("bf16"))], ids=["ef", "c"])
def test_sampling_costs_no_byte_with_private_labels(method: Any) -> None:
    """Compressors whose packets do not depend on the values: then every message is as long as it was."""
    plain = problem(method, agreement=Agreement(subsets="off"), batch_size=SIZE)
    sampled = problem(method, agreement=Agreement(subsets="sampled"), batch_size=SIZE)
    assert not close(trained(plain, STEPS), trained(sampled, STEPS))
    assert plain.ledger.table() == sampled.ledger.table()


def test_bytes_and_memory_follow_the_rows_that_a_party_has() -> None:
    has = torch.ones(ROWS, len(COLUMNS), dtype=torch.bool)
    has[6:, 2] = False
    runs = [problem(efvfl(Identity()), batch_size=30, present=masks(p)) for p in (torch.ones_like(has), has)]
    for run in runs:
        trained(run, STEPS)
    whole, tenth = (run.ledger.bytes for run in runs)
    up = [sum(n for (way, name, _), n in found.items() if (way, name) == ("up", "party3")) for found in (whole, tenth)]
    assert up[1] < 0.2 * up[0]  # a tenth of the rows, and the headers of as many messages
    party, server = runs[1].parties["party3"], runs[1].server
    for channel in (party.up, server.channels["party3"]):
        assert channel.memory.g.shape == (6, WIDTH)
    assert party.model.features.shape == (6, COLUMNS[2])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("agreement", "method"),
    [
        (Agreement(), efvfl(TopK(0.3), start="exact", down=QSGD(4))),
        (Agreement(pipeline=3), cvfl(QSGD(4))),
        (Agreement("shared", pipeline=2), efvfl(TopK(0.3), start="mean")),
    ],
    ids=["private", "pipelined", "shared"],
)
def test_going_on_from_a_saved_state_equals_not_stopping(agreement: Agreement, method: Any) -> None:
    options: dict[str, Any] = {"combine": "concat", "present": masks(presence()), "batch_size": SIZE}
    run, resumed = (problem(method, agreement=agreement, **options) for _ in range(2))
    for _ in range(4):
        run.step()
    resumed.load_state_dict(run.state_dict())
    for each in (run, resumed):
        for step in range(4, 9):
            each.step(hold=step == 8)
    assert same(everything(run), everything(resumed))
    assert run.ledger.table() == resumed.ledger.table()
    assert [record.distortion for record in run.fit(4)] == [record.distortion for record in resumed.fit(4)]
