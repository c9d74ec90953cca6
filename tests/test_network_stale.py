"""on_missing = "stale": training goes on with a missing party's last surrogate, and it rejoins when it is back."""

import copy
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import network_case
import pytest
import torch
from torch import Tensor

from efvfl.batches import Batches
from efvfl.channel import send_bytes, send_exactly
from efvfl.config import NetworkConfig
from efvfl.errors import ConfigError, LinkError, ProtocolError
from efvfl.memory import ErrorFeedback
from efvfl.network import participant, terms
from efvfl.network.frame import Frame
from efvfl.network.join import Joining
from efvfl.network.links import Patience
from efvfl.network.member import Member
from efvfl.network.saving import Saving
from efvfl.network.serve import Serving
from efvfl.network.wire import Wire, memory_pair
from efvfl.packet import Kind, Message, Packet
from efvfl.party import Party
from efvfl.replica import CompressHearer
from efvfl.replicate import ReplicateHearer
from efvfl.server import Server
from efvfl.shared import SharedGuide

AWAY = "top-right"


def stale_config(**changes: object) -> network_case.RunConfig:
    network = {"on_missing": "stale", "stale_seconds": 0.05}
    method = {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.2}}
    settings: dict[str, object] = {"epochs": 8, "observe_every": 2, "network": network, "method": method}
    return network_case.config(**settings | changes)


def memory_of(channel: object) -> Tensor:
    held = channel.memory  # type: ignore[attr-defined]
    assert isinstance(held, ErrorFeedback)
    return held.g


class Leaver(Member):
    """A party whose wire is cut when it has handled so many requests, and that cannot dial for a while."""

    leaves_at = -1
    gone = threading.Event()

    def respond(self, frame: Frame) -> Frame:
        if self.handled == self.leaves_at and not self.gone.is_set():
            self.gone.set()
            raise LinkError("cut on purpose")
        return super().respond(frame)


def caught_up(serving: Serving) -> bool:
    link = serving.hub.links.get(AWAY)
    return link is not None and not link.waiting and link.position > serving.hub.left[AWAY]


def run(
    folder: Path,
    config: network_case.RunConfig,
    leaves_at: int,
    back_at: int,
    at_end: Callable[[Serving], object] = lambda serving: None,
    dies_at: tuple[int, ...] = (),
) -> tuple[Serving, dict[str, Member]]:
    """Train while one party is away from its request `leaves_at` until the server's step `back_at`.

    At the steps of `dies_at` the server is gone with all it has not saved, and another takes its place.
    """
    holding = participant.hold(config, Path(), "")
    patience = Patience(repeat=0.2, tick=0.005, stale=0.05, linger=5.0)
    serving = Serving(config, holding, folder / "server", patience)
    members: dict[str, Member] = {}
    threads = []
    for name in holding.names:
        held = participant.hold(config, Path(), name)
        party = participant.build_party(config, participant.make_plan(config, held), held, name)
        about = terms.about(config, name, held.names, held.trained_ids)
        member = Leaver(
            party, folder / name, about, participant.Answerer(party, held), None, Saving(NetworkConfig(save_steps=2))
        )
        member.gone = threading.Event()
        member.leaves_at = leaves_at if name == AWAY else -1
        members[name] = member

        def dial(member: Leaver = member) -> Wire:
            if member.gone.is_set() and serving.server.step_number < back_at:
                raise LinkError("out of reach")
            here, there = memory_pair()
            serving.hub.accept(here, None)
            return there

        joining = Joining(member, dial, network_case.WAITING)
        threads.append(threading.Thread(target=joining.run, daemon=True))
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + network_case.SECONDS

    def look() -> None:
        assert all(thread.is_alive() for thread in threads), "a party's thread is dead"
        assert time.monotonic() < deadline, "the run hangs"

    while not serving.finished:
        serving.hub.on_tick = look
        if dies_at and serving.server.step_number >= dies_at[0]:
            dies_at = dies_at[1:]
            serving.hub.close()
            serving.journal.close()
            serving = Serving(config, holding, folder / "server", patience)
        if serving.server.step_number >= back_at and AWAY in serving.hub.left:
            serving.hub._wait(partial(caught_up, serving))  # back at this step, however fast the others are
        serving.advance()
    serving.hub.on_tick = lambda: None  # now they end
    at_end(serving)
    assert serving.finish() == set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return serving, members


@pytest.mark.parametrize("leaves_at", [4, 5, 6, 7, 8, 9])
def test_training_goes_on_without_a_party_and_it_rejoins(tmp_path: Path, leaves_at: int) -> None:
    serving, members = run(tmp_path, stale_config(), leaves_at, back_at=15)
    spans = [span for record in serving.records for span in record.absent.get(AWAY, [])]
    assert spans, "the records say which steps went without whom"
    assert all(set(record.absent) <= {AWAY} for record in serving.records)
    assert spans[-1][1] >= 14  # it was away until step 15 at least
    assert serving.server.step_number == 24
    assert not serving.server.away
    assert serving.records[-1].test, "the last record is of all parties again"
    for k, (name, member) in enumerate(members.items()):
        assert torch.equal(memory_of(serving.server.channels[k]), memory_of(member.party.up)), name
        assert member.party.step == 24
    assert serving.records[-1].surrogate_loss < serving.records[0].surrogate_loss


