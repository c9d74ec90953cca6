"""A wrong authority, a wrong port, a certificate that is refused: said at both ends at once, in our words."""

import logging
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from ports import free_port
from warm_processes import Process

from efvfl.cli.sessions.setup import make_explain
from efvfl.errors import AbsentError, ConfigError
from efvfl.network.identity import authority, certificates
from efvfl.network.links.dialling import Dialler, PartyTimeouts
from efvfl.network.links.failed_handshakes import PATIENCE, QUIET, FailedHandshakes
from efvfl.network.links.frame import Frame, FrameKind, json_frame
from efvfl.network.links.grpc import dial, listen

FILE = """
epochs = 1
data = { subset = 100 }
network = { address = "127.0.0.1:0" }
"""
PARTY = "top-left"
RAW = ("ssl_transport", "SSL_ERROR_SSL", "OPENSSL_internal", ".cc:")  # of a line that gRPC has written
HASTY = PartyTimeouts(welcome=1.0, tick=0.01, first=0.01, longest=0.1, server=30.0, explain=1.1)


class Handler:
    """A party that has nothing but a name."""

    name = PARTY

    def hello(self) -> Frame:
        return json_frame(FrameKind.HELLO, {"name": self.name})

    def respond(self, frame: Frame) -> Frame | None:
        return Frame(FrameKind.BYE)

    def save(self) -> None: ...

    def save_if_due(self) -> None: ...


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("line")
    (folder / "fed.toml").write_text(FILE)
    for name in ("certs", "others"):
        authority.make(folder / name, ["server", PARTY])
    return folder


@pytest.fixture
def started(place: Path) -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        if process.running:
            process.kill().end()


def test_a_wrong_authority_and_a_wrong_port_in_processes(place: Path, started: list[Process]) -> None:
    def start(*arguments: str) -> Process:
        started.append(Process(place, *arguments, "fed.toml", "--status", "json"))
        return started[-1]

    join = ("join", "--party", PARTY)
    server = start("serve")
    address = f"127.0.0.1:{server.port()}"
    lost = start(*join, "--dir", "lost", "--address", f"127.0.0.1:{free_port()}")
    wrong = start(*join, "--dir", "wrong", "--certs", "others", "--address", address).end()
    assert wrong.code == 2
    assert "was signed by 'efvfl CA " in wrong.errors
    assert "hand out one ca.crt" in wrong.errors
    server.wait_for("no TLS handshake with 127.0.0.1")
    lost.wait_for("nobody listens on 127.0.0.1")
    assert lost.running  # the server may come
    assert lost.stop().end().code == 130
    assert server.stop().end().code == 130
    for process in started:
        assert not [text for text in RAW if text in process.errors], process.errors


def joining(address: str, identity: certificates.Credentials, timeouts: PartyTimeouts = HASTY) -> Dialler:
    wires = partial(dial, address, identity, 1 << 20)
    return Dialler(Handler(), wires, timeouts, explain=make_explain(address, identity))


def test_a_certificate_that_the_server_refuses(place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = datetime.now(UTC)
    authority.make(tmp_path / "certs", ["server"], 100, now=now - timedelta(days=50))
    authority.make(tmp_path / "certs", [PARTY], 5, now=now - timedelta(days=20))
    expired = certificates.load(tmp_path / "certs", PARTY, now=now - timedelta(days=19))
    server, port = listen("127.0.0.1:0", certificates.load(tmp_path / "certs", "server"), 1 << 20, 1, lambda *_: None)
    try:
        with pytest.raises(ConfigError, match=r"the server refuses the certificate of 'top-left': .* has expired"):
            joining(f"127.0.0.1:{port}", expired).run()
    finally:
        server.stop(None).wait()
    assert any("refuses the certificate" in text and "dialling again" in text for text in caplog.messages)


def test_who_was_welcome_before_goes_on_dialling(place: Path) -> None:
    """What is wrong now may be mended without a restart: a certificate is being renewed, or a proxy is in the way."""
    server, port = listen("127.0.0.1:0", certificates.load(place / "others", "server"), 1 << 20, 1, lambda *_: None)
    try:
        late = joining(
            f"127.0.0.1:{port}",
            certificates.load(place / "certs", PARTY),
            PartyTimeouts(welcome=1.0, first=0.05, server=3.0, explain=1.1),
        )
        late._welcomed = True
        with pytest.raises(AbsentError, match="was signed by"):
            late.run()
    finally:
        server.stop(None).wait()


@pytest.mark.attack(
    by="a stranger",
    tries="fills the server's log with handshakes that fail",
    outcome="one line a minute names the addresses that tried most; parties are not among them",
)
def test_warnings_of_failed_handshakes_are_few(caplog: pytest.LogCaptureFixture) -> None:
    time = 100.0
    watch = FailedHandshakes(lambda: time)
    listener = socket.create_server(("127.0.0.1", 0))
    watch.port = listener.getsockname()[1]
    links: list[socket.socket] = []

    def connect() -> str:
        link = socket.create_connection(("127.0.0.1", watch.port))
        links.extend((link, listener.accept()[0]))
        watch.began()
        return f"ipv4:127.0.0.1:{link.getsockname()[1]}"

    connect()
    watch.look()
    assert not caplog.messages  # it has just begun
    time += PATIENCE + 1
    watch.look()
    assert len(caplog.messages) == 1
    assert "no TLS handshake with 127.0.0.1:" in caplog.text
    for _ in range(3):
        time += 1.0
        connect()
    time += PATIENCE + 1
    watch.look()
    assert len(caplog.messages) == 1
    time += QUIET
    watch.look()
    assert "127.0.0.1 (" in caplog.messages[1]
    time += QUIET
    with caplog.at_level(logging.WARNING):
        watch.opened(connect())  # a party
        time += PATIENCE + 1
        watch.look()
    assert len(caplog.messages) == 2
    for link in (*links, listener):
        link.close()
