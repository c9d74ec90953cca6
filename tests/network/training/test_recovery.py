"""Whoever dies, whenever, and comes back to its folder: the end is that of the undisturbed run, bit for bit."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from meetings import answer_of
from networks import (
    TIMEOUTS,
    WAITING,
    Fate,
    Killed,
    Network,
    Outcome,
    Ready,
    config,
    federation,
    member,
    process_of,
    ready,
    reference,
)
from networks import assert_same as assert_all_same
from recovery import MODES, Fates, FrameFate, disturbed, lose, rows, small, undisturbed  # noqa: F401

from efvfl.config.run_file import LimitConfig, RunConfig
from efvfl.errors import CheckpointError, Interrupted, LimitError, LinkError, ProtocolError, RefusedError
from efvfl.network.links.connections import Hooks
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.frame import DIGEST, Frame, FrameKind, json_frame
from efvfl.network.links.wire import MemoryWire, memory_pair
from efvfl.network.training import participant_data
from efvfl.network.training.party_process import PartyProcess
from efvfl.network.training.questions import question
from efvfl.network.training.server_process import ServerProcess
from efvfl.wire.message import Message

PARTIES = ("left", "right")


def assert_same(left: Outcome, right: Outcome) -> None:
    """Compare all but copies of the fusion model that are not saved: the next lesson overwrites them."""

    def lasting(outcome: Outcome) -> Outcome:
        saved = {name for name, state in outcome.parties.items() if "block" in state["label_mode"].get("fusion", {})}
        return replace(outcome, copies={name: copy for name, copy in outcome.copies.items() if name in saved})

    assert_all_same(lasting(left), lasting(right))


# Death and interruption at any event.


@cache
def events_without_an_end(rows: Path, mode: str, save_steps: int, who: str) -> int:
    """How many events a participant sees in a run that nobody leaves, and which ends as it should."""
    calm = Fate()
    folder = rows / f"calm-{mode}-{save_steps}-{who}"
    assert_same(undisturbed(rows, mode), disturbed(small(rows, mode, save_steps), folder, who, calm))
    assert calm.events > 30
    return calm.events


@pytest.mark.slow
@pytest.mark.parametrize("who", ["", "left"], ids=["server", "party"])
@pytest.mark.parametrize(
    ("mode", "save_steps"),
    [
        ("private", 1),
        ("shared", 3),
        ("label-holder", 1),
        ("noisy", 2),
        ("exact", 1000),
        ("shared", 1000),
        ("pipelined", 1),
        ("window", 2),
        ("window-replicate", 2),
        ("pipelined-shared", 3),
        ("pipelined-shared", 1000),
    ],
)
def test_whenever_one_of_them_ends_the_run_ends_alike(
    rows: Path, mode: str, save_steps: int, who: str, tmp_path: Path
) -> None:
    run = small(rows, mode, save_steps)
    events = events_without_an_end(rows, mode, save_steps, who)
    chance = Random(f"{mode}/{save_steps}/{who}")
    kill = chance.random() < 0.5
    for at in range(chance.randint(1, 17), events + 1, 17):  # a sample: other cases take other events
        kill = not kill  # or it is stopped
        outcome = disturbed(run, tmp_path / str(at), who, Fate(at, kill))
        try:
            assert_same(undisturbed(rows, mode), outcome)
        except AssertionError as error:
            raise AssertionError(f"ended at event {at}: {error}") from error


@pytest.mark.slow
@pytest.mark.parametrize("who", ["", "left"], ids=["server", "party"])
def test_so_it_is_at_every_single_event(rows: Path, who: str, tmp_path: Path) -> None:
    run, expected = small(rows, "shared", 2, epochs=1), undisturbed(rows, "shared", 1)
    for at in count(1):
        fate = Fate(at)
        assert_same(expected, disturbed(run, tmp_path / str(at), who, fate))
        if fate.events < at:  # it has outlived the run
            break
    assert at > 25


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
@pytest.mark.parametrize(
    ("who", "kind", "direction"),
    [
        ("", FrameKind.ASK, "out"),
        ("", FrameKind.ANSWER, "in"),
        ("left", FrameKind.ASK, "in"),
        ("left", FrameKind.ANSWER, "out"),
        ("", FrameKind.STOP, "out"),
        ("", FrameKind.BYE, "in"),
        ("left", FrameKind.STOP, "in"),
        ("left", FrameKind.BYE, "out"),
        ("", FrameKind.HELLO, "in"),
        ("left", FrameKind.HELLO, "out"),
        ("left", FrameKind.WELCOME, "in"),
    ],
)
def test_at_a_record_at_the_start_and_at_the_end_too(
    rows: Path, who: str, kind: FrameKind, direction: str, kill: bool, tmp_path: Path
) -> None:
    fate = FrameFate(kind, direction, kill=kill)
    assert_same(undisturbed(rows, "private"), disturbed(small(rows, "private", 2), tmp_path, who, fate))
    assert fate.events


class Plague:
    """Everybody dies several times, at random events."""

    def __init__(self, seed: int, lives: int, longest: int) -> None:
        self.rng = Random(seed)
        self.left: dict[str, int] = {}
        self.lives = lives
        self.longest = longest

    def __call__(self, name: str) -> Fate:
        self.left[name] = self.left.get(name, self.lives) - 1
        at = self.rng.randint(1, self.longest) if self.left[name] > 0 else 0
        return Fate(at, kill=self.rng.random() < 0.7)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "seed"), [(m, (k + half) % 4) for k, m in enumerate(MODES) for half in (0, 2)])
def test_all_of_them_may_die_again_and_again(rows: Path, mode: str, seed: int, tmp_path: Path) -> None:
    run = small(rows, mode, save_steps=(1, 2, 3, 1000)[seed])
    with Network(run, tmp_path, lives=4, fates=Plague(seed, 4, 25)) as network:
        assert_same(undisturbed(rows, mode), network.run())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", ["private", "shared", "pipelined", "pipelined-shared"])
def test_over_a_bad_network_too(rows: Path, mode: str, seed: int, tmp_path: Path) -> None:
    with Network(small(rows, mode), tmp_path, "faulty", seed, lives=3, fates=Plague(seed, 3, 40)) as network:
        assert_same(undisturbed(rows, mode), network.run())


def test_four_parties_with_running_statistics_too(tmp_path: Path) -> None:
    normed = {"name": "networks:normed", "width": 4, "options": {"inputs": 16, "width": 4}}
    run = config(
        model=normed, optimizer={"name": "Adam", "lr": 0.01}, network={"save_steps": 2}, label_holder="top-left"
    )
    with Network(run, tmp_path, lives=3, fates=Plague(1, 3, 30)) as network:
        assert_same(reference(run), network.run())


# A power failure: what was in the log but not yet on the disk is lost as well.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "save_steps", "at"),
    [
        ("private", 1, 30),
        ("private", 1000, 30),
        ("shared", 2, 20),
        ("shared", 3, 40),
        ("pipelined-shared", 3, 40),
        ("pipelined-shared", 1000, 30),
    ],
)
def test_a_party_computes_again_what_its_disk_had_not_taken(
    rows: Path, mode: str, save_steps: int, at: int, tmp_path: Path
) -> None:
    with Network(small(rows, mode, save_steps), tmp_path, lives=2, fates=Fates("left", Fate(at))) as network:
        network.revive = False
        network.join_all()
        requests = network._served().requests
        network.watch = lambda: requests.stopping.set() if network.futures["left"].done() else None
        with pytest.raises(Interrupted):
            list(network._served().train())
        network.kill_server()
        process_of(network.joinings["left"]).message_log.close()
        assert lose(tmp_path / "left") or save_steps == 1
        network.watch = lambda: None
        network.join("left")
        network.restart_server()
        assert_same(undisturbed(rows, mode), network.run())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "save_steps", "at"),
    [
        ("private", 2, 30),
        ("private", 3, 60),
        ("shared", 1, 40),
        ("shared", 1000, 60),
        ("pipelined-shared", 2, 30),
        ("pipelined-shared", 1000, 60),
    ],
)
def test_the_server_computes_again_what_its_disk_had_not_taken(
    rows: Path, mode: str, save_steps: int, at: int, tmp_path: Path
) -> None:
    with Network(small(rows, mode, save_steps), tmp_path, fates=Fates("", Fate(at))) as network:
        network.join_all()
        with pytest.raises(Killed):
            list(network._served().train())
        network.kill_server()
        lost = lose(tmp_path / "server")
        assert lost or save_steps < 1000
        network.restart_server()
        assert_same(undisturbed(rows, mode), network.run())


# After the end.


def test_more_epochs_go_on_from_the_end(rows: Path, tmp_path: Path) -> None:
    for mode in ("private", "shared", "pipelined-shared"):
        for epochs in (1, 2, 4):
            with Network(small(rows, mode, epochs=epochs), tmp_path / mode) as network:
                outcome = network.run()
        assert_same(undisturbed(rows, mode, 4), outcome)


def test_a_party_that_was_away_at_the_end_hears_of_it_later(rows: Path, tmp_path: Path) -> None:
    run = small(rows)
    fate = FrameFate(FrameKind.STOP, "in")
    with Network(run, tmp_path, fates=Fates("left", fate)) as network:
        network.revive = False
        network.join_all()
        list(network._served().train())
        while network._served().finish() != {"left"}:  # until the other one has said goodbye
            network._look()
        assert network._served().finish() == {"left"}
    with Network(run, tmp_path) as network:
        serving = network._served()
        assert serving.finished
        assert list(serving.train()) == []
        network.join("left")
        network.finish()
        assert serving.finish() == set()


def test_a_party_that_died_after_its_goodbye_is_told_again(rows: Path, tmp_path: Path) -> None:
    with Network(small(rows), tmp_path, lives=2) as network:
        first = network.run()
        process_of(network.joinings["left"]).message_log.close()
        network.join("left")
        network.finish()
        assert_same(first, network.outcome())


def test_all_may_come_back_after_the_end_and_answer_questions(rows: Path, tmp_path: Path) -> None:
    run = small(rows)
    with Network(run, tmp_path) as network:
        first = network.run()
    made = federation(run)
    list(made.train(run.epochs, 1, gradient=False))
    with Network(run, tmp_path) as network:
        network.join_all()
        serving = network._served()
        serving.requests.told.clear()  # as `efvfl predict` does
        ids = serving.data.ids["test"]
        features = dict(zip(made.parties, made.splits["test"].features, strict=True))
        assert torch.equal(serving.predict_split("test"), made.predict(features))
        found = serving.predict(ids[::-1]).output
        assert torch.allclose(found, serving.predict_split("test").flip(0), atol=1e-6)
        for count in (1, 3, len(ids)):  # each row is computed alone, so it does not matter what it is asked with
            assert torch.equal(serving.predict(ids[:count]).output, found.flip(0)[:count])
        network.finish()  # they are told again, and go
        assert_same(first, network.outcome())


# A member without a wire.


class Table:
    """The server's half by hand: it says what the next request to every party is."""

    def __init__(self, run: RunConfig) -> None:
        self.server = federation(run).server
        self.number = 0
        self.messages: dict[str, Message] = self.server.begin()

    def request(self, name: str, durable: int = 0) -> Frame:
        return Frame(FrameKind.REQUEST, self.number, durable, self.messages[name].to_bytes())

    def step(self, members: dict[str, PartyProcess], hold: bool = False, durable: int = 0) -> dict[str, Frame]:
        """Let all parties answer and make the next request."""
        replies = {name: answer_of(member, self.request(name, durable)) for name, member in members.items()}
        self.messages = self.server.step({n: Message.from_bytes(r.body) for n, r in replies.items()}, hold)
        self.number += 1
        return replies


