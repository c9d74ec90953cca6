"""The HTTP application of the prediction service: access control, requests and responses. Needs efvfl[service]."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efvfl.network.identity.deny_list import DenyList
from efvfl.network.predict.batcher import PredictionBatcher
from efvfl.network.predict.prediction import Declined, Prediction
from efvfl.network.predict.quota import ClientQuota
from efvfl.network.predict.request_log import RequestLine, RequestLog
from efvfl.util.extras import optional

with optional("service", "serve-predictions"):
    from fastapi import FastAPI, Request, Response
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

if TYPE_CHECKING:
    from efvfl.network.ops.metrics import RequestObserver

MAX_IDS = 16_384  # of one request
MAX_ID = 256  # characters
MAX_BODY = 4 << 20  # bytes
TOKEN_CLIENT = "token"  # the name of all clients that send the token


@dataclass(frozen=True)
class AccessControl:
    """Which clients may ask, and the TLS files of the service."""

    token: str = field(default="", repr=False)  # that clients send; must never be logged
    names: frozenset[str] = frozenset()  # allowed in clients' certificates, in place of the token
    certificate: Path | None = None  # None: plaintext
    key: Path | None = None
    ca: Path | None = None  # of clients' certificates
    denied: DenyList | None = None  # of them, those that may not ask although the authority has signed them

    def identify(self, request: Request) -> str:
        """Return the name of a client; raise Declined for one without valid credentials."""
        if self.names:
            name: str | None = request.state.certified
            if name not in self.names:
                raise Declined(401, "expected the certificate of a client that may ask.")
            if self.denied and self.denied.has(request.state.fingerprint):
                raise Declined(401, "this certificate is on the deny list.")
            return name
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        valid = hmac.compare_digest(token.encode(), self.token.encode())
        if not (self.token and scheme.lower() == "bearer" and valid):
            raise Declined(401, "expected the header 'Authorization: Bearer TOKEN' with the service's token.")
        return TOKEN_CLIENT


class PredictionApp:
    """Answers the requests of clients."""

    def __init__(
        self,
        batcher: PredictionBatcher,
        access: AccessControl,
        request_log: RequestLog,
        observer: RequestObserver | None = None,
    ) -> None:
        """Predict for clients that have access, as much as each may ask for."""
        self.batcher = batcher
        self.access = access
        self.request_log = request_log
        self.observer = observer
        self.quota = ClientQuota(batcher.settings.quota, batcher.settings.unknown)

    async def predict(self, request: Request) -> Response:
        """Answer POST /predict, and log it."""
        line, started = RequestLine(None, request.client.host if request.client else ""), time.monotonic()
        try:
            client = self.access.identify(request)
            request.state.place.trusted = True
            line = replace(line, client=client)
            ids = read_ids(await _body(request, self.batcher.settings.timeout))
            line = replace(line, ids=tuple(ids))
            self.quota.spend(client, len(ids))
            prediction = await self._predict(client, ids)
            line = replace(line, unknown=prediction.unknown)
            response = Response(await asyncio.to_thread(prediction.to_json), media_type="application/json")
        except Declined as error:
            line = replace(line, status=error.status, unknown=len(error.more.get("unknown", ())))
            response = _decline(error)
        except Exception:
            self._record(replace(line, status=500), started)
            raise
        self._record(line, started)
        return response

    def _record(self, line: RequestLine, started: float) -> None:
        """Log a request that is answered, and count it."""
        if self.observer:
            self.observer.observe(line.status, time.monotonic() - started, len(line.ids), line.unknown)
        self.request_log.record(line)

    async def _predict(self, client: str, asked: list[str]) -> Prediction:
        ids = self.batcher.process.in_one_form(asked)
        prediction = await asyncio.to_thread(self.batcher.predict_cached, ids)
        if prediction is None:
            prediction = await self._fetch(client, ids)
        return replace(prediction, ids=asked)  # spelt as in the request

    async def _fetch(self, client: str, ids: list[str]) -> Prediction:
        """Have rows predicted that are not cached; what may not exist is paid for before any party is asked."""
        guesses, unknown = self.batcher.guesses(ids), 0
        self.quota.reserve(client, guesses)
        try:
            prediction = await asyncio.wrap_future(self.batcher.submit(ids))
            unknown = prediction.unknown
            return prediction
        except Declined as error:
            unknown = len(error.more.get("unknown", ()))
            raise
        finally:
            self.quota.settle(client, guesses, unknown)

    async def health(self) -> Response:
        """Answer GET /health."""
        return _respond(self.batcher.health())


def make_app(
    batcher: PredictionBatcher,
    access: AccessControl,
    request_log: RequestLog,
    observer: RequestObserver | None = None,
) -> FastAPI:
    """Return the app: POST /predict for clients with credentials, GET /health for all."""
    # No redirects: they would lead to whatever host a request names.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    @app.exception_handler(HTTPException)
    async def decline(request: Request, error: HTTPException) -> Response:
        return _respond(
            {"error": f"{error.detail}: this service has POST /predict and GET /health only."}, error.status_code
        )

    handlers = PredictionApp(batcher, access, request_log, observer)
    app.add_api_route("/predict", handlers.predict, methods=["POST"], response_model=None)
    app.add_api_route("/health", handlers.health, response_model=None)
    return app


def _decline(error: Declined) -> Response:
    headers = {"Retry-After": str(error.retry)} if error.retry else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _respond({"error": str(error), **error.more}, error.status, headers)


def _respond(table: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
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
    try:
        "".join(ids).encode()
    except UnicodeEncodeError as error:
        raise Declined(400, "expected ids of whole characters, got half a surrogate pair in one.") from error
    return ids
