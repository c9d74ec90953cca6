"""A party's rows: all that leaves is clipped and has noise, every visit counts, and a budget ends it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from meetings import VICTIM, close_logs, make_member, settings  # noqa: F401
from problems import classes, columns, everything, local_models, problem, same
from torch import Tensor, nn

from efvfl import QSGD, Agreement, Federation, Optimizer, RowProtection, TopK, efvfl
from efvfl.config import own_file
from efvfl.config.run_file import LimitConfig, PartyConfig, RunConfig
from efvfl.core.accountant import epsilon_of
from efvfl.core.batches import Rows
from efvfl.core.channel import Channel, Packets
from efvfl.core.row_protection import RowClip
from efvfl.errors import CheckpointError, ConfigError, LimitError
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.training.party_process import PartyProcess
from efvfl.network.training.questions import read_answer
from efvfl.runs import spent_file
from efvfl.util import checkpoint
from efvfl.wire.message import Kind, Message

NOISY = RowProtection(clip=0.5, noise=2.0)
ROWS = {"party2": NOISY}
HELD: dict[str, Any] = {"validation": (columns(seed=5), classes(columns(seed=5))), "evaluation": "compressed"}


def leaving(run: Federation, name: str = "party2") -> list[tuple[Tensor, Tensor]]:
    """What a party's training rows are before and after noise, step by step, as `run` goes on."""
    found: list[tuple[Tensor, Tensor]] = []
    noise = run.parties[name].noise
    assert noise
    honest = noise.report

    def listening(h: Tensor, rows: Rows, step: int) -> Tensor:
        sent = honest(h, rows, step)
        found.append((h.detach(), sent))
        return sent

    noise.report = listening  # type: ignore[method-assign]
    return found


def sent_through(channel: Channel) -> list[Tensor]:
    """What a channel is given to send, as it goes on."""
    found: list[Tensor] = []
    honest = channel.send

    def listening(rows: Rows, value: Tensor, step: int, where: Tensor | None = None) -> tuple[Packets, Tensor]:
        found.append(value)
        return honest(rows, value, step, where)

    channel.send = listening  # type: ignore[method-assign]
    return found


def test_rows_are_clipped_and_gradients_flow_through_the_clip() -> None:
    x = torch.randn(20, 3, dtype=torch.float64, requires_grad=True)
    clip = RowClip(1.0)

    def clipped(x: Tensor) -> Tensor:
        return clip(nn.Identity(), (), x)

    norms, before = clipped(x).norm(dim=1).detach(), x.norm(dim=1).detach()
    assert float(norms.max()) == pytest.approx(1.0)
    assert torch.equal(clipped(x)[before < 1], x[before < 1])
    assert torch.autograd.gradcheck(clipped, (x,))
    assert torch.equal(clipped(torch.zeros(2, 3)), torch.zeros(2, 3))


@pytest.mark.parametrize("method", [None, efvfl(TopK(0.3), QSGD(4)), efvfl(TopK(0.3), start="mean")])
def test_all_that_is_sent_follows_from_clipped_rows_with_noise(method: Any) -> None:
    run = problem(method, batch_size=16, protect_rows=ROWS)
    found = leaving(run)
    sent = sent_through(run.parties["party2"].up)
    for _ in range(8):
        run.step()
    assert len(sent) == len(found) == 9  # the next report is under way
    for (h, noisy), given in zip(found, sent, strict=True):
        assert float(h.norm(dim=1).max()) <= NOISY.clip * (1 + 1e-9)
        assert given is noisy
    draws = torch.cat([(noisy - h).flatten() for h, noisy in found]) / (NOISY.clip * NOISY.noise)
    assert float(draws.std()) == pytest.approx(1.0, rel=0.1)
    assert len(draws.unique()) == len(draws)
    others = problem(method, batch_size=16)
    assert "noise" not in others.parties["party2"].state_dict()
    assert "noise" not in run.parties["party1"].state_dict()


def test_no_value_has_the_noise_of_another_and_a_repeated_one_has_the_same() -> None:
    def noise_of(seed: int) -> Tensor:
        models = [*local_models()[:1], *local_models(seed=seed)[1:]]
        run = problem(protect_rows=ROWS, models=models)
        found = leaving(run)
        run.step(hold=True)
        return found[0][1] - found[0][0]

    assert torch.equal(noise_of(2), noise_of(2))
    assert float((noise_of(2) - noise_of(3)).abs().min()) > 0