@pytest.fixture
def alone(rows: Path, tmp_path: Path) -> Iterator[Callable[..., dict[str, PartyProcess]]]:
    """Makes members without a network, or makes them again in their folders."""
    made: list[PartyProcess] = []

    def make(limits: LimitConfig | None = None, **more: Any) -> dict[str, PartyProcess]:
        run = small(rows, **more)
        members = {name: member(ready(run, name), tmp_path / name) for name in PARTIES}
        for one in members.values():
            one.limits = limits or LimitConfig()
        made.extend(members.values())
        return members

    yield make
    for one in made:
        one.message_log.close()


Alone = Callable[..., dict[str, PartyProcess]]


def test_a_repeated_request_gets_the_same_bytes(rows: Path, alone: Alone) -> None:
    members, table = alone(save_steps=2), Table(small(rows))
    asked: list[tuple[Frame, Frame]] = []
    for _ in range(5):
        frame = table.request("left")
        asked.append((frame, table.step(members)["left"]))
        members["left"].save_if_due()
        before = members["left"].ledger.table()
        for request, reply in asked:
            assert answer_of(members["left"], request).body == reply.body
        assert members["left"].ledger.table() == before
    again = alone()["left"]
    assert again.handled == 4
    assert [answer_of(again, request).body for request, _ in asked] == [reply.body for _, reply in asked]


