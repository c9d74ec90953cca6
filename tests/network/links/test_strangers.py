"""Connections on which nobody says anything: they are capped, and cost nobody else the server."""

import contextlib
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from warm_processes import PATIENT, Process

from efvfl.errors import LinkError
from efvfl.network.links import listening
from efvfl.network.links.connecting import dial
from efvfl.network.links.frame import Frame, FrameKind, json_frame
from efvfl.network.links.framing import PREFACE, SIGN_OF_LIFE
from efvfl.network.links.guests import MOST, ConnectionLimits, Crowd, Guest, condemned, plain_host
from efvfl.network.links.listening import listen
from efvfl.network.links.wire import Wire
from efvfl.network.ops.open_files import raise_limit

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="open files are found in /proc")


def until(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENT
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.01)


def is_open(connection: socket.socket) -> bool:
    """Whether the other end has not closed it; it has never sent anything."""
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
    with idle(port, 500):
        files = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        sockets = sum("socket:" in name for name in files)
        assert sockets <= 500 + ConnectionLimits.of(2).total + 20


def test_who_has_left_makes_room_for_who_is_there(port: int) -> None:
    """One that is there must not lose its place to those that are gone."""
    with idle(port, 1) as (patient,):
        for _ in range(3):
            with idle(port, 19):
                time.sleep(0.05)
        time.sleep(0.3)
        assert is_open(patient)


def test_which_connections_are_closed() -> None:
    limits = ConnectionLimits(total=9, unused=4, unused_by_address=2)

    def left(*hosts: str) -> list[int]:
        """Which guests stay, of those who come one after another."""
        pairs = [socket.socketpair() for _ in hosts]
        guests = [Guest(pair[0], host, None, 0.0) for pair, host in zip(pairs, hosts, strict=True)]
        gone = condemned(guests, limits)
        for pair in pairs:
            for end in pair:
                end.close()
        return [n for n, guest in enumerate(guests) if guest not in gone]

    assert left(*["192.0.2.1"] * 2) == [0, 1]
    assert left(*["192.0.2.1"] * 5) == [3, 4]  # the newest stay
    assert left(*(f"192.0.2.{n}" for n in range(6))) == [2, 3, 4, 5]  # in all
    # The oldest; three others have as many as an address may have.
    assert 0 in left("198.51.100.7", *(f"192.0.2.{n}" for n in range(3) for _ in range(2)))
    # Whoever has one IPv6 address has a network of them.
    assert left("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1") == [1, 2, 3]


@pytest.mark.attack(
    by="a stranger",
    tries="opens connections without end, each from another address",
    outcome="256 addresses are remembered for the log; all connections are counted",
)
def test_a_crowd_from_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    crowd = Crowd(lambda: now)
    for n in range(1000):
        for _ in range(3 if n == 7 else 1):
            crowd.note(f"2001:db8::{n:x}")
    crowd.note("2001:db8::7")
    assert len(crowd._closed) == MOST
    crowd.look()
    assert "closed 1003 connections on which nobody said anything, most of them from 2001:db8::7, " in caplog.text
    now = 100.0
    caplog.clear()
    crowd.look()
    assert not caplog.text


@pytest.mark.parametrize(
    ("host", "plain"),
    [("192.0.2.1", "192.0.2.1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("2001:db8::1", "2001:db8::1"), ("", "")],
)
def test_how_an_address_is_written(host: str, plain: str) -> None:
    assert plain_host(host) == plain


# Files that cannot be opened any more.


@pytest.mark.attack(
    by="a stranger",
    tries="uses up the files that the server may open, by connections",
    outcome="connections are taken later; those that are open go on",
)
def test_no_more_files_can_be_opened(port: int, caplog: pytest.LogCaptureFixture) -> None:
    first = dial(f"127.0.0.1:{port}", None, 1 << 20)
    late = socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
        with contextlib.suppress(OSError):
            while True:
                kept.append(os.dup(0))
        late.connect(("127.0.0.1", port))
        late.sendall(PREFACE)
        until(lambda: "no connection can be taken for a moment" in caplog.text)
        time.sleep(3 * listening.PAUSE)
        assert caplog.text.count("no connection can be taken for a moment") == 1  # and no more for a minute
        first.send(json_frame(FrameKind.HELLO, {}).to_bytes())
        assert Frame.from_bytes(first.receive(PATIENT)).kind == FrameKind.WELCOME
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in kept:
            os.close(number)
    late.settimeout(PATIENT)
    assert late.recv(len(SIGN_OF_LIFE), socket.MSG_WAITALL) == SIGN_OF_LIFE  # it is let in now
    late.close()
    first.close()


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
    try:
        wire = dial(f"127.0.0.1:{port}", None, 64 << 20)
        wire.send(bytes(40 << 20))
        with pytest.raises(LinkError):
            wire.receive(PATIENT)
        assert server.count.totals()[1] < 30 << 20
        wire.close()
    finally:
        server.close()
    assert taken == ["expected a frame of at most 1,048,640 bytes, got more."]
