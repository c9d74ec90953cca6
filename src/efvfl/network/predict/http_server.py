"""The HTTP server of the prediction service: TLS, places for connections, and time limits for all that clients do.

uvicorn answers requests. Connections are accepted here, because uvicorn would only count those that have finished their
TLS handshake, and wait for headers for as long as the client likes. Needs efvfl[service].
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

from efvfl.network.identity.certificates import certain_name
from efvfl.network.identity.fingerprints import of_bytes
from efvfl.network.ops.session import handle_signals
from efvfl.network.predict.places import Place, PlaceLimits, Places
from efvfl.network.predict.renewed_tls import RenewedTls
from efvfl.util.extras import optional

with optional("service", "serve-predictions"):
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("efvfl")

BACKLOG = 1024  # TCP connections that wait to be accepted
PAUSE = 0.2  # seconds before the next try if no connection can be accepted
HEADERS = [("cache-control", "no-store"), ("x-content-type-options", "nosniff")]
TLS_HEADERS = [("strict-transport-security", "max-age=31536000")]


class HttpServer(uvicorn.Server):
    """uvicorn, but for the way in which connections begin and end."""

    def __init__(self, app: Any, tls: RenewedTls | None, seconds: float, limits: PlaceLimits) -> None:
        """Serve an app; a request gets so many seconds for its body, and as many for its answer."""
        super().__init__(
            uvicorn.Config(
                app,
                http=_Protocol,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                log_level="error",  # a stranger's bad requests must not fill the log
                access_log=False,
                server_header=False,
                proxy_headers=False,
                headers=HEADERS + (TLS_HEADERS if tls else []),
                timeout_graceful_shutdown=int(seconds) + 2,
            )
        )
        self.tls = tls
        self.limits = limits
        self.answer_seconds = 2 * seconds + 30  # with time for a slow client to read
        self.places = Places(limits)
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        await super().startup(sockets=[])  # uvicorn accepts none
        assert sockets, "the service has opened its port"
        sockets[0].listen(BACKLOG)
        sockets[0].setblocking(False)
        self._accepting = asyncio.create_task(self._accept(sockets[0]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and answer open requests."""
        if self._accepting:
            self._accepting.cancel()
        await super().shutdown(sockets=sockets)

    async def _accept(self, listening: socket.socket) -> None:
        loop, warned = asyncio.get_running_loop(), False
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:  # such as too many open files: the service outlives it
                if not warned:
                    log.warning("cannot accept connections of clients now: %s", error)
                warned = True
                self.places.make_room()
                await asyncio.sleep(PAUSE)
                continue
            warned = False
            self._begin(connection, address[0])
            await asyncio.sleep(0)  # a flood of connections must not keep the loop from everything else

    def _begin(self, connection: socket.socket, address: str) -> None:
        task: asyncio.Task[None] | None = None
        place = self.places.take(address, lambda: task and task.cancel())
        if place is None:
            connection.close()
            return
        task = asyncio.create_task(self._attend(connection, place))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _attend(self, connection: socket.socket, place: Place) -> None:
        """Attend to a connection from its first byte to its last."""
        tls: dict[str, Any] = {}
        if self.tls:
            limits = {"ssl_handshake_timeout": self.limits.handshake, "ssl_shutdown_timeout": self.limits.closing}
            tls = {"ssl": self.tls.current(), **limits}
        try:
            transport, protocol = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Protocol(self, place), connection, **tls
            )
            try:
                await protocol.closed.wait()
            finally:
                transport.abort()
        except OSError:  # no handshake, or one that took too long
            pass
        finally:
            connection.close()
            self.places.release(place)


class _Protocol(H11Protocol):
    """One connection. Every wait for the client has a time limit."""

    def __init__(self, server: HttpServer, place: Place) -> None:
        super().__init__(config=server.config, server_state=server.server_state, app_state={})
        self.closed = asyncio.Event()
        self.limits = server.limits
        self.answer_seconds = server.answer_seconds
        self.place = place
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Head and body of a response are two writes; without this the second waits 40 ms for the first's ACK.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = transport.get_extra_info("ssl_object")
        shown = tls.getpeercert(binary_form=True) if tls else None
        self.app_state = {
            "certified": certain_name(tls.getpeercert() if tls else None),
            "fingerprint": of_bytes(shown or b""),
            "place": self.place,
        }
        self._allow(self.limits.head)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer:
            self._timer.cancel()
        self.closed.set()

    def _allow(self, seconds: float) -> None:
        """Cut the connection after so many seconds, unless something happens before."""
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:  # the headers of a request are complete
            self.place.busy = True
            self._allow(self.answer_seconds)

    def on_response_complete(self) -> None:
        self.place.busy = False
        self._allow(self.limits.head)  # for the rest of a body that nobody reads, and for the next request
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP; unlike uvicorn's, with the headers that all responses have."""
        body = json.dumps({"error": "expected an HTTP/1.1 request, got something else."}).encode()
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"connection", b"close"),
        ]
        response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        with contextlib.suppress(h11.LocalProtocolError):  # another response is on its way already
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def serve(server: HttpServer, listening: socket.socket) -> None:
    """Serve until a signal or `server.should_exit`; open requests are answered first."""
    with _exit_on_signal(server):
        server.run(sockets=[listening])


@contextlib.contextmanager
def _exit_on_signal(server: HttpServer) -> Iterator[None]:
    """Stop the server at a signal before it handles signals itself, or at one that it raises again at its end."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield
        return

    def stop(number: int, frame: Any) -> None:
        server.should_exit = True

    with handle_signals(stop):
        yield
