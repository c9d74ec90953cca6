"""Two steps under way at a time: SGD whose updates are one step stale, the same in one process and over a network."""

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import WAITING, Network, Transport, assert_same, config, member, networked, ready, reference
from oracle_runs import LR, schedule, topk, trained
from problems import (
    CLASSES,
    WIDTH,
    Labels,
    classes,
    close,
    columns,
    everything,
    head,
    local_models,
    memories,
    parameters,
    problem,
    same,
)
from reference import Setting, central_sgd, delayed_sgd, vertical
from torch import nn

from efvfl import Agreement, Federation, Message, Optimizer, SharedLabels, TopK, cvfl, efvfl
from efvfl.config.run_file import AgreementConfig
from efvfl.errors import LimitError, ProtocolError, RefusedError
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.training.party_process import PartyProcess
from efvfl.training.schedule import Schedule
from efvfl.wire.message import Kind

PIPELINE = {"pipeline": True}
SHARED = PIPELINE | {"labels": "shared"}


# What is under way when.


def begun(pace: Schedule) -> str:
    """The requests of a run: b, begin a step; a, answer and report on; h, answer and hold; | a record."""
    words, under_way, step = [], 0, 0
    while step < pace.steps:
        if not under_way:
            under_way = pace.begins(step)
            words.append("b" * under_way)
        words.append("h" if pace.hold(step) else "a")
        under_way -= pace.hold(step)
        if pace.observed(step):
            assert under_way == 0
            words.append("|")
        step += 1
    return "".join(words)


@pytest.mark.parametrize(
    ("per_epoch", "epochs", "every", "window", "expected"),
    [
        (3, 2, 1, 1, "baah|baah|"),
        (3, 2, 1, 2, "bbahh|bbahh|"),
        (3, 2, 2, 2, "bbaaaahh|"),
        (3, 3, 2, 2, "bbaaaahh|bbahh|"),
        (2, 2, 1, 2, "bbhh|bbhh|"),
        (1, 3, 1, 2, "bh|bh|bh|"),
        (1, 3, 2, 2, "bbhh|bh|"),
        (1, 5, 9, 2, "bbaaahh|"),
    ],
)
def test_no_step_is_begun_that_is_not_there(
    per_epoch: int, epochs: int, every: int, window: int, expected: str
) -> None:
    assert begun(Schedule(per_epoch, epochs, every, window)) == expected


# Against plain loops.


@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize("combine", ["mean", "concat"])
@pytest.mark.parametrize("labels", ["private", "shared"])
def test_without_compression_it_is_delayed_sgd(labels: Labels, combine: str, size: int) -> None:
    x = columns()
    expected = delayed_sgd(x, classes(x), local_models(), head(combine), combine, schedule(size, 12), LR)
    prompt = central_sgd(x, classes(x), local_models(), head(combine), combine, schedule(size, 12), LR)
    found = trained(problem(combine=combine, agreement=Agreement(labels=labels, pipeline=True), batch_size=size), 12)
    assert close(found, expected)
    assert not close(found, prompt, 1e-4)


@pytest.mark.parametrize(
    ("size", "epochs", "every", "fresh"),
    [(16, 3, 1, {0, 4, 8}), (16, 3, 2, {0, 8}), (0, 7, 3, {0, 3, 6}), (0, 4, 9, {0}), (0, 4, 1, {0, 1, 2, 3})],
)
@pytest.mark.parametrize("labels", ["private", "shared"])
def test_the_first_step_after_a_record_is_not_stale(
    labels: Labels, size: int, epochs: int, every: int, fresh: set[int]
) -> None:
    x = columns()
    batches = schedule(size, epochs * (4 if size else 1))
    expected = delayed_sgd(x, classes(x), local_models(), head(), "mean", batches, LR, fresh)
    federation = problem(agreement=Agreement(labels=labels, pipeline=True), batch_size=size)
    records = list(federation.train(epochs, every))
    assert close(parameters(federation), expected)
    assert [r.epoch for r in records] == [e for e in range(1, epochs + 1) if e % every == 0 or e == epochs]
    assert not any(party.reporting for party in federation.parties.values())


