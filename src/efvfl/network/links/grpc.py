"""Wires over gRPC: one long stream for each party, with bytes as payload, so there is no generated code and no pickle.

Parties dial out; only the server has an open port. HTTP/2 pings detect dead connections.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

from efvfl.errors import ConfigError, LinkError, WireError, printable
from efvfl.network.identity import fingerprints
from efvfl.network.identity.certificates import SERVER, Credentials, peer_certificate, peer_name
from efvfl.network.identity.deny_list import DenyList
from efvfl.network.identity.renewal import Renewal
from efvfl.network.links.connection_guard import PERIOD, ConnectionGuard, ConnectionLimits
from efvfl.network.links.failed_handshakes import FailedHandshakes, likely_reason
from efvfl.network.links.frame import MAX_JSON, PIECE, Assembler, FrameKind, json_frame, pieces
from efvfl.network.links.wire import Wire
from efvfl.util.extras import optional

# Its log is lines of C++ on stderr; what matters of it is said by failed_handshakes.py and tls_probe.py.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
with optional("network", "a federation over a network"):
    import grpc

METHOD = "/efvfl.Federation/Link"
FIRST = MAX_JSON + 64  # bytes of a frame of somebody who is not welcome yet: a HELLO is all that it may send

# A half-open connection is detected within about 20 seconds; without the ping timeout it took gRPC a minute.
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", PIECE + 1024),
    ("grpc.max_send_message_length", PIECE + 1024),
    ("grpc.max_metadata_size", 4096),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
]
_SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_OPTIONS,
    ("grpc.so_reuseport", 0),  # a second server on the same port is an error, not a lottery
    ("grpc.max_concurrent_streams", 4),
    ("grpc.server_handshake_timeout_ms", 10_000),
]

Outgoing: TypeAlias = "queue.SimpleQueue[bytes | None]"  # pieces to be sent; None closes the stream


def _pieces(outgoing: Outgoing, sent: threading.Event) -> Iterator[bytes]:
    while (piece := outgoing.get()) is not None:
        yield piece
        sent.set()  # gRPC asks for another piece once a connection has taken this one


class GrpcWire:
    """One end of a gRPC stream."""

    def __init__(self, incoming: Iterator[bytes], outgoing: Outgoing, limit: int, sent: threading.Event) -> None:
        """Read pieces from `incoming` and put them in the queue `outgoing`; `sent` is set when the first has left.

        Frames may have up to `limit` bytes, but only FIRST until `trust` is called.
        """
        self._incoming = incoming
        self._outgoing = outgoing
        self._limit = limit
        self._assembler = Assembler(min(FIRST, limit))
        self._sent = sent
        self._closed = False
        self._reason = "the stream is closed."

    def send(self, data: bytes) -> None:
        """Queue the pieces of a frame for sending."""
        if self._closed:
            raise LinkError(self._reason)
        for piece in pieces(data):
            self._outgoing.put(piece)

    def receive(self, timeout: float | None) -> bytes:
        """Return the next frame's bytes; gRPC's pings end the wait if the other side is gone."""
        assert timeout is None, "a reader thread waits for as long as the stream is open"
        try:
            for piece in self._incoming:
                data = self._assembler.add(piece)
                if data is not None:
                    return data
        except grpc.RpcError as error:
            self._reason = _reason(error, self.connected)
            self.close()
            raise LinkError(self._reason) from error
        self.close()
        raise LinkError("the other side closed the stream.")

    def close(self) -> None:
        """End the stream once everything queued is sent."""
        self._closed = True
        self._outgoing.put(None)

    def trust(self) -> None:
        """Receive frames as long as agreed from now on."""
        self._assembler.limit = self._limit

    @property
    def connected(self) -> bool:
        """Whether the first piece has left."""
        return self._sent.is_set()


def _reason(error: grpc.RpcError, connected: bool) -> str:
    code = error.code().name if isinstance(error, grpc.Call) else "UNKNOWN"
    if connected and code == grpc.StatusCode.UNAVAILABLE.name:
        return "the connection broke."  # by a reset, a silent line or the end of the process: gRPC's words do not tell
    return printable(f"{code}: {error.details() if isinstance(error, grpc.Call) else error}")  # a text of the peer


class QueuedWire:
    """A wire whose frames a thread reads ahead, so that waiting for one can time out."""

    def __init__(self, wire: GrpcWire, call: Any, channel: grpc.Channel, on_close: Callable[[], None]) -> None:
        """Read from this wire, which runs over a call on a channel; call `on_close` before closing the channel."""
        self._wire = wire
        self._call = call
        self._channel = channel
        self._on_close = on_close
        self._ended = threading.Event()
        call.add_done_callback(lambda _: self._ended.set())
        self._frames: queue.Queue[bytes | Exception] = queue.Queue(4)
        threading.Thread(target=self._read, daemon=True, name="efvfl-link").start()

    def _read(self) -> None:
        try:
            while True:
                self._frames.put(self._wire.receive(None))
        except (LinkError, WireError) as error:
            with contextlib.suppress(queue.Full):
                self._frames.put(error, timeout=60)

    def send(self, data: bytes) -> None:
        """Queue a frame for sending."""
        self._wire.send(data)

    def receive(self, timeout: float | None) -> bytes:
        """Return the next frame's bytes."""
        try:
            item = self._frames.get(timeout=timeout)
        except queue.Empty as error:
            raise TimeoutError("received nothing in time.") from error
        if isinstance(item, Exception):
            raise item
        return item

    def trust(self) -> None:
        """Receive frames as long as agreed from now on."""
        self._wire.trust()

    @property
    def connected(self) -> bool:
        """Whether the first piece has left."""
        return self._wire.connected

    def close(self) -> None:
        """End the stream, and a moment later the connection: closing that at once would lose frames in transit."""
        self._wire.close()
        self._ended.wait(1.0)
        self._on_close()
        self._call.cancel()
        self._channel.close()


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(
        self, accept: Callable[[Wire, str | None], None], limit: int, secure: bool, denied: DenyList | None
    ) -> None:
        self.accept = accept
        self.limit = limit
        self.secure = secure
        self.denied = denied
        self.open: dict[grpc.ServicerContext, str] = {}  # streams, and the fingerprints of their certificates
        self.guard: ConnectionGuard | None = None  # there is one as soon as the port is known
        self.handshakes = FailedHandshakes()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return grpc.stream_stream_rpc_method_handler(self._link) if details.method == METHOD else None

    def _link(self, incoming: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        name = peer_name(context.auth_context()) if self.secure else None
        if self.secure and name is None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "a certificate of this federation is needed.")
        self.handshakes.opened(context.peer())
        if self.secure and self.denied:
            shown = fingerprints.of_certificate(peer_certificate(context.auth_context()))
            if self.denied.has(shown):
                text = self.denied.refusal(str(name), shown)
                yield from pieces(json_frame(FrameKind.REFUSE, {"code": "denied", "text": text}).to_bytes())
                return
            self.open[context] = shown
            context.add_callback(partial(self.open.pop, context, None))
        if self.guard:
            self.guard.opened(context.peer())
            context.add_callback(partial(self.guard.closed, context.peer()))
        outgoing: Outgoing = queue.SimpleQueue()
        sent = threading.Event()
        wire = GrpcWire(incoming, outgoing, self.limit, sent)
        context.add_callback(wire.close)
        self.accept(wire, name)
        yield from _pieces(outgoing, sent)

    def look(self) -> None:
        """Look after the connections: cut those of strangers that linger, and of certificates that are denied now."""
        self.handshakes.look()
        if self.guard:
            self.guard.look()
        for context, fingerprint in list(self.open.items()):
            if self.denied and self.denied.has(fingerprint):
                context.cancel()  # it dials again, and is told why it is refused


