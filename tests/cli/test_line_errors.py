"""A wrong authority, a wrong port, a certificate that is refused: said at both ends at once, in our words."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from ports import free_port
from warm_processes import Process

from efvfl.errors import AbsentError, ConfigError, Interrupted
from efvfl.network.identity import authority, certificates
from efvfl.network.links.connecting import dial
from efvfl.network.links.dialling import Dialler, PartyTimeouts
from efvfl.network.links.failed_handshakes import QUIET, FailedHandshakes, wrong_dates_here
from efvfl.network.links.frame import Frame, FrameKind, json_frame
from efvfl.network.links.line_errors import refused
from efvfl.network.links.listening import listen

FILE = """
epochs = 1
data = { subset = 100 }
network = { address = "127.0.0.1:0" }
"""
PARTY = "top-left"
RAW = ("ssl_transport", "SSL_ERROR_SSL", "OPENSSL_internal", ".cc:")  # of a line that a library has written
HASTY = PartyTimeouts(welcome=1.0, tick=0.01, first=0.01, longest=0.1, server=30.0)


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
    server.wait_for("no TLS handshake with 127.0.0.1")  # how often is in brackets behind it
    server.wait_for("its ca.crt is of another authority than 'efvfl CA ")
    lost.wait_for("nobody listens on 127.0.0.1")
    assert lost.running  # the server may come
    assert lost.stop().end().code == 130
    assert server.stop().end().code == 130
    for process in started:
        assert not [text for text in RAW if text in process.errors], process.errors


def joining(address: str, identity: certificates.Credentials, timeouts: PartyTimeouts = HASTY) -> Dialler:
    wires = partial(dial, address, identity, 1 << 20)
    return Dialler(Handler(), wires, timeouts)


def test_a_certificate_that_the_server_refuses(place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = datetime.now(UTC)
    authority.make(tmp_path / "certs", ["server"], 100, now=now - timedelta(days=50))
    authority.make(tmp_path / "certs", [PARTY], 5, now=now - timedelta(days=20))
    expired = certificates.load(tmp_path / "certs", PARTY, now=now - timedelta(days=19))
    server, port = listen("127.0.0.1:0", certificates.load(tmp_path / "certs", "server"), 1 << 20, 1, lambda *_: None)
    try:
        with pytest.raises(ConfigError, match=r"refuses the certificate of 'top-left' as expired: it is valid"):
            joining(f"127.0.0.1:{port}", expired).run()
        while not (seen := [text for text in caplog.messages if "no TLS handshake" in text]):
            time.sleep(0.05)
    finally:
        server.close()
    assert "its certificate has expired; the certificate of 'top-left' expired on" in seen[0]  # it keeps what it signed
    assert any("as expired" in text and "dialling again" in text for text in caplog.messages)


def test_what_the_server_can_tell_from_its_own_files(tmp_path: Path) -> None:
    now, day = datetime.now(UTC), timedelta(days=1)
    authority.make(tmp_path, ["server"], 100, now=now - 50 * day)
    own = certificates.load(tmp_path, "server")
    assert wrong_dates_here(own) == ""  # the certificates of parties are elsewhere
    authority.make(tmp_path, [PARTY], 30, now=now - 10 * day)
    assert wrong_dates_here(own) == ""
    assert f"the certificate of '{PARTY}' is not valid before" in wrong_dates_here(own, now - 20 * day)
    assert f"the certificate of '{PARTY}' expired on" in wrong_dates_here(own, now + 25 * day)
    assert wrong_dates_here(own, now + 60 * day).startswith("the server's own certificate expired on")
    (tmp_path / "junk.crt").write_bytes(b"none")
    assert wrong_dates_here(own) == ""


@pytest.mark.parametrize(
    ("days", "reason", "text"),
    [
        (0, "", "the server refuses the certificate of 'top-left': it is valid from"),
        (0, "SSLV3_ALERT_CERTIFICATE_EXPIRED", "as expired: it is valid until"),
        (0, "TLSV1_ALERT_UNKNOWN_CA", "which is of another authority"),
        (400, "", "the certificate of 'top-left' expired on"),
        (-1, "", "the certificate of 'top-left' is not valid before"),
    ],
)
def test_what_a_party_can_tell_from_its_certificate(place: Path, days: int, reason: str, text: str) -> None:
    """Here the clock has moved since the process started."""
    found = refused(certificates.load(place / "certs", PARTY), reason, datetime.now(UTC) + timedelta(days=days))
    assert text in str(found)
    assert found.final


def test_a_server_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    early = Dialler(Handler(), partial(dial, f"127.0.0.1:{port}", None, 1 << 20), HASTY)
    threading.Timer(0.5, early.stopping.set).start()
    with pytest.raises(Interrupted):
        early.run()
    assert f"no link to the server (nobody listens on 127.0.0.1:{port}: is the server running" in caplog.text
    assert caplog.text.count("no link to the server") == 1


def test_who_was_welcome_before_goes_on_dialling(place: Path) -> None:
    """What is wrong now may be mended without a restart: a certificate is being renewed, or a proxy is in the way."""
    server, port = listen("127.0.0.1:0", certificates.load(place / "others", "server"), 1 << 20, 1, lambda *_: None)
    try:
        late = joining(
            f"127.0.0.1:{port}",
            certificates.load(place / "certs", PARTY),
            PartyTimeouts(welcome=1.0, first=0.05, server=3.0),
        )
        late._welcomed = True
        with pytest.raises(AbsentError, match="was signed by"):
            late.run()
    finally:
        server.close()


@pytest.mark.attack(
    by="a stranger",
    tries="fills the server's log with handshakes that fail",
    outcome="one line a minute names the addresses that tried most; parties are not among them",
)
def test_warnings_of_failed_handshakes_are_few(caplog: pytest.LogCaptureFixture) -> None:
    clock = 100.0
    failed = FailedHandshakes(lambda: clock)
    failed.look()
    assert not caplog.messages
    failed.note("192.0.2.1", "it does not speak TLS")
    assert caplog.messages == ["no TLS handshake with 192.0.2.1: it does not speak TLS"]
    for n in range(1000):
        failed.note(f"198.51.100.{n % 250}", "it has no certificate")
        failed.note("192.0.2.1", "it does not speak TLS")
    clock += QUIET - 1
    failed.look()
    assert len(caplog.messages) == 1
    clock += 1
    failed.look()
    assert "192.0.2.1 (1000): it does not speak TLS; 198.51.100." in caplog.messages[1]
    assert caplog.messages[1].endswith("; and 248 others")
    clock += QUIET
    failed.look()
    assert len(caplog.messages) == 2