@pytest.mark.parametrize("labels", ["private", "shared"])
def test_a_resumed_run_goes_on_with_the_same_noise_and_count(labels: Any, tmp_path: Path) -> None:
    def build(chosen: RowProtection = NOISY) -> Federation:
        given = {"party2": chosen} if chosen.on else {}
        return problem(efvfl(TopK(0.3)), batch_size=16, agreement=Agreement(labels=labels), protect_rows=given, **HELD)

    run = build()
    run.fit(1)
    checkpoint.save(tmp_path / "state", run.state_dict())
    resumed = build()
    resumed.load_state_dict(checkpoint.load(tmp_path / "state"))
    assert run.fit(3)[-1].spent == resumed.fit(3)[-1].spent
    assert same(everything(run), everything(resumed))
    for other in (RowProtection(0.5, 1.0), RowProtection()):
        with pytest.raises(CheckpointError, match="restore protect"):
            build(other).load_state_dict(run.state_dict())


def test_every_visit_counts_and_what_is_announced_is_no_less() -> None:
    run = problem(batch_size=16, protect_rows=ROWS, **HELD)
    (promise,) = run.promises(2)
    records, noise = run.fit(2), run.parties["party2"].noise
    assert noise
    assert set(noise.visits.tolist()) == {2}
    assert noise.held_out == {"validation": 3}  # two records, and once finely at the end
    assert noise.most == 4  # one is kept for a prediction
    spent = records[-1].spent["rows of party2"]
    assert spent["epsilon"] == pytest.approx(epsilon_of(2 * math.sqrt(4) / 2, 1e-5))
    assert promise.startswith(f"This run will spend at most epsilon = {spent['epsilon']:.4g} at delta = 1e-05 after 4")
    assert "given its local model" in promise
    everywhere = problem(batch_size=16, agreement=Agreement(reports="all"), protect_rows=ROWS)
    everywhere.fit(1)
    assert everywhere.parties["party2"].noise
    assert set(everywhere.parties["party2"].noise.visits.tolist()) == {4}  # all rows at each of four steps
    clipped = problem(protect_rows={"party2": RowProtection(0.5)})
    assert clipped.promises(1)[0].startswith("No guarantee: each row's representation at party2")
    assert clipped.fit(1)[0].spent["rows of party2"]["epsilon"] == math.inf


def test_held_out_rows_leave_with_noise_or_not_at_all() -> None:
    seen: dict[str, list[Tensor]] = {}
    for name, rows in (("noisy", {"party2": RowProtection(100.0, 2.0)}), ("exact", {})):
        run = problem(protect_rows=rows, optimizer=Optimizer("SGD", {"lr": 0.0}), **HELD)
        evaluation = run.parties["party2"].evaluation
        assert evaluation
        seen[name] = sent_through(evaluation.channel)
        run.fit(2)
    first, second = seen["noisy"]
    assert float((first - seen["exact"][0]).std()) == pytest.approx(200.0, rel=0.2)
    assert not torch.allclose(first, second)  # the model has not changed, and it is another visit
    with pytest.raises(ConfigError, match="protect of a \\[\\[party\\]\\] does not go with evaluation that is exact"):
        problem(protect_rows=ROWS, **{**HELD, "evaluation": "exact"})


def test_what_cannot_be_protected_is_refused() -> None:
    normed = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    with pytest.raises(ConfigError, match="works on each row alone, got one with BatchNorm1d"):
        problem(protect_rows=ROWS, models=[local_models()[0], normed, local_models()[2]])
    with pytest.raises(ConfigError, match="its rows do not leave it"):
        problem(protect_rows=ROWS, label_holder="party2")
    with pytest.raises(ConfigError, match=r"expected names of the parties .* got 'nobody'"):
        problem(protect_rows={"nobody": NOISY})
    with pytest.raises(ConfigError, match=r"protect\.noise = 1\.0 of a party needs protect\.clip"):
        RowProtection(noise=1.0)
    with pytest.raises(ConfigError, match=r"limits\.epsilon of 'bank' needs protect\.clip"):
        PartyConfig("bank", limits=LimitConfig(epsilon=1.0))


