"""A wire over a socket: what is sent arrives, whoever is slow, silent, rude or gone at the other end."""

import contextlib
import errno
import os
import queue
import re
import select
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from warm_processes import PATIENT

from efvfl.errors import ConfigError, LinkError, WireError
from efvfl.network.identity import authority
from efvfl.network.identity.certificates import load
from efvfl.network.links import connecting, listening, postman, stream
from efvfl.network.links.connecting import dial
from efvfl.network.links.framing import BEAT, FIRST, FRAME, HEAD, NAME, PREFACE, SIGN_OF_LIFE, Deframer, framed
from efvfl.network.links.line_errors import LineError
from efvfl.network.links.listening import listen
from efvfl.network.links.socket_bytes import SocketBytes
from efvfl.network.links.stream import StreamWire
from efvfl.network.links.tls import NoSeal, Tls, tls_context
from efvfl.network.links.wire import Wire

LARGE = 64 << 20


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    authority.make(folder, ["server", "bank", "telco"])
    return folder


@dataclass
class Door:
    """A server's port, and who has come in."""

    server: listening.Listener
    port: int
    certs: Path | None
    came: "queue.Queue[Wire]" = field(default_factory=queue.Queue)

    def dial(self, name: str = "bank") -> Wire:
        return dial(f"127.0.0.1:{self.port}", load(self.certs, name) if self.certs else None, LARGE)

    def pair(self, name: str = "bank") -> tuple[Wire, Wire]:
        """A party's end and the server's."""
        near = self.dial(name)
        return near, self.came.get(timeout=PATIENT)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENT)


@contextmanager
def opened(certs: Path | None, host: str = "127.0.0.1") -> Iterator[Door]:
    came: queue.Queue[Wire] = queue.Queue()
    own = load(certs, "server") if certs else None
    server, port = listen(f"{host}:0", own, LARGE, 2, lambda wire, name: came.put(wire))
    try:
        yield Door(server, port, certs, came)
    finally:
        server.close()


@pytest.fixture(params=["plain", "tls"])
def door(request: pytest.FixtureRequest, certs: Path) -> Iterator[Door]:
    with opened(certs if request.param == "tls" else None) as made:
        yield made


@pytest.fixture
def guarded(certs: Path) -> Iterator[Door]:
    with opened(certs) as made:
        yield made


def until(done: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENT
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.01)


# Frames.


@pytest.mark.parametrize("step", [1, 2, 8, 9, 10, 1000])
def test_frames_come_out_however_the_stream_is_cut(step: int) -> None:
    frames = [b"", b"a", os.urandom(30), os.urandom(700)]
    whole = SIGN_OF_LIFE.join(map(framed, frames))
    taking, taken = Deframer(700), []
    for place in range(0, len(whole), step):
        taking.add(whole[place : place + step])
        while (frame := taking.next()) is not None:
            taken.append(frame)
    assert taken == frames
    assert taking.beats == 3
    assert not taking.begun


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (HEAD.pack(FRAME, 701), "expected a frame of at most 700 bytes, got more"),
        (HEAD.pack(FRAME, (1 << 64) - 1), "expected a frame of at most 700 bytes, got more"),
        (HEAD.pack(BEAT, 1), "expected a frame, got bytes that are none"),
        (b"GET / HTTP/1.1", "expected a frame, got bytes that are none"),
    ],
)
def test_what_is_no_frame_is_refused_by_its_head(data: bytes, text: str) -> None:
    taking = Deframer(700)
    taking.add(data)
    with pytest.raises(WireError, match=re.escape(text)):
        taking.next()


@pytest.mark.attack(
    by="a party",
    tries="sends a long frame as TLS records of two bytes",
    outcome="it takes little more room than its bytes (22 times as much before)",
)
def test_a_frame_of_tiny_parts_takes_its_room_and_little_more() -> None:
    data = os.urandom(1 << 20)
    tracemalloc.start()
    try:
        taking = Deframer(len(data))
        taking.add(HEAD.pack(FRAME, len(data))[:5])
        for place in range(0, len(data), 2):
            taking.ready()
            if not place:
                taking.add(HEAD.pack(FRAME, len(data))[5:])
            taking.add(data[place : place + 2])
        assert tracemalloc.get_traced_memory()[1] < 1.5 * len(data)
    finally:
        tracemalloc.stop()
    assert taking.next() == data
    assert not taking.begun


# Both ends.


