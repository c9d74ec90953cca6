"""The HTTPS side of the prediction service: who may ask, and what may be asked. Needs efvfl[service]."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from efvfl.network.identity.certificates import peer_name
from efvfl.network.ops.session import signals
from efvfl.network.predict.batcher import PredictionBatcher
from efvfl.network.predict.prediction import Declined
from efvfl.util.extras import optional

with optional("service", "serve-predictions"):
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_IDS = 16_384  # of one request
MAX_ID = 256  # characters
MAX_BODY = 4 << 20  # bytes
CONNECTIONS = 512  # at a time; others get 503


@dataclass(frozen=True)
class Door:
    """Who may come in, and how the line is guarded."""

    token: str = field(default="", repr=False)  # what clients show; a log must never show it
    names: frozenset[str] = frozenset()  # in clients' certificates, in place of the token
    certificate: Path | None = None  # none: plaintext
    key: Path | None = None
    ca: Path | None = None  # of clients' certificates

    def check(self, request: Request) -> None:
        """Turn away who shows nothing, or the wrong thing."""
        if self.names:
            if request.state.certified not in self.names:
                raise Declined(401, "a certificate of a client that may ask is needed.")
            return
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(shown.encode(), self.token.encode())
        if not (self.token and scheme.lower() == "bearer" and right):
            raise Declined(401, "the header 'Authorization: Bearer TOKEN' is needed, with the service's token.")


class _Protocol(H11Protocol):
    """Tells the app whose certificate a client showed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Head and body of an answer are two writes; without this the second waits 40 ms for the first to be confirmed.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = transport.get_extra_info("ssl_object")
        self.app_state = self.app_state | {"certified": _certified(line.getpeercert() if line else None)}


def _certified(certificate: dict[str, Any] | None) -> str | None:
    """Return the name in a certificate that TLS has verified."""
    if not certificate:
        return None
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    return peer_name(
        {
            "x509_common_name": [value.encode() for key, value in subject if key == "commonName"],
            "x509_subject_alternative_name": [v.encode() for kind, v in certificate.get("subjectAltName", ())],
        }
    )


def make_app(desk: PredictionBatcher, door: Door) -> FastAPI:
    """Return the app: POST /predict for clients with credentials, GET /health for all."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(HTTPException)
    async def decline(request: Request, error: HTTPException) -> Response:
        return _answer({"error": f"{error.detail}: POST /predict and GET /health are all there is."}, error.status_code)

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        try:
            door.check(request)
            asked = read_ids(await _body(request, desk.settings.timeout))
            ids = desk.serving.in_one_form(asked)
            prediction = await asyncio.to_thread(desk.at_once, ids)
            if prediction is None:
                prediction = await asyncio.wrap_future(desk.submit(ids))
            prediction = replace(prediction, ids=asked)  # spelt as they came
            return Response(await asyncio.to_thread(prediction.to_json), media_type="application/json")
        except Declined as error:
            headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(error.status)
            return _answer({"error": str(error), **error.more}, error.status, headers)

    @app.get("/health")
    async def health() -> Response:
        return _answer(desk.health())

    return app


def _answer(table: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # Escaped to ASCII, unlike FastAPI's own: an id may hold half a character, which UTF-8 cannot say.
    return Response(json.dumps(table), status, headers, "application/json")


async def _body(request: Request, seconds: float) -> bytes:
    """Return the body, if it is not too large and comes in time."""
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise Declined(413, f"a body of more than {MAX_BODY:,} bytes came. Ask for fewer ids at a time.")
    except TimeoutError as error:
        raise Declined(408, f"the body did not come within {seconds:g} seconds.") from error
    except ClientDisconnect as error:
        raise Declined(400, "the client is gone.") from error
    return bytes(body)


def read_ids(body: bytes) -> list[str]:
    """Return the ids of a request, or say what is wrong with it."""
    try:
        table = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Declined(422, 'the body is not JSON. {"ids": ["...", ...]} is expected.') from error
    match table:
        case {"ids": list(ids), **more} if not more and all(isinstance(i, str) for i in ids):
            pass
        case _:
            raise Declined(422, 'the body is not {"ids": [...]} with a list of texts and nothing else.')
    if not 0 < len(ids) <= MAX_IDS:
        raise Declined(422, f"{len(ids):,} ids came, 1 to {MAX_IDS:,} are expected. Ask for more in several requests.")
    for i in ids:
        if not 0 < len(i) <= MAX_ID:
            raise Declined(422, f"an id of {len(i):,} characters came, 1 to {MAX_ID} are expected.")
    return ids


def serve(
    app: FastAPI, door: Door, listening: socket.socket, seconds: float, ready: Callable[[uvicorn.Server], None]
) -> None:
    """Serve until a signal comes or the server that `ready` hears of is told to end; open requests are answered."""
    tls: dict[str, Any] = {}
    if door.certificate and door.key:
        tls = {"ssl_certfile": door.certificate, "ssl_keyfile": door.key}
    if door.names:
        tls |= {"ssl_ca_certs": str(door.ca), "ssl_cert_reqs": ssl.CERT_OPTIONAL}  # /health needs none
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=int(seconds) + 2,
        **tls,
    )
    server = uvicorn.Server(config)
    ready(server)
    with _ends_at_a_signal(server):
        server.run(sockets=[listening])


@contextlib.contextmanager
def _ends_at_a_signal(server: uvicorn.Server) -> Iterator[None]:
    """End it at a signal that comes before it listens for signals itself, or that it raises again when it has ended."""
    if threading.current_thread() is not threading.main_thread():  # others cannot listen
        yield
        return

    def end(number: int, frame: Any) -> None:
        server.should_exit = True

    with signals(end):
        yield
