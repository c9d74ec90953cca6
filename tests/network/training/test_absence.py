"""on_missing = "stale": training goes on with a missing party's last surrogate, and it rejoins when it is back."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import networks
import pytest
import torch
from absence_lab import AWAY, SHARED, assert_equal_everywhere, memory_of, private_window, shared_config, stale_config
from absence_runs import run
from torch import Tensor, nn

from efvfl.config.run_file import NetworkConfig, RunConfig
from efvfl.core.batches import Batches
from efvfl.core.block import Block
from efvfl.core.channel import send_bytes, send_exactly
from efvfl.core.local_model import PlainModel
from efvfl.core.optimizer import Optimizer
from efvfl.core.party import Party
from efvfl.core.server import Server
from efvfl.core.shared_labels import SharedLabelsParty
from efvfl.errors import ConfigError, ProtocolError
from efvfl.network.training import build, participant_data
from efvfl.network.training.server_process import ServerProcess
from efvfl.wire.message import Kind, Message
from efvfl.wire.packet import Packet

# With a party that is away from the first step: each downlink and way of the fusion model, all rows, and a window.
FROM_THE_FIRST = (
    "relay, send",
    "relay, replicate",
    "relay, all rows",
    "aggregate, compress",
    "relay, replicate, window of 4",
)
# Of `make test-fast`.
SAMPLE = ("relay, send", "relay, replicate", "aggregate, compress", "relay, replicate, window of 4")


@pytest.mark.parametrize(("leaves_at", "window"), [(5, 1), (6, 1), (8, 1), (5, 2), (8, 4)])
def test_training_goes_on_without_a_party_and_it_rejoins(tmp_path: Path, leaves_at: int, window: int) -> None:
    serving, parties = run(tmp_path, private_window(window), leaves_at, back_at=15)
    spans = [span for record in serving.records for span in record.absent.get(AWAY, [])]
    assert spans, "the records say which steps went without whom"
    assert all(set(record.absent) <= {AWAY} for record in serving.records)
    assert spans[-1][1] >= 14  # it was away until step 15 at least
    assert serving.server.step_number == 24
    assert not serving.server.attendance.away
    assert serving.records[-1].test, "the last record is of all parties again"
    for name, party in parties.items():
        assert torch.equal(memory_of(serving.server.channels[name]), memory_of(party.up)), name
        assert party.step == 24
    assert serving.records[-1].surrogate_loss < serving.records[0].surrogate_loss


@pytest.mark.parametrize(
    ("case", "leaves_at"),
    [
        *(pytest.param(case, 5, marks=[] if case in SAMPLE else pytest.mark.slow) for case in SHARED),
        *(pytest.param(case, 0, marks=pytest.mark.slow) for case in FROM_THE_FIRST),
    ],
)
def test_with_shared_labels_a_party_that_is_back_knows_what_it_missed(
    tmp_path: Path, case: str, leaves_at: int
) -> None:
    serving, parties = run(tmp_path, shared_config(case), leaves_at, back_at=15)
    server = serving.server
    assert server.step_number == 24
    assert not server.attendance.away
    assert any(record.absent for record in serving.records)
    losses = [record.surrogate_loss for record in serving.records]
    assert math.isnan(losses[0]) == (leaves_at == 0)  # then no row of these epochs was known of all parties
    known = [loss for loss in losses if not math.isnan(loss)]
    assert known[-1] < known[0] or "window" in case  # stale gradients need more steps than these
    assert_equal_everywhere(server, parties)


@pytest.fixture(scope="module")
def calm_runs() -> dict[str, ServerProcess]:
    """The servers of runs without any death, by case: each is run once."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("case", ["relay, replicate", "aggregate, compress", "relay, replicate, window of 4"])
@pytest.mark.parametrize("dies_at", [(8,), (15, 16)])
def test_the_server_may_die_while_a_party_is_away(
    tmp_path: Path, calm_runs: dict[str, ServerProcess], case: str, dies_at: tuple[int, ...]
) -> None:
    """Requests that are in its log are made again from the same replies, one with SYNC among them."""
    if case not in calm_runs:
        calm_runs[case], _ = run(tmp_path / "calm", shared_config(case), 7, back_at=15)
    calm = calm_runs[case]
    serving, parties = run(tmp_path / "killed", shared_config(case), 7, back_at=15, dies_at=dies_at)
    assert serving.server.step_number == 24
    assert_equal_everywhere(serving.server, parties)
    assert [r.absent for r in serving.records] == [r.absent for r in calm.records]
    assert [r.surrogate_loss for r in serving.records] == [r.surrogate_loss for r in calm.records]
    assert serving.ledger.bytes == calm.ledger.bytes