@pytest.mark.parametrize("reports", ["batch", "all"])
@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize(("labels", "local_steps"), [("private", 1), ("shared", 1), ("shared", 3)])
def test_compressed_runs_equal_the_plain_algorithm(
    labels: Labels, local_steps: int, size: int, feedback: bool, reports: str
) -> None:
    x = columns()
    setting = Setting(topk(0.2), feedback, labels == "private", LR, "mean", local_steps, reports == "all", window=2)
    expected = vertical(x, classes(x), local_models(), head(), schedule(size, 10), setting)
    agreement = AgreementConfig(labels=labels, local_steps=local_steps, reports=reports, pipeline=True).build()  # type: ignore[arg-type]
    method = efvfl(TopK(0.2)) if feedback else cvfl(TopK(0.2))
    federation = problem(method, agreement=agreement, batch_size=size)
    assert close(trained(federation, 10), expected)


@pytest.mark.parametrize("size", [0, 16])
def test_relay_equals_aggregate(size: int) -> None:
    runs = []
    for downlink in ("relay", "aggregate"):
        agreement = Agreement(SharedLabels(downlink=downlink), pipeline=True)
        runs.append(trained(problem(efvfl(TopK(0.2)), agreement=agreement, batch_size=size), 12))
    assert close(runs[0], runs[1])


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_momentum_sees_the_same_gradients(labels: Labels) -> None:
    x, models, top = columns(), local_models(), head()
    federation = problem(
        optimizer=Optimizer("SGD", {"lr": 0.2, "momentum": 0.9}),
        agreement=Agreement(labels=labels, pipeline=True),
        batch_size=16,
    )
    network = nn.ModuleList([top, *models])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.9)
    before = [p.detach().clone() for p in network.parameters()]
    for rows in schedule(16, 9):
        now = [p.detach().clone() for p in network.parameters()]
        with torch.no_grad():
            for p, value in list(zip(network.parameters(), before, strict=True))[2:]:  # the head is not delayed
                p.copy_(value)
        optimizer.zero_grad()
        mean = torch.stack([m(v[rows]) for m, v in zip(models, x, strict=True)]).mean(0)
        nn.functional.cross_entropy(top(mean), classes(x)[rows]).backward()
        with torch.no_grad():
            for p, value in zip(network.parameters(), now, strict=True):
                p.copy_(value)
        optimizer.step()
        before = now
    assert close(trained(federation, 9), [p.detach() for p in network.parameters()], 1e-10)


# Within one process.


def rich(**options: Any) -> Federation:
    """Running statistics, dropout, tied and frozen parameters."""
    torch.manual_seed(5)

    def local(inputs: int) -> nn.Module:
        first, second = nn.Linear(inputs, WIDTH), nn.Linear(WIDTH, WIDTH)
        again = nn.Linear(WIDTH, WIDTH)
        again.weight = second.weight
        second.bias.requires_grad_(False)
        return nn.Sequential(first, nn.BatchNorm1d(WIDTH), nn.Tanh(), second, nn.Dropout(0.2), again)

    given: dict[str, Any] = {
        "models": [local(n) for n in (5, 3, 4)],
        "head": nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, CLASSES)),
        "optimizer": Optimizer("Adam", {"lr": 0.02}),
        "agreement": Agreement(labels="shared", pipeline=True),
    }
    return problem(efvfl(TopK(0.3)), torch.float32, **(given | options))


@pytest.mark.parametrize("size", [0, 16])
def test_both_ends_remember_the_same_and_frozen_parts_stay(size: int) -> None:
    federation = rich(batch_size=size)
    frozen = [model[3].bias.clone() for model in federation.models]  # type: ignore[index]
    list(federation.train(4, 2))
    assert all(torch.equal(copies[0], other) for copies in memories(federation) for other in copies)
    assert all(torch.equal(a, m[3].bias) for a, m in zip(frozen, federation.models, strict=True))  # type: ignore[index]
    assert all(m[3].weight is m[5].weight for m in federation.models)  # type: ignore[index]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_full_batch_goes_on_bit_for_bit(stop: int) -> None:
    """Every report is on the same rows: what the older one left in the memory is gone when the state is saved."""
    agreement = Agreement(SharedLabels(downlink="aggregate"), pipeline=True)
    run = rich(agreement=agreement)
    for _ in range(stop):
        run.step()
    resumed = rich(agreement=agreement)
    resumed.load_state_dict(run.state_dict())
    for each in (run, resumed):
        for hold in (False, False, True, True):
            each.step(hold)
    assert same(everything(run), everything(resumed))
    assert run.ledger.table() == resumed.ledger.table()


