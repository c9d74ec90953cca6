"""Early stopping, the kept model and the plateau: over wires as in one process, and whoever dies on the way."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from malicious import MaliciousParty, MaliciousServer, filled
from meetings import VICTIM, Meeting, close_logs, make_member, settings  # noqa: F401
from networks import Fate, Network, Outcome, assert_same, config, networked, reference
from recovery import disturbed, rows, small  # noqa: F401

from efvfl.config.run_file import RunConfig
from efvfl.core.channel import send_bytes, send_exactly
from efvfl.core.decision import Decision
from efvfl.errors import ProtocolError, WireError
from efvfl.network import handshake
from efvfl.network.links.frame import FrameKind
from efvfl.network.training import build, participant_data
from efvfl.wire.message import Kind, Message

PLATEAU = {"name": "ReduceLROnPlateau", "patience": 0, "factor": 0.5}


def watched(rows: Path, mode: str = "private", save_steps: int = 1000, **more: Any) -> RunConfig:
    """Labels are noise, so the validation loss is soon as low as it gets."""
    data = {"name": "npz", "path": str(rows / "rows.npz"), "subset": 0, "validation": 0.2, "test": 0.2}
    chosen: dict[str, Any] = {"data": data, "epochs": 8, "patience": 2} | more
    return small(rows, mode, save_steps, **chosen)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "private": ("private", {}),
    "svfl": ("private", {"method": {"name": "svfl"}}),
    "label-holder": ("label-holder", {}),
    "shared": ("shared", {"optimizer": {"name": "SGD", "lr": 0.3, "momentum": 0.9, "scheduler": PLATEAU}}),
    "window": ("window", {"optimizer": {"name": "Adam", "lr": 0.01, "scheduler": PLATEAU}}),
    "pipelined-shared": ("pipelined-shared", {}),
    "plateau": ("private", {"patience": 0, "optimizer": {"name": "SGD", "lr": 0.5, "scheduler": PLATEAU}}),
}


def case_of(rows: Path, case: str, **more: Any) -> RunConfig:
    mode, settings = CASES[case]
    return watched(rows, mode, **(settings | more))


@cache
def calm(rows: Path, case: str, epochs: int = 8) -> Outcome:
    return reference(case_of(rows, case, epochs=epochs))


@pytest.mark.parametrize("case", CASES)
def test_a_run_over_wires_stops_where_one_process_does(rows: Path, case: str, tmp_path: Path) -> None:
    found = networked(case_of(rows, case), tmp_path)
    assert_same(calm(rows, case), found)
    last, before = found.records[-1], found.records[:-1]
    if "plateau" in case:
        assert last["epoch"] == 8
    else:  # no better loss for two epochs, and the others hold the kept model
        assert last["epoch"] - 2 == int(last["kept"]) < 8
        assert found.server["evaluation"]["kept"]["in_use"]
        assert all(party["evaluation"]["kept"]["in_use"] for party in found.parties.values())
    assert last["test"]
    assert not any(record["test"] for record in before)  # test rows are sent once
    sent = last["ledger"]["up"]["left"]["evaluation"]
    assert all(record["ledger"]["up"]["left"]["evaluation"] < sent for record in before)


@pytest.mark.parametrize("who", ["", "left"], ids=["server", "party"])
def test_whoever_dies_when_held_out_rows_are_evaluated_the_run_ends_alike(rows: Path, who: str, tmp_path: Path) -> None:
    """One epoch of one step is enough to be asked, told to keep the model, and asked for the exact rows."""
    run = case_of(rows, "shared", epochs=1, save_steps=1, batch_size=0)
    expected, undisturbed = reference(run), Fate()
    assert_same(expected, disturbed(run, tmp_path / "calm", who, undisturbed))
    for at in range(4, undisturbed.events + 1):
        outcome = disturbed(run, tmp_path / str(at), who, Fate(at, kill=at % 4 > 0))
        assert_same(expected, replace(outcome, copies=expected.copies))


@pytest.mark.slow
@pytest.mark.parametrize("who", ["", "left"], ids=["server", "party"])
@pytest.mark.parametrize("case", ["private", "window"])
def test_so_it_is_in_a_run_that_stops(rows: Path, case: str, who: str, tmp_path: Path) -> None:
    undisturbed = Fate()
    disturbed(case_of(rows, case, save_steps=3), tmp_path / "calm", who, undisturbed)
    for at in range(5, undisturbed.events + 1, 67):
        outcome = disturbed(case_of(rows, case, save_steps=3), tmp_path / str(at), who, Fate(at))
        assert_same(replace(calm(rows, case), copies={}), replace(outcome, copies={}))


def test_more_epochs_or_more_patience_go_on_from_the_last_model(rows: Path, tmp_path: Path) -> None:
    short, stopped = case_of(rows, "private", epochs=2), case_of(rows, "private")
    with Network(short, tmp_path, lives=3) as network:
        assert_same(reference(short), network.run())
        for longer in (stopped, replace(stopped, patience=8)):
            network.config = longer
            network.restart_server()
            network.join_all()
            # FINAL was asked for once more in the middle, which costs bytes; all else is as in one go.
            assert_same_but_bytes(reference(longer), network.run())


def assert_same_but_bytes(left: Outcome, right: Outcome) -> None:
    def without(outcome: Outcome) -> Outcome:
        kept = ("epoch", "step", "surrogate_loss", "kept")
        records = [{name: record[name] for name in kept} for record in outcome.records]
        parties = {name: party | {"open": None} for name, party in outcome.parties.items()}
        return replace(outcome, records=records, parties=parties, ledger={}, ledgers={})

    assert_same(without(left), without(right))


def test_predictions_are_those_of_the_kept_model(rows: Path, tmp_path: Path) -> None:
    run = case_of(rows, "private")
    with Network(run, tmp_path, lives=2) as network:
        found = network.run()
        network.restart_server().requests.told.clear()
        network.join_all()
        assert network.serving is not None
        assert network.serving.finished  # the server of `efvfl predict` knows that it has stopped
        output = network.serving.predict_split("validation")
        labels = network.serving.data.labels["validation"]
        loss = float(network.serving.server.loss(output, labels))
        assert loss == pytest.approx(found.records[-1]["validation"]["loss"], rel=1e-3)  # of rows to a byte a number
        assert loss != pytest.approx(network.serving.records[-2].validation["loss"], rel=1e-3)  # of the last model


# What a party refuses of a server, and a server of a party.


def decision(*flags: object, number: int = 1, step: int = 0, hold: bool = True) -> Message:
    return Message(Kind.DECIDE, step, {number: send_bytes(*flags)}, hold)  # type: ignore[arg-type]


KEEP, USE, RATE, NO = (Decision(**d).packets()[0].body for d in ({"keep": True}, {"use": True}, {"rate": 0.5}, {}))
WRONG: dict[str, tuple[Message, str]] = {
    "another step": (decision(KEEP, step=3), "top-left: expected DECIDE with hold for step 0 and no open report, got"),
    "no hold": (decision(KEEP, hold=False), "expected DECIDE with hold for step 0"),
    "the block of another": (decision(KEEP, number=2), r"expected a decision in block 1 alone, got \[2\]"),
    "nothing decided upon": (Message(Kind.DECIDE, 0, {}, True), r"expected a decision in block 1 alone, got \[\]"),
    "a decision cut short": (decision(KEEP[:-1]), "a decision: expected 9 bytes, got shape"),
    "numbers": (
        Message(Kind.DECIDE, 0, {1: send_exactly(torch.ones(9))}, True),
        "a decision: expected one packet of plain bytes",
    ),
    "an unknown flag": (decision(b"\x04" + KEEP[1:]), "a decision: expected flags from 0 to 3 and a rate, got 4"),
    "a rate that is no number": (
        decision(b"\0" + np.float64("nan").tobytes()),
        "expected flags from 0 to 3 and a rate, got 0 and nan",
    ),
    "a rate below zero": (decision(b"\0" + np.float64(-1).tobytes()), "and a rate, got 0 and -1"),
    "nothing kept": (decision(USE), "top-left: expected to be told to keep a model before it is used"),
    "no plateau": (decision(RATE), "expected a learning rate of none, as no plateau was agreed on, got 0.5"),
    "blocks with a question": (
        Message(Kind.EVALUATE, 0, {1: send_bytes(b"all")}, True),
        r"expected EVALUATE without blocks about rows held here, got blocks \[1\]",
    ),
    "a question about another step": (Message(Kind.FINAL, 1, {}, True), "expected FINAL with hold for step 0"),
    "a party's kind": (Message(Kind.EVALUATION, 0, {}, True), "top-left: expected BEGIN at step 0, got EVALUATION"),
}


@pytest.mark.attack(
    by="the label holder",
    tries="sends decisions that nobody agreed on: another rate, a model that was never kept, flags that mean nothing",
    outcome="refused before anything changes",
)
@pytest.mark.parametrize("case", WRONG)
def test_a_party_refuses_a_wrong_decision_or_question(case: str, tmp_path: Path) -> None:
    message, text = WRONG[case]
    server = MaliciousServer(make_member(settings(patience=3), "top-left", tmp_path))
    before = server.member.party.state_dict()
    with pytest.raises((ProtocolError, WireError), match=text):
        server.request(message)
    assert str(server.member.party.state_dict()) == str(before)


def test_a_party_that_did_not_agree_is_not_asked_and_not_told(tmp_path: Path) -> None:
    server = MaliciousServer(make_member(settings(), "top-left", tmp_path))
    for kind in (Kind.EVALUATE, Kind.FINAL, Kind.DECIDE):
        with pytest.raises(ProtocolError, match=f"did not agree to evaluate by messages, got {kind.name}"):
            server.request(Message(kind, 0, {}, True))


def test_a_rate_may_only_fall(tmp_path: Path) -> None:
    optimizer = {"name": "SGD", "lr": 0.4, "scheduler": PLATEAU}
    server = MaliciousServer(make_member(settings(optimizer=optimizer), "top-left", tmp_path))
    with pytest.raises(ProtocolError, match=r"expected a learning rate of at most 0\.4, got 0\.5"):
        server.request(decision(RATE))
    server.request(decision(Decision(rate=0.1).packets()[0].body))
    assert server.member.party.block.rate == 0.1


def evaluation(step: int = 0, number: int = 1, shape: tuple[int, ...] = (269, 16), value: float = 0.0) -> Message:
    return Message(Kind.EVALUATION, step, {number: send_exactly(torch.full(shape, value))})


EVALUATE, FINAL = (Message(kind, 0, {}, True) for kind in (Kind.EVALUATE, Kind.FINAL))
REPLIES: dict[str, tuple[Message, Message, str]] = {
    "another kind": (EVALUATE, Message(Kind.READY, 0), "top-left: expected EVALUATION for step 0 with block 1, got R"),
    "another step": (EVALUATE, evaluation(step=1), "expected EVALUATION for step 0 with block 1, got EVALUATION for s"),
    "the block of another": (EVALUATE, evaluation(number=2), r"with blocks \[2\]"),
    "a row too few": (EVALUATE, evaluation(shape=(268, 16)), r"expected shape \(269, 16\) .* got \(268, 16\)"),
    "huge numbers": (EVALUATE, evaluation(value=3e38), "top-left's validation rows: expected values of at most 1e"),
    "no test rows": (FINAL, evaluation(), r"expected a packet for each of \['validation', 'test'\], got 1"),
    "a decision not confirmed": (decision(KEEP), evaluation(), "expected an empty READY for step 0, as it was told"),
}


@pytest.mark.parametrize("case", REPLIES)
def test_a_server_refuses_a_wrong_evaluation(case: str, tmp_path: Path) -> None:
    asked, reply, text = REPLIES[case]
    run = settings(patience=3)
    holding = participant_data.load(run, Path(), "")
    assert len(holding.ids["validation"]) == 269
    server = build.build_server(run, build.make_plan(run, holding), holding)
    with pytest.raises(ProtocolError, match=text):
        server.check("top-left", reply, asked)


@pytest.mark.attack(
    by="a party",
    tries="reports 3e38 in every entry of its validation rows, so that no loss can be told from another",
    outcome="refused by name before anything is absorbed; the evaluation waits for the right ones",
)
def test_a_party_with_absurd_validation_rows_is_refused_by_name(tmp_path: Path) -> None:
    made = Meeting(tmp_path, settings(patience=2))
    made.start(*(name for name in made.requests.names if name != VICTIM))
    try:
        rogue = MaliciousParty(made)
        asked = rogue.deviate(FrameKind.REQUEST, filled(3e38), after=5)  # four steps, and what follows them
        assert Message.from_bytes(asked.body).kind == Kind.EVALUATE
        assert rogue.refused().startswith("top-left's validation rows: expected values of at most 1e+12, got one of 3e")
        made.join(VICTIM)
        made.finish()
    finally:
        made.stop()


def test_files_must_agree_on_how_rows_are_evaluated(tmp_path: Path) -> None:
    held = {"train": ["a"], "validation": ["b"]}
    server, party = (handshake.about(config(**more), "left", ["left"], held) for more in ({"patience": 2}, {}))
    with pytest.raises(ProtocolError, match="evaluation: the server has 'compressed', left has None"):
        handshake.compare(server, party)
    other = handshake.about(config(patience=5), "left", ["left"], held)  # how long it waits is the server's alone
    handshake.compare(server, other)