def parts_of(config: RunConfig) -> tuple[Server, dict[str, Party]]:
    holding = participant_data.load(config, Path(), "")
    plan = build.make_plan(config, holding)
    server = build.build_server(config, plan, holding)
    parties = {
        name: build.build_party(config, plan, participant_data.load(config, Path(), name), name)
        for name in holding.names
    }
    return server, parties


def one_away(config: RunConfig) -> tuple[Server, dict[str, Party], dict[str, Message]]:
    """Take one step with all, and one party away from then on; return the others' reports on the next step."""
    server, parties = parts_of(config)
    messages = server.step({name: parties[name].handle(message) for name, message in server.begin().items()})
    replies = {name: parties[name].handle(messages[name]) for name in parties if name != AWAY}
    server.leave(AWAY)
    return server, parties, replies


@pytest.mark.parametrize(("downlink", "combine"), [("relay", "mean"), ("relay", "concat"), ("aggregate", "mean")])
def test_with_shared_labels_parties_learn_from_the_known_rows_of_a_batch(downlink: str, combine: str) -> None:
    """Against a gradient that knows nothing of messages: the loss of the known rows, the others' surrogates fixed."""
    agreement = {"labels": "shared", "downlink": downlink}
    config = stale_config(batch_order="independent", agreement=agreement, fusion={"combine": combine})
    server, parties, replies = one_away(config)
    head = copy.deepcopy(server.fusion)  # x0 before the server's own update
    messages = server.step(replies)
    rows, seen = server.batches.rows(1), server.batches.rows(0)
    assert isinstance(rows, Tensor)
    assert isinstance(seen, Tensor)
    known = rows[torch.isin(rows, seen)]
    assert 1 < len(known) < len(rows)
    surrogates = [memory_of(channel)[known].clone() for channel in server.channels.values()]
    for name, message in messages.items():
        k, party = list(parties).index(name), parties[name]
        assert isinstance(party.model, PlainModel)
        assert isinstance(party.model.features, Tensor)
        twin = copy.deepcopy(party.block.module)
        h = [twin(party.model.features[known]) if j == k else g for j, g in enumerate(surrogates)]
        torch.nn.functional.cross_entropy(head(h), server.labels[known]).backward()
        party.handle(message)
        for mine, theirs in zip(party.block.module.parameters(), twin.parameters(), strict=True):
            assert theirs.grad is not None
            assert torch.allclose(mine, theirs - 0.5 * theirs.grad, atol=1e-6), name
    expected = copy.deepcopy(head)
    torch.nn.functional.cross_entropy(expected(surrogates), server.labels[known]).backward()
    for mine, theirs in zip(server.fusion.parameters(), expected.parameters(), strict=True):
        assert theirs.grad is not None
        assert torch.allclose(mine, theirs - 0.5 * theirs.grad, atol=1e-6)


@pytest.mark.parametrize("fusion", ["send", "replicate"])
def test_a_batch_that_the_absent_party_never_reported_teaches_nothing(fusion: str) -> None:
    config = stale_config(agreement={"labels": "shared", "fusion": fusion})
    server, parties, replies = one_away(config)
    blocks = [server.block, *(parties[name].block for name in replies)]
    before = [block.vector() for block in blocks]
    messages = server.step(replies)  # step 1 of the first epoch: other rows
    for name, message in messages.items():
        parties[name].handle(message)
        guide = parties[name].label_mode
        assert isinstance(guide, SharedLabelsParty)
        assert torch.equal(guide.receiver.block.vector(), server.block.vector())
    for block, held in zip(blocks, before, strict=True):
        assert torch.equal(block.vector(), held)


def shared_party(stale: bool = True, **changes: object) -> Party:
    changes = {"agreement": {"labels": "shared"}} | changes
    config = stale_config(**changes) if stale else networks.config(**changes)
    held = participant_data.load(config, Path(), AWAY)
    return build.build_party(config, build.make_plan(config, held), held, AWAY)


def packet_of(*shape: int) -> tuple[Packet, ...]:
    return send_exactly(torch.zeros(shape))