def test_through_bytes_it_is_the_same() -> None:
    runs = [rich(wire=wire, batch_size=16) for wire in (False, True)]
    for run in runs:
        list(run.train(2))
    assert same(*(everything(run) for run in runs))


def test_messages_out_of_turn_are_refused_and_repeated_ones_answered_alike() -> None:
    federation = problem(efvfl(TopK(0.2)), agreement=Agreement(pipeline=True), batch_size=16)
    party, server = federation.parties["party1"], federation.server
    with pytest.raises(ProtocolError, match="expected a message for step 0, got one for 1"):
        party.handle(Message(Kind.BEGIN, 1))
    replies = [federation.transport.exchange(server.begin(ahead)) for ahead in (0, 1)]
    with pytest.raises(ProtocolError, match="expected a message for step 0, got one for 2"):
        party.handle(Message(Kind.BEGIN, 2))
    asked = server.step(replies[0])["party1"]
    following = server.step(replies[1])["party1"]
    with pytest.raises(ProtocolError, match="expected a message for step 0, got one for 1"):
        party.handle(following)
    reports = [party.handle(message) for message in (asked, following)]
    assert [report.step for report in reports] == [2, 3]
    before = everything(federation)
    assert [party.handle(message) for message in (asked, following)] == reports
    assert same(before, everything(federation))


def test_training_after_single_steps_has_its_pipeline_back_after_the_record() -> None:
    run = problem(efvfl(TopK(0.2)), batch_size=16, agreement=Agreement(pipeline=True))  # 4 steps an epoch
    for _ in range(3):
        run.step()
    under_way = []
    for _ in run.train(1):
        under_way.append(run.driver.reports)
    assert under_way == [1]  # the report on step 4 was out before anybody asked for a record
    run.step()
    assert run.driver.reports == 2
    run.fit(3)
    assert not run.transport.under_way


# Over a network.

