"""The three ways x0 reaches the parties."""

import warnings
from dataclasses import replace

import pytest
import torch
from problems import CLASSES, WIDTH, everything, parameters, problem, same
from torch import nn

from efvfl import Agreement, Federation, Optimizer, Packet, PrivateLabels, SharedLabels, TopK, efvfl
from efvfl.core.channel import send_bytes
from efvfl.core.fusion_replicas import MENDS, ReplicaSender
from efvfl.errors import ProtocolError
from efvfl.wire.packet import DTYPES

OPTIMIZER = Optimizer("SGD", {"lr": 0.3, "momentum": 0.9}, "StepLR", {"step_size": 1, "gamma": 0.7})


def rich_head() -> nn.Module:
    """A head with running statistics and dropout, which a replica must follow too."""
    torch.manual_seed(3)
    return nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, CLASSES)).double()


def federation(
    fusion: str, downlink: str = "relay", pipeline: int = 0, digest_every: int = 4, **options: object
) -> Federation:
    labels = SharedLabels(fusion=fusion, downlink=downlink, digest_every=digest_every, **options)  # type: ignore[arg-type]
    agreement = Agreement(labels, pipeline=pipeline)
    return problem(
        efvfl(TopK(0.2), fusion=TopK(0.5)), head=rich_head(), agreement=agreement, optimizer=OPTIMIZER, batch_size=16
    )


@pytest.mark.parametrize(("local_steps", "pipeline"), [(1, 0), (2, 0), (1, 3), (2, 2)])
@pytest.mark.parametrize("downlink", ["relay", "aggregate"])
def test_replication_equals_sending(downlink: str, local_steps: int, pipeline: int) -> None:
    runs = [federation(fusion, downlink, pipeline, local_steps=local_steps) for fusion in ("send", "replicate")]
    for run in runs:
        list(run.train(4))
    assert same(*(everything(run) for run in runs))
    sent, replicated = (
        {kind: n for (_, party, kind), n in run.ledger.bytes.items() if party == "party1"} for run in runs
    )
    assert "digest" not in sent
    assert replicated["digest"] > 0
    assert replicated["fusion"] < sent["fusion"] / 2  # one copy at the start, none after


@pytest.mark.parametrize("pipeline", [0, 3, 5])
def test_replicas_are_equal_to_the_server_bit_for_bit(pipeline: int) -> None:
    run = federation("replicate", pipeline=pipeline, digest_every=1)
    list(run.train(3, 2))
    assert not any(run.server.label_mode.sender.mends.values())  # type: ignore[attr-defined]
    own = run.server.block.exact_vector()
    for party in run.parties.values():
        assert torch.equal(party.label_mode.receiver.block.exact_vector(), own)  # type: ignore[attr-defined]


def spoil(run: Federation, name: str) -> None:
    """Change one number of a party's copy, as another processor might."""
    module = run.parties[name].label_mode.receiver.block.module  # type: ignore[attr-defined]
    with torch.no_grad():
        next(module.parameters()).view(-1)[0] += 1e-7


def test_a_digest_covers_the_optimisers_state() -> None:
    run = federation("replicate")
    for _ in range(5):
        run.step()
    block = run.parties["party2"].label_mode.receiver.block  # type: ignore[attr-defined]
    state = block.optimizer.state[block.parameters[0]]
    state["momentum_buffer"].view(-1)[0] += 1e-9
    assert block.digest() != run.server.block.digest()
    for _ in range(4):
        run.step()
    assert block.digest() == run.server.block.digest()


