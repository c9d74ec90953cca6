"""A party is a message handler: what it accepts, what it refuses, what it answers twice."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from problems import Labels, columns, everything, problem, same

from efvfl import QSGD, Agreement, EfvflError, Message, SharedLabels, TopK, efvfl, svfl
from efvfl.errors import ConfigError, ProtocolError
from efvfl.wire.message import Kind


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_a_repeated_message_gets_the_same_answer_and_does_no_harm(labels: Labels) -> None:
    plain = problem(efvfl(TopK(0.2)), agreement=Agreement(labels=labels), batch_size=16)
    repeated = problem(efvfl(TopK(0.2)), agreement=Agreement(labels=labels), batch_size=16)
    list(plain.train(2))
    messages = repeated.server.begin()
    for step in range(8):
        replies = {}
        for name, message in messages.items():
            first = repeated.parties[name].handle(message)
            again = repeated.parties[name].handle(Message.from_bytes(message.to_bytes()))
            assert first.to_bytes() == again.to_bytes()
            replies[name] = first
        messages = repeated.server.step(replies, hold=step == 7)
    for name, message in messages.items():
        assert repeated.parties[name].handle(message).kind == Kind.READY
        assert repeated.parties[name].handle(message).kind == Kind.READY
    assert same(everything(plain), everything(repeated))


def test_messages_out_of_turn_are_refused() -> None:
    federation = problem(efvfl(TopK(0.2)), batch_size=16)
    party = federation.parties["party1"]
    begin = federation.server.begin()["party1"]
    with pytest.raises(ProtocolError, match="expected a message for step 0, got one for 3"):
        party.handle(replace(begin, step=3))
    with pytest.raises(ProtocolError, match="expected BEGIN at step 0, got COTANGENT"):
        party.handle(Message(Kind.COTANGENT, 0))
    party.handle(begin)
    for kind in (Kind.RELAY, Kind.READY, Kind.REPORT, Kind.AGGREGATE):
        with pytest.raises(ProtocolError, match=f"expected COTANGENT at step 0, got {kind.name}"):
            party.handle(Message(kind, 0))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: replace(m, packets={}), r"expected block 1 alone, got blocks \[\]"),
        (lambda m: replace(m, packets={2: m.packets[1]}), r"got blocks \[2\]"),
        (lambda m: replace(m, packets={1: m.packets[1], 2: m.packets[1]}), r"got blocks \[1, 2\]"),
        (lambda m: replace(m, packets={1: m.packets[1] * 2}), "expected 1 packet, got 2"),
        (
            lambda m: replace(m, packets={1: (replace(m.packets[1][0], shape=(4, 16)),)}),
            r"expected shape \(16, 4\) .* got \(4, 16\)",
        ),
    ],
)
def test_a_wrong_cotangent_is_refused_before_anything_changes(change: Callable[[Message], Message], text: str) -> None:
    federation = problem(efvfl(TopK(0.2), down=TopK(0.3)), batch_size=16)
    replies = federation.transport.exchange(federation.server.begin())
    message = federation.server.step(replies)["party1"]
    party = federation.parties["party1"]
    before = everything(federation)
    with pytest.raises(EfvflError, match=text):
        party.handle(change(message))
    assert same(before, everything(federation))
    assert party.handle(message).kind == Kind.REPORT  # the right one is still welcome


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda r: r.pop("party2"), "reports of"),
        (
            lambda r: r.update(party2=replace(r["party2"], step=5)),
            "party2: expected REPORT on step 0 .* got REPORT for step 5",
        ),
        (lambda r: r.update(party2=Message(Kind.READY, 0)), "party2: expected REPORT .* got READY"),
        (lambda r: r.update(party2=r["party1"]), r"party2: .* block 2, got REPORT for step 0 with blocks \[1\]"),
    ],
)
def test_wrong_reports_are_refused(change: Callable[[dict[str, Message]], None], text: str) -> None:
    federation = problem(efvfl(TopK(0.2)), batch_size=16)
    replies = federation.transport.exchange(federation.server.begin())
    change(replies)
    with pytest.raises(ProtocolError, match=text):
        federation.server.step(replies)


def test_relay_refuses_other_blocks_than_the_peers() -> None:
    federation = problem(efvfl(TopK(0.2)), agreement=Agreement(labels="shared"), batch_size=16)
    replies = federation.transport.exchange(federation.server.begin())
    message = federation.server.step(replies)["party1"]
    wrong = replace(message, packets={k: v for k, v in message.packets.items() if k != 3})
    before = everything(federation)
    with pytest.raises(ProtocolError, match=r"expected blocks \[2, 3\] and perhaps 0, got \[0, 2\]"):
        federation.parties["party1"].handle(wrong)
    with pytest.raises(ProtocolError, match="fusion model: expected 1 packet, got 0"):
        federation.parties["party1"].handle(replace(message, packets={k: message.packets[k] for k in (2, 3)}))
    assert same(before, everything(federation))
    assert federation.parties["party1"].handle(message).kind == Kind.REPORT


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_dropout_and_noise_do_not_depend_on_what_ran_before(labels: Labels) -> None:
    def run(disturb: bool) -> list[torch.Tensor]:
        torch.manual_seed(11)
        models = [torch.nn.Sequential(torch.nn.Linear(n, 4), torch.nn.Dropout(0.5)).double() for n in (5, 3, 4)]
        agreement = Agreement(labels=labels)
        federation = problem(efvfl(QSGD(2), down=QSGD(4)), models=models, agreement=agreement, batch_size=16)
        for step in range(8):
            if disturb:
                torch.rand(step + 1)
            federation.step(hold=disturb and step % 3 == 0)
        state = torch.random.get_rng_state()
        federation.step(hold=True)
        assert torch.equal(state, torch.random.get_rng_state())  # and it leaves torch's generator alone
        return everything(federation)

    assert same(run(False), run(True))


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_a_refused_report_leaves_every_memory_as_it_was(labels: Labels) -> None:
    """Error feedback would not survive a report that is absorbed twice."""
    plain = problem(efvfl(TopK(0.2)), agreement=Agreement(labels=labels), batch_size=16)
    troubled = problem(efvfl(TopK(0.2)), agreement=Agreement(labels=labels), batch_size=16)
    for step in range(6):
        plain.step(hold=step == 5)
    messages = troubled.server.begin()
    for step in range(6):
        replies = {name: troubled.parties[name].handle(message) for name, message in messages.items()}
        packet = replies["party3"].packets[3][0]
        broken = replace(packet, body=packet.body[:-1], decoded=None)
        with pytest.raises(EfvflError):
            troubled.server.step(replies | {"party3": replace(replies["party3"], packets={3: (broken,)})})
        messages = troubled.server.step(replies, hold=step == 5)
        if labels == "shared":
            packet = messages["party1"].packets[3][0]
            broken = replace(packet, body=packet.body[:-1], decoded=None)
            wrong = replace(messages["party1"], packets={**messages["party1"].packets, 3: (broken,)})
            with pytest.raises(EfvflError):
                troubled.parties["party1"].handle(wrong)
    for name, message in messages.items():
        troubled.parties[name].handle(message)
    assert same(everything(plain), everything(troubled))


def test_private_keys_are_nobody_elses() -> None:
    """Noise and dropout of each participant come from a seed of its own, not from the shared one."""

    def keys(**options: object) -> dict[str, int]:
        run = problem(efvfl(QSGD(4), down=QSGD(4)), batch_size=16, **options)  # type: ignore[arg-type]
        found = {"batches": run.server.batches.seed, "fusion": run.server.plan.fusion_key}
        for name, party in run.parties.items():
            found |= {f"{name} noise": party.up.key, f"{name} dropout": party.model.key}  # type: ignore[attr-defined]
        for name, channel in run.server.label_mode.downs.items():  # type: ignore[attr-defined]
            found[f"server to {name}"] = channel.key
        return found

    first, other = keys(), keys(seed=1)
    assert len(set(first.values())) == len(first)
    assert not set(first.values()) & set(other.values())
    renamed = keys(features=dict(zip(("a", "b", "c"), columns(), strict=True)))
    assert renamed["batches"] == first["batches"]
    assert renamed["a noise"] != first["party1 noise"]


def test_every_local_update_draws_its_own_dropout_mask() -> None:
    class Listening(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(5, 4).double()
            self.masks: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.masks.append(torch.nn.functional.dropout(torch.ones(64), 0.5))
            return self.linear(x)  # type: ignore[no-any-return]

    listening = Listening()
    models = [listening, *(torch.nn.Linear(n, 4).double() for n in (3, 4))]
    run = problem(svfl(), models=models, agreement=Agreement(SharedLabels(local_steps=2)), batch_size=16)
    for _ in range(3):
        run.step()
    distinct = {tuple(mask.tolist()) for mask in listening.masks}
    assert len(distinct) == len(listening.masks) == 7  # two for each of three steps, and the report under way


def test_a_local_model_that_would_spoil_the_columns_is_refused() -> None:
    models = [torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(n, 4)).double() for n in (5, 3, 4)]
    x = columns()
    run = problem(svfl(), features=x, models=models)
    with pytest.raises(ConfigError, match="'party1' changes its input in place"):
        run.step()
    run = problem(svfl(), models=models, batch_size=16)  # a batch is a copy: no harm is done
    run.step()
