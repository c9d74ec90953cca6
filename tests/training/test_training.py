"""What training yields: records, the ledger, predictions."""

import copy
import math
from typing import Any

import pytest
import torch
from problems import classes, columns, head, local_models, problem
from torch import nn

from efvfl import (
    QSGD,
    Agreement,
    Identity,
    Method,
    Optimizer,
    Record,
    SharedLabels,
    TopK,
    Training,
    cvfl,
    efvfl,
    federate,
    svfl,
)
from efvfl.core.block import Block
from efvfl.core.channel import codec_seconds
from efvfl.core.losses import LOSSES, lookup
from efvfl.training.measure import Split, evaluate, gradient, squared_norm
from efvfl.wire.ledger import Ledger
from efvfl.wire.message import Kind, Message


def test_a_record_holds_what_the_paper_plots() -> None:
    x = columns()
    y = classes(x)
    held = {"validation": slice(0, 40), "test": slice(40, 60)}
    splits: dict[str, Any] = {name: ([v[rows] for v in x], y[rows]) for name, rows in held.items()}
    federation = problem(efvfl(TopK(0.1)), batch_size=16, **splits)
    twin = problem(efvfl(TopK(0.1)), batch_size=16)
    records = list(federation.train(3))
    assert [r.epoch for r in records] == [1, 2, 3]
    assert [r.step for r in records] == [4, 8, 12]
    last = records[-1]
    models, fusion = local_models(), federation.fusion
    for fresh, trained in zip(models, federation.models, strict=True):
        fresh.load_state_dict(trained.state_dict())
    mean = torch.stack([m(v) for m, v in zip(models, x, strict=True)]).mean(0)
    loss = nn.functional.cross_entropy(fusion.head(mean), y)
    assert last.train["loss"] == pytest.approx(loss.item())
    for name, rows in held.items():
        part = nn.functional.cross_entropy(fusion.head(mean[rows]), y[rows])
        assert getattr(last, name)["loss"] == pytest.approx(part.item())
    steps = [twin.step(hold=step % 4 == 3) for step in range(12)]
    assert [r.surrogate_loss for r in records] == [sum(steps[i : i + 4]) / 4 for i in (0, 4, 8)]
    parameters = [*fusion.parameters(), *(p for m in models for p in m.parameters())]
    norm = sum(float(g.square().sum()) for g in torch.autograd.grad(loss, parameters))
    assert last.gradient == pytest.approx(norm, rel=1e-9)
    assert last.distortion > 0
    assert last.paper_bits == sum(32 * int(0.1 * 4 * b) for b in (16, 16, 16, 12)) * 3 * 3
    assert last.bytes_up == federation.ledger.total("up") > last.paper_bits / 8  # indices and headers are real
    assert 0 < last.seconds < 60
    again = Record.from_json(last.to_json())
    assert again == last


def test_observing_changes_nothing() -> None:
    watched, left_alone = (problem(efvfl(TopK(0.1)), batch_size=16) for _ in range(2))
    many = list(watched.train(4))
    few = list(left_alone.train(4, observe_every=4))
    assert len(few) == 1
    assert few[-1].train == many[-1].train
    assert few[-1].distortion == many[-1].distortion
    assert few[-1].surrogate_loss == many[-1].surrogate_loss
    reports = [sum(n for (_, _, kind), n in f.ledger.bytes.items() if kind == "report") for f in (watched, left_alone)]
    assert reports[0] == reports[1]


def test_training_goes_on_from_where_it_stands() -> None:
    whole, pieces = (problem(efvfl(TopK(0.1)), batch_size=16) for _ in range(2))
    expected = list(whole.train(4))
    pieces.step()  # in the middle of an epoch
    records = [*pieces.train(2), *pieces.train(4)]
    assert [r.train for r in records] == [r.train for r in expected]
    assert [r.surrogate_loss for r in records] == [r.surrogate_loss for r in expected]