SHARED: dict[str, dict[str, object]] = {
    "relay, send": {},
    "relay, compress": {"fusion": "compress"},
    "relay, replicate": {"fusion": "replicate", "digest_every": 2},
    "relay, two local steps": {"local_steps": 2, "fusion": "replicate", "digest_every": 2},
    "relay, all rows": {"reports": "all"},
    "relay, narrow": {"memory_dtype": "bfloat16"},
    "aggregate, send": {"downlink": "aggregate"},
    "aggregate, compress": {"downlink": "aggregate", "fusion": "compress"},
    "aggregate, replicate": {"downlink": "aggregate", "fusion": "replicate", "digest_every": 2},
}


def shared_config(case: str, **changes: object) -> network_case.RunConfig:
    agreement = {"labels": "shared"} | SHARED[case]
    method: dict[str, object] = {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.2}}
    if agreement.get("fusion") == "compress":
        method["fusion"] = {"name": "topk", "ratio": 0.5}
    optimizer = {"name": "Adam", "lr": 0.05, "scheduler": {"name": "StepLR", "step_size": 3, "gamma": 0.9}}
    return stale_config(**{"agreement": agreement, "method": method, "optimizer": optimizer} | changes)


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.parametrize("leaves_at", [0, 1, 5, 8])
def test_with_shared_labels_a_party_that_is_back_knows_what_it_missed(
    tmp_path: Path, case: str, leaves_at: int
) -> None:
    serving, members = run(tmp_path, shared_config(case), leaves_at, back_at=15)
    server = serving.server
    assert server.step_number == 24
    assert not server.away
    assert any(record.absent for record in serving.records)
    losses = [record.surrogate_loss for record in serving.records]
    assert math.isnan(losses[0]) == (leaves_at == 0)  # then no row of these epochs was known of all parties
    known = [loss for loss in losses if not math.isnan(loss)]
    assert known[-1] < known[0]
    assert_equal_everywhere(server, members)


@pytest.mark.parametrize("case", ["relay, replicate", "aggregate, compress"])
@pytest.mark.parametrize("dies_at", [(8,), (13, 14), (15, 16), (16, 17)])
def test_the_server_may_die_while_a_party_is_away(tmp_path: Path, case: str, dies_at: tuple[int, ...]) -> None:
    """Requests that are in its log are made again from the same replies, one with SYNC among them."""
    calm, _ = run(tmp_path / "calm", shared_config(case), 7, back_at=15)
    serving, members = run(tmp_path / "killed", shared_config(case), 7, back_at=15, dies_at=dies_at)
    assert serving.server.step_number == 24
    assert_equal_everywhere(serving.server, members)
    assert [r.absent for r in serving.records] == [r.absent for r in calm.records]
    assert [r.surrogate_loss for r in serving.records] == [r.surrogate_loss for r in calm.records]
    assert serving.ledger.bytes == calm.ledger.bytes


def assert_equal_everywhere(server: Server, members: dict[str, Member]) -> None:
    """What is remembered of a party is the same at all who remember it, and so are copies of the fusion model."""
    for k, (name, member) in enumerate(members.items()):
        assert member.party.step == 24
        assert torch.equal(memory_of(server.channels[k]), memory_of(member.party.up)), name
        guide = member.party.guide
        assert isinstance(guide, SharedGuide)
        for j, channel in enumerate(guide.peers or []):
            if channel is not None:
                assert torch.equal(memory_of(server.channels[j]), memory_of(channel)), (name, j)
        if isinstance(guide.hearer, ReplicateHearer):
            assert guide.hearer.block.digest() == server.block.digest(), name
            assert guide.hearer.mends == 0
            assert guide.hearer.block.scheduler.state_dict() == server.block.scheduler.state_dict()
        if isinstance(guide.hearer, CompressHearer):
            teller = server.answer.teller  # type: ignore[attr-defined]
            assert torch.equal(memory_of(guide.hearer.channel), memory_of(teller.channel)), name


def one_away(config: network_case.RunConfig) -> tuple[Server, dict[str, Party], dict[str, Message]]:
    """Take one step with all, and one party away from then on; return the others' reports on the next step."""
    holding = participant.hold(config, Path(), "")
    plan = participant.make_plan(config, holding)
    server = participant.build_server(config, plan, holding)
    parties = {
        name: participant.build_party(config, plan, participant.hold(config, Path(), name), name)
        for name in holding.names
    }
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
    surrogates = [memory_of(channel)[known].clone() for channel in server.channels]
    for name, message in messages.items():
        k, party = list(parties).index(name), parties[name]
        assert isinstance(party.features, Tensor)
        twin = copy.deepcopy(party.block.module)
        h = [twin(party.features[known]) if j == k else g for j, g in enumerate(surrogates)]
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
        guide = parties[name].guide
        assert isinstance(guide, SharedGuide)
        assert torch.equal(guide.hearer.block.vector(), server.block.vector())
    for block, held in zip(blocks, before, strict=True):
        assert torch.equal(block.vector(), held)


