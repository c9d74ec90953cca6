"""Cotangents only where a report changed something, against plain loops over single rows and single entries."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from oracle_runs import LR, schedule, topk, trained
from problems import classes, close, columns, everything, head, local_models, problem, same
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from efvfl import (
    Agreement,
    CachedSteps,
    ErrorFeedback,
    Identity,
    Link,
    Protection,
    Quorum,
    SharedLabels,
    TopK,
    cvfl,
    efvfl,
)
from efvfl.core.methods import Method
from efvfl.errors import ConfigError

STEPS = 10  # of batches of 16 of 60 rows
Compress = Callable[[Tensor], Tensor]


def nothing(block: Tensor) -> Tensor:
    return block


def descend(block: nn.Module, slopes: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for p, slope in zip(block.parameters(), slopes, strict=True):
            p.sub_(LR * slope)


def expected(size: int, feedback: bool, up: Compress, down: Compress, down_feedback: bool) -> list[Tensor]:
    """Every entry of every row by itself: what is known of it at the server, and of its cotangent at its party."""
    x, models, top = columns(), local_models(), head()
    y, width = classes(x), 4
    known = [[[0.0] * width for _ in y] for _ in models]
    known_down = [[[0.0] * width for _ in y] for _ in models]
    for batch in schedule(size, STEPS):
        entries = [(i, int(row), j) for i, row in enumerate(batch) for j in range(width)]
        h = [model(x[k][batch]) for k, model in enumerate(models)]
        changed = []
        surrogates = [torch.zeros(len(batch), width, dtype=torch.float64) for _ in models]
        for k in range(len(models)):
            before = torch.tensor([known[k][int(row)] for row in batch], dtype=torch.float64)
            sent = up(h[k].detach() - before if feedback else h[k].detach())
            changed.append([(i, row, j) for i, row, j in entries if float(sent[i, j]) != 0.0])
            for i, row, j in entries:
                known[k][row][j] = float(before[i, j] + sent[i, j]) if feedback else float(sent[i, j])
                surrogates[k][i, j] = known[k][row][j]
        surrogates = [g.requires_grad_() for g in surrogates]
        loss = cross_entropy(top(sum(surrogates) / len(models)), y[batch])
        of_parties = torch.autograd.grad(loss, surrogates, retain_graph=True)
        descend(top, torch.autograd.grad(loss, list(top.parameters())))
        for k, model in enumerate(models):
            cotangent = torch.zeros(len(batch), width, dtype=torch.float64)
            if down_feedback:
                for i, row, j in entries:
                    cotangent[i, j] = known_down[k][row][j]
            change = down(torch.stack([of_parties[k][i, j] - cotangent[i, j] for i, _, j in changed[k]]))
            for (i, row, j), value in zip(changed[k], change, strict=True):
                cotangent[i, j] += value
                known_down[k][row][j] = float(cotangent[i, j])
            descend(model, torch.autograd.grad(h[k], list(model.parameters()), cotangent))
    return [p.detach() for p in nn.ModuleList([top, *models]).parameters()]


@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize(
    ("method", "loops"),
    [
        (efvfl(TopK(0.3), cotangents="sent"), (True, topk(0.3), nothing, False)),
        (cvfl(TopK(0.3), cotangents="sent"), (False, topk(0.3), nothing, False)),
        (efvfl(TopK(0.3), down=TopK(0.5), cotangents="sent"), (True, topk(0.3), topk(0.5), True)),
        (cvfl(TopK(0.3), down=TopK(0.5), cotangents="sent"), (False, topk(0.3), topk(0.5), False)),
        (
            Method("kept", Link(TopK(0.3)), Link(Identity(), ErrorFeedback()), cotangents="sent"),
            (False, topk(0.3), nothing, True),
        ),
    ],
    ids=["efvfl", "cvfl", "efvfl both ways", "cvfl both ways", "what is not sent stays as it was"],
)
def test_loops_over_entries(method: Method, loops: tuple[bool, Compress, Compress, bool], size: int) -> None:
    found = trained(problem(method, batch_size=size), STEPS)
    assert close(found, expected(size, *loops))
    whole = Method(method.name, method.up, method.down)
    assert not close(found, trained(problem(whole, batch_size=size), STEPS), 1e-4)


def test_without_a_memory_it_is_the_derivative_of_the_compressed_network() -> None:
    """Top-k is a layer then: what it leaves out has no influence on the loss, so no derivative."""
    x, models, top = columns(), local_models(), head()
    y = classes(x)
    blocks = nn.ModuleList([top, *models])
    for batch in schedule(16, STEPS):
        h = [model(x[k][batch]) for k, model in enumerate(models)]
        kept = [part * (topk(0.3)(part.detach()) != 0) for part in h]
        loss = cross_entropy(top(sum(kept) / len(kept)), y[batch])
        descend(blocks, torch.autograd.grad(loss, list(blocks.parameters())))
    found = trained(problem(cvfl(TopK(0.3), cotangents="sent"), batch_size=16), STEPS)
    assert close(found, [p.detach() for p in blocks.parameters()])


def test_bytes_down_follow_bytes_up() -> None:
    """A tenth of the entries goes up, and with it a tenth of the cotangent's numbers comes down."""
    sizes = {}
    for choice in ("all", "sent"):
        run = problem(efvfl(TopK(0.1), cotangents=choice), torch.float32)
        run.step(hold=True)
        before = run.ledger.total("down")
        for _ in range(4):
            run.step()
        sizes[choice] = run.ledger.total("down") - before
    numbers = 4 * 3 * 60 * 4 * 4  # steps, parties, rows, width, bytes
    assert numbers < sizes["all"] < 1.1 * numbers
    assert numbers / 10 < sizes["sent"] < numbers / 10 + 4 * 3 * 40


@pytest.mark.parametrize(
    "options",
    [
        {"wire": True},
        {"agreement": Agreement(pipeline=3)},
        {"agreement": Agreement(reports="all")},
        {"agreement": Agreement(cached=CachedSteps(2))},
        {"label_holder": "party1"},
        {"protect": Protection(clip=0.1, noise=0.5)},
        {"agreement": Agreement(asynchronous=Quorum(reports=2)), "wire": True},
    ],
    ids=["wire", "window", "all rows", "cached", "label holder", "protected", "asynchronous"],
)
def test_it_goes_with_other_choices_and_on_from_a_checkpoint(options: dict[str, Any]) -> None:
    method = efvfl(TopK(0.3), down=TopK(0.5), cotangents="sent")
    runs = [problem(method, batch_size=16, **options) for _ in range(2)]
    for run in runs:
        for _ in range(3):
            run.step()
    goes_on = problem(method, batch_size=16, **options)
    goes_on.load_state_dict(runs[0].state_dict())
    for run in (goes_on, runs[1]):
        for step in range(4):
            run.step(hold=step == 3)
    assert same(everything(goes_on), everything(runs[1]))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.cotangents = 'sent' does not go with shared labels"):
        problem(efvfl(TopK(0.3), cotangents="sent"), agreement=Agreement(SharedLabels()))
    with pytest.raises(ConfigError, match="expected a downlink without a start"):
        Method("mine", Link(TopK(0.3)), Link(TopK(0.3), ErrorFeedback(), start="exact"), cotangents="sent")
    with pytest.raises(ConfigError, match="cotangents: expected one of 'all', 'sent', got 'some'"):
        efvfl(TopK(0.3), cotangents="some")  # type: ignore[arg-type]
