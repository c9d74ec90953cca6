"""Who has which rows, and which subsets are drawn."""

from collections import Counter
from dataclasses import replace
from math import comb

import pytest
import torch
from problems import problem
from torch import nn

from efvfl import Agreement, Loss, Protection, TopK, efvfl
from efvfl.compress import decode
from efvfl.core.batches import Batches
from efvfl.core.label_correction import corrected
from efvfl.core.label_mechanism import RandomisedResponse
from efvfl.core.losses import LOSSES, weighted
from efvfl.core.presence import OwnBatches
from efvfl.core.subsets import draw
from efvfl.core.targets import Targets
from efvfl.errors import ConfigError, ProtocolError
from efvfl.wire.message import Message


def test_one_subset_of_each_size_is_drawn_for_every_row_from_those_present() -> None:
    present = (torch.rand(50, 4, generator=torch.Generator().manual_seed(0)) < 0.6).double()
    present[0] = 0
    tasks = draw(present, key=5)
    counts = present.sum(dim=1).long()
    assert Counter(tasks.rows.tolist()) == {i: int(n) for i, n in enumerate(counts) if n}
    assert (tasks.masks <= present[tasks.rows]).all()
    for row in range(1, 50):
        sizes = tasks.masks[tasks.rows == row].sum(dim=1).long().tolist()
        assert sizes == list(range(1, int(counts[row]) + 1))
    everybody = tasks.masks.sum(dim=1) == counts[tasks.rows]
    assert torch.equal(tasks.rows[tasks.teachers], tasks.rows)
    assert torch.equal(tasks.teachers, everybody.nonzero().flatten()[tasks.rows.unique(return_inverse=True)[1]])
    weights = tasks.weights * 50 / len(tasks.rows)  # the mean over tasks is then one over rows
    assert weights[everybody].tolist() == pytest.approx([1 / 3] * int(everybody.sum()))
    again, other = draw(present, key=5), draw(present, key=6)
    assert torch.equal(tasks.masks, again.masks)
    assert not torch.equal(tasks.masks, other.masks)


def test_subsets_of_one_size_are_drawn_equally_often_and_weigh_as_laser_vfl_has_it() -> None:
    rows, n = 20_000, 4
    tasks = draw(torch.ones(rows, n, dtype=torch.float64), key=1)
    found = Counter(tuple(mask) for mask in tasks.masks.long().tolist())
    assert len(found) == 2**n - 1
    for mask, times in found.items():
        assert times == pytest.approx(rows / comb(n, sum(mask)), rel=0.1)
    of_row = tasks.weights[tasks.rows == 0] / n
    laser = [comb(n, s) / (2**n - 2) for s in range(1, n)]
    assert of_row.tolist() == pytest.approx([*(w * 2 / 3 for w in laser), 1 / 3])


def test_a_smaller_subset_weighs_alike_whoever_else_has_the_row() -> None:
    """A party's columns alone are learnt as much from complete rows as from others; alone at a row, a third."""
    present = (torch.rand(30_000, 3, generator=torch.Generator().manual_seed(2)) < 0.6).double()
    present[:, 0] = 1
    tasks = draw(present, key=4)
    weights = tasks.weights * len(present) / len(tasks.rows)
    alone = (tasks.masks == torch.tensor([1.0, 0.0, 0.0])).all(dim=1)
    for count, expected in ((1, 1 / 3), (2, 1 / 9), (3, 1 / 9)):
        rows = present.sum(dim=1) == count
        assert float(weights[alone & rows[tasks.rows]].sum()) / int(rows.sum()) == pytest.approx(expected, rel=0.05)
    assert draw(torch.ones(5, 1), key=0).weights.tolist() == [1] * 5  # one party: nothing but all


LABELS = {
    "cross_entropy": [0, 2, 1],
    "binary_cross_entropy": [0, 1, 1],
    "mse": [0.5, -1.0, 2.0],
    "huber": [3.0, 0.0, 9.0],
}


