"""Wires over gRPC: one long stream for each party, with bytes as payload, so there is no generated code and no pickle.

Parties dial out; only the server has an open port. Dead links are found by HTTP/2 pings.
"""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from efvfl.errors import ConfigError, LinkError, WireError
from efvfl.network.identity.certificates import SERVER, Credentials, peer_name
from efvfl.network.links.frame import PIECE, Assembler, pieces
from efvfl.network.links.wire import Wire
from efvfl.util.extras import optional

with optional("network", "a federation over a network"):
    import grpc

METHOD = "/efvfl.Federation/Link"

# A half-open link is noticed within about 20 seconds; without the ping timeout it took gRPC a minute.
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


class GrpcWire:
    """One end of a stream."""

    def __init__(self, limit: int) -> None:
        """Take frames of up to `limit` bytes; `incoming` is to be set to what gRPC gives."""
        self.incoming: Iterator[bytes] = iter(())
        self._assembler = Assembler(limit)
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closed = False
        self._why = "the stream is closed."

    def send(self, data: bytes) -> None:
        """Queue the pieces of a frame."""
        if self._closed:
            raise LinkError(self._why)
        for piece in pieces(data):
            self._out.put(piece)

    def receive(self, timeout: float | None) -> bytes:
        """Wait for a whole frame; gRPC's pings end the wait if the other side is gone."""
        assert timeout is None, "a reader thread waits as long as the link lives"
        try:
            for piece in self.incoming:
                data = self._assembler.add(piece)
                if data is not None:
                    return data
        except grpc.RpcError as error:
            self._why = _reason(error)
            self.close()
            raise LinkError(self._why) from error
        self.close()
        raise LinkError("the other side closed the stream.")

    def outgoing(self) -> Iterator[bytes]:
        """Yield what is to be sent, until the wire is closed."""
        while (piece := self._out.get()) is not None:
            yield piece

    def close(self) -> None:
        """End the stream after what was sent."""
        self._closed = True
        self._out.put(None)


def _reason(error: grpc.RpcError) -> str:
    code = error.code().name if isinstance(error, grpc.Call) else "UNKNOWN"
    return f"{code}: {error.details() if isinstance(error, grpc.Call) else error}"


class QueuedWire:
    """A wire whose frames are read ahead by a thread, so that waiting for one can have an end."""

    def __init__(self, wire: GrpcWire, call: Any, channel: grpc.Channel, closing: Callable[[], None]) -> None:
        """Read from this wire, which runs over a call over a channel; `closing` is called before that is closed."""
        self._wire = wire
        self._call = call
        self._channel = channel
        self._closing = closing
        self._over = threading.Event()
        call.add_done_callback(lambda _: self._over.set())
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
        """Queue a frame."""
        self._wire.send(data)

    def receive(self, timeout: float | None) -> bytes:
        """Return the next frame."""
        try:
            item = self._frames.get(timeout=timeout)
        except queue.Empty as error:
            raise TimeoutError("nothing came.") from error
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        """End the stream, and the connection under it: a moment later, since closing it loses what is on its way."""
        self._wire.close()
        self._over.wait(1.0)
        self._closing()
        self._call.cancel()
        self._channel.close()


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, accept: Callable[[Wire, str | None], None], limit: int, secure: bool) -> None:
        self.accept = accept
        self.limit = limit
        self.secure = secure

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return grpc.stream_stream_rpc_method_handler(self._link) if details.method == METHOD else None

    def _link(self, incoming: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        name = peer_name(context.auth_context()) if self.secure else None
        if self.secure and name is None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "a certificate of this federation is needed.")
        wire = GrpcWire(self.limit)
        wire.incoming = incoming
        context.add_callback(wire.close)
        self.accept(wire, name)
        yield from wire.outgoing()


def listen(
    address: str, identity: Credentials | None, limit: int, parties: int, accept: Callable[[Wire, str | None], None]
) -> tuple[grpc.Server, int]:
    """Open the server's port; return the server and the port. Without an identity only loopback is opened."""
    server = grpc.server(
        ThreadPoolExecutor(2 * parties + 4, thread_name_prefix="efvfl-grpc"),
        options=_SERVER_OPTIONS,
        maximum_concurrent_rpcs=2 * parties + 4,
    )
    server.add_generic_rpc_handlers((_Service(accept, limit, identity is not None),))
    try:
        if identity is None:
            refuse_plaintext_beyond_loopback(address)
            port = server.add_insecure_port(address)
        else:
            credentials = grpc.ssl_server_credentials(
                [(identity.key, identity.certificate)], identity.ca, require_client_auth=True
            )
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigError(
            f"cannot listen on {address} ({error}). Is another server running, or the port not ours?"
        ) from error
    server.start()
    return server, port


def dial(address: str, identity: Credentials | None, limit: int, closing: Callable[[], None] = lambda: None) -> Wire:
    """Connect to the server; errors show when the first frame is awaited. `closing` is called before it is cut."""
    if identity is None:
        refuse_plaintext_beyond_loopback(address)
        channel = grpc.insecure_channel(address, options=_OPTIONS)
    else:
        credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", SERVER)]
        channel = grpc.secure_channel(address, credentials, options=options)
    wire = GrpcWire(limit)
    call = channel.stream_stream(METHOD)(wire.outgoing())
    wire.incoming = call
    return QueuedWire(wire, call, channel, closing)


def port_of(address: str) -> int:
    """Return the port that is dialled."""
    last = address.rsplit(":", 1)[-1]
    return int(last) if last.isdecimal() else 443  # gRPC's default


def refuse_plaintext_beyond_loopback(address: str) -> None:
    """Plaintext is for tests on one machine."""
    host = address.rsplit(":", 1)[0].strip("[]")
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host != "localhost":
        raise ConfigError(f"--insecure works on loopback addresses only, but {address!r} came: make certificates.")
