"""on_missing = "stale": training goes on with a missing party's last surrogate, and it rejoins when it is back."""

import threading
from collections.abc import Callable
from pathlib import Path

import network_case
import pytest
import torch
from torch import Tensor

from efvfl.config import NetworkConfig
from efvfl.errors import ConfigError, LinkError, ProtocolError
from efvfl.memory import ErrorFeedback
from efvfl.network import participant, terms
from efvfl.network.frame import Frame
from efvfl.network.hub import Patience
from efvfl.network.join import Joining
from efvfl.network.member import Member
from efvfl.network.saving import Saving
from efvfl.network.serve import Serving
from efvfl.network.wire import Wire, memory_pair
from efvfl.packet import Kind, Message

AWAY = "top-right"


def stale_config(**changes: object) -> network_case.RunConfig:
    network = {"on_missing": "stale", "stale_seconds": 0.05}
    method = {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.2}}
    return network_case.config(epochs=8, observe_every=2, network=network, method=method, **changes)


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
) -> tuple[Serving, dict[str, Member]]:
    """Train while one party is away from its request `leaves_at` until the server's step `back_at`."""
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
    while not serving.finished:
        if serving.server.step_number >= back_at and AWAY in serving.hub.left:
            serving.hub._wait(
                lambda: caught_up(serving)
            )  # so that it is back at this step, however fast the others are
        serving.advance()
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
    federation = network_case.federation(config)
    holding = participant.hold(config, Path(), "")
    server = participant.build_server(config, participant.make_plan(config, holding), holding)
    parties = federation.parties
    replies = {name: parties[name].handle(message) for name, message in server.begin().items()}
    messages = server.step(replies)  # step 0: all are here
    replies = {name: parties[name].handle(messages[name]) for name in parties if name != AWAY}
    server.leave(AWAY)
    before = [p.detach().clone() for p in server.fusion.parameters()]
    messages = server.step(replies)  # step 1 of the first epoch: other rows, which the absent party never reported
    assert AWAY not in messages
    assert all(torch.equal(a, b) for a, b in zip(before, server.fusion.parameters(), strict=True)), "nothing to learn"
    for name, message in messages.items():
        (packet,) = message.packets[list(parties).index(name) + 1]
        assert not any(packet.body), "the cotangent of rows that are left out is zero"


def test_a_half_known_batch_is_the_batch_of_its_known_rows() -> None:
    config = stale_config(batch_order="independent")
    federation = network_case.federation(config)
    holding = participant.hold(config, Path(), "")
    server = participant.build_server(config, participant.make_plan(config, holding), holding)
    parties = federation.parties
    replies = {name: parties[name].handle(message) for name, message in server.begin().items()}
    messages = server.step(replies)
    seen = server.batches.rows(0)
    replies = {name: parties[name].handle(messages[name]) for name in parties if name != AWAY}
    server.leave(AWAY)
    rows = server.batches.rows(1)
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
        {"agreement": {"labels": "shared"}},
        {"method": {"name": "cvfl", "compressor": {"name": "topk", "ratio": 0.1}}},
        {"method": {"name": "efvfl", "compressor": {"name": "topk", "ratio": 0.1}, "start": "exact"}},
    ],
)
def test_what_stale_needs(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="on_missing = 'stale' needs"):
        network_case.config(network={"on_missing": "stale"}, **changes)