BITS = send_bytes(b"\xff" * 6)  # 48 rows
WRONG_RELAYS: dict[str, tuple[dict[int, tuple[Packet, ...]], str]] = {
    "its own block": ({2: packet_of(48, 4)}, r"expected blocks .*, got \["),
    "a block of nobody": ({7: packet_of(48, 4)}, r"expected blocks .*, got \["),
    "numbers for rows": ({6: packet_of(6)}, "rows that take part: expected one packet of plain bytes"),
    "too few rows": ({6: send_bytes(b"123")}, "expected 6 bytes, got shape .3,."),
    "a row too short": ({6: (replace(BITS[0], body=b"12345"),)}, "expected 6 bytes"),
}


@pytest.mark.parametrize("case", WRONG_RELAYS)
def test_a_wrong_list_of_rows_is_refused_and_nothing_changes(case: str) -> None:
    blocks, text = WRONG_RELAYS[case]
    party = shared_party()
    party.handle(Message(Kind.BEGIN, 0))
    size = party.label_mode.receiver.block.size()  # type: ignore[attr-defined]
    before = party.block.vector()
    with pytest.raises(ProtocolError, match=text):
        party.handle(Message(Kind.RELAY, 0, {0: packet_of(size)} | blocks))
    assert torch.equal(party.block.vector(), before)
    assert party.reporting


@pytest.mark.parametrize("bits", [b"\x80" + bytes(5), b"\xff" * 6], ids=["one row", "all rows"])
def test_a_list_of_one_row_or_of_all_is_refused(bits: bytes) -> None:
    """A layer that normalises cannot work on one row, and all rows need no list."""
    party = shared_party()
    party.handle(Message(Kind.BEGIN, 0))
    with pytest.raises(ProtocolError, match=r"expected none or several, but not all of 48, got (1|48)"):
        party.handle(Message(Kind.RELAY, 0, {6: send_bytes(bits)}))


