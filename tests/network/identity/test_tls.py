"""Strangers at the server's port: refused, with a reason where one can be given, while a federation trains on."""

import contextlib
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from meetings import (  # noqa: F401
    OTHER,
    SECONDS,
    TIMEOUTS,
    VICTIM,
    WAITING,
    Meeting,
    Rogue,
    close_logs,
    make_member,
    settings,
)

from efvfl.config.run_file import RunConfig
from efvfl.errors import AbsentError, ConfigError, LinkError, RefusedError
from efvfl.network.identity import authority, certificates
from efvfl.network.identity.certificates import Credentials
from efvfl.network.links.connecting import dial
from efvfl.network.links.dialling import Dialler
from efvfl.network.links.failed_handshakes import FailedHandshakes
from efvfl.network.links.frame import Frame, FrameKind
from efvfl.network.links.framing import NAME, SIGN_OF_LIFE
from efvfl.network.links.line_errors import LineError
from efvfl.network.links.listening import listen
from efvfl.network.links.wire import Wire
from efvfl.network.training.build import frame_limit

PARTIES = ("top-left", "top-right", "bottom-left", "bottom-right")
LAST_YEAR = datetime.now(UTC) - timedelta(days=365)
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of everyone, and of some who should not come in."""
    folder = tmp_path_factory.mktemp("tls")
    authority.make(folder / "certs", [VICTIM], days=30, now=LAST_YEAR)
    for ending in ("crt", "key"):
        (folder / "certs" / f"{VICTIM}.{ending}").rename(folder / f"expired.{ending}")
    with pytest.MonkeyPatch.context() as patch:  # a certificate whose two names differ is nobody's
        patch.setattr(x509, "DNSName", lambda name, real=x509.DNSName: real("somebody"))
        authority.make(folder / "certs", ["nobody"])
    authority.make(folder / "certs", ["server", *PARTIES, "visitor"], hosts=["127.0.0.1"])
    authority.make(folder / "foreign", ["server", *PARTIES])
    return folder


def identity(ready: Path, name: str) -> Credentials:
    """What someone shows, whether it is still good or not."""
    folder = ready if name == "expired" else ready / "certs"
    files = [(ready / "certs" / "ca.crt"), folder / f"{name}.crt", folder / f"{name}.key"]
    return Credentials(name, *(file.read_bytes() for file in files))


class Guarded(Meeting):
    """A meeting behind a real port with mutual TLS."""

    crowded = False  # whether so many come that the server's log names only the most frequent reasons, once a minute

    def __init__(self, folder: Path, ready: Path, config: RunConfig | None = None) -> None:
        super().__init__(folder, config)
        self.ready = ready
        self.limit = frame_limit(self.serving.plan)
        own = certificates.load(ready / "certs", certificates.SERVER)
        self.server, self.port = listen("127.0.0.1:0", own, self.limit, len(PARTIES), self.requests.accept)

    def dial_as(self, own: Credentials | None) -> Wire:
        return dial(f"127.0.0.1:{self.port}", own, self.limit)

    def join(self, name: str, by: Callable[[], Wire] | None = None) -> None:
        super().join(name, by or partial(self.dial_as, certificates.load(self.ready / "certs", name)))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), SECONDS)

    def stop(self) -> None:
        super().stop()
        self.server.close()


@pytest.fixture
def guarded(tmp_path: Path, ready: Path) -> Iterator[Guarded]:
    """All but the victim are there; the server waits for it."""
    made = Guarded(tmp_path, ready)
    made.start(*(name for name in PARTIES if name != VICTIM))
    yield made
    made.stop()


def hello(meeting: Guarded, own: Credentials | None, name: str = VICTIM) -> str:
    """Dial as someone, say HELLO as someone, and return why that failed."""
    try:
        wire = meeting.dial_as(own)
    except LineError as error:
        return str(error)
    try:
        with contextlib.suppress(LinkError):  # it may be over already
            wire.send(meeting.members[name].hello().to_bytes())
        with contextlib.suppress(LinkError):
            return str(Frame.from_bytes(wire.receive(SECONDS)).json()["text"])
    finally:
        wire.close()
    raise AssertionError("it was told nothing")


def joined(meeting: Guarded, own: Credentials, **about: str) -> str:
    """Take part as the victim, or as it says it is, and return why that is refused."""
    member = meeting.members[VICTIM]
    stranger = Dialler(member, partial(meeting.dial_as, own), WAITING)
    before = member.about
    member.about = before | about
    try:
        with pytest.raises(RefusedError) as caught:
            stranger.run()
    finally:
        member.about = before
    return str(caught.value)


# Who is turned away in the handshake learns why from TLS, and the server's log says the same with the address.


def turned_away(meeting: Guarded, own: Credentials | None, theirs: str, ours: str) -> None:
    meeting.server._failed = FailedHandshakes()  # which says nothing for a minute after it has said something
    with caught_log() as messages:
        text = hello(meeting, own)
        assert re.search(theirs, text), text
        ends = time.monotonic() + SECONDS
        while not meeting.crowded and not any(
            re.search(f"no TLS handshake with 127.0.0.1.*: {ours}", message) for message in messages
        ):
            assert time.monotonic() < ends, messages
            time.sleep(0.01)


@contextlib.contextmanager
def caught_log() -> Iterator[list[str]]:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("efvfl").addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger("efvfl").removeHandler(handler)


def no_certificate(meeting: Guarded, ready: Path) -> None:
    bare = replace(identity(ready, VICTIM), certificate=b"", key=b"")
    with pytest.raises(ConfigError, match="is not a certificate"):  # no party gets so far
        turned_away(meeting, bare, "", "")
    with contextlib.suppress(OSError):
        assert spoken(meeting.port, ready, ssl.TLSVersion.TLSv1_3, "")[1] == b""


def foreign_certificate(meeting: Guarded, ready: Path) -> None:
    foreign = certificates.load(ready / "foreign", VICTIM)
    own = replace(foreign, ca=identity(ready, VICTIM).ca)  # it knows the CA, the server does not know its
    turned_away(meeting, own, "which is of another authority", "its certificate is of another authority than 'efvfl CA")


def expired_certificate(meeting: Guarded, ready: Path) -> None:
    turned_away(
        meeting, identity(ready, "expired"), "refuses the certificate .* as expired", "its certificate has expired"
    )


def certificate_of_the_server(meeting: Guarded, ready: Path) -> None:
    turned_away(
        meeting,
        identity(ready, certificates.SERVER),
        "the server refuses the certificate of 'server'",
        "its certificate is not accepted",
    )


def plaintext(meeting: Guarded, ready: Path) -> None:
    text = "answers, but not as a server with --insecure does"
    turned_away(meeting, None, rf"127\.0\.0\.1:{meeting.port} {text}", "it does not speak TLS")


def another_server_than_expected(meeting: Guarded, ready: Path) -> None:
    own = certificates.load(ready / "foreign", VICTIM)
    turned_away(meeting, own, "was signed by 'efvfl CA", "its ca.crt is of another authority than 'efvfl CA")


# Who has a certificate of this CA learns why.


def nobody(meeting: Guarded, ready: Path) -> None:
    text = hello(meeting, identity(ready, "nobody"))
    assert text == "a certificate of this federation is needed."


def visitor(meeting: Guarded, ready: Path) -> None:
    text = joined(meeting, identity(ready, "visitor"), name="visitor")
    assert text == f"the server refuses {VICTIM}: 'visitor' is not a party of this federation; they are " + (
        ", ".join(PARTIES) + "."
    )


def visitor_as_a_party(meeting: Guarded, ready: Path) -> None:
    text = joined(meeting, identity(ready, "visitor"))
    assert re.search(f"{VICTIM}: the certificate is .*visitor.*, but '{VICTIM}' says HELLO with it", text)


def a_party_as_another(meeting: Guarded, ready: Path) -> None:
    text = joined(meeting, identity(ready, OTHER))
    assert re.search(f"{VICTIM}: the certificate is .*{OTHER}.*, but '{VICTIM}' says HELLO with it", text)


def silent_stream(meeting: Guarded, ready: Path) -> None:
    meeting.requests.timeouts = replace(TIMEOUTS, hello=0.5)
    rogue = Rogue(meeting, meeting.dial_as(identity(ready, VICTIM)))
    assert rogue.refused() == "no HELLO was received within 0.5 seconds."
    rogue.wire.close()


# Who does not speak as we do.


def junk(meeting: Guarded, ready: Path) -> None:
    for data in (b"\0" * 500, b"\xff" * 500, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
        with meeting.connect() as scanner:
            scanner.sendall(data)
            with contextlib.suppress(ConnectionError):
                assert scanner.recv(1000) in (b"", b"\x15\x03\x01\x00\x02\x02F")  # the end, or an alert


def closed_at_once(meeting: Guarded, ready: Path) -> None:
    for _ in range(20):
        meeting.connect().close()


def half_a_handshake(meeting: Guarded, ready: Path) -> None:
    with meeting.connect() as scanner:
        scanner.sendall(b"\x16\x03\x01\x02\x00\x01\x00")


def old_tls(meeting: Guarded, ready: Path) -> None:
    """Without a certificate neither version is let in; the next test has one."""
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with contextlib.suppress(OSError):
            assert spoken(meeting.port, ready, version, "")[1] == b""


def junk_after_the_handshake(meeting: Guarded, ready: Path) -> None:
    with meeting.connect() as raw, client(ready, VICTIM).wrap_socket(raw, server_hostname="server") as stream:
        stream.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        with contextlib.suppress(OSError):
            while stream.recv(1000):
                pass


def client(ready: Path, name: str, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(ready / "certs" / "ca.crt")
    if name:
        made.load_cert_chain(ready / "certs" / f"{name}.crt", ready / "certs" / f"{name}.key")
    made.set_alpn_protocols([NAME])
    made.minimum_version = made.maximum_version = version
    return made


def spoken(port: int, ready: Path, version: ssl.TLSVersion, name: str) -> tuple[str | None, bytes]:
    """Shake hands; return the version and the first bytes."""
    with (
        socket.create_connection(("127.0.0.1", port), SECONDS) as raw,
        client(ready, name, version).wrap_socket(raw, server_hostname="server") as stream,
    ):
        return stream.version(), stream.recv(1000)


STRANGERS = [
    no_certificate,
    foreign_certificate,
    expired_certificate,
    certificate_of_the_server,
    plaintext,
    another_server_than_expected,
    nobody,
    visitor,
    visitor_as_a_party,
    a_party_as_another,
    silent_stream,
    junk,
    closed_at_once,
    half_a_handshake,
    old_tls,
    junk_after_the_handshake,
]


@pytest.mark.parametrize("come", STRANGERS)
def test_a_stranger_is_refused_and_the_federation_goes_on(
    guarded: Guarded, ready: Path, come: Callable[[Guarded, Path], None]
) -> None:
    come(guarded, ready)
    guarded.check()
    guarded.join(VICTIM)
    guarded.finish()


def test_a_party_that_cannot_reach_the_server_says_why(guarded: Guarded, ready: Path) -> None:
    """What does not mend by itself is given up soon; a party that was welcome before goes on."""
    expired = partial(guarded.dial_as, identity(ready, "expired"))
    with pytest.raises(ConfigError, match="no link to the server: the server refuses the certificate of 'expired' as"):
        Dialler(guarded.members[VICTIM], expired, WAITING).run()
    with pytest.raises(AbsentError, match=r"could not be reached .*the server refuses the certificate of 'expired' as"):
        Dialler(guarded.members[VICTIM], expired, replace(WAITING, server=0.3)).run()
    guarded.join(VICTIM)
    guarded.finish()


@pytest.mark.slow
def test_strangers_all_at_once_while_it_trains(tmp_path: Path, ready: Path) -> None:
    """Again and again from the first step to the last; in the middle, until each kind has been there."""
    late = (silent_stream,)  # a busy server has time for these only when it waits
    borrowing = (visitor, visitor_as_a_party, a_party_as_another)  # with a member that is at work now
    kinds = [come for come in STRANGERS if come not in (*late, *borrowing)]
    meeting = Guarded(tmp_path, ready, settings(epochs=10))
    outside = Guarded.__new__(Guarded)  # what they see: the port, and a member of their own
    vars(outside).update(vars(meeting), crowded=True)
    outside.members = {VICTIM: make_member(meeting.config, VICTIM, tmp_path / "idle")}
    failures: list[BaseException] = []
    arrived: set[Callable[[Guarded, Path], None]] = set()
    over = threading.Event()

    def insist(come: Callable[[Guarded, Path], None]) -> None:
        try:
            while not over.wait(0.05):
                if was_heard(come):
                    arrived.add(come)
        except BaseException as error:
            failures.append(error)

    def was_heard(come: Callable[[Guarded, Path], None]) -> bool:
        """Whether a stranger was told what it is told alone; the server may close what is slow in such a crowd."""
        try:
            come(outside, ready)
        except (AssertionError, OSError, pytest.fail.Exception):  # one that was welcome would be another error
            return False
        return True

    member = meeting.members[VICTIM]
    respond = member.respond

    def slowly(frame: Frame) -> Frame | None:
        while frame.number == 3 and arrived != set(kinds) and not failures and not over.wait(0.01):
            pass
        return respond(frame)

    member.respond = slowly  # type: ignore[method-assign]
    crowd = [threading.Thread(target=insist, args=(come,), daemon=True) for come in kinds]
    try:
        for thread in crowd:
            thread.start()
        with meeting.connect():  # and stays, silent
            meeting.start(*PARTIES)
            meeting.finish()
    finally:
        over.set()
        for thread in crowd:
            thread.join(SECONDS)
        meeting.stop()
    assert failures == []
    assert arrived == set(kinds)


def test_silent_connections_stay_outside(guarded: Guarded, ready: Path) -> None:
    """Open ports without a word, with and without TLS, for the whole of a run."""
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(guarded.connect())
        for _ in range(3):
            raw = stack.enter_context(guarded.connect())
            stack.enter_context(client(ready, VICTIM).wrap_socket(raw, server_hostname="server"))
        guarded.join(VICTIM)
        guarded.finish()


def test_more_silent_streams_than_there_is_room_for_keep_nobody_out(guarded: Guarded, ready: Path) -> None:
    """A stream costs the server a thread, so there is room for a few; who says no HELLO leaves it again."""
    guarded.requests.timeouts = replace(TIMEOUTS, hello=0.5)
    wires = [guarded.dial_as(identity(ready, name)) for name in ("visitor", VICTIM, OTHER) for _ in range(8)]
    guarded.join(VICTIM)
    guarded.finish()
    for wire in wires:
        wire.close()


def test_a_second_connection_under_a_live_name_waits_until_the_first_is_gone(guarded: Guarded, ready: Path) -> None:
    guarded.until_connected(OTHER)  # and it stays: nothing goes on before the victim is here
    # The same organisation twice: by hand, and as a member that dials again and again.
    double = make_member(guarded.config, OTHER, guarded.serving.folder / "double")
    wire = guarded.dial_as(identity(ready, OTHER))
    wire.send(double.hello().to_bytes())
    rogue = Rogue(guarded, wire)
    frame = rogue.receive()
    assert frame.kind == FrameKind.REFUSE
    words = f"{OTHER} is connected already: a second one must wait until the first is gone."
    assert frame.json() == {"code": "busy", "text": words}
    rogue.closed()
    wire.close()
    guarded.join(VICTIM, lambda: guarded.dial_as(identity(ready, VICTIM)))
    guarded.finish()


def test_a_member_that_is_there_already_dials_again_and_then_says_why(guarded: Guarded, ready: Path) -> None:
    guarded.until_connected(OTHER)
    double = make_member(guarded.config, OTHER, guarded.serving.folder / "double")
    impatient = replace(WAITING, server=0.3)
    with pytest.raises(AbsentError, match=rf"could not be reached for 0 seconds \({OTHER} is connected already"):
        Dialler(double, partial(guarded.dial_as, identity(ready, OTHER)), impatient).run()
    guarded.join(VICTIM)
    guarded.finish()


def test_tls_13_only(guarded: Guarded, ready: Path) -> None:
    version, first = spoken(guarded.port, ready, ssl.TLSVersion.TLSv1_3, VICTIM)
    assert version == "TLSv1.3"
    assert first == SIGN_OF_LIFE  # it is let in
    with caught_log() as messages:
        with pytest.raises(OSError, match=r"EOF|reset|handshake|ALERT"):
            spoken(guarded.port, ready, ssl.TLSVersion.TLSv1_2, VICTIM)
        while not messages:
            time.sleep(0.01)
    assert "it speaks an older TLS than 1.3" in messages[0]


# No TLS at all.


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:0",
        "[::]:0",
        ":0",
        "10.0.0.1:7143",
        "192.168.1.5:7143",
        "server.example.org:7143",
        "localhost.example.org:7143",
        "127.0.0.1.example.org:7143",
        "dns:///127.0.0.1:7143",
        "127.0.0.1:1,10.0.0.1:7143",
        "unix:/tmp/socket",
        "",
    ],
)
def test_plaintext_beyond_this_machine_is_refused_at_both_ends(address: str) -> None:
    words = f"expected a loopback address with --insecure, got {address!r}: ask for a certificate with `efvfl request`."
    with pytest.raises(ConfigError, match=re.escape(words)):
        listen(address, None, LIMIT, 2, lambda wire, name: None)
    with pytest.raises(ConfigError, match=re.escape(words)):
        dial(address, None, LIMIT)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.9.10"])
def test_plaintext_on_this_machine_works(host: str) -> None:
    server, port = listen(f"{host}:0", None, LIMIT, 2, lambda wire, name: wire.send(repr(name).encode()))
    wire = dial(f"{host}:{port}", None, LIMIT)
    assert wire.receive(SECONDS) == b"None"
    wire.close()
    server.close()


def test_a_port_that_is_taken(ready: Path) -> None:
    own = certificates.load(ready / "certs", certificates.SERVER)
    server, port = listen("127.0.0.1:0", own, LIMIT, 2, lambda wire, name: None)
    with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port}.* is another server running"):
        listen(f"127.0.0.1:{port}", own, LIMIT, 2, lambda wire, name: None)
    server.close()
