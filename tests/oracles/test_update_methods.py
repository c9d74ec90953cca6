"""FedBCD and CELU-VFL equal plain loops that are written after their papers: several updates from one exchange."""

from math import acos, degrees

import pytest
import torch
from oracle_runs import LR, schedule, trained
from problems import classes, close, columns, head, local_models, problem
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from efvfl import Agreement, CachedSteps, SharedLabels, celu, fedbcd, svfl
from efvfl.core.methods import Method
from efvfl.errors import ConfigError

STEPS = 13  # of batches of 16 of 60 rows: more than three epochs


class Blocks:
    """The blocks x_0, x_1, ..., x_K of the methods, and SGD on each of them alone."""

    def __init__(self) -> None:
        self.x = columns()
        self.y = classes(self.x)
        self.models, self.top = local_models(), head()

    def h(self, k: int, rows: Tensor) -> Tensor:
        found: Tensor = self.models[k](self.x[k][rows])
        return found

    def loss(self, parts: list[Tensor], rows: Tensor) -> Tensor:
        return cross_entropy(self.top(sum(parts) / len(parts)), self.y[rows])

    def descend(self, block: nn.Module, loss: Tensor) -> None:
        with torch.no_grad():
            for p, g in zip(block.parameters(), torch.autograd.grad(loss, list(block.parameters())), strict=True):
                p.sub_(LR * g)

    def result(self) -> list[Tensor]:
        return [p.detach() for p in nn.ModuleList([self.top, *self.models]).parameters()]


def fedbcd_private(size: int, updates: int) -> list[Tensor]:
    """The label holder returns d loss / d h once, and a party uses it for all its updates of the round."""
    b = Blocks()
    for rows in schedule(size, STEPS):
        sent = [b.h(k, rows).detach().requires_grad_() for k in range(len(b.models))]
        returned = torch.autograd.grad(b.loss(sent, rows), sent)
        for _ in range(updates):
            b.descend(b.top, b.loss([h.detach() for h in sent], rows))
            for k, model in enumerate(b.models):
                b.descend(model, (b.h(k, rows) * returned[k]).sum())
    return b.result()


def fedbcd_shared(size: int, updates: int) -> list[Tensor]:
    """As in the paper: the gradient is at a party's own block as it is now, and at all others as they were sent."""
    b = Blocks()
    for rows in schedule(size, STEPS):
        sent = [b.h(k, rows).detach() for k in range(len(b.models))]
        top = head()
        top.load_state_dict(b.top.state_dict())
        for _ in range(updates):
            b.descend(b.top, b.loss(sent, rows))
        b.top, newest = top, b.top
        for k, model in enumerate(b.models):
            for _ in range(updates):
                b.descend(model, b.loss([b.h(k, rows) if j == k else sent[j] for j in range(len(sent))], rows))
        b.top = newest
    return b.result()


def weight(then: Tensor, now: Tensor, angle: float) -> Tensor:
    """One number a row: the cosine of the angle between two vectors, and zero beyond a limit."""
    cosines = [float(a @ c / (a.norm() * c.norm())) for a, c in zip(then, now, strict=True)]
    return torch.tensor([c if degrees(acos(min(1.0, c))) <= angle else 0.0 for c in cosines], dtype=then.dtype)


def celu_private(size: int, updates: int, batches: int, angle: float) -> list[Tensor]:
    """Every participant has a table of the last batches, gone through in turn with `updates - 1` updates a round."""
    b, table, turn = Blocks(), list[tuple[Tensor, list[Tensor], list[Tensor]]](), 0
    for t, rows in enumerate(schedule(size, STEPS)):
        sent = [b.h(k, rows).detach().requires_grad_() for k in range(len(b.models))]
        returned = [g.detach() for g in torch.autograd.grad(b.loss(sent, rows), sent)]
        b.descend(b.top, b.loss([h.detach() for h in sent], rows))
        for k, model in enumerate(b.models):
            b.descend(model, (b.h(k, rows) * returned[k]).sum())
        # What was sent of a batch and what came back; a party's own is what it computes just before it learns.
        entry = (rows, [h.detach() for h in sent], returned)
        table = [*table, entry] if len(table) < batches else [*table[: t % batches], entry, *table[t % batches + 1 :]]
        for _ in range(updates - 1):
            old, then, slopes = table[turn % len(table)]
            turn += 1
            fresh = [h.clone().requires_grad_() for h in then]
            by_row = cross_entropy(b.top(sum(fresh) / len(fresh)), b.y[old], reduction="none") / len(old)
            now = torch.autograd.grad(by_row.sum(), fresh, retain_graph=True)
            b.descend(b.top, (by_row * weight(slopes[0], now[0], angle)).sum())  # of a mean all parties' are parallel
            for k, model in enumerate(b.models):
                h = b.h(k, old)
                weights = weight(then[k], h.detach(), angle)
                b.descend(model, (h * slopes[k] * weights.unsqueeze(1)).sum())
    return b.result()


SHARED = Agreement(SharedLabels())


@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize("updates", [1, 2, 5])
def test_fedbcd(updates: int, size: int) -> None:
    private = trained(problem(fedbcd(updates), batch_size=size), STEPS)
    assert close(private, fedbcd_private(size, updates))
    shared = trained(problem(fedbcd(updates), agreement=SHARED, batch_size=size), STEPS)
    assert close(shared, fedbcd_shared(size, updates))
    assert close(private, shared, 1e-9) == (updates == 1)


@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize(("updates", "batches", "angle"), [(1, 1, 60.0), (2, 3, 60.0), (5, 5, 20.0), (4, 2, 1.0)])
def test_celu(updates: int, batches: int, angle: float, size: int) -> None:
    found = trained(problem(celu(updates, batches, angle), batch_size=size), STEPS)
    assert close(found, celu_private(size, updates, batches, angle))
    assert close(found, trained(problem(svfl(), batch_size=size), STEPS), 1e-4) == (updates == 1)


def test_celu_without_weights_on_one_batch_is_fedbcd() -> None:
    runs = [trained(problem(method, batch_size=16), STEPS) for method in (fedbcd(4), celu(4, 1, 180.0))]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_a_named_method_is_svfl_with_what_the_agreement_would_say() -> None:
    by_hand = Agreement(cached=CachedSteps(4, 3, 40.0))
    runs = [
        trained(problem(method, agreement=agreement, batch_size=16), STEPS)
        for method, agreement in ((celu(5, 3, 40.0), None), (celu(5, 3, 40.0), by_hand), (svfl(), by_hand))
    ]
    assert all(torch.equal(a, b) and torch.equal(b, c) for a, b, c in zip(*runs, strict=True))


@pytest.mark.parametrize(
    ("method", "agreement", "found"),
    [
        (fedbcd(4), Agreement(cached=CachedSteps(2)), "agreement.cached: expected none with the method 'fedbcd'"),
        (celu(), Agreement(cached=CachedSteps(4)), "agreement.cached: expected none with the method 'celu'"),
        (fedbcd(4), Agreement(SharedLabels(local_steps=2)), "agreement.local_steps: expected none"),
        (celu(), SHARED, "cached steps does not go with shared labels"),
    ],
)
def test_other_updates_than_the_method_has_are_refused(method: Method, agreement: Agreement, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        problem(method, agreement=agreement)
