"""Connections on which nobody says anything: they are capped, and cost nobody else the server."""

import contextlib
import errno
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from efvfl.network.links.connection_guard import ConnectionGuard, ConnectionLimits
from warm_processes import PATIENT, Process

from efvfl.errors import LinkError
from efvfl.network.links import connection_guard
from efvfl.network.links.connecting import dial
from efvfl.network.links.frame import PIECE, Assembler, Frame, FrameKind, json_frame, pieces
from efvfl.network.links.listening import listen
from efvfl.network.links.socket_bytes import SocketBytes
from efvfl.network.links.wire import Wire
from efvfl.network.ops.open_files import raise_limit

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="connections are found in /proc")


def until(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENT
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.01)


def is_open(connection: socket.socket) -> bool:
    """Whether the other end has not closed it; it has never sent anything but perhaps gRPC's first frame."""
    try:
        while connection.recv(4096, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextlib.contextmanager
def idle(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Open so many connections to a port, and say nothing."""
    opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    try:
        yield opened
    finally:
        for connection in opened:
            connection.close()


@pytest.fixture
def port() -> Iterator[int]:
    """A server for two parties, which says WELCOME to everyone."""

    def accept(wire: Wire, name: str | None) -> None:
        threading.Thread(target=welcome, args=(wire,), daemon=True).start()

    def welcome(wire: Wire) -> None:
        with contextlib.suppress(LinkError):
            while True:
                wire.receive(None)
                wire.send(json_frame(FrameKind.WELCOME, {}).to_bytes())

    server, port = listen("127.0.0.1:0", None, 1 << 20, 2, accept)
    yield port
    server.close()


@pytest.mark.attack(
    by="a stranger",
    tries="keeps 300 idle TCP connections from one address to a server for two parties",
    outcome="the oldest are closed until 20 are left; a party connects and is not cut off",
)
def test_idle_connections_are_closed_and_a_party_is_not(port: int) -> None:
    limits = ConnectionLimits.of(2)
    assert limits.unused_by_address == 20
    first = dial(f"127.0.0.1:{port}", None, 1 << 20)
    first.send(json_frame(FrameKind.HELLO, {}).to_bytes())
    assert Frame.from_bytes(first.receive(PATIENT)).kind == FrameKind.WELCOME
    with idle(port, 300) as opened:
        until(lambda: sum(map(is_open, opened)) <= limits.unused_by_address)
        second = dial(f"127.0.0.1:{port}", None, 1 << 20)
        second.send(json_frame(FrameKind.HELLO, {}).to_bytes())
        assert Frame.from_bytes(second.receive(PATIENT)).kind == FrameKind.WELCOME
        first.send(json_frame(FrameKind.HELLO, {}).to_bytes())  # still there
        assert Frame.from_bytes(first.receive(PATIENT)).kind == FrameKind.WELCOME
    first.close()
    second.close()


def test_a_server_accepts_a_bounded_number_at_any_moment(port: int) -> None:
    """Faster than the guard looks: then gRPC itself refuses more."""
    with idle(port, 500):
        files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        sockets = sum("socket:" in name for name in files)
        assert sockets <= 500 + ConnectionLimits.of(2).total + 20


def test_who_has_left_makes_room_for_who_is_there() -> None:
    """gRPC takes a moment to notice that the other end is gone; that must not cost an older connection its place."""
    with socket.create_server(("127.0.0.1", 0)) as listening, contextlib.ExitStack() as kept:
        port = listening.getsockname()[1]
        guard = ConnectionGuard(port, ConnectionLimits(total=9, unused=9, unused_by_address=2))

        def connected() -> socket.socket:
            made = kept.enter_context(socket.create_connection(("127.0.0.1", port)))
            kept.enter_context(listening.accept()[0])
            return made

        patient = connected()
        assert guard.look() == 0
        for _ in range(5):
            connected().close()
        assert guard.look() == 4
        assert is_open(patient)


def condemned(guard: ConnectionGuard, *peers: tuple[str, int]) -> set[tuple[str, int]]:
    guard._order = dict.fromkeys(peers)
    return guard._condemned()


def test_which_connections_are_closed() -> None:
    guard = ConnectionGuard(7143, ConnectionLimits(total=9, unused=4, unused_by_address=2))
    many = [("192.0.2.1", port) for port in range(5)]
    assert condemned(guard, *many[:2]) == set()
    assert condemned(guard, *many) == set(many[:3])  # the newest stay
    guard.opened("ipv4:192.0.2.1:0")
    assert condemned(guard, *many) == set(many[1:3])  # one with a stream is not touched, and does not count
    guard.closed("ipv4:192.0.2.1:0")
    assert condemned(guard, *many) == set(many[:3])
    several = [(f"192.0.2.{n}", 1) for n in range(6)]
    assert condemned(guard, *several) == set(several[:2])  # in all
    honest = ("198.51.100.7", 1)  # the oldest; three others have as many as an address may have
    crowd = [(f"192.0.2.{n}", port) for n in range(3) for port in range(2)]
    assert honest not in condemned(guard, honest, *crowd)
    # Whoever has one IPv6 address has a network of them.
    network = [(f"2001:db8::{n}", 1) for n in range(1, 4)]
    assert condemned(guard, *network, ("2001:db8:0:1::1", 1)) == {network[0]}
    guard.opened("ipv6:%5B2001:db8::1%5D:1")
    assert condemned(guard, *network) == set()


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:40000", ("192.0.2.1", 40000)),
        ("ipv6:%5B2001:db8::1%5D:40000", ("2001:db8::1", 40000)),
        ("ipv6:[::ffff:192.0.2.1]:40000", ("192.0.2.1", 40000)),
        ("unix:", ("", 0)),
    ],
)
def test_what_grpc_calls_a_peer(peer: str, address: tuple[str, int]) -> None:
    assert connection_guard.parsed_peer(peer) == address
    assert connection_guard.peer_of(("::ffff:192.0.2.1", 7, 0, 0)) == ("192.0.2.1", 7)


# Files that cannot be opened any more.


def full(path: object = ".") -> list[str]:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.attack(
    by="a stranger",
    tries="uses up the files that the server may open, by connections",
    outcome="what cannot be counted or closed now is counted and closed later; the server goes on",
)
def test_no_more_files_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        sockets, guard = (
            SocketBytes(port),
            ConnectionGuard(port, ConnectionLimits(total=9, unused=0, unused_by_address=0)),
        )
        with socket.create_connection(("127.0.0.1", port)) as here, listening.accept()[0] as there:
            here.sendall(bytes(100))
            assert there.recv(100, socket.MSG_WAITALL) == bytes(100)
            assert sockets.totals() == (100, 100)
            with monkeypatch.context() as patch:
                patch.setattr(os, "listdir", full)
                here.sendall(bytes(11))
                assert there.recv(11, socket.MSG_WAITALL) == bytes(11)
                assert sockets.totals() == (100, 100)  # as last seen
                assert guard.look() == 0
            assert sockets.totals() == (111, 111)
            assert guard.look() == 1


def test_the_limit_on_files_is_raised_as_far_as_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 400:
        pytest.skip("this system allows too few files")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
        raised = raise_limit()
        assert raised == min(before[1], 65_536)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, before[1])
        assert raise_limit() == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


FILE = """
epochs = 3
batch_size = 32
data = { path = "labels.npz", test = 0.2, validation = 0.0 }
party = [{ name = "north", data = { path = "north.npz" } }]
"""


@pytest.mark.slow
@pytest.mark.attack(
    by="a stranger",
    tries="opens 1,300 idle TCP connections to a server that may open 1,024 files",
    outcome="the server stays, closes them, and a party that connects meanwhile trains to the end",
)
def test_a_server_of_few_files_outlives_many_idle_connections(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2000:
        pytest.skip("this system allows too few files to attack")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "labels.npz", y=rng.integers(0, 2, 120), ids=np.arange(120).astype(str))
    np.savez(tmp_path / "north.npz", x=rng.normal(size=(120, 5)).astype(np.float32), ids=np.arange(120).astype(str))
    (tmp_path / "fed.toml").write_text(FILE)
    words = ("fed.toml", "--insecure", "--status", "json", "--address")
    serve = Process(tmp_path, "serve", *words, "127.0.0.1:0")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2000), before[1]))
    try:
        resource.prlimit(serve.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        with idle(serve.port(), 1300):
            time.sleep(3)  # the count of bytes on sockets, once a second, used to end the server
            join = Process(tmp_path, "join", *words, f"127.0.0.1:{serve.port()}", "--party", "north")
            try:
                assert serve.end().code == 0, serve.errors
                assert join.end().code == 0, join.errors
            finally:
                join.kill()
    finally:
        serve.kill()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "on which nobody said anything" in serve.errors


# Before anybody is welcome, frames are short.


def test_a_stream_takes_long_frames_only_from_who_is_trusted() -> None:
    taken: list[Any] = []
    got = threading.Event()

    def accept(wire: Wire, name: str | None) -> None:
        threading.Thread(target=receive, args=(wire,), daemon=True).start()

    def receive(wire: Wire) -> None:
        try:
            taken.append(len(wire.receive(None)))
            wire.trust()
            taken.append(len(wire.receive(None)))
        finally:
            got.set()

    server, port = listen("127.0.0.1:0", None, 8 << 20, 2, accept)
    wire = dial(f"127.0.0.1:{port}", None, 8 << 20)
    try:
        for size in (1 << 20, 5 << 20):
            wire.send(bytes(size))
        assert got.wait(PATIENT)
        assert taken == [1 << 20, 5 << 20]
    finally:
        wire.close()
        server.close()


@pytest.mark.attack(
    by="a party",
    tries="sends 40 MiB as one frame before it has said HELLO",
    outcome="the stream is closed after the first MiB",
)
def test_a_long_frame_before_hello_closes_the_stream() -> None:
    taken: list[str] = []

    def accept(wire: Wire, name: str | None) -> None:
        threading.Thread(target=receive, args=(wire,), daemon=True).start()

    def receive(wire: Wire) -> None:
        try:
            wire.receive(None)
            taken.append("a frame")
        except Exception as error:
            taken.append(str(error))
        wire.close()

    server, port = listen("127.0.0.1:0", None, 64 << 20, 2, accept)
    sent = 0

    def pushed() -> Iterator[bytes]:
        nonlocal sent
        for piece in pieces(bytes(40 << 20)):
            yield piece
            sent += 1

    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert list(channel.stream_stream(METHOD)(pushed(), timeout=PATIENT)) == []
    finally:
        server.close()
    assert taken == ["expected a frame of at most 1,048,640 bytes, got more."]
    assert sent < 40


def test_pieces_of_a_frame_go_together_again() -> None:
    """The limit of an assembler may be raised between two frames."""
    assembler = Assembler(PIECE)
    assert [assembler.add(piece) for piece in pieces(bytes(PIECE))] == [bytes(PIECE)]
    assembler.limit = 3 * PIECE
    assert [assembler.add(piece) for piece in pieces(bytes(2 * PIECE))] == [None, bytes(2 * PIECE)]