# Over a network.


def protected(**limits: Any) -> RunConfig:
    party = {"name": VICTIM, "protect": {"clip": 1.0, "noise": 4.0}, "private_seed": 3, "limits": limits}
    return settings(party=[party], evaluation="compressed")


def asked(table: dict[str, Any], number: int = 1) -> Frame:
    return Frame(FrameKind.ASK, number, 0, json.dumps(table).encode())


def trained(folder: Path) -> PartyProcess:
    """A party that was told that training is over, before its first step."""
    member = make_member(protected(), VICTIM, folder)
    member.respond(Frame(FrameKind.STOP, 0, 0))
    return member


def test_a_party_ends_when_its_own_budget_is_spent(tmp_path: Path) -> None:
    run = protected()
    allowed = run.of(VICTIM).protect.accountant(VICTIM)
    member = make_member(run, VICTIM, tmp_path, LimitConfig(epsilon=allowed.epsilon(1)))
    with pytest.raises(
        LimitError, match=r"would leave it 2 times, predictions included, and its limits\.epsilon allows 1"
    ):
        member.respond(Frame(FrameKind.REQUEST, 0, 0, Message(Kind.BEGIN, 0).to_bytes()))
    assert not member.handled
    member = make_member(run, VICTIM, tmp_path / "more", LimitConfig(epsilon=allowed.epsilon(2)))
    assert member.respond(Frame(FrameKind.REQUEST, 0, 0, Message(Kind.BEGIN, 0).to_bytes())) is not None
    member.save()
    (line,) = spent_file.lines(spent_file.load(tmp_path / "more"))
    assert line.startswith(f"rows of {VICTIM}: epsilon = {allowed.epsilon(2):.4g} at delta = 1e-05, 2 visits")


@pytest.mark.attack(
    by="the label holder",
    tries="asks a party that protects its rows for them by place, by id while it trains, and again and again",
    outcome="refused until training is over; then each row has one noise, and the same is told whoever asks",
)
def test_rows_of_a_protected_party_are_given_with_noise_alone(tmp_path: Path) -> None:
    member = make_member(protected(), VICTIM, tmp_path / "training")
    with pytest.raises(LimitError, match="gives none by id before training is over"):
        member.respond(asked({"ids": ["test:0"]}))
    member = trained(tmp_path / "over")
    answer = member.respond(asked({"split": "test", "start": 0, "stop": 3}))
    assert answer is not None
    assert b"protects its rows, and gives none by their places" in answer.body
    assert member.party.noise is not None
    both = [member.respond(asked({"ids": ["test:0", "test:1"]})), member.respond(asked({"ids": ["test:1"]}, 2))]
    first, second = (
        read_answer(VICTIM, a.body, n, member.party.up.width[0]) for a, n in zip(both, (2, 1), strict=True) if a
    )
    assert torch.equal(first[1:], second)  # averaging over many questions would find the row
    assert member.party.noise.most == 1
    exact = member.party.model.represent(torch.stack([member.party.model.features[0]]), alone=True)  # type: ignore
    assert float(exact.norm()) <= 1 + 1e-6
    assert float(first.norm()) > 2
    again = make_member(protected(), VICTIM, tmp_path / "over")  # a restart changes none of it
    assert again.party.noise is not None
    assert again.party.noise.predicted == 1
    answer = again.respond(asked({"ids": ["test:1"]}, 3))
    assert answer is not None
    assert torch.equal(read_answer(VICTIM, answer.body, 1, again.party.up.width[0]), second)


def test_a_partys_own_file_protects_its_rows(tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_text(
        'evaluation = "compressed"\nlabel_holder = "bank"\n[[party]]\nname="shop"\n'
    )
    own = tmp_path / "shop.toml"
    own.write_text('federation = "federation.toml"\nparty = "shop"\n[protect]\nclip = 1.0\nnoise = 4.0\n')
    assert own_file.open_run(own)[0].of("shop").protect == RowProtection(1.0, 4.0)
    assert not own_file.open_run(own)[0].protect.on
    own.write_text('federation = "federation.toml"\nparty = "shop"\n[protect]\nvisits = { noise = 4.0 }\n')
    with pytest.raises(ConfigError, match="unknown key 'visits'"):
        own_file.open_run(own)[0]
