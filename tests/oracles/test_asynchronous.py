"""Asynchronous parties against plain loops that share no code with the library."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from examples import asynchronous_on_one_page
from examples.asynchronous_on_one_page import Setting
from networks import TIMEOUTS, WAITING
from oracle_runs import LR, schedule, topk, trained
from problems import Labels, classes, close, columns, head, local_models, memories, parameters, problem, same
from torch import nn

from efvfl import Agreement, Federation, Quorum, SharedLabels, TopK, efvfl
from efvfl.network.links.checks import Checks
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.message_log import MessageLog
from efvfl.network.links.presence import Presence
from efvfl.network.links.requests import Requests
from efvfl.network.links.wire import Wire, memory_pair
from efvfl.network.training.party_process import PartyProcess
from efvfl.training.arrivals import Arrivals
from efvfl.training.driver import Driver
from efvfl.wire.ledger import Ledger

NAMES = ("party1", "party2", "party3")
STEPS = 24
# Reports of nobody at their own step, of several late at once, of one party after the most steps that may pass.
SPEEDS: dict[str, dict[str, float]] = {
    "one slow party": {"party1": 1.0, "party2": 1.0, "party3": 5.0},
    "all different": {"party1": 1.0, "party2": 1.7, "party3": 3.1},
    "two slow parties": {"party1": 1.0, "party2": 4.0, "party3": 5.5},
}


def plain(federation: Federation, size: int, setting: Setting) -> tuple[list[Any], list[Any]]:
    """Train by the page with the arrivals of a federation; return parameters and memories."""
    x, models, top = columns(), local_models(), head(setting.combine)
    arrivals = [[NAMES.index(name) for name in names] for names in federation.arrivals]
    steps = len(arrivals)
    G = asynchronous_on_one_page.asynchronous(x, classes(x), models, top, schedule(size, steps), arrivals, setting)
    return [p.detach() for p in nn.ModuleList([top, *models]).parameters()], G


def agreed(labels: Labels, quorum: Quorum, **more: Any) -> Agreement:
    mode: Any = SharedLabels(downlink="aggregate", **more.pop("shared", {})) if labels == "shared" else "private"
    return Agreement(mode, asynchronous=quorum, **more)


def compare(federation: Federation, size: int, setting: Setting) -> None:
    mine = trained(federation, STEPS)
    expected, G = plain(federation, size, setting)
    assert close(mine, expected)
    for pair, g in zip(memories(federation)[: 2 * len(G) : len(memories(federation)) // len(G)], G, strict=True):
        assert len(pair) == 2
        assert torch.equal(pair[0], pair[1]), "both ends have absorbed the same packets"
        assert torch.allclose(pair[0], g, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("speeds", SPEEDS)
@pytest.mark.parametrize("quorum", [Quorum(reports=1, most_stale=6), Quorum(reports=2), Quorum(deadline_seconds=2.0)])
@pytest.mark.parametrize("labels", ["private", "shared"])
def test_asynchronous_runs_equal_the_plain_algorithm(labels: Labels, quorum: Quorum, speeds: str) -> None:
    federation = problem(
        efvfl(TopK(0.2)), agreement=agreed(labels, quorum), batch_size=16, report_seconds=SPEEDS[speeds]
    )
    compare(federation, 16, Setting(topk(0.2), labels == "private", LR))
    late = [step - on for step, reports in enumerate(federation.driver.arrivals.reports()) for on in reports.values()]
    assert 0 < max(late) <= quorum.most_stale
    assert {len(names) for names in federation.arrivals} > {3}, "some steps went without somebody"


@pytest.mark.parametrize(
    ("size", "changes", "setting"),
    [
        (0, {}, {}),
        (16, {"reports": "all"}, {"all_rows": True}),
        (16, {"combine": "concat"}, {"combine": "concat"}),
        (16, {"combine": "sum"}, {"combine": "sum"}),
        (16, {"down": TopK(0.3)}, {"compress_down": topk(0.3)}),
    ],
)
def test_every_choice_equals_the_plain_algorithm(size: int, changes: dict[str, Any], setting: dict[str, Any]) -> None:
    changes = dict(changes)
    more = {"reports": changes.pop("reports")} if "reports" in changes else {}
    method = efvfl(TopK(0.2), down=changes.pop("down", None))
    federation = problem(
        method,
        agreement=agreed("private", Quorum(reports=2, most_stale=4), **more),
        batch_size=size,
        report_seconds=SPEEDS["all different"],
        **changes,
    )
    compare(federation, size, Setting(topk(0.2), True, LR, **setting))


def test_local_steps_equal_the_plain_algorithm() -> None:
    agreement = agreed("shared", Quorum(reports=2), shared={"local_steps": 3})
    federation = problem(efvfl(TopK(0.2)), agreement=agreement, batch_size=16, report_seconds=SPEEDS["one slow party"])
    compare(federation, 16, Setting(topk(0.2), False, LR, local_steps=[3] * 4))


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_parties_of_one_speed_train_as_if_all_waited_for_all(labels: Labels) -> None:
    method, speeds = efvfl(TopK(0.2)), dict.fromkeys(NAMES, 3.0)
    waiting = problem(method, agreement=agreed(labels, Quorum()), batch_size=16, report_seconds=speeds)
    quorum = problem(method, agreement=agreed(labels, Quorum(reports=1)), batch_size=16, report_seconds=speeds)
    assert same(trained(waiting, 10), trained(quorum, 10))
    assert waiting.record().simulated_seconds == quorum.record().simulated_seconds == 30.0


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_over_wires_in_float64_it_equals_the_plain_algorithm_from_one_record(labels: Labels, tmp_path: Path) -> None:
    quorum = Quorum(reports=2, most_stale=6)
    recorded = problem(
        efvfl(TopK(0.2)), agreement=agreed(labels, quorum), batch_size=16, report_seconds=SPEEDS["all different"]
    )
    trained(recorded, STEPS)
    run = problem(efvfl(TopK(0.2)), agreement=agreed(labels, quorum), batch_size=16)
    checks = Checks(lambda name, table, number: None, run.server.check)
    log = MessageLog(tmp_path / "server")
    requests = Requests(Presence(NAMES, asynchronous=True), log, Ledger(), checks, TIMEOUTS)
    driver = Driver(run.server, requests)
    driver.arrivals = Arrivals(NAMES, recorded.arrivals)

    def dial() -> Wire:
        here, there = memory_pair()
        requests.accept(here, None)
        return there

    nothing: Any = SimpleNamespace(places=[])
    members = [PartyProcess(run.parties[name], tmp_path / name, {"name": name}, nothing) for name in NAMES]
    with ThreadPoolExecutor(3) as threads:
        for member in members:
            threads.submit(Dialler(member, dial, WAITING).run)
        for step in range(STEPS):
            driver.step(hold=step == STEPS - 1, begins=1)
        assert requests.finish() == set()
    log.close()
    for member in members:
        member.message_log.close()
    expected, G = plain(recorded, 16, Setting(topk(0.2), labels == "private", LR))
    assert close(parameters(run), expected)
    for name, g in zip(NAMES, G, strict=True):
        ours, theirs = (channel.memory.g for channel in (run.server.channels[name], run.parties[name].up))
        assert torch.equal(ours, theirs)
        assert torch.allclose(ours, g, rtol=1e-12, atol=1e-12)


def test_on_the_page_a_slow_party_holds_nobody_up() -> None:
    arrivals, times = asynchronous_on_one_page.arrivals_of([1.0, 1.0, 10.0], 2, 30)
    assert times == [float(step + 1) for step in range(30)]
    assert [step for step, names in enumerate(arrivals) if 2 in names] == [9, 19, 29]