def test_bits_beyond_the_batch_are_refused() -> None:
    party = shared_party(batch_size=50)
    count = party.batches.count(0)
    party.handle(Message(Kind.BEGIN, 0))
    with pytest.raises(ProtocolError, match=f"expected {count} rows of the batch, got more"):
        party.handle(Message(Kind.RELAY, 0, {6: send_bytes(b"\xff" * (count // 8 + 1))}))


def test_nobody_may_be_missing_where_that_was_not_agreed_on() -> None:
    party = shared_party(stale=False)
    party.handle(Message(Kind.BEGIN, 0))
    with pytest.raises(ProtocolError, match=r"expected blocks \[1, 3, 4\] and perhaps 0, got \[1, 3\]"):
        party.handle(Message(Kind.RELAY, 0, {1: packet_of(48, 4), 3: packet_of(48, 4)}))


WRONG_SYNCS: dict[str, tuple[dict[int, tuple[Packet, ...]], str]] = {
    "no peers": ({2: packet_of(48, 4)}, r"expected blocks \[1, 3, 4\] and perhaps 0, got \[\]"),
    "a fusion model": (
        {0: packet_of(9)} | {j: packet_of(48, 4) for j in (1, 2, 3, 4)},
        "without the fusion model, which the next step brings",
    ),
    "too many rows": (
        {1: packet_of(48, 4), 2: packet_of(48, 4), 3: packet_of(49, 4), 4: packet_of(48, 4)},
        "as the server holds it: expected shape",
    ),
}


@pytest.mark.parametrize("case", WRONG_SYNCS)
def test_a_wrong_snapshot_is_refused_and_nothing_changes(case: str) -> None:
    blocks, text = WRONG_SYNCS[case]
    party = shared_party()
    party.handle(Message(Kind.BEGIN, 0))
    before = memory_of(party.up).clone()
    with pytest.raises(ProtocolError, match=text):
        party.handle(Message(Kind.SYNC, 1, blocks))
    assert torch.equal(memory_of(party.up), before)
    assert party.reporting


def test_nobody_is_asked_twice_for_the_same_step() -> None:
    """With surrogates of its choice a server would otherwise read off all of a representation."""
    config = stale_config()
    held = participant_data.load(config, Path(), AWAY)
    party = build.build_party(config, build.make_plan(config, held), held, AWAY)
    party.handle(Message(Kind.SYNC, 0, {2: packet_of(48, 4)}, hold=True))  # away while it had nothing to report
    party.handle(Message(Kind.BEGIN, 0))
    with pytest.raises(ProtocolError, match=r"expected SYNC to a later step than 0 .*, got step 0"):
        party.handle(Message(Kind.SYNC, 0, {2: packet_of(48, 4)}, hold=True))


def test_with_a_window_nobody_is_asked_twice_for_a_step_of_an_open_report() -> None:
    config = private_window(3)
    held = participant_data.load(config, Path(), AWAY)
    party = build.build_party(config, build.make_plan(config, held), held, AWAY)
    reported: list[int] = []
    party.may_report = reported.append
    for step in range(3):
        party.handle(Message(Kind.BEGIN, step))
    before = memory_of(party.up).clone()
    own = {2: packet_of(party.batches.samples, 4)}  # three batches have as many rows as there are
    for step in range(3):
        with pytest.raises(ProtocolError, match=f"expected SYNC to a later step than 2 .*, got step {step}"):
            party.handle(Message(Kind.SYNC, step, own, hold=True))
    assert torch.equal(memory_of(party.up), before)
    ready = party.handle(Message(Kind.SYNC, 3, own, hold=True))
    assert (ready.kind, party.step, len(party.open)) == (Kind.READY, 3, 0)
    assert not memory_of(party.up).any(), "what the server holds, of the rows of all open reports"
    assert party.handle(Message(Kind.SYNC, 3, own)).kind == Kind.REPORT, "after it was away again, at the same step"
    assert reported == [0, 1, 2, 3]


@pytest.mark.parametrize(("size", "reports"), [(16, "batch"), (16, "all"), (0, "batch")])
def test_what_a_party_reported_in_vain_is_taken_back_on_the_rows_of_all_open_steps(
    size: int, reports: Literal["batch", "all"]
) -> None:
    """Batches overlap, and the rows of some of them were reported before."""
    config = replace(private_window(4), batch_size=size)
    config = replace(config, agreement=replace(config.agreement, reports=reports))
    server, parties = parts_of(config)
    out = {name: [party.handle(Message(Kind.BEGIN, step)) for step in range(4)] for name, party in parties.items()}
    for step in range(5):
        if step == 1:
            server.leave(AWAY)
        replies = {name: out[name].pop(0) for name in parties if step == 0 or name != AWAY}
        for name, message in server.step(replies).items():
            out[name].append(parties[name].handle(message))
    assert [report.step for report in out[AWAY]] == [1, 2, 3, 4], "what it reported in vain"
    assert not torch.equal(memory_of(server.channels[AWAY]), memory_of(parties[AWAY].up))
    parties[AWAY].handle(server.rejoin(AWAY, hold=True))
    assert torch.equal(memory_of(server.channels[AWAY]), memory_of(parties[AWAY].up))
    assert parties[AWAY].step == 5


class Spare(nn.Module):
    """A head with a layer that never gets a gradient, so that its optimiser knows nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.used(x)
        return output


def test_a_copy_that_never_learnt_takes_over_one_that_has() -> None:
    adam = Optimizer("Adam", {"lr": 0.1, "weight_decay": 0.1})
    server, party = Block(Spare(), adam), Block(Spare(), adam)
    server.descend(server.module(torch.ones(2, 4)).sum())
    assert server.learnt() == bytes([1, 1, 0, 0])
    before = party.digest()
    with pytest.raises(ProtocolError, match=r"the fusion model: expected .* numbers, got 7"):
        party.take_over(torch.zeros(7, dtype=torch.float64), server.learnt())
    assert party.digest() == before, "what was refused has left no trace"
    assert party.learnt() == bytes(4)
    party.take_over(server.exact_vector(), server.learnt())
    assert party.digest() == server.digest()
    for block in (server, party):
        block.descend(block.module(torch.ones(2, 4)).square().sum())
    assert party.digest() == server.digest()


def test_the_rate_moves_as_in_the_steps_that_were_missed() -> None:
    blocks = [
        Block(nn.Linear(1, 1), Optimizer(scheduler="StepLR", scheduler_options={"step_size": 2}), 3) for _ in "ab"
    ]
    for start, stop in ((0, 0), (0, 2), (2, 9), (9, 10), (10, 31)):
        for step in range(start, stop):
            blocks[0].end_step(step)
        blocks[1].end_steps(range(start, stop))
        first, second = (block.scheduler for block in blocks)
        assert first is not None
        assert second is not None
        assert str(first.state_dict()) == str(second.state_dict())


def test_a_large_fusion_model_fits_in_a_frame() -> None:
    config = shared_config("relay, replicate")
    plan = build.make_plan(config, participant_data.load(config, Path(), ""))
    numbers = 10_000_000
    assert build.frame_limit(plan, numbers) > 3 * 8 * numbers + (64 << 20)  # with both moments of Adam


def test_with_private_labels_a_snapshot_of_others_is_refused() -> None:
    config = stale_config()
    held = participant_data.load(config, Path(), AWAY)
    party = build.build_party(config, build.make_plan(config, held), held, AWAY)
    with pytest.raises(ProtocolError, match=r"expected no block of others with private labels, got blocks \[1\]"):
        party.handle(Message(Kind.SYNC, 0, {1: packet_of(0, 4), 2: packet_of(48, 4)}))


def test_rows_that_were_touched() -> None:
    batches = Batches(100, 10, seed=3)
    rows = batches.touched(range(2, 5))
    assert isinstance(rows, Tensor)
    assert sorted(rows.tolist()) == sorted(r for step in range(2, 5) for r in batches.rows(step).tolist())  # type: ignore[union-attr]
    assert isinstance(batches.touched(range(5, 15)), slice)
    assert isinstance(batches.touched(range(1 << 24)), slice)
    assert len(batches.touched(range(4, 4))) == 0  # type: ignore[arg-type]
    assert isinstance(Batches(100).touched(range(1)), slice)


def test_a_party_that_is_away_to_the_end_is_told_so(tmp_path: Path) -> None:
    outputs = []
    serving, parties = run(
        tmp_path, stale_config(), 6, 24, lambda serving: outputs.append(serving.predict_split("test"))
    )
    assert serving.records[-1].absent[AWAY][-1][1] == 23
    assert len(outputs[0]) == len(serving.data.ids["test"])  # and it can be asked, with the model it has
    assert parties[AWAY].step < 24


@pytest.mark.parametrize("window", [1, 2, 4])
def test_nobody_away_changes_nothing(tmp_path: Path, window: int) -> None:
    config = private_window(window)
    serving, parties = run(tmp_path, config, leaves_at=-1, back_at=0)
    calm = networks.reference(replace(config, network=NetworkConfig()))
    assert [r.surrogate_loss for r in serving.records] == [r["surrogate_loss"] for r in calm.records]
    for name, party in parties.items():
        for mine, other in zip(
            party.block.module.parameters(), calm.parties[name]["block"]["module"].values(), strict=True
        ):
            assert torch.equal(mine, other)
    assert not any(record.absent for record in serving.records)


def test_rows_that_an_absent_party_never_reported_are_left_out() -> None:
    """No silent zero block: the step is the one of a batch without those rows, and their cotangent is zero."""
    config = stale_config()
    server, parties, replies = one_away(config)
    before = [p.detach().clone() for p in server.fusion.parameters()]
    messages = server.step(replies)  # step 1 of the first epoch: other rows, which the absent party never reported
    assert AWAY not in messages
    assert all(torch.equal(a, b) for a, b in zip(before, server.fusion.parameters(), strict=True)), "nothing to learn"
    for name, message in messages.items():
        (packet,) = message.packets[list(parties).index(name) + 1]
        assert not any(packet.body), "the cotangent of rows that are left out is zero"


def test_a_half_known_batch_is_the_batch_of_its_known_rows() -> None:
    config = stale_config(batch_order="independent")
    server, parties, replies = one_away(config)
    rows, seen = server.batches.rows(1), server.batches.rows(0)
    assert isinstance(rows, Tensor)
    assert isinstance(seen, Tensor)
    known = torch.isin(rows, seen)
    assert 0 < int(known.sum()) < len(rows)
    messages = server.step(replies)
    for name, message in messages.items():
        k = list(parties).index(name)
        from efvfl.compress import decode

        cotangent = torch.from_numpy(decode(message.packets[k + 1][0]))
        assert bool((cotangent[~known] == 0).all())
        assert bool((cotangent[known] != 0).any(dim=1).all())


def test_sync_is_only_for_those_who_agreed() -> None:
    party = networks.federation(networks.config()).parties[AWAY]
    with pytest.raises(ProtocolError, match="did not agree that steps may pass without it"):
        party.handle(Message(Kind.SYNC, 3, {2: ()}))


@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"name": "cvfl", "compressor": {"name": "topk", "ratio": 0.1}}},
        {"method": {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.1}, "start": "exact"}},
    ],
)
def test_what_stale_needs(changes: dict[str, object]) -> None:
    with pytest.raises(
        ConfigError, match=r"on_missing = 'stale' does not go with (a method without surrogates|start = 'exact')"
    ):
        networks.config(network={"on_missing": "stale"}, **changes)
