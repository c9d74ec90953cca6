"""Certificates that change while processes run: a renewed one is taken, a denied one is refused, without a restart."""

import logging
import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from efvfl.cli.sessions import setup
from efvfl.errors import ConfigError, LinkError
from efvfl.network.identity import authority, fingerprints, signing
from efvfl.network.identity.certificates import Credentials, load, parse
from efvfl.network.identity.deny_list import DenyList
from efvfl.network.identity.renewal import Renewal
from efvfl.network.links import listening
from efvfl.network.links.connecting import dial
from efvfl.network.links.dialling import Dial
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.links.framing import NAME
from efvfl.network.links.listening import listen
from efvfl.network.links.socket_bytes import SocketBytes
from efvfl.network.links.wire import Wire
from efvfl.network.ops.audit_log import AuditLog
from efvfl.network.predict import http_server
from efvfl.network.predict.places import PlaceLimits
from efvfl.network.predict.renewed_tls import RenewedTls

SECONDS = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    authority.make(tmp_path / "certs", ["server", "bank"])
    return tmp_path


def renew(folder: Path, name: str) -> None:
    """Replace a certificate by a new one for the same key, as `efvfl sign` and `efvfl accept` do."""
    certs = folder / "certs"
    signing.sign(certs, signing.parse_request(signing.make_request(certs, name), "it"))


def shown_by(port: int, folder: Path) -> str:
    """The fingerprint of the certificate that a server shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(folder / "certs" / "ca.crt")
    context.load_cert_chain(folder / "certs" / "bank.crt", folder / "certs" / "bank.key")
    context.set_alpn_protocols([NAME])
    with (
        socket.create_connection(("127.0.0.1", port), SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="server") as wrapped,
    ):
        return fingerprints.of_bytes(wrapped.getpeercert(binary_form=True) or b"")


@dataclass
class Door:
    """A server's open port, and who has come in."""

    folder: Path
    port: int
    came: "queue.Queue[Wire]" = field(default_factory=queue.Queue)