def test_a_request_after_a_gap_is_refused(rows: Path, alone: Alone) -> None:
    members, table = alone(), Table(small(rows))
    table.step(members)
    for number in (2, 3, 1000):
        with pytest.raises(ProtocolError, match=f"expected request 1, got request {number}"):
            members["left"].respond(replace(table.request("left"), number=number))
    table.step(members)  # nothing has changed


def test_stop_comes_after_the_last_request_only(rows: Path, alone: Alone) -> None:
    members, table = alone(), Table(small(rows))
    table.step(members)
    for number in (0, 2):
        with pytest.raises(ProtocolError, match=f"expected STOP after request 1, got one after request {number}"):
            members["left"].respond(Frame(FrameKind.STOP, number))
    assert not members["left"].finished
    for _ in range(2):  # a second time changes nothing
        bye = answer_of(members["left"], Frame(FrameKind.STOP, 1))
        assert (bye.kind, bye.number, len(bye.body)) == (FrameKind.BYE, 1, DIGEST)
    assert alone()["left"].finished


def test_what_the_server_has_saved_is_forgotten_and_what_it_has_not_is_kept(rows: Path, alone: Alone) -> None:
    members, table = alone(save_steps=1), Table(small(rows))
    for _ in range(4):
        table.step(members, durable=max(0, table.number - 1))
        members["left"].save_if_due()
    assert (members["left"].message_log.start, members["left"].message_log.end) == (2, 4)