TOPK = {"name": "topk", "ratio": 0.2}
QSGD = {"name": "qsgd", "bits": 4}
NORMED = {"name": "networks:normed", "width": 4, "options": {"inputs": 16, "width": 4}}
CASES: dict[str, dict[str, Any]] = {
    "private": {"agreement": PIPELINE, "method": {"compressor": TOPK, "down": QSGD}},
    "relay": {"agreement": SHARED, "optimizer": {"name": "Adam", "lr": 0.01}, "model": NORMED},
    "aggregate": {"agreement": SHARED | {"downlink": "aggregate", "local_steps": 2}, "label_holder": "bottom-left"},
    "all-rows": {"agreement": PIPELINE | {"reports": "all"}, "label_holder": "top-left"},
    "full-batch": {"agreement": SHARED, "batch_size": 0, "epochs": 5, "observe_every": 2},
    "one-step": {"agreement": PIPELINE, "batch_size": 0, "epochs": 3},
    "exact": {
        "agreement": PIPELINE,
        "method": {"compressor": TOPK, "start": "exact"},
        "batch_order": "independent",
        "observe_every": 2,
        "epochs": 3,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_over_wires_it_is_the_same(case: str, tmp_path: Path) -> None:
    run = config(**CASES[case])
    assert_same(reference(run), networked(run, tmp_path, "memory"))


@pytest.mark.slow
@pytest.mark.parametrize(("case", "transport"), [("private", "plain"), ("relay", "faulty"), ("exact", "faulty")])
def test_over_any_wire(case: str, transport: Transport, tmp_path: Path) -> None:
    run = config(**CASES[case])
    assert_same(reference(run), networked(run, tmp_path, transport, seed=2))


def test_two_requests_are_under_way(tmp_path: Path) -> None:
    """The answer to a step leaves the server before the reports on the next one are asked for again."""
    run = config(agreement=PIPELINE, epochs=1)
    seen: list[tuple[str, int]] = []
    with Network(run, tmp_path) as network:
        serving = network._served()
        kinds = {FrameKind.REQUEST: "request", FrameKind.REPLY: "reply"}
        wrote = serving.requests.hooks.on_frame

        def note(name: str, direction: str, frame: Frame) -> None:
            if name == "top-left" and frame.kind in kinds:
                seen.append((kinds[frame.kind], frame.number))
            wrote(name, direction, frame)

        serving.requests.hooks = replace(serving.requests.hooks, on_frame=note)
        network.run()
    seen = list(dict.fromkeys(seen))  # a busy machine may lose a link, and what was under way is sent again
    requests = [number for word, number in seen if word == "request"]
    assert requests == [0, 1, 2, 3, 4]  # two that begin, and three answers
    assert [number for word, number in seen if word == "reply"] == requests
    for number in range(1, 5):  # never more than two, and the second does not wait for the first one's reply
        assert seen.index(("request", number)) > (seen.index(("reply", number - 2)) if number > 1 else -1)
    assert seen.index(("request", 1)) < seen.index(("reply", 0))


def intruder(network: Network, wrong: PartyProcess) -> Future[None]:
    """Let a wrong party try first; when it has been refused, the right one joins."""
    refused = network.intrude(Dialler(wrong, lambda: network.dial(wrong.name), WAITING))

    def watch() -> None:
        if refused.done() and wrong.name not in network.joinings:
            network.join(wrong.name)

    network.watch = watch
    return refused


def test_only_one_side_pipelines(tmp_path: Path) -> None:
    run = config()
    with Network(run, tmp_path / "run") as network:
        refused = intruder(network, member(ready(config(agreement=PIPELINE), "top-left"), tmp_path / "other"))
        for name in network.names[1:]:
            network.join(name)
        list(network._served().train())
        network.finish()
        assert_same(reference(run), network.outcome())
        with pytest.raises(RefusedError, match=r"agreement\.pipeline: the server has False, top-left has True"):
            refused.result(timeout=0)


def spoilt(right: PartyProcess, number: int) -> PartyProcess:
    """Have a party's reply of this number be one for another step."""
    respond = right.respond

    def wrong(frame: Frame) -> Frame | None:
        reply = respond(frame)
        if reply is None or reply.kind != FrameKind.REPLY or reply.number != number:
            return reply
        message = Message.from_bytes(reply.body)
        return replace(reply, body=replace(message, step=message.step + 7).to_bytes())

    right.respond = wrong  # type: ignore[method-assign]
    return right


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1, "expected REPORT on step 1 .* got REPORT for step 8 with"),
        (3, "expected an empty READY for step 2.* got READY for step 9"),
    ],
)
def test_a_wrong_reply_that_came_early_is_refused_when_its_turn_comes(number: int, text: str, tmp_path: Path) -> None:
    run = config(agreement=PIPELINE)
    with Network(run, tmp_path / "run") as network:
        refused = intruder(network, spoilt(member(ready(run, "top-left"), tmp_path / "wrong"), number))
        serving, joins = network._served(), network.watch

        def watch() -> None:
            if "bottom-right" not in network.joinings and len(serving.requests._early) == 3:
                network.join("bottom-right")  # whom the others wait for: their replies to request 1 come early
            joins()

        network.watch = watch
        for name in ("top-right", "bottom-left"):
            network.join(name)
        list(serving.train())
        network.finish()
        assert_same(reference(run), network.outcome())
        with pytest.raises(RefusedError, match=f"top-left: {text}"):
            refused.result(timeout=0)


def test_a_limit_on_steps_ends_before_the_next_report(tmp_path: Path) -> None:
    run = config(agreement=PIPELINE, party=[{"name": "top-left", "limits": {"steps": 2}}])
    with Network(run, tmp_path) as network:
        network.join_all()
        with pytest.raises(LimitError, match="top-left takes part in 2 steps"):
            network.run()
        joined = network.joinings["top-left"].handler
    assert joined.handled == 2  # type: ignore[attr-defined]