class Counter(nn.Module):
    """A head whose output depends on buffers: one that is replaced by every forward pass, and a whole number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES).double()
        self.register_buffer("mean", torch.zeros(WIDTH, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.mean: torch.Tensor
        self.calls: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            self.calls += 1
        return self.linear(x - self.mean) / (1 + 0.01 * self.calls)  # type: ignore[no-any-return]


def test_buffers_of_any_kind_reach_the_parties() -> None:
    runs = []
    for fusion in ("send", "replicate"):
        torch.manual_seed(3)
        agreement = Agreement(SharedLabels(fusion=fusion, digest_every=2))
        run = problem(efvfl(TopK(0.2)), head=Counter(), agreement=agreement, batch_size=16)
        list(run.train(2))
        runs.append(run)
        assert run.server.fusion.head.calls == 8
    assert same(*(everything(run) for run in runs))
    assert runs[1].server.label_mode.sender.mends == {"party1": 0, "party2": 0, "party3": 0}  # type: ignore[attr-defined]


@pytest.mark.parametrize("downlink", ["relay", "aggregate"])
def test_a_head_that_works_in_place_harms_nobody(downlink: str) -> None:
    def run(inplace: bool, labels: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        top = nn.Sequential(nn.ReLU(inplace=inplace), nn.Linear(WIDTH, CLASSES)).double()
        mode = SharedLabels(downlink=downlink, fusion="replicate")  # type: ignore[arg-type]
        agreement = Agreement(mode if labels == "shared" else PrivateLabels())
        made = problem(efvfl(TopK(0.2)), head=top, agreement=agreement, batch_size=16)
        list(made.train(2))
        return everything(made)

    for labels in ("private", "shared"):
        assert same(run(True, labels), run(False, labels))


@pytest.mark.parametrize("fusion", ["send", "replicate", "compress"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fusion_model_without_parameters(fusion: str, dtype: torch.dtype) -> None:
    agreement = Agreement(SharedLabels(fusion=fusion))  # type: ignore[arg-type]
    run = problem(efvfl(TopK(0.2), fusion=TopK(0.5)), dtype, head=nn.Identity(), agreement=agreement, batch_size=16)
    *_, last = run.train(2)
    assert last.step == 8


@pytest.mark.parametrize(
    "digest",
    [
        (),
        (Packet(0, DTYPES[2], (8,), b"12345678"),) * 2,
        (Packet(0, DTYPES[2], (7,), b"1234567"),),
        (Packet(0, DTYPES[0], (2,), b"12345678"),),
        (Packet(3, DTYPES[0], (1 << 26,), b"\x01\x00\x00\x00\x00"),),
    ],
    ids=["none", "two", "short", "floats", "huge"],
)
def test_a_wrong_digest_is_refused_before_anything_is_absorbed(digest: tuple[Packet, ...]) -> None:
    run = federation("replicate")
    for _ in range(4):
        run.step()  # the reports on step 4, with digests, are out
    before = everything(run)
    wrong = {name: party.open.unanswered(party.step)[0] for name, party in run.parties.items()}
    packets = {k: v for k, v in wrong["party2"].packets.items() if k} | ({0: digest} if digest else {})
    wrong["party2"] = replace(wrong["party2"], packets=packets)
    with pytest.raises(ProtocolError, match="digest"):
        run.server.step(wrong)
    assert same(before, everything(run))
    run.step()


def test_a_digest_that_is_not_due_is_refused() -> None:
    extra = (Packet(0, DTYPES[2], (8,), b"12345678"),)
    for agreement in (Agreement(), Agreement(labels="shared"), Agreement(SharedLabels(fusion="replicate"))):
        run = problem(efvfl(TopK(0.2)), agreement=agreement, batch_size=16)
        run.step()
        replies = {name: party.open.unanswered(party.step)[0] for name, party in run.parties.items()}
        before = everything(run)
        packets = {0: extra, **replies["party1"].packets}
        with pytest.raises(ProtocolError, match="expected a report without block 0"):
            run.server.step(replies | {"party1": replace(replies["party1"], packets=packets)})
        assert same(before, everything(run))


@pytest.mark.parametrize(("behind", "text"), [(3, "at most 2 steps before step 4, got one of 3"), (255, "at most 2")])
def test_a_digest_of_a_copy_that_is_no_more_is_refused(behind: int, text: str) -> None:
    run = federation("replicate", pipeline=3)
    for _ in range(4):
        run.step()
    before = everything(run)
    wrong = {name: party.open.unanswered(party.step)[0] for name, party in run.parties.items()}
    digest = (Packet(0, DTYPES[2], (9,), b"12345678" + bytes([behind])),)
    packets = {**wrong["party2"].packets, 0: digest}
    wrong["party2"] = replace(wrong["party2"], packets=packets)
    with pytest.raises(ProtocolError, match=text):
        run.server.step(wrong)
    assert same(before, everything(run))
    run.step()


def test_once_x0_is_sent_only_reports_from_before_have_digests() -> None:
    sender = ReplicaSender(federation("replicate").server.block, ["a"], 1, window=4)
    sender.mends["a"], sender.mended["a"] = MENDS + 1, 5
    old, new = (send_bytes(b"12345678" + bytes([behind])) for behind in (2, 1))
    sender.check(7, "a", old)
    sender.check(7, "a", ())
    with pytest.raises(ProtocolError, match="expected a report without block 0"):
        sender.check(7, "a", new)


def test_a_giant_copy_is_refused_before_it_is_made() -> None:
    run = federation("replicate")
    replies = run.transport.exchange(run.server.begin())
    message = run.server.step(replies)["party1"]
    giant = Packet(3, DTYPES[1], (1 << 40,), b"\x01" + bytes(8))
    party = run.parties["party1"]
    before = everything(run)
    with pytest.raises(ProtocolError, match="1099511627776"):
        party.handle(replace(message, packets={**message.packets, 0: (giant,)}))
    assert same(before, everything(run))


@pytest.mark.parametrize("pipeline", [0, 2, 4])
@pytest.mark.parametrize("digest_every", [1, 4])
def test_a_mismatch_is_mended_with_an_exact_copy(digest_every: int, pipeline: int) -> None:
    """Of the reports that are under way meanwhile, some are about the copy as it was: that counts once."""
    run, clean = (federation("replicate", pipeline=pipeline, digest_every=digest_every) for _ in range(2))
    for step in range(16):
        for each in (run, clean):
            each.step()
        if step == 5:
            spoil(run, "party2")
            assert run.server.block.digest() != run.parties["party2"].label_mode.receiver.block.digest()  # type: ignore[attr-defined]
    receiver = run.parties["party2"].label_mode.receiver  # type: ignore[attr-defined]
    assert receiver.mends == 1
    assert run.server.label_mode.sender.mends == {"party1": 0, "party2": 1, "party3": 0}  # type: ignore[attr-defined]
    assert torch.equal(receiver.block.exact_vector(), run.server.block.exact_vector())
    fusion_bytes = {p: run.ledger.bytes["down", p, "fusion"] for p in run.parties}
    assert fusion_bytes["party2"] > fusion_bytes["party1"] == clean.ledger.bytes["down", "party1", "fusion"]


@pytest.mark.parametrize(("pipeline", "digest_every"), [(0, 4), (2, 4), (4, 1), (4, 3)])
def test_the_third_mismatch_switches_to_sending_with_a_warning(pipeline: int, digest_every: int) -> None:
    run = federation("replicate", pipeline=pipeline, digest_every=digest_every)
    caught: list[str] = []
    for _ in range(40):
        spoil(run, "party2")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run.step()
        caught += [str(w.message) for w in seen]
    assert len(caught) == 1
    assert "'party2' computed another fusion model than the server for the third time" in caught[0]
    receiver = run.parties["party2"].label_mode.receiver  # type: ignore[attr-defined]
    assert not receiver.follows
    before = run.ledger.bytes["down", "party2", "fusion"]
    run.step(hold=True)
    assert run.ledger.bytes["down", "party2", "fusion"] > before  # sent every step now
    assert run.ledger.bytes["down", "party1", "fusion"] < before


def test_a_partys_own_pass_changes_no_buffer_of_the_fusion_model() -> None:
    run = federation("send")
    party = run.parties["party1"]
    run.step()
    copy = party.label_mode.fusion.head[0]  # type: ignore[attr-defined]
    sent = run.server.fusion.head[0]  # type: ignore[index]
    assert copy.num_batches_tracked == 0  # only the server counts
    assert sent.num_batches_tracked == 1


def test_compressing_x0_gives_the_parties_g0_and_the_server_its_exact_x0() -> None:
    run = federation("compress")
    list(run.train(3))
    sender = run.server.label_mode.sender  # type: ignore[attr-defined]
    g0 = sender.channel.memory.g
    assert not torch.allclose(g0, run.server.block.vector())
    for party in run.parties.values():
        assert torch.equal(party.label_mode.receiver.channel.memory.g, g0)  # type: ignore[attr-defined]
        assert torch.equal(party.label_mode.receiver.block.vector(), g0)  # type: ignore[attr-defined]


def test_the_start_of_a_replica_is_told_not_guessed() -> None:
    """Parties may start from any parameters: the first answer overwrites them."""
    plain, other = federation("replicate"), federation("replicate")
    with torch.no_grad():
        for party in other.parties.values():
            for parameter in party.label_mode.fusion.parameters():  # type: ignore[attr-defined]
                parameter.fill_(9.0)
    for run in (plain, other):
        list(run.train(2))
    assert same(parameters(plain), parameters(other))