def test_a_limit_on_bytes_holds_to_the_byte(rows: Path, alone: Alone, tmp_path: Path) -> None:
    members, table = alone(), Table(small(rows))
    sent = [len(table.step(members)["left"].body) for _ in range(3)]
    for allowed in (sum(sent), sum(sent) - 1):
        shutil.rmtree(tmp_path / "left")
        shutil.rmtree(tmp_path / "right")
        members, table = alone(), Table(small(rows))
        members["left"].limits = LimitConfig(bytes=allowed)
        table.step(members)
        table.step(members)
        if allowed == sum(sent):
            table.step(members)
    left = members["left"]
    with pytest.raises(LimitError, match=rf"left sent to {sum(sent):,} bytes, .* allows {allowed:,}"):
        left.respond(table.request("left"))
    assert left.ledger.total("up") == sum(sent[:2])
    assert (left.handled, left.message_log.end) == (2, 2)  # nothing is kept of what was not sent


def test_a_limit_on_steps_ends_before_the_next_report(rows: Path, alone: Alone) -> None:
    members, table = alone(LimitConfig(steps=2)), Table(small(rows))
    table.step(members)
    table.step(members)
    with pytest.raises(LimitError, match="takes part in 2 steps"):
        members["left"].respond(table.request("left"))
    assert members["left"].handled == 2


def ask(start: int, stop: int, number: int = 1) -> Frame:
    asked = question({"ids": [f"row{n}" for n in range(start, stop)]})
    return Frame(FrameKind.ASK, number, 0, asked)