def test_large_frames_in_both_directions_at_the_same_time(door: Door) -> None:
    near, far = door.pair()
    far.trust()
    there, back = os.urandom(1 << 20) * 64, os.urandom(1 << 20) * 64
    near.send(there)  # neither waits for the other, though nobody reads yet
    far.send(back)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(far.receive(PATIENT)))
    thread.start()
    assert near.receive(PATIENT) == back
    thread.join(PATIENT)
    assert got == [there]
    near.close()
    far.close()


def test_what_was_sent_before_the_end_arrives(door: Door) -> None:
    near, far = door.pair()
    data = os.urandom(5 << 20)
    far.send(data)
    far.send(b"BYE")
    far.close()
    with pytest.raises(LinkError):
        far.send(b"more")
    time.sleep(0.2)  # the party computes
    assert near.receive(PATIENT) == data
    assert near.receive(PATIENT) == b"BYE"
    with pytest.raises(LinkError):
        near.receive(PATIENT)
    near.close()


def test_a_party_that_ends_at_once_has_said_bye(door: Door) -> None:
    near, far = door.pair()
    near.send(b"BYE")
    near.close()
    assert far.receive(PATIENT) == b"BYE"
    with pytest.raises(LinkError, match="closed the stream" if door.certs else "broke"):
        far.receive(PATIENT)
    far.close()


@pytest.mark.attack(
    by="a party",
    tries="does not read what it is sent",
    outcome="the server's thread does not wait and its memory is bounded; others get their frames meanwhile",
)
def test_a_peer_that_does_not_read(door: Door) -> None:
    slow, far = door.pair()
    other, there = door.pair("telco")
    data = bytes(8 << 20)
    far._limit = len(data)  # type: ignore[attr-defined]
    tracemalloc.start()
    try:
        began = time.thread_time()
        with pytest.raises(LinkError, match="does not read"):  # noqa: PT012
            for _ in range(100):
                far.send(data)
                assert not far.settled
        assert time.thread_time() - began < 5.0
        assert tracemalloc.get_traced_memory()[1] < 8 * len(data)
    finally:
        tracemalloc.stop()
    there.send(b"hello")
    assert other.receive(PATIENT) == b"hello"
    for wire in (far, slow, other, there):
        wire.close()


def test_time_over(door: Door) -> None:
    near, far = door.pair()
    for seconds in (0.0, 0.05, 0.3):
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            near.receive(seconds)
        assert time.monotonic() - began >= seconds
    far.send(b"late")
    assert near.receive(PATIENT) == b"late"
    near.close()
    far.close()


def test_a_closed_wire_lets_go_of_who_reads_from_it(door: Door) -> None:
    near, far = door.pair()
    errors: list[LinkError] = []

    def read() -> None:
        try:
            far.receive(None)
        except LinkError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.1)
    far.close()
    thread.join(2.0)
    assert not thread.is_alive()
    assert len(errors) == 1
    near.close()


def test_a_port_that_is_closed_leaves_no_thread_and_no_file(certs: Path) -> None:
    threads, files = set(threading.enumerate()), sorted(os.listdir("/proc/self/fd"))
    with opened(certs) as door:
        wires = [door.pair(name) for name in ("bank", "telco") for _ in range(2)]
        lost = door.connect()
        began = time.monotonic()
        door.server.close(1.0)
        assert time.monotonic() - began < 2.0
        for near, far in wires:
            with pytest.raises(LinkError):
                far.send(b"")
            near.close()
        lost.close()
    until(lambda: set(threading.enumerate()) <= threads)
    assert sorted(os.listdir("/proc/self/fd")) == files


def test_bytes_are_counted_as_they_are_on_the_socket(door: Door) -> None:
    near, far = door.pair()
    before = door.server.count.totals()
    near.send(bytes(1000))
    assert far.receive(PATIENT) == bytes(1000)
    sent, received = (now - then for now, then in zip(door.server.count.totals(), before, strict=True))
    record = 22 if door.certs else 0  # head, type and tag of a TLS record
    assert (sent, received) == (0, HEAD.size + 1000 + record)
    near.close()
    far.close()