def shared_party(stale: bool = True, **changes: object) -> Party:
    changes = {"agreement": {"labels": "shared"}} | changes
    config = stale_config(**changes) if stale else network_case.config(**changes)
    held = participant.hold(config, Path(), AWAY)
    return participant.build_party(config, participant.make_plan(config, held), held, AWAY)


def packet_of(*shape: int) -> tuple[Packet, ...]:
    return send_exactly(torch.zeros(shape))


BITS = send_bytes(b"\xff" * 6)  # 48 rows
WRONG_RELAYS: dict[str, tuple[dict[int, tuple[Packet, ...]], str]] = {
    "its own block": ({2: packet_of(48, 4)}, "blocks .* came"),
    "a block of nobody": ({7: packet_of(48, 4)}, "blocks .* came"),
    "numbers for rows": ({6: packet_of(6)}, "rows that take part must come as one packet of bytes"),
    "too few rows": ({6: send_bytes(b"123")}, "came with shape .3,., 6 bytes are expected"),
    "a row too short": ({6: (replace(BITS[0], body=b"12345"),)}, "6 bytes are expected"),
}


@pytest.mark.parametrize("case", WRONG_RELAYS)
def test_a_wrong_list_of_rows_is_refused_and_nothing_changes(case: str) -> None:
    blocks, text = WRONG_RELAYS[case]
    party = shared_party()
    party.handle(Message(Kind.BEGIN, 0))
    size = party.guide.hearer.block.size()  # type: ignore[attr-defined]
    before = party.block.vector()
    with pytest.raises(ProtocolError, match=text):
        party.handle(Message(Kind.RELAY, 0, {0: packet_of(size)} | blocks))
    assert torch.equal(party.block.vector(), before)
    assert party.reporting


def test_bits_beyond_the_batch_are_refused() -> None:
    party = shared_party(batch_size=50)
    count = party.batches.count(0)
    party.handle(Message(Kind.BEGIN, 0))
    with pytest.raises(ProtocolError, match=f"goes beyond the {count} rows"):
        party.handle(Message(Kind.RELAY, 0, {6: send_bytes(b"\xff" * (count // 8 + 1))}))


def test_nobody_may_be_missing_where_that_was_not_agreed_on() -> None:
    party = shared_party(stale=False)
    party.handle(Message(Kind.BEGIN, 0))
    with pytest.raises(ProtocolError, match=r"blocks \[1, 3\] came, \[1, 3, 4\] and perhaps 0 are expected"):
        party.handle(Message(Kind.RELAY, 0, {1: packet_of(48, 4), 3: packet_of(48, 4)}))


WRONG_SYNCS: dict[str, tuple[dict[int, tuple[Packet, ...]], str]] = {
    "no peers": ({2: packet_of(48, 4)}, r"blocks \[\] came, \[1, 3, 4\] and perhaps 0 are expected"),
    "a fusion model": (
        {0: packet_of(9)} | {j: packet_of(48, 4) for j in (1, 2, 3, 4)},
        "the next step brings it",
    ),
    "too many rows": (
        {1: packet_of(48, 4), 2: packet_of(48, 4), 3: packet_of(49, 4), 4: packet_of(48, 4)},
        "as the server has it came with shape",
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


def test_with_private_labels_a_snapshot_of_others_is_refused() -> None:
    config = stale_config()
    party = network_case.federation(config).parties[AWAY]
    party.stale = True
    with pytest.raises(ProtocolError, match="labels are private, and nothing was missed"):
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
    serving, members = run(
        tmp_path, stale_config(), 6, 24, lambda serving: outputs.append(serving.predict_split("test"))
    )
    assert serving.records[-1].absent[AWAY][-1][1] == 23
    assert len(outputs[0]) == len(serving.holding.ids["test"])  # and it can be asked, with the model it has
    assert members[AWAY].finished
    assert members[AWAY].party.step < 24


def test_nobody_away_changes_nothing(tmp_path: Path) -> None:
    serving, members = run(tmp_path, stale_config(), leaves_at=-1, back_at=0)
    calm = network_case.reference(
        network_case.config(
            epochs=8, observe_every=2, method={"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.2}}
        )
    )
    assert [r.surrogate_loss for r in serving.records] == [r["surrogate_loss"] for r in calm.records]
    for name, member in members.items():
        for mine, other in zip(
            member.party.block.module.parameters(), calm.parties[name]["block"]["module"].values(), strict=True
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
    party = network_case.federation(network_case.config()).parties[AWAY]
    with pytest.raises(ProtocolError, match="did not agree to go on after having been away"):
        party.handle(Message(Kind.SYNC, 3, {2: ()}))


@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"name": "cvfl", "compressor": {"name": "topk", "ratio": 0.1}}},
        {"method": {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.1}, "start": "exact"}},
    ],
)
def test_what_stale_needs(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="on_missing = 'stale' needs"):
        network_case.config(network={"on_missing": "stale"}, **changes)