def test_a_limit_on_rows_outlives_a_crash(alone: Alone) -> None:
    first = alone(LimitConfig(rows=15))["left"]
    first.respond(ask(0, 10, 1))
    first.message_log.close()
    again = alone(LimitConfig(rows=15))["left"]  # it was not saved otherwise
    again.respond(ask(0, 5, 1))
    with pytest.raises(LimitError, match=r"16 rows .* allows 15"):
        again.respond(ask(5, 6, 2))


def test_a_question_that_is_repeated_on_its_way_gives_no_more_rows(alone: Alone) -> None:
    left = alone(LimitConfig(rows=15))["left"]
    assert left.respond(ask(0, 10)) == left.respond(ask(0, 10))
    assert left.rows_given.value == 10


def spoken(started: PartyProcess, frames: list[Frame]) -> list[Frame]:
    """Return what a party says on a link on which these frames come, one after another."""
    here, there = memory_pair()
    for frame in (json_frame(FrameKind.WELCOME, {"number": 0}), *frames):
        there.send(frame.to_bytes())
    Dialler(started, lambda: here, WAITING).run()
    return list(heard(there))


def heard(wire: MemoryWire) -> Iterator[Frame]:
    with contextlib.suppress(LinkError, TimeoutError):
        while True:
            yield Frame.from_bytes(wire.receive(0))


def test_a_request_that_was_overtaken_on_its_way_is_no_harm(rows: Path, alone: Alone, tmp_path: Path) -> None:
    """It was sent twice, and its copy arrives after a request that said that the server had saved beyond it."""
    members, table = alone(), Table(small(rows))
    requests = []
    for durable in (0, 1, 2):
        requests.append(table.request("left", durable))
        table.step(members)
    shutil.rmtree(tmp_path / "left")
    late = [requests[0], requests[1], requests[0], requests[2], requests[0], requests[1]]
    replies = spoken(alone(save_steps=1)["left"], [*late, Frame(FrameKind.STOP, 3, 2)])
    assert [frame.kind for frame in replies] == [FrameKind.HELLO, *[FrameKind.REPLY] * 5, FrameKind.BYE]
    assert [frame.number for frame in replies] == [0, 0, 1, 0, 2, 1, 3]  # once it is forgotten, it is not answered


def test_a_server_from_a_backup_is_told_so(rows: Path, alone: Alone, tmp_path: Path) -> None:
    """A request of long ago on a new link is no late copy: whoever sends it has lost what it had saved."""
    members, table = alone(save_steps=1), Table(small(rows))
    first = table.request("left")
    for durable in (0, 1, 2):
        table.step(members, durable=durable)
        members["left"].save_if_due()
    with pytest.raises(CheckpointError, match=r"keeps entries \d to 2, but 0 is needed.*backup"):
        spoken(alone()["left"], [first])


def test_the_same_question_after_more_training_gets_a_new_answer(rows: Path, alone: Alone) -> None:
    """A server that restarts counts its questions from 1 again, and asks the same of the same rows."""
    members, table = alone(), Table(small(rows))
    table.step(members)
    left = members["left"]
    before = left.respond(ask(0, 5))
    table.step(members)
    after = left.respond(ask(0, 5))
    assert before is not None
    assert after is not None
    assert before.body != after.body
    assert after.body == left.represent(ask(0, 5).body)[1]