def test_ipv6(certs: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with opened(certs, "[::1]") as door:
        near = dial(f"[::1]:{door.port}", load(certs, "bank"), 1 << 20)
        near.send(b"hi")
        assert door.came.get(timeout=PATIENT).receive(PATIENT) == b"hi"
        near.close()


class Odd:
    """A wire with which something is wrong that nobody has thought of."""

    def __init__(self) -> None:
        self.seen_off = 0

    def fileno(self) -> int:
        return -1

    def flush(self) -> bool:
        return True

    def beat(self, since: float) -> None:
        raise MemoryError

    def is_over(self) -> bool:
        self.seen_off += 1
        raise MemoryError

    def close(self) -> None:
        raise MemoryError

    def let_go(self) -> bool:
        raise MemoryError


def test_a_wire_that_cannot_be_looked_after_is_alone_with_it(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread looks after all: it must not end by one of them, nor by what is looked at between them."""
    monkeypatch.setattr(postman, "BEAT", 0.1)
    odd, looked, look = Odd(), threading.Event(), door.server._look

    def fail() -> float:
        door.server._postman._ticks = look
        looked.set()
        raise MemoryError

    door.server._postman._ticks = fail
    assert looked.wait(PATIENT)
    door.server._postman.take(odd)
    door.server._postman.see_off(odd)
    until(lambda: odd.seen_off)
    time.sleep(0.3)
    assert odd.seen_off == 1  # once is enough
    near, far = door.pair()
    near.send(b"hi")
    assert far.receive(PATIENT) == b"hi"
    near.close()
    far.close()


# Signs of life.


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postman, "BEAT", 0.1)
    monkeypatch.setattr(stream, "BEAT", 0.1)
    monkeypatch.setattr(stream, "SILENCE", 1.0)


@pytest.mark.usefixtures("hasty")
def test_who_computes_for_long_is_not_taken_for_gone(door: Door) -> None:
    near, far = door.pair()
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(far.receive(None)), daemon=True)
    thread.start()
    time.sleep(2.5)  # the party reads nothing
    near.send(b"done")
    thread.join(PATIENT)
    assert got == [b"done"]
    far.send(b"next")
    assert near.receive(PATIENT) == b"next"
    near.close()
    far.close()


@pytest.mark.usefixtures("hasty")
def test_a_silent_line_is_noticed_at_both_ends(guarded: Door) -> None:
    silent = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as relay:
        threading.Thread(target=carry, args=(relay, guarded.port, silent), daemon=True).start()
        near = dial(f"127.0.0.1:{relay.getsockname()[1]}", load(guarded.certs or Path(), "bank"), LARGE)
        far = guarded.came.get(timeout=PATIENT)
        near.send(b"hi")
        assert far.receive(PATIENT) == b"hi"
        silent.set()
        for wire in (near, far):
            with pytest.raises(LinkError, match=r"no sign of life for 1 seconds|broke"):
                wire.receive(PATIENT)
            wire.close()


def carry(relay: socket.socket, port: int, silent: threading.Event) -> None:
    """Carry bytes between a party and the server, until nothing is carried any more."""
    here, _ = relay.accept()
    with here, socket.create_connection(("127.0.0.1", port)) as there:
        while not silent.is_set():
            for source in select.select([here, there], [], [], 0.05)[0]:
                (there if source is here else here).sendall(source.recv(1 << 16))
        time.sleep(5.0)


def test_a_sign_of_life_that_found_no_room_is_sent_later() -> None:
    """A socket may be full at that moment, by what was just sent: nothing else would be said for long."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    held = postman.Postman("test")
    held.start()
    wire = StreamWire(ours, NoSeal(), LARGE, held, SocketBytes())
    size, began = 0, time.monotonic()
    while time.monotonic() - began < 0.5:  # it takes some more for a while
        with contextlib.suppress(BlockingIOError):
            size += ours.send(bytes(1 << 10), socket.MSG_DONTWAIT)
    for _ in range(2):
        wire.beat(float("inf"))
    assert not wire.settled
    theirs.settimeout(2.0)
    while size:
        size -= len(theirs.recv(min(size, 1 << 16)))
    try:
        until(lambda: len(theirs.recv(100, socket.MSG_PEEK)) == 2 * len(SIGN_OF_LIFE))
        assert wire.settled
    finally:
        theirs.close()
        held.stop(0.0)


def test_what_is_sealed_and_not_sent_is_not_settled(door: Door) -> None:
    near, far = door.pair()
    data = bytes(1 << 16)
    ends = time.monotonic() + PATIENT
    while not far._rest:  # type: ignore[attr-defined]
        far.send(data)
        assert time.monotonic() < ends
    with far._sending:  # type: ignore[attr-defined]
        assert not (far._rest and far.settled)  # type: ignore[attr-defined]
    near.close()
    far.close()


@pytest.mark.attack(
    by="a party",
    tries="sends signs of life without end",
    outcome="the connection is closed after some more than time allows",
)
def test_a_flood_of_signs_of_life(door: Door) -> None:
    near, far = door.pair()
    near._queue.append(memoryview(SIGN_OF_LIFE * 100_000))  # type: ignore[attr-defined]
    near._waiting += len(SIGN_OF_LIFE) * 100_000  # type: ignore[attr-defined]
    near.send(b"")
    with pytest.raises(WireError, match="expected a sign of life every few seconds, got far more"):
        far.receive(PATIENT)
    far.close()
    near.close()


# Certificates at the server.


def test_an_authority_with_a_comment(certs: Path) -> None:
    """PEM files may begin with one, in any language."""
    own, theirs = (load(certs, name) for name in ("bank", "server"))
    comment = "Zürich\n".encode()
    server, port = listen("127.0.0.1:0", replace(theirs, ca=comment + theirs.ca), LARGE, 2, lambda wire, name: None)
    dial(f"127.0.0.1:{port}", replace(own, ca=comment + own.ca), LARGE).close()
    server.close()


def test_a_certificate_that_tls_refuses_is_told_at_once(certs: Path, guarded: Door) -> None:
    text = "TLS does not take the certificate of 'server', its key or ca.crt"
    own = replace(load(certs, "server"), key=load(certs, "bank").key)
    with pytest.raises(ConfigError, match=text):
        listen("127.0.0.1:0", own, LARGE, 2, lambda wire, name: None)
    with pytest.raises(ConfigError, match=text):
        dial(f"127.0.0.1:{guarded.port}", own, LARGE)


def test_a_party_that_may_open_no_more_files_dials_again(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> postman.Postman:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(connecting, "Postman", fail)
        with pytest.raises(LinkError, match=r"cannot be used .*Too many open files"):
            door.dial()
    with pytest.raises(LinkError):
        door.came.get(timeout=PATIENT).receive(PATIENT)  # its end is closed
    door.pair()[0].close()


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), ConfigError("it is too weak")])
def test_a_renewed_certificate_that_cannot_be_used_now(
    guarded: Door, certs: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before it stays in use, and the other is tried again."""
    found = load(certs, "server")
    other = replace(found, certificate=found.certificate + b"\n")
    renewal: Any = guarded.server._renewal
    monkeypatch.setattr(renewal, "current", lambda: other)

    def fail(*rest: Any, **named: Any) -> ssl.SSLContext:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(listening, "tls_context", fail)
        guarded.pair()[0].close()
    guarded.pair()[0].close()
    assert guarded.server._used is not None
    assert guarded.server._used[0] == other


# Who does not shake hands as we do.


def context(certs: Path, name: str = "bank", spoken: str = NAME) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(certs / "ca.crt")
    if name:
        made.load_cert_chain(certs / f"{name}.crt", certs / f"{name}.key")
    if spoken:
        made.set_alpn_protocols([spoken])
    return made


@pytest.mark.attack(
    by="a stranger",
    tries="begins a TLS handshake and goes on by a byte now and then",
    outcome="all of a handshake has 10 seconds; nobody else waits meanwhile",
)
def test_a_handshake_byte_by_byte(
    guarded: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "SHAKE", 1.0)
    with guarded.connect() as slow:
        began = time.monotonic()
        hello = b"\x16\x03\x01\x02\x00" + bytes(600)
        with contextlib.suppress(OSError):
            for place in range(len(hello)):
                slow.send(hello[place : place + 1])
                if select.select([slow], [], [], 0.02)[0] and not slow.recv(100):
                    break
        assert 0.9 < time.monotonic() - began < 5.0
    near, far = guarded.pair()
    near.send(b"hi")
    assert far.receive(PATIENT) == b"hi"
    until(lambda: "no TLS handshake with 127.0.0.1: it did not come to an end within" in caplog.text)
    near.close()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it does not speak TLS"),
        (os.urandom(7) + bytes(500), "no TLS handshake|it does not speak TLS"),
        (PREFACE + SIGN_OF_LIFE, "it does not speak TLS"),
    ],
)
def test_who_does_not_speak_tls(guarded: Door, data: bytes, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with guarded.connect() as link:
        link.sendall(data)
        with contextlib.suppress(ConnectionError):
            while link.recv(1000):
                pass
        until(lambda: re.search(f"no TLS handshake with 127.0.0.1: ({reason})", caplog.text))


def test_without_a_certificate(guarded: Door, certs: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        guarded.connect() as link,
        context(certs, "").wrap_socket(link, server_hostname="server") as secure,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        secure.recv(1)
    until(lambda: "no TLS handshake with 127.0.0.1: it has no certificate" in caplog.text)


def test_another_protocol_over_tls_is_told_at_both_ends(
    guarded: Door, certs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with guarded.connect() as link, context(certs, spoken="h2").wrap_socket(link, server_hostname="server") as secure:
        text = secure.recv(1000)
    assert b"install the same release of efvfl at both ends" in text
    until(lambda: f"it does not speak {NAME}: install the same release" in caplog.text)


@contextmanager
def older_server(certs: Path, spoken: str) -> Iterator[str]:
    """A server of this federation that speaks something else."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certs / "server.crt", certs / "server.key")
    made.set_alpn_protocols([spoken])

    def serve() -> None:
        link, _ = listener.accept()
        with link, contextlib.suppress(OSError), made.wrap_socket(link, server_side=True) as secure:
            secure.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(PATIENT)


@pytest.mark.parametrize(
    ("spoken", "text"), [("h2", "by an older release of efvfl, which speaks gRPC"), ("http/1.1", "is no server for")]
)
def test_a_server_that_speaks_something_else(certs: Path, spoken: str, text: str) -> None:
    with older_server(certs, spoken) as address, pytest.raises(LineError, match=text):
        dial(address, load(certs, "bank"), 1 << 20)


def test_a_certificate_under_another_name(certs: Path, tmp_path: Path) -> None:
    """A party that poses as the server is refused, though the authority has signed its certificate."""
    shutil.copytree(certs, tmp_path, dirs_exist_ok=True)
    for ending in ("crt", "key"):
        shutil.copy(tmp_path / f"telco.{ending}", tmp_path / f"server.{ending}")
    with older_server(tmp_path, NAME) as address, pytest.raises(LineError) as caught:
        dial(address, load(certs, "bank"), 1 << 20)
    assert caught.value.fault in ("identity", "authority")
    assert caught.value.final


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, certs: Path) -> None:
    monkeypatch.setattr(connecting, "SHAKE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for own in (None, load(certs, "bank")):
            with pytest.raises(LineError, match="accepts connections, but says nothing"):
                dial(f"127.0.0.1:{mute.getsockname()[1]}", own, 1 << 20)


@pytest.mark.attack(
    by="a stranger",
    tries="poses as the server, and answers a party's handshake by a byte now and then",
    outcome="the party gives that connection up after 10 seconds",
)
def test_a_server_that_shakes_hands_byte_by_byte(certs: Path) -> None:
    there, said = Tls(tls_context(load(certs, "server"), [NAME], server=True), server=True), bytearray()

    class Link:
        """Always has a byte, in time."""

        def settimeout(self, seconds: float) -> None: ...

        def sendall(self, data: bytes) -> None:
            said.extend(there.shake(data)[0])

        def recv(self, size: int) -> bytes:
            time.sleep(0.0005)
            return bytes([said.pop(0)])

    link: Any = Link()
    with pytest.raises(LineError, match="accepts connections, but says nothing"):
        connecting._shake(link, "127.0.0.1:1", load(certs, "bank"), time.monotonic() + 0.2, SocketBytes())


def test_a_machine_without_ipv6_dials_by_ipv4(guarded: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may have addresses of a family that the system lacks."""
    resolve = socket.getaddrinfo

    class Lacking(socket.socket):
        def __init__(self, family: int = -1, *rest: Any, **named: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *rest, **named)

    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", guarded.port, 0, 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *rest, **named: [six, *resolve(*rest, **named)])
    monkeypatch.setattr(socket, "socket", Lacking)
    guarded.pair()[0].close()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *rest, **named: [six])
    with pytest.raises(LineError, match=r"cannot be reached .*Address family not supported"):
        guarded.dial()


@pytest.mark.attack(
    by="a party",
    tries="opens connections without end with its certificate, and says nothing on them",
    outcome="it has four; others connect",
)
def test_connections_of_one_certificate_are_few(guarded: Door) -> None:
    wires = [guarded.dial() for _ in range(4)]
    fifth = guarded.dial()
    assert b"bank has 4 connections already" in fifth.receive(PATIENT)
    guarded.pair("telco")[0].close()
    for wire in (*wires, fifth):
        wire.close()


def test_a_half_closed_socket_is_the_end(guarded: Door, certs: Path) -> None:
    with guarded.connect() as link:
        secure = context(certs).wrap_socket(link, server_hostname="server")
        far = guarded.came.get(timeout=PATIENT)
        secure.shutdown(socket.SHUT_WR)  # without a word of TLS: somebody in between could do that
        with pytest.raises(LinkError, match="the connection broke"):
            far.receive(PATIENT)
        far.close()
        secure.close()


@pytest.mark.attack(
    by="a party",
    tries="has TLS change its keys again and again, and does not read the answers",
    outcome="what TLS itself has to say is bounded: then the connection is closed",
)
def test_updates_of_keys_do_not_pile_up(guarded: Door, certs: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to ask for updates of keys")
    files = {"-CAfile": "ca.crt", "-cert": "bank.crt", "-key": "bank.key"}
    words = [openssl, "s_client", "-connect", f"127.0.0.1:{guarded.port}", "-alpn", NAME, "-tls1_3"]
    words += [word for option, name in files.items() for word in (option, str(certs / name))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
        far = guarded.came.get(timeout=PATIENT)
        assert other.stdin is not None
        for _ in range(6):
            other.stdin.write(b"K\n")
            other.stdin.flush()  # one at a time: the tool takes a line as a command only where it reads it alone
            time.sleep(0.05)
        with pytest.raises(TimeoutError):
            far.receive(1.0)
        assert not far._seal.owes  # type: ignore[attr-defined]  # its own updates have left
        other.kill()
    far.close()


def test_what_tls_owes_is_bounded(certs: Path) -> None:
    """A peer that asks and does not read: nothing is taken of it any more."""

    class Owing:
        pending = 1 << 20

    with opened(certs) as door:
        near, far = door.pair()
        seal: Any = far._seal  # type: ignore[attr-defined]
        kept, seal._to_send = seal._to_send, Owing()
        with pytest.raises(LinkError, match="asks TLS for more than it reads"):
            seal.add(b"")
        seal._to_send = kept
        near.close()
        far.close()


# By way of a proxy.


def test_a_proxy_that_wants_a_password(guarded: Door, certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def serve() -> None:
        link, _ = proxy.accept()
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            request += link.recv(1)
        asked.append(request)
        link.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with link, socket.create_connection(("127.0.0.1", guarded.port)) as there, contextlib.suppress(OSError):
            while ready := select.select([link, there], [], [], PATIENT)[0]:
                for source in ready:
                    if not (data := source.recv(1 << 16)):
                        return
                    (there if source is link else link).sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as proxy:
        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss@127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY", "https_proxy"):
            monkeypatch.delenv(name, raising=False)
        near = dial(f"127.0.0.1:{guarded.port}", load(certs, "bank"), 1 << 20)
        near.send(b"hi")
        assert guarded.came.get(timeout=PATIENT).receive(PATIENT) == b"hi"
        near.close()
    assert b"Proxy-Authorization: Basic bWU6cEBzcw==\r\n" in asked[0]
    assert asked[0].startswith(b"CONNECT 127.0.0.1:")


# Frames that are too long.


@pytest.mark.parametrize("trusted", [False, True])
def test_a_frame_that_is_too_long(certs: Path, trusted: bool) -> None:
    came: queue.Queue[Wire] = queue.Queue()
    limit = 4 << 20
    server, port = listen("127.0.0.1:0", load(certs, "server"), limit, 2, lambda wire, name: came.put(wire))
    near = dial(f"127.0.0.1:{port}", load(certs, "bank"), 64 << 20)
    far = came.get(timeout=PATIENT)
    if trusted:
        far.trust()
    near.send(bytes(limit if trusted else FIRST))
    assert len(far.receive(PATIENT)) == (limit if trusted else FIRST)
    near.send(bytes((limit if trusted else FIRST) + 1))
    with pytest.raises(WireError, match=f"expected a frame of at most {limit if trusted else FIRST:,} bytes, got more"):
        far.receive(PATIENT)
    far.close()
    near.close()
    server.close()


def test_a_frame_that_does_not_end(guarded: Door) -> None:
    """What is announced costs nothing until it comes; an end amid a frame is no frame."""
    near, far = guarded.pair()
    near._queue.append(memoryview(HEAD.pack(FRAME, FIRST) + b"half"))  # type: ignore[attr-defined]
    assert isinstance(near, StreamWire)
    near.flush()
    with pytest.raises(TimeoutError):
        far.receive(0.3)
    near._link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    near.let_go()
    with pytest.raises(LinkError, match="the connection broke"):
        far.receive(PATIENT)
    far.close()
    near.close()
