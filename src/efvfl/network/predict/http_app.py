"""The HTTP application of the prediction service: access control, requests and responses. Needs efvfl[service]."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from efvfl.network.identity.certificates import peer_name
from efvfl.network.ops.session import handle_signals
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
MAX_CONNECTIONS = 512  # at a time; others get 503


@dataclass(frozen=True)
class AccessControl:
    """Which clients may ask, and the TLS files of the service."""

    token: str = field(default="", repr=False)  # that clients send; must never be logged
    names: frozenset[str] = frozenset()  # allowed in clients' certificates, in place of the token
    certificate: Path | None = None  # None: plaintext
    key: Path | None = None
    ca: Path | None = None  # of clients' certificates

    def check(self, request: Request) -> None:
        """Raise Declined for a client without valid credentials."""
        if self.names:
            if request.state.certified not in self.names:
                raise Declined(401, "expected the certificate of a client that may ask.")
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        valid = hmac.compare_digest(token.encode(), self.token.encode())
        if not (self.token and scheme.lower() == "bearer" and valid):
            raise Declined(401, "expected the header 'Authorization: Bearer TOKEN' with the service's token.")


class _Protocol(H11Protocol):
    """Passes the name in a client's certificate to the app."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Head and body of a response are two writes; without this the second waits 40 ms for the first's ACK.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = transport.get_extra_info("ssl_object")
        self.app_state = self.app_state | {"certified": _certified(tls.getpeercert() if tls else None)}


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


def make_app(batcher: PredictionBatcher, access: AccessControl) -> FastAPI:
    """Return the app: POST /predict for clients with credentials, GET /health for all."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(HTTPException)
    async def decline(request: Request, error: HTTPException) -> Response:
        return _respond(
            {"error": f"{error.detail}: this service has POST /predict and GET /health only."}, error.status_code
        )

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        try:
            access.check(request)
            asked = read_ids(await _body(request, batcher.settings.timeout))
            ids = batcher.process.in_one_form(asked)
            prediction = await asyncio.to_thread(batcher.predict_cached, ids)
            if prediction is None:
                prediction = await asyncio.wrap_future(batcher.submit(ids))
            prediction = replace(prediction, ids=asked)  # spelt as in the request
            return Response(await asyncio.to_thread(prediction.to_json), media_type="application/json")
        except Declined as error:
            headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(error.status)
            return _respond({"error": str(error), **error.more}, error.status, headers)

    @app.get("/health")
    async def health() -> Response:
        return _respond(batcher.health())

    return app


def _respond(table: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # Escaped to ASCII, unlike FastAPI's responses: an id may hold a lone surrogate, which UTF-8 cannot encode.
    return Response(json.dumps(table), status, headers, "application/json")


async def _body(request: Request, seconds: float) -> bytes:
    """Return a request's body; refuse one that is too large or too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise Declined(
                        413, f"expected a body of at most {MAX_BODY:,} bytes, got more: ask for fewer ids at a time."
                    )
    except TimeoutError as error:
        raise Declined(408, f"the body was not received within {seconds:g} seconds.") from error
    except ClientDisconnect as error:
        raise Declined(400, "the client has disconnected.") from error
    return bytes(body)


def read_ids(body: bytes) -> list[str]:
    """Return the ids in the body of a request; Declined says what is wrong with it."""
    try:
        table = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Declined(422, 'expected JSON such as {"ids": ["...", ...]}, got a body that is not JSON.') from error
    match table:
        case {"ids": list(ids), **more} if not more and all(isinstance(i, str) for i in ids):
            pass
        case _:
            raise Declined(422, 'expected {"ids": [...]} with a list of strings and nothing else, got other JSON.')
    if not 0 < len(ids) <= MAX_IDS:
        raise Declined(422, f"expected 1 to {MAX_IDS:,} ids, got {len(ids):,}: ask for more in several requests.")
    for i in ids:
        if not 0 < len(i) <= MAX_ID:
            raise Declined(422, f"expected ids of 1 to {MAX_ID} characters, got one of {len(i):,}.")
    return ids


def make_server(app: FastAPI, access: AccessControl, seconds: float) -> uvicorn.Server:
    """Return the HTTP server of an app; when it stops, open requests get so many seconds to finish."""
    tls: dict[str, Any] = {}
    if access.certificate and access.key:
        tls = {"ssl_certfile": access.certificate, "ssl_keyfile": access.key}
    if access.names:
        tls |= {"ssl_ca_certs": str(access.ca), "ssl_cert_reqs": ssl.CERT_OPTIONAL}  # /health needs none
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
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=int(seconds) + 2,
        **tls,
    )
    return uvicorn.Server(config)


def serve(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until a signal or `server.should_exit`; open requests are answered first."""
    with _exit_on_signal(server):
        server.run(sockets=[listening])


@contextlib.contextmanager
def _exit_on_signal(server: uvicorn.Server) -> Iterator[None]:
    """Stop the server at a signal before it handles signals itself, or at one that it raises again at its end."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield
        return

    def stop(number: int, frame: Any) -> None:
        server.should_exit = True

    with handle_signals(stop):
        yield