# Folders of another run.


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"seed": 1}, "seed: 0 then, 1 now"),
        ({"batch_size": 9}, "batch_size: 8 then, 9 now"),
        ({"file": "swapped.npz"}, "rows"),
    ],
)
def test_a_checkpoint_of_other_settings_or_rows_is_refused(
    rows: Path, changes: dict[str, Any], what: str, tmp_path: Path
) -> None:
    run = small(rows)
    with Network(run, tmp_path) as network:
        first = network.run()
    deeper = small(rows, party=[{"name": "left", "model": {"hidden": [7], "width": 4}}])
    with pytest.raises(CheckpointError, match=r"left/checkpoint.* \(model.hidden: \[\] then, \[7\] now\)"):
        member(ready(deeper, "left"), tmp_path / "left")
    other = small(rows, **changes)
    with pytest.raises(CheckpointError, match=rf"left/checkpoint.* other settings or rows \({what}"):
        member(ready(other, "left"), tmp_path / "left")
    with pytest.raises(CheckpointError, match=rf"server/checkpoint.* other settings or rows \({what}"):
        ServerProcess(other, participant_data.load(other, Path(), ""), tmp_path / "server")
    with Network(run, tmp_path) as network:  # nothing was spoilt
        for name in PARTIES:
            network.join(name, run=False)
        assert_same(first, network.outcome())


def test_what_is_not_shared_may_change_between_two_starts(rows: Path, tmp_path: Path) -> None:
    with Network(small(rows, epochs=1), tmp_path) as network:
        network.run()
    limits = {"name": "left", "limits": {"bytes": 10**9}}
    with Network(small(rows, save_steps=1, party=[limits]), tmp_path) as network:
        assert_same(undisturbed(rows, "private"), network.run())


# Who does not fit is refused, and the others go on.


def intruder(network: Network, made: Ready, folder: Path, **about: Any) -> Callable[[], str]:
    """Let somebody in the name of a party try first; when it has been refused, the right one joins."""
    wrong = member(replace(made, about=made.about | about), folder)
    name = made.party.name
    joining = Dialler(wrong, lambda: network.dial(name), network.waiting)
    refused = network.intrude(joining)
    for other in network.names:
        if other != name:
            network.join(other)

    def watch() -> None:
        if refused.done() and name not in network.joinings:
            network.join(name)

    network.watch = watch

    def text() -> str:
        with pytest.raises(RefusedError) as caught:
            refused.result(timeout=0)
        return str(caught.value)

    return text


