"""One contract for every transport: the same requests, posted and collected in the same way, get the same replies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from networks import Network, config, federation

from efvfl.config.run_file import RunConfig
from efvfl.core.server import Server
from efvfl.errors import CheckpointError, ProtocolError
from efvfl.network.training.questions import question
from efvfl.training.transport import LocalTransport, Transport
from efvfl.util import checkpoint
from efvfl.wire.message import Kind, Message

PIPELINED = config(agreement={"pipeline": True}, label_holder="top-left")


@contextmanager
def in_one_process(run: RunConfig, folder: Path) -> Iterator[tuple[Server, Transport]]:
    made = federation(run)
    answering = LocalTransport(made.parties, here=made.transport.here, answer=lambda name, asked: b"\x00" + asked)
    yield made.server, answering


@contextmanager
def over_wires(run: RunConfig, folder: Path) -> Iterator[tuple[Server, Transport]]:
    with Network(run, folder) as network:
        network.join_all()
        serving = network._served()
        yield serving.server, serving.requests


TRANSPORTS = {"in one process": in_one_process, "over wires": over_wires}


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_requests_are_answered_in_the_order_of_posting(kind: str, tmp_path: Path) -> None:
    with TRANSPORTS[kind](PIPELINED, tmp_path) as (server, transport):
        names = frozenset(server.plan.names)
        assert list(transport.under_way) == []
        assert list(transport.here) == ["top-left"]
        with pytest.raises(ProtocolError, match="no request is under way"):
            transport.collect()
        for ahead in (0, 1):
            transport.post(server.begin(ahead))
        assert [(request.names, request.hold) for request in transport.under_way] == [(names, False)] * 2
        replies = transport.collect()
        assert {(reply.kind, reply.step) for reply in replies.values()} == {(Kind.REPORT, 0)}
        transport.post(server.step(replies, hold=True))
        assert [request.hold for request in transport.under_way] == [False, True]
        assert {reply.step for reply in transport.collect().values()} == {1}
        ready = transport.collect()
        assert set(ready) == names
        assert {(reply.kind, reply.step) for reply in ready.values()} == {(Kind.READY, 1)}
        assert list(transport.under_way) == []
        assert transport.back() == []


def test_every_transport_carries_the_same_messages_and_counts_the_same_bytes(tmp_path: Path) -> None:
    seen: dict[str, list[dict[str, bytes]]] = {}
    ledgers = {}
    for kind, opened in TRANSPORTS.items():
        with opened(config(label_holder="top-left"), tmp_path / kind) as (server, transport):
            seen[kind] = []
            messages: dict[str, Message] = server.begin()
            for _ in range(4):
                transport.post(messages)
                replies = transport.collect()
                seen[kind].append({name: reply.to_bytes() for name, reply in sorted(replies.items())})
                messages = server.step(replies)
            ledgers[kind] = transport.ledger.table()
    assert seen["in one process"] == seen["over wires"]
    assert ledgers["in one process"] == ledgers["over wires"]
    assert "top-left" not in ledgers["over wires"]["up"]  # it sits next to the server


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_questions_change_nothing(kind: str, tmp_path: Path) -> None:
    asked = question({"split": "test", "start": 0, "stop": 2})
    with TRANSPORTS[kind](config(label_holder="top-left"), tmp_path) as (server, transport):
        answers = transport.ask(dict.fromkeys(server.plan.names, asked))
        assert set(answers) == set(server.plan.names)
        assert all(answer[:1] == b"\x00" for answer in answers.values())
        assert transport.ledger.table() == {}
        assert server.step_number == 0


def test_requests_under_way_are_so_again_after_a_restart(tmp_path: Path) -> None:
    """The object that owns them saves and restores them: nobody else needs to know which there were."""
    with Network(PIPELINED, tmp_path) as network:
        network.join_all()
        serving = network._served()
        for _ in range(2):
            serving.advance()
        before = serving.requests.under_way, serving.requests.out
        assert len(before[0]) == 2
        serving.save()
        again = network.restart_server().requests
        assert (again.under_way, again.out) == before
        assert again.state_dict()["under_way"] == 2


def test_a_checkpoint_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    with Network(config(epochs=1), tmp_path) as network:
        network.run()
    paths = {name: tmp_path / name / "checkpoint.safetensors" for name in ("server", network.names[0])}
    for path in paths.values():
        state = checkpoint.load(path)
        del state["version"]
        checkpoint.save(path, state)
    text = "left by another version of efvfl: go on with that one at all participants, or start anew"
    with pytest.raises(CheckpointError, match=text):
        Network(config(epochs=1), tmp_path)
    paths["server"].unlink()
    with Network(config(epochs=1), tmp_path / "anew") as network:
        network.folder = tmp_path
        with pytest.raises(CheckpointError, match=text):
            network.join(network.names[0])


def test_seconds_and_bits_are_counted_on_after_a_restart(tmp_path: Path) -> None:
    for epochs in (1, 2):
        with Network(config(epochs=epochs), tmp_path) as network:
            network.run()
            records = network._served().records
    first, second = records
    assert 0 < first.seconds < second.seconds < 60
    assert second.paper_bits == 2 * first.paper_bits > 0
