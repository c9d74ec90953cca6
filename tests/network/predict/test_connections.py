"""Connections of clients that do not behave: floods, silence, slowness, and what every response says."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from services import TOKEN, Running, Trained, check, error
from warm_processes import PATIENT

from efvfl.network.predict.places import Place, PlaceLimits, Places

FEW = PlaceLimits(in_all=24, by_address=16, kept_free=4, handshake=1.0, head=1.0)
ELSEWHERE = "127.0.0.2"  # another address of this machine


class Flood:
    """Many connections from one address that say nothing, or one byte now and then."""

    def __init__(self, running: Running, count: int, kind: str) -> None:
        self.sockets: list[socket.socket] = []
        self._stopping = threading.Event()
        context = ssl.create_default_context(cafile=running.certs / "ca.crt")
        for _ in range(count):
            plain = socket.create_connection(running.listening.getsockname(), PATIENT)
            self.sockets.append(plain if kind == "tcp" else context.wrap_socket(plain, server_hostname="127.0.0.1"))
        self._thread = threading.Thread(target=self._drip if kind == "drip" else lambda: None)
        self._thread.start()

    def _drip(self) -> None:
        text = b"GET /health HTTP/1.1\r\nHost: server\r\nX-Slow: " + b"x" * 1000
        for place in range(len(text)):
            for one in self.sockets:
                with contextlib.suppress(OSError):  # it was cut
                    one.send(text[place : place + 1])
            if self._stopping.wait(0.1):
                return

    def closed(self) -> int:
        """How many of them the service cuts, which it must do by itself."""
        self._stopping.set()
        self._thread.join()
        count = 0
        for one in self.sockets:
            one.settimeout(PATIENT)
            try:
                count += one.recv(1) == b""
            except ConnectionError:
                count += 1
        return count

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        for one in self.sockets:
            one.close()


@pytest.fixture
def flood() -> Iterator[Callable[..., Flood]]:
    floods: list[Flood] = []

    def run(running: Running, count: int, kind: str) -> Flood:
        floods.append(Flood(running, count, kind))
        return floods[-1]

    yield run
    for one in floods:
        one.close()


def ask(running: Running, address: str, path: str = "/predict") -> httpx.Response:
    """Ask from an address of this machine, on a new connection."""
    context = ssl.create_default_context(cafile=running.certs / "ca.crt")
    transport = httpx.HTTPTransport(verify=context, local_address=address)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=running.url, transport=transport, headers=headers, timeout=PATIENT) as client:
        return client.get(path) if path == "/health" else client.post(path, json={"ids": ["test:0"]})


KINDS = pytest.mark.parametrize("kind", ["tcp", "tls", "drip"])


@pytest.mark.attack(
    by="a stranger",
    tries="holds 3 times as many idle TCP or TLS connections as there may be, or sends a byte of a header at a time",
    outcome="clients are answered, from the same address too; every such connection is cut after its time",
)
@KINDS
def test_idle_connections_keep_nobody_out(
    start: Callable[..., Running], trained: Trained, flood: Callable[..., Flood], kind: str
) -> None:
    running = start(limits=FEW)
    running.join()
    made = flood(running, 3 * FEW.by_address, kind)
    for address in (ELSEWHERE, "127.0.0.1"):
        check(ask(running, address), trained, ["test:0"])
        assert ask(running, address, "/health").status_code == 200
    assert made.closed() == len(made.sockets)
    running.until(lambda: len(running.server.places) == 0)


@pytest.mark.slow
@pytest.mark.attack(
    by="a stranger",
    tries="holds 600 idle TCP connections, 600 idle TLS connections, or 600 that send a header byte by byte",
    outcome="clients are answered, from the same address too",
)
@KINDS
def test_600_idle_connections_keep_nobody_out(
    start: Callable[..., Running], trained: Trained, flood: Callable[..., Flood], kind: str
) -> None:
    running = start()
    running.join()
    flood(running, 600, kind)
    for address in (ELSEWHERE, "127.0.0.1"):
        for _ in range(5):
            check(ask(running, address), trained, ["test:0"])


@pytest.mark.attack(
    by="a stranger",
    tries="sends a request without credentials, and its body a byte at a time without end",
    outcome="401 at once, and the connection is cut a moment later",
)
def test_a_body_that_nobody_reads_holds_no_place(start: Callable[..., Running]) -> None:
    running = start(limits=FEW)
    with connect(running) as line:
        line.sendall(b"POST /predict HTTP/1.1\r\nHost: server\r\nContent-Length: 1000000\r\n\r\nx")
        assert line.recv(12) == b"HTTP/1.1 401"

        def cut() -> bool:
            try:
                line.sendall(b"x")
            except OSError:
                return True
            return False

        running.until(cut)


def connect(running: Running, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    context = context or ssl.create_default_context(cafile=running.certs / "ca.crt")
    plain = socket.create_connection(running.listening.getsockname(), PATIENT)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def talk(running: Running, text: bytes) -> str:
    """Say something and return all that is answered until the connection ends."""
    with connect(running) as line:
        line.sendall(text)
        answer = b""
        with contextlib.suppress(ConnectionError, ssl.SSLEOFError):
            while part := line.recv(4096):
                answer += part
        return answer.decode()


@pytest.mark.attack(
    by="a stranger",
    tries="offers TLS 1.2, without and with a certificate of a client",
    outcome="refused in the handshake",
)
def test_tls_before_1_3_is_refused(start: Callable[..., Running]) -> None:
    running = start(names=frozenset({"scoring"}))
    for name in ("", "scoring"):
        context = ssl.create_default_context(cafile=running.certs / "ca.crt")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        if name:
            context.load_cert_chain(running.certs / f"{name}.crt", running.certs / f"{name}.key")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connect(running, context)
    with connect(running) as line:
        assert line.version() == "TLSv1.3"


@pytest.mark.attack(
    by="a stranger",
    tries="asks for paths, methods and bodies that do not exist, and sends what is not HTTP",
    outcome="every response has no-store, nosniff and HSTS; none names the Host header",
)
def test_headers_of_every_response(start: Callable[..., Running]) -> None:
    running = start()
    running.join()
    credentials = f"Authorization: Bearer {TOKEN}\r\n"
    requests = {
        200: b"GET /health HTTP/1.1\r\nHost: evil.example\r\n",
        307: b"POST /predict/ HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n",
        404: b"GET /docs HTTP/1.1\r\nHost: evil.example\r\n",
        405: b"GET /predict HTTP/1.1\r\nHost: evil.example\r\n",
        401: b"POST /predict HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n",
        422: b"POST /predict HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n" + credentials.encode(),
        400: b"evil.example\r\n",
    }
    for status, request in requests.items():
        answer = talk(running, request + b"Connection: close\r\n\r\n")
        expected = 404 if status == 307 else status  # a redirect would lead to the host that the request names
        assert answer.startswith(f"HTTP/1.1 {expected} "), answer
        head = answer.partition("\r\n\r\n")[0].lower().split("\r\n")
        assert "cache-control: no-store" in head
        assert "x-content-type-options: nosniff" in head
        assert "strict-transport-security: max-age=31536000" in head
        assert "evil.example" not in answer


@pytest.mark.attack(
    by="a client",
    tries="asks for ids that hold half a surrogate pair, which UTF-8 cannot encode",
    outcome="400; no party is asked",
)
def test_half_a_character_is_a_bad_request(start: Callable[..., Running], trained: Trained) -> None:
    running = start()
    running.join()
    for text in (r"\ud800", r"a\udfff", r"\ud83d\ude00 \ud800"):
        body = f'{{"ids": ["test:0", "{text}"]}}'.encode()
        assert "half a surrogate pair" in error(running.client().post("/predict", content=body), 400)["error"]
    assert running.asked == []
    check(running.predict(["test:0"]), trained, ["test:0"])


def test_a_client_that_keeps_its_connection_is_not_cut_between_requests(
    start: Callable[..., Running], trained: Trained, flood: Callable[..., Flood]
) -> None:
    """One that has shown credentials makes room only after all others of its address."""
    running = start(limits=FEW)
    running.join()
    client = running.client()
    check(client.post("/predict", json={"ids": ["test:0"]}), trained, ["test:0"])
    (place,) = [place for held in running.server.places._by_origin.values() for place in held if place.trusted]
    flood(running, 2 * FEW.by_address, "tcp")
    running.until(lambda: len(running.server.places) == FEW.by_address)
    assert place in running.server.places._by_origin["127.0.0.1"]


def test_too_many_open_files_pass(
    start: Callable[..., Running], trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    running.join()
    failures = iter([OSError(24, "Too many open files"), ConnectionAbortedError()])
    accept = socket.socket.accept

    def failing(self: socket.socket) -> tuple[socket.socket, object]:
        for failure in failures:
            raise failure
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    check(running.predict(["test:0"]), trained, ["test:0"])


# Places, without a network.


@dataclass
class Guests:
    """Connections that note who is cut."""

    places: Places
    cut: list[str] = field(default_factory=list)

    def enter(self, address: str, name: str) -> Place | None:
        return self.places.take(address, lambda: self.cut.append(name))


def test_places() -> None:
    guests = Guests(Places(PlaceLimits(in_all=4, by_address=2, kept_free=1)))
    first, second = guests.enter("192.0.2.1", "a"), guests.enter("192.0.2.1", "b")
    assert first
    assert second
    first.busy = first.trusted = True
    second.busy = True  # with a stranger's request
    assert guests.enter("192.0.2.1", "c")  # in the place of the oldest that has no client to answer
    assert guests.cut == ["b"]
    assert guests.enter("192.0.2.2", "d")
    assert guests.enter("192.0.2.2", "e")  # one place is kept for addresses without a connection: it takes another's
    assert guests.cut == ["b", "c"]
    assert guests.enter("192.0.2.3", "f")
    assert len(guests.places) == 4
    for held in guests.places._by_origin.values():
        for place in held:
            place.busy = place.trusted = True
    assert guests.enter("192.0.2.4", "g") is None  # all are at work
    guests.places.release(first)
    guests.places.release(first)
    assert len(guests.places) == 3
    assert guests.enter("192.0.2.4", "h")


def test_one_ipv6_network_is_one_address() -> None:
    guests = Guests(Places(PlaceLimits(by_address=2)))
    for number in range(5):
        assert guests.enter(f"2001:db8::{number:x}", str(number))
    assert guests.cut == ["0", "1", "2"]


@pytest.mark.slow
@pytest.mark.attack(
    by="a stranger",
    tries="sends thousands of requests on one connection and reads no response",
    outcome="the connection is cut after its time",
)
def test_answers_that_are_not_read_hold_no_place(start: Callable[..., Running]) -> None:
    running = start(limits=FEW)
    running.server.answer_seconds = 0.5
    with connect(running) as line:
        line.settimeout(0.5)
        text = b"GET /health HTTP/1.1\r\nHost: server\r\n\r\n" * 2000
        with contextlib.suppress(OSError):  # the buffers are full, or it was cut
            for _ in range(200):
                line.sendall(text)
        running.until(lambda: len(running.server.places) == 0)