def goes_on(network: Network) -> None:
    """The run ends as if nobody had disturbed it."""
    list(network._served().train())
    network.finish()
    assert_same(undisturbed(Path(network.config.data.path).parent, "private"), network.outcome())


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"batch_size": 9}, ["batch_size: the server has 8, left has 9"]),
        ({"seed": 4}, ["seed: the server has 0, left has 4"]),
        (
            {"method": {"name": "cvfl", "compressor": {"name": "topk", "ratio": 0.3}}},
            [
                "method.compressor.ratio: the server has 0.2, left has 0.3",
                "method.down.name: the server has 'qsgd', left has None",
                "method.name: the server has 'efvfl', left has 'cvfl'",
            ],
        ),
        ({"agreement": {"reports": "all"}}, ["agreement.reports: the server has 'batch', left has 'all'"]),
        (
            {"agreement": {"memory_dtype": "bfloat16"}},
            ["agreement.memory_dtype: the server has '', left has 'bfloat16'"],
        ),
        ({"optimizer": {"name": "Adam"}}, ["optimizer.name: the server has 'SGD', left has 'Adam'"]),
        ({"file": "fewer.npz"}, ["the server holds 24 train rows, left holds 20: align the tables"]),
        ({"file": "swapped.npz"}, ["rows each, but not the same ids in the same order: align the tables"]),
    ],
    ids=["batch-size", "seed", "method", "agreement", "memory", "optimizer", "row-count", "row-order"],
)
def test_another_file_is_refused_with_what_differs(
    rows: Path, changes: dict[str, Any], texts: list[str], tmp_path: Path
) -> None:
    with Network(small(rows), tmp_path / "run") as network:
        text = intruder(network, ready(small(rows, **changes), "left"), tmp_path / "wrong")
        goes_on(network)
        for expected in texts:
            assert expected in text()


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"protocol": 2}, "the server speaks protocol 3, left speaks 2: install the same release"),
        ({"name": "nobody"}, "'nobody' is not a party of this federation; they are left, right"),
        ({"rows": {}}, "left sent no table of its rows"),
    ],
    ids=["protocol", "name", "rows"],
)
def test_who_says_something_else_of_itself_is_refused(
    rows: Path, about: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    run = small(rows)
    with Network(run, tmp_path / "run") as network:
        text = intruder(network, ready(run, "left"), tmp_path / "wrong", **about)
        goes_on(network)
        assert expected in text()


def test_a_party_that_remembers_something_else_is_refused(rows: Path, tmp_path: Path) -> None:
    run = small(rows)
    fates = Fates("", FrameFate(FrameKind.ANSWER, "in", kill=False))  # parties hold: both ends have handled as many
    with Network(run, tmp_path / "run", fates=fates) as network:
        network.join_all()
        with pytest.raises(Interrupted):
            list(network._served().train())
    shutil.copytree(tmp_path / "run" / "left", tmp_path / "wrong")
    spoilt = member(ready(run, "left"), tmp_path / "wrong")
    assert spoilt.handled == 4
    spoilt.party.up.memory.g[0] += 1
    spoilt.save()
    with Network(run, tmp_path / "run") as network:
        text = intruder(network, ready(run, "left"), tmp_path / "wrong")
        goes_on(network)
        assert "the server and left have both handled 4 requests but do not remember the same" in text()


def test_a_party_whose_folder_is_gone_is_refused(rows: Path, tmp_path: Path) -> None:
    run = small(rows, save_steps=1)
    fates = Fates("", FrameFate(FrameKind.ANSWER, "in", kill=False))
    with Network(run, tmp_path / "run", fates=fates) as network:
        network.join_all()
        with pytest.raises(Interrupted):
            list(network._served().train())
    with Network(run, tmp_path / "run") as network:
        text = intruder(network, ready(run, "left"), tmp_path / "empty")
        goes_on(network)
        assert "left has handled 0 requests, but the log here begins at" in text()


def test_a_second_party_of_the_same_name_waits(rows: Path, tmp_path: Path) -> None:
    run = small(rows)
    with Network(run, tmp_path / "run", lives=2) as network:
        second = member(network.spare["left"].pop(), tmp_path / "second")
        joining = Dialler(second, lambda: network.dial("left"), network.waiting)
        refused: list[str] = []
        tries: list[Future[None]] = []

        def note(name: str, direction: str, frame: Frame) -> None:
            if frame.kind == FrameKind.REFUSE:
                refused.append(str(frame.json()["text"]))
                joining.stopping.set()

        def watch() -> None:
            if not tries and "left" in network._served().requests.connections:
                tries.append(network.intrude(joining))
            elif tries and tries[0].done() and "right" not in network.joinings:
                network.join("right")

        joining.on_frame = note
        network.watch = watch
        network.join("left")
        goes_on(network)
        assert isinstance(tries[0].exception(), Interrupted)
        assert refused[0].startswith("left is connected already")


def test_a_chatty_party_does_not_keep_the_server_from_its_clock(rows: Path, alone: Alone, tmp_path: Path) -> None:
    """The request to one party is lost, and must be sent again although the other one never stops to talk."""
    members, asked, said = alone(), 0, 0
    ends = {name: memory_pair() for name in PARTIES}

    def wrote(name: str, direction: str, frame: Frame) -> None:
        nonlocal asked, said
        if frame.kind == FrameKind.REQUEST:
            asked += name == "right" and frame.number == 0
            if name == "left" or asked > 1:
                reply = members[name].respond(frame)
                assert reply is not None
                ends[name][1].send(reply.to_bytes())
        elif name == "left" and frame.kind == FrameKind.REPLY:
            said += 1
            assert said < 50_000, "nobody looks at the clock"
            ends[name][1].send(frame.to_bytes())

    run = small(rows)
    serving = ServerProcess(run, participant_data.load(run, Path(), ""), tmp_path / "server", TIMEOUTS, Hooks(wrote))
    for name in PARTIES:
        serving.requests.accept(ends[name][0], None)
        ends[name][1].send(members[name].hello().to_bytes())
    try:
        serving.advance()
    finally:
        serving.requests.close()
        serving.message_log.close()
    assert asked == 2