def test_the_distortion_of_the_next_report_is_what_the_next_report_leaves() -> None:
    for options in (
        {},
        {"batch_size": 16},
        {"batch_size": 25, "batch_order": "independent"},  # some rows of a batch are new, some are not
        {"agreement": Agreement(reports="all"), "batch_size": 16},
    ):
        for start in ("compressed", "exact"):
            federation = problem(efvfl(QSGD(4), start=start), **options)
            for _ in range(5):
                federation.step(hold=True)
                foretold = federation.distortion()
                federation.transport.post(federation.server.begin())
                assert federation.distortion() == pytest.approx(foretold, rel=1e-12, abs=1e-20)


@pytest.mark.parametrize("method", [efvfl(Identity(), fusion=TopK(0.5)), cvfl(Identity(), fusion=TopK(0.5))])
def test_a_compressed_fusion_model_is_block_0_of_the_distortion(method: Method) -> None:
    """Nothing else is compressed here, so that D_0 is all of D: it was left out, and D was 0."""
    federation = problem(method, agreement=Agreement(SharedLabels(fusion="compress")))
    [record] = federation.fit(1)
    x0 = torch.cat([p.detach().reshape(-1) for p in federation.fusion.parameters()])
    before = getattr(federation.server.label_mode, "sender").channel.memory  # noqa: B009  (of one label mode)
    foretold = record.distortion
    assert record.distortions["block 0"] == pytest.approx(foretold)
    assert foretold == federation.distortion() > 0
    assert all(record.distortions[name] < 1e-25 for name in federation.parties)
    held = before.g.clone() if method.name == "efvfl" else torch.zeros_like(x0)
    change = x0 - held
    kept = change.abs().argsort(descending=True)[: len(change) // 2]
    by_hand = float(change.square().sum() - change[kept].square().sum())
    assert foretold == pytest.approx(by_hand, rel=1e-9)
    assert Record.from_json(record.to_json()).distortions == record.distortions


def test_a_fusion_model_that_is_sent_whole_has_no_distortion() -> None:
    federation = problem(efvfl(TopK(0.5)), agreement=Agreement(labels="shared"))
    [record] = federation.fit(1)
    assert list(record.distortions) == list(federation.parties)
    assert sum(record.distortions.values()) == record.distortion > 0


def test_direct_compression_is_measured_on_what_it_would_send() -> None:
    assert problem(svfl()).distortion() == 0
    assert problem(cvfl(TopK(0.5))).distortion() > problem(cvfl(TopK(0.9))).distortion() > 0


def test_the_ledger_counts_every_byte_once() -> None:
    for agreement in (Agreement(), Agreement(labels="shared"), Agreement(SharedLabels(fusion="replicate"))):
        federation = problem(efvfl(TopK(0.2)), agreement=agreement, batch_size=16)
        heard = 0
        exchange = federation.transport.exchange

        def listen(messages: dict[str, Message]) -> dict[str, Message]:
            nonlocal heard
            replies = exchange(messages)  # noqa: B023
            heard += sum(len(m.to_bytes()) for m in (*messages.values(), *replies.values()))
            return replies

        federation.transport.exchange = listen  # type: ignore[method-assign, assignment]
        list(federation.train(2))
        assert federation.ledger.total("up") + federation.ledger.total("down") == heard
        table = federation.ledger.table()
        assert sum(n for parties in table.values() for kinds in parties.values() for n in kinds.values()) == heard


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"maximize": True}])
def test_an_update_is_bit_for_bit_that_of_torch(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    ours = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    theirs = copy.deepcopy(ours)
    block = Block(ours, Optimizer("SGD", {"lr": 0.3, **options}))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.3, **options)
    for _ in range(4):
        x = torch.randn(6, 5)
        for module in (ours, theirs):
            module.zero_grad()
            module(x).square().sum().backward()
        block.update()
        optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_a_ledger_can_be_saved() -> None:
    ledger = Ledger()
    ledger.record("down", "bank", Message(Kind.BEGIN, 3))
    other = Ledger()
    other.load_state_dict(ledger.state_dict())
    assert other.table() == {"down": {"bank": {"begin": len(Message(Kind.BEGIN, 3).to_bytes())}}}
    assert other.total("down", "bank") == other.total("down") == 6
    assert other.total("down", "telco") == 0