@pytest.fixture
def door(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(listening, "PERIOD", 0.05)
    agreed = folder / "federation.toml"
    agreed.write_text("[network]\ndenied = []\n")
    came: queue.Queue[Wire] = queue.Queue()

    def accept(wire: Wire, name: str | None) -> None:
        wire.send(b"hi")
        came.put(wire)

    own = load(folder / "certs", "server")
    server, port = listen("127.0.0.1:0", own, 1 << 20, 2, accept, DenyList(agreed))
    yield Door(folder, port, came)
    server.close()


def deny(folder: Path, *names: str) -> None:
    denied = [fingerprints.shown(signing.fingerprint_of(folder / "certs" / f"{name}.crt")) for name in names]
    (folder / "federation.toml").write_text(f"[network]\ndenied = {denied}\n")


def test_a_server_shows_its_renewed_certificate(door: Door) -> None:
    path = door.folder / "certs" / "server.crt"
    first = signing.fingerprint_of(path)
    assert shown_by(door.port, door.folder) == first
    renew(door.folder, "server")
    assert signing.fingerprint_of(path) != first
    assert shown_by(door.port, door.folder) == signing.fingerprint_of(path)
    path.write_bytes(b"half of")  # somebody copies by hand: the certificate in use stays
    assert shown_by(door.port, door.folder) != first


def test_the_prediction_service_shows_its_renewed_certificate(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = folder / "certs" / "server.crt"

    async def answer(scope: object, receive: object, send: object) -> None:
        """No request is made."""

    server = http_server.HttpServer(answer, RenewedTls(path, path.with_suffix(".key")), 1.0, PlaceLimits())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port, first = listening.getsockname()[1], signing.fingerprint_of(path)
        thread = threading.Thread(target=http_server.serve, args=(server, listening))
        thread.start()
        try:
            assert shown_by(port, folder) == first
            renew(folder, "server")
            second = signing.fingerprint_of(path)
            assert first != second == shown_by(port, folder)
            path.write_bytes(b"half of")  # somebody copies by hand: the certificate in use stays
            assert shown_by(port, folder) == second
            assert "the certificate in use stays" in caplog.text
        finally:
            server.should_exit = True
            thread.join(SECONDS)
    assert not thread.is_alive()


def test_a_party_dials_with_its_renewed_certificate(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    used: list[Credentials] = []

    def note(address: str, own: Credentials, limit: int, count: SocketBytes) -> None:
        used.append(own)

    monkeypatch.setattr(setup, "dial", note)
    own = load(folder / "certs", "bank")
    with ExitStack() as stack:
        audit: AuditLog = setup.open_audit_log(tmp_path, stack)
        dialling: Dial = setup.make_dial("127.0.0.1:1", own, 1 << 20, audit)
        dialling()
        renew(folder, "bank")
        dialling()
    assert used[0] == own
    assert used[1] != own
    assert used[1] == load(folder / "certs", "bank")


def test_files_that_do_not_fit_together_change_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = load(folder / "certs", "bank")
    renewal = Renewal(own)
    (folder / "certs" / "bank.key").unlink()
    for _ in range(3):
        assert renewal.current() == own
    assert len([r for r in caplog.records if "stays" in r.message]) == 1
    signing.make_request(folder / "certs", "bank")  # another key: its certificate is still to come
    assert renewal.current() == own
    with caplog.at_level(logging.INFO):
        renew_with_new_key(folder)
        assert renewal.current() == load(folder / "certs", "bank") != own
    assert "valid until" in caplog.records[-1].message
    assert Renewal(Credentials("bank", b"1", b"2", b"3")).current().key == b"3"  # of no folder: as it is


def renew_with_new_key(folder: Path) -> None:
    certs = folder / "certs"
    signing.sign(certs, signing.parse_request(signing.make_request(certs, "bank"), "it"), replace=True)


def first_frame(door: Door) -> bytes:
    wire = dial(f"127.0.0.1:{door.port}", load(door.folder / "certs", "bank"), 1 << 20)
    try:
        return wire.receive(SECONDS)
    finally:
        wire.close()


def test_a_denied_certificate_is_told_so(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    assert first_frame(door) == b"hi"
    deny(door.folder, "bank")
    for _ in range(2):
        frame = Frame.from_bytes(first_frame(door))
        assert frame.kind == FrameKind.REFUSE
        assert "deny list" in frame.json()["text"]
    assert len([r for r in caplog.records if "deny list" in r.message]) == 1  # once, however often it dials
    renew(door.folder, "bank")
    assert first_frame(door) == b"hi"


def test_an_open_connection_is_cut_when_its_certificate_is_denied(door: Door) -> None:
    wire = dial(f"127.0.0.1:{door.port}", load(door.folder / "certs", "bank"), 1 << 20)
    assert wire.receive(SECONDS) == b"hi"
    deny(door.folder, "bank")
    with pytest.raises(LinkError):
        wire.receive(SECONDS)
    wire.close()


def test_a_list_that_cannot_be_read_stays_as_it_was(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "federation.toml").write_text("")
    denied = DenyList(folder / "federation.toml")
    mark = signing.fingerprint_of(folder / "certs" / "bank.crt")
    assert not denied.has(mark)
    deny(folder, "bank")
    assert denied.has(mark)
    time.sleep(0.01)
    (folder / "federation.toml").write_text("[network")
    assert denied.has(mark)
    assert "stays as it was" in caplog.text
    (folder / "federation.toml").write_text("[network]\ndenied = ['AB']")
    assert denied.has(mark)
    with pytest.raises(ConfigError, match="expected a fingerprint"):
        DenyList(folder / "federation.toml")


def test_signing_keeps_within_the_authoritys_own_time(folder: Path) -> None:
    certs, later = folder / "certs", datetime.now(UTC) + timedelta(days=3640)
    request = signing.parse_request(signing.make_request(certs, "bank"), "it")
    ca, certificate = signing.sign(certs, request, 365, now=later)
    assert parse("it", certificate).not_valid_after_utc == parse("it", ca).not_valid_after_utc
    with pytest.raises(ConfigError, match="1 to 36500 days"):
        signing.sign(certs, request, 0)