def listen(
    address: str,
    credentials: Credentials | None,
    limit: int,
    parties: int,
    accept: Callable[[Wire, str | None], None],
    denied: DenyList | None = None,
) -> tuple[grpc.Server, int]:
    """Open the server's port; return the server and the port. Without credentials, only on a loopback address.

    A certificate that is renewed in its folder is used from the next connection on.
    """
    limits = ConnectionLimits.of(parties)
    server = grpc.server(
        ThreadPoolExecutor(2 * parties + 4, thread_name_prefix="efvfl-grpc"),
        options=[*_SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", limits.total)],
        maximum_concurrent_rpcs=2 * parties + 4,
    )
    service = _Service(accept, limit, credentials is not None, denied)
    server.add_generic_rpc_handlers((service,))
    try:
        if credentials is None:
            refuse_plaintext_beyond_loopback(address)
            port = server.add_insecure_port(address)
        else:
            renewal = Renewal(credentials)
            service.handshakes.reason = lambda: likely_reason(renewal.current())
            port = server.add_secure_port(address, _server_secret(renewal, service.handshakes.began))
    except RuntimeError as error:
        raise ConfigError(
            f"cannot listen on {address} ({error}): is another server running, or is the port not ours?"
        ) from error
    service.guard, service.handshakes.port = ConnectionGuard(port, limits), port
    server.start()
    threading.Thread(target=_watch, args=(server, service), daemon=True, name="efvfl-guard").start()
    return server, port


def _server_secret(renewal: Renewal, began: Callable[[], None]) -> grpc.ServerCredentials:
    """Return what gRPC asks for the server's certificate, at the beginning of every handshake."""
    used = [first := renewal.current()]

    def configuration(found: Credentials) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(found.key, found.certificate)], found.ca)

    def latest() -> grpc.ServerCertificateConfiguration | None:
        began()
        found = renewal.current()
        if found == used[0]:
            return None  # as before
        used[0] = found
        return configuration(found)

    return grpc.dynamic_ssl_server_credentials(configuration(first), latest, require_client_authentication=True)


def _watch(server: grpc.Server, service: _Service) -> None:
    """Look after the connections until the server is stopped."""
    while server.wait_for_termination(PERIOD):  # True: the time is over, and it runs on
        service.look()


def dial(
    address: str, credentials: Credentials | None, limit: int, on_close: Callable[[], None] = lambda: None
) -> Wire:
    """Connect to the server; errors are raised by the first `receive`. Call `on_close` before the channel is closed."""
    if credentials is None:
        refuse_plaintext_beyond_loopback(address)
        channel = grpc.insecure_channel(address, options=_OPTIONS)
    else:
        secret = grpc.ssl_channel_credentials(credentials.ca, credentials.key, credentials.certificate)
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", SERVER)]
        channel = grpc.secure_channel(address, secret, options=options)
    outgoing: Outgoing = queue.SimpleQueue()
    sent = threading.Event()
    call = channel.stream_stream(METHOD)(_pieces(outgoing, sent))
    wire = GrpcWire(call, outgoing, limit, sent)
    wire.trust()  # the server may send what it likes right after WELCOME, which another thread reads
    return QueuedWire(wire, call, channel, on_close)


def port_of(address: str) -> int:
    """Return the port in an address that is dialled."""
    last = address.rsplit(":", 1)[-1]
    return int(last) if last.isdecimal() else 443  # gRPC's default


def refuse_plaintext_beyond_loopback(address: str) -> None:
    """Refuse an address on another machine: plaintext is for tests on one."""
    host = address.rsplit(":", 1)[0].strip("[]")
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host != "localhost":
        raise ConfigError(
            f"expected a loopback address with --insecure, got {address!r}: ask for a certificate with `efvfl request`."
        )