def test_prediction_is_the_joined_network() -> None:
    federation = problem(efvfl(TopK(0.2)), batch_size=16)
    list(federation.train(1))
    x = columns(seed=9)
    with torch.no_grad():
        mean = torch.stack([m(v) for m, v in zip(federation.models, x, strict=True)]).mean(0)
        assert torch.allclose(federation.predict(x), federation.fusion.head(mean))


def test_large_sets_are_observed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = columns()
    y, models, fusion = classes(x), local_models(), problem().fusion
    split, loss = Split(x, y), LOSSES["cross_entropy"]
    whole = squared_norm(gradient(models, fusion, split, loss).gradient), evaluate(models, fusion, split, loss)
    monkeypatch.setattr("efvfl.core.local_model.CHUNK", 7)
    parts = squared_norm(gradient(models, fusion, split, loss).gradient), evaluate(models, fusion, split, loss)
    assert parts[0] == pytest.approx(whole[0], rel=1e-12)
    assert parts[1] == pytest.approx(whole[1], rel=1e-12)


def test_metrics() -> None:
    assert lookup("cross_entropy").metric(torch.eye(3), torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)
    assert lookup("binary_cross_entropy").metric(torch.tensor([[-1.0], [2.0]]), torch.tensor([0, 0])) == 0.5
    target = torch.tensor([1.0, 2.0, 3.0])
    assert lookup("mse").metric(target[:, None], target) == pytest.approx(1)
    assert lookup("mse").metric(torch.full((3, 1), 2.0), target) == pytest.approx(0)
    own = LOSSES["mse"]
    assert lookup(own) is own


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"models": local_models()[:2]}, "expected 3 local models, one for each party, got 2"),
        ({"labels": torch.zeros(59, dtype=torch.int64)}, "'party1' holds 60 training rows, but there are 59 labels"),
        ({"label_holder": "bank"}, "expected one of the parties .* got 'bank'"),
        ({"models": [nn.Flatten(0).double()] * 3}, r"expected shape \(1, width\) for one row, got \(5,\)"),
        ({"test": ({"a": columns()[0]}, torch.zeros(60))}, "the test rows: expected the parties"),
        ({"batch_size": -1}, "batch_size: expected at least 0, got -1"),
        ({"batch_order": "sorted"}, "'shuffle' or 'independent'"),
        ({"combine": "max"}, "'sum', 'mean' or 'concat'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        problem(**options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_compression_that_vanishes_lets_direct_compression_converge_better() -> None:
    from efvfl import Ramp

    def end(ratio: float | Ramp) -> float:
        federation = problem(cvfl(TopK(ratio)), agreement=Agreement(labels="shared"))
        *_, last = federation.train(300, observe_every=300)
        return last.gradient

    assert end(Ramp(0.1, 1.0, 200)) < end(0.1) / 10


def test_a_diverged_run_says_so() -> None:
    x = columns()
    federation = federate(
        x,
        classes(x),
        local_models(),
        head(),
        training=Training(optimizer=Optimizer("SGD", {"lr": 1e200})),
    )
    with pytest.raises(ValueError, match=r"only finite numbers can be sent.*lower the learning rate"):
        for _ in federation.train(5):
            pass


def test_epochs_of_unequal_batches() -> None:
    federation = problem(svfl(), batch_size=25)
    *_, last = federation.train(2)
    assert last.step == 6
    assert not math.isnan(last.surrogate_loss)


def test_the_formula_does_not_count_what_stays_at_the_server() -> None:
    named = dict(zip(("bank", "telco", "shop"), columns(), strict=True))
    alone, beside = (problem(svfl(), features=named, label_holder=holder) for holder in ("", "bank"))
    bits = [next(iter(run.train(1))).paper_bits for run in (alone, beside)]
    assert bits == [3 * 32 * 60 * 4, 2 * 32 * 60 * 4]


def test_parts_that_were_frozen_stay_frozen() -> None:
    models = [nn.Sequential(nn.Linear(n, 4), nn.BatchNorm1d(4)).double() for n in (5, 3, 4)]
    models[0][1].eval()
    models[1].eval()  # a whole model in evaluation mode was only forgotten there
    federation = problem(svfl(), models=models, batch_size=16)
    list(federation.train(1))
    assert not models[0][1].training
    assert models[0].training
    assert models[1][1].training
    assert models[0][1].num_batches_tracked == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"labels": torch.zeros(60)}, "expected classes 0, 1, ... as int64"),
        ({"labels": torch.full((60,), -1)}, "smallest -1"),
        ({"labels": torch.full((60,), 5)}, "does not fit representations and labels"),
        ({"labels": torch.full((60,), -1.0), "loss": "binary_cross_entropy"}, "expected labels 0 and 1, got -1 to -1"),
        ({"labels": torch.full((60,), torch.nan), "loss": "mse"}, "the labels hold NaN"),
        ({"features": [v * torch.inf for v in columns()]}, "columns of 'party1' hold NaN or infinity"),
        ({"models": [nn.Linear(4, 4).double()] * 3, "features": [columns()[2]] * 3}, "share parameters"),
        ({"head": nn.Linear(5, 3).double()}, "does not fit representations and labels"),
        ({"models": [nn.Linear(n + 1, 4).double() for n in (5, 3, 4)]}, "does not work on its columns"),
        ({"models": [nn.Linear(5, 4).double(), nn.Linear(3, 4), nn.Linear(4, 4)]}, "does not work on its columns"),
        ({"head": nn.BatchNorm1d(4).double(), "batch_size": 59}, "leave a batch of one row"),
    ],
)
def test_data_and_models_that_cannot_work_are_named(options: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        problem(**options)  # type: ignore[arg-type]


def test_prediction_takes_what_federate_takes() -> None:
    named = dict(zip(("bank", "telco", "shop"), columns(), strict=True))
    federation = problem(svfl(), features=named)
    assert torch.equal(federation.predict(named), federation.predict(list(named.values())))


def test_records_are_json_even_of_a_run_that_diverged() -> None:
    record = Record(1, 1, float("inf"), {"loss": float("nan"), "accuracy": 0.5})
    assert "NaN" not in record.to_json()
    again = Record.from_json(record.to_json())
    assert math.isnan(again.train["loss"])
    assert again.train["accuracy"] == 0.5


def test_fit_trains_and_returns_the_records() -> None:
    fitted, looped = (problem(efvfl(TopK(0.1)), batch_size=16) for _ in range(2))
    records = fitted.fit(3, observe_every=2)
    assert [r.epoch for r in records] == [2, 3]
    assert [r.train for r in records] == [r.train for r in looped.train(3, observe_every=2)]


def test_the_loss_of_a_record_is_of_its_epoch_whoever_took_the_steps() -> None:
    run, twin = (problem(efvfl(TopK(0.1)), batch_size=16) for _ in range(2))  # 4 steps an epoch
    steps = [run.step() for _ in range(6)]
    assert run.record().surrogate_loss == sum(steps[4:]) / 2
    expected = [twin.step(hold=step == 7) for step in range(8)]
    assert run.fit(2)[-1].surrogate_loss == sum(expected[4:]) / 4


def test_a_diverged_run_says_whose_block_and_when() -> None:
    x = columns()
    run = federate(
        x,
        classes(x),
        local_models(),
        head(),
        training=Training(optimizer=Optimizer("SGD", {"lr": 1e200})),
    )
    with pytest.raises(ValueError, match=r"party\d's (representation|cotangent) cannot be sent at step \d+: entry"):
        run.fit(5)
    shared = Agreement(labels="shared")
    run = federate(
        x,
        classes(x),
        local_models(),
        head(),
        agreement=shared,
        training=Training(optimizer=Optimizer("SGD", {"lr": 1e300})),
    )
    with pytest.raises(ValueError, match=r"cannot be sent.*only finite numbers"):
        run.fit(5)


@pytest.mark.parametrize("wire", [False, True])
def test_time_in_codecs_is_counted_at_both_ends_and_in_both_directions(wire: bool) -> None:
    ends = problem(efvfl(TopK(0.5), down=QSGD(4)), wire=wire)
    ends.step()
    at_server = {id(channel): channel for channel in ends.server.every_channel()}
    assert len(at_server) == 2 * len(ends.parties)
    assert all(channel.seconds > 0 for channel in at_server.values())  # those that only receive, too
    for party in ends.parties.values():
        assert party.up.seconds > 0
        assert codec_seconds([party.up, party.up]) == party.up.seconds