@pytest.mark.parametrize("name", sorted(LABELS))
def test_smaller_subsets_learn_in_part_from_what_all_predict(name: str) -> None:
    """Each loss by its own formula; weights of rows count, and nothing is learnt from a pupil by its teacher."""
    labels, outputs = torch.tensor(LABELS[name]), 3 if name == "cross_entropy" else 1
    tasks = draw(torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]).double(), key=0)
    assert tasks.teachers.tolist() == [1, 1, 2, 4, 4]
    found = torch.randn(5, outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    rows = torch.tensor([0.5, 1.5, 1.0], dtype=torch.float64)
    loss = LOSSES[name]

    def one(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        shaped = output if name == "cross_entropy" else output.reshape(target.shape)
        return loss.function(shaped, target)

    says = {"cross_entropy": lambda o: o.softmax(1), "binary_cross_entropy": torch.sigmoid}.get(name, lambda o: o)
    total = torch.zeros((), dtype=torch.float64)
    for task, (row, teacher) in enumerate(zip(tasks.rows.tolist(), tasks.teachers.tolist(), strict=True)):
        own = one(found[task : task + 1], labels[row : row + 1])
        if teacher != task:
            own = 0.3 * own + 0.7 * one(found[task : task + 1], says(found[teacher : teacher + 1].detach()))
        stands_for = 1 if teacher == task else 2  # subsets of its size, each of which weighs a third
        total = total + own * rows[row] * stands_for / 3 / 3
    made = tasks.loss(found, Targets(labels, rows), loss)
    assert float(made.detach()) == pytest.approx(float(total.detach()), rel=1e-6)
    slopes = [torch.autograd.grad(each, found)[0] for each in (made, total)]
    assert torch.allclose(slopes[0], slopes[1], rtol=1e-6)


def test_a_loss_with_no_slope_where_both_predict_the_same_is_asked_about_pupils_alone() -> None:
    """The slope of a distance is not a number at zero: of a teacher beside itself nothing may be asked."""
    distance = Loss(
        "distance",
        lambda output, target: (output - target).abs().mean(),
        "none",
        lambda output, target: 0.0,
        each=lambda output, target: (output - target).abs(),
        like=lambda output, other: (output - other).square().sum(dim=1).sqrt(),
    )
    found = torch.randn(3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    tasks = draw(torch.tensor([[1.0, 1.0], [0.0, 1.0]]).double(), key=3)
    tasks.loss(found, Targets(torch.zeros(2, 1).double()), distance).backward()
    assert found.grad is not None
    assert torch.isfinite(found.grad).all()
    lonely = draw(torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double(), key=3)  # no pupil at all
    assert float(lonely.loss(found[:2], Targets(torch.zeros(2, 1).double()), distance).detach()) == pytest.approx(
        float(found[:2].detach().abs().mean()) / 3
    )


def test_where_no_prediction_can_stand_for_a_label_subsets_learn_from_labels_alone() -> None:
    labels, output = torch.tensor([0, 1]), torch.randn(3, 1, generator=torch.Generator().manual_seed(0))
    tasks = draw(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), key=3)
    cross = LOSSES["binary_cross_entropy"]
    own = Loss("mine", cross.function, "none", lambda output, target: 0.0, each=cross.each)
    uneven = weighted(cross, torch.tensor([0.5, 1.5], dtype=torch.float64))
    randomised = corrected(cross, RandomisedResponse.within(1.0, 2))
    for loss in (own, uneven, randomised):
        assert loss.each is not None
        each = loss.each(output, labels[tasks.rows]).flatten()
        assert float(tasks.loss(output, Targets(labels), loss)) == pytest.approx(float((each * tasks.weights).mean()))


def test_a_party_sees_its_own_rows_of_every_batch() -> None:
    has = torch.rand(40, generator=torch.Generator().manual_seed(1)) < 0.2
    batches, numbers = Batches(40, 7, seed=3), has.nonzero().flatten()
    own = OwnBatches(batches, has)
    for step in range(12):
        rows, batch, places = own.rows(step), batches.rows(step), own.places(step)
        assert isinstance(rows, torch.Tensor)
        assert torch.equal(numbers[rows], batch[places])  # type: ignore[index]
        assert own.count(step) == len(rows) == int(has[batch].sum())
    touched = own.touched(range(2))
    assert sorted(touched.tolist()) == sorted([*own.rows(0).tolist(), *own.rows(1).tolist()])  # type: ignore[union-attr]
    assert isinstance(own.touched(range(50)), slice)


HALF = [torch.arange(60) < 30, torch.ones(60, dtype=torch.bool), torch.ones(60, dtype=torch.bool)]


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_blocks_of_a_party_without_rows_are_refused(labels: str) -> None:
    few = [torch.arange(60) < 2, *HALF[1:]]
    run = problem(efvfl(TopK(0.5)), agreement=Agreement(labels), present=few, batch_size=10)  # type: ignore[arg-type]
    step = next(step for step in range(6) if run.parties["party1"].batches.count(step) == 0)
    for _ in range(step):
        run.step(hold=True)
    reports = run.transport.exchange(run.server.begin())
    empty, other = reports["party1"], reports["party2"]
    assert not empty.packets
    false = Message(empty.kind, empty.step, {1: other.packets[2]})
    with pytest.raises(ProtocolError, match=r"party1: expected REPORT on step .* with no block"):
        run.server.respond(reports | {"party1": false})
    answers = run.server.respond(reports)
    run.server.learn()
    answer = answers["party1"]
    more = Message(answer.kind, answer.step, {**answer.packets, 1: other.packets[2]})
    with pytest.raises(ProtocolError, match=r"expected no block|expected blocks"):
        run.parties["party1"].handle(more)
    before = [p.clone() for p in run.parties["party1"].block.parameters]
    run.parties["party1"].handle(answer)
    assert all(torch.equal(p, old) for p, old in zip(run.parties["party1"].block.parameters, before, strict=True))


def test_what_cannot_be_trained_with_rows_missing_is_refused() -> None:
    normed: list[nn.Module] = [nn.Sequential(nn.Linear(n, 4), nn.BatchNorm1d(4)).double() for n in (5, 3, 4)]
    with pytest.raises(ConfigError, match="model of 'party1' normalises over batches, and 'party1' lacks rows"):
        problem(models=normed, present=HALF, batch_size=16)
    own = Loss("mine", nn.functional.cross_entropy, "none", lambda output, target: 0.0)
    with pytest.raises(ConfigError, match=r"loss 'mine': subsets are sampled.*subsets='off'"):
        problem(loss=own, present=HALF)
    problem(loss=own, present=HALF, agreement=Agreement(subsets="off")).step(hold=True)
    cross = LOSSES["cross_entropy"]
    mean = replace(cross, like=lambda output, other: cross.function(output, other.softmax(dim=1)))
    with pytest.raises(ConfigError, match=r"expected `like` to give the losses of 9 rows, got shape \(\)"):
        problem(loss=mean, present=HALF)
    number = replace(cross, like=lambda output, other: 0.5)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigError, match=r"losses of 9 rows, got 0\.5"):
        problem(loss=number, present=HALF)


def test_protection_is_of_the_whole_batch_so_that_parties_share_a_rows_noise() -> None:
    """What two parties are told of a row is the same: from draws of their own they could take the mean."""
    run = problem(
        present=HALF, agreement=Agreement(subsets="off"), protect=Protection(clip=0.1, noise=2.0), batch_size=0
    )
    answers = run.server.respond(run.transport.exchange(run.server.begin()))
    told = [decode(answers[f"party{k}"].packets[k][0], limit=1000) for k in (1, 2)]
    assert told[0].shape == (30, 4)
    assert (told[0] == told[1][:30]).all()
