"""The web application of the dashboard: one page, its files, the state as JSON, and events as it changes. Read-only."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from efvfl.network.dashboard.watched import Watched
from efvfl.network.ops.metrics import CONTENT_TYPE
from efvfl.runs import html
from efvfl.util.extras import optional

with optional("dashboard", "efvfl dashboard"):
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import RedirectResponse, StreamingResponse

HERE: Final = Path(__file__).parent
COOKIE: Final = "efvfl-dashboard"
FRESH: Final = 0.5  # seconds for which a look at the files is good enough for everybody
EVERY: Final = 1.0  # seconds between two looks for somebody who watches
ALIVE: Final = 15.0  # seconds after which a silent stream says that it is there
STREAMS: Final = 32  # at a time
NAME: Final = 300  # characters of a run's name

# Nothing but our own files, and no frame around them.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
STATIC = {
    "style.css": (html.ASSETS / "style.css", "text/css"),
    "chart.js": (html.ASSETS / "chart.js", "text/javascript"),
    "dashboard.css": (HERE / "dashboard.css", "text/css"),
    "dashboard.js": (HERE / "dashboard.js", "text/javascript"),
    "icon.svg": (HERE / "icon.svg", "image/svg+xml"),
}


@dataclass(frozen=True)
class Door:
    """Who may look: those who know the token, under names that are ours."""

    token: str = field(default="", repr=False)  # empty: everybody who reaches a loopback address
    hosts: frozenset[str] = frozenset()  # besides loopback: the name or address that the page is opened under

    def knows(self, host: str) -> bool:
        """Whether a Host header is ours: a foreign name that leads here is a trick of another page (DNS rebinding)."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
        name = name.strip("[]").lower()
        if name in self.hosts or name == "localhost":
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or bool(self.token)  # an address cannot be made to lead elsewhere, a name can

    def admits(self, request: Request) -> bool:
        """Whether a request shows the token, in a cookie or as a bearer."""
        shown = request.cookies.get(COOKIE, "") or request.headers.get("authorization", "").removeprefix("Bearer ")
        return not self.token or self.is_token(shown)

    def is_token(self, shown: str) -> bool:
        """Compare in a time that does not depend on how much is right."""
        return hmac.compare_digest(shown.encode(), self.token.encode())


class Looks:
    """Looks at the files for all who watch: one at a time, and not more often than needed."""

    def __init__(self, watched: Watched) -> None:
        """Look at these."""
        self.watched = watched
        self.streams = 0
        self.stopping = False
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, str]] = {}

    def text(self, chosen: str) -> str:
        """Return the state of a run, with those of the others in short, as JSON."""
        with self._lock:
            when, text = self._known.get(chosen, (0.0, ""))
            if not text or time.monotonic() - when > FRESH:
                text = json.dumps(self.watched.look(chosen), allow_nan=False)
                if len(self._known) > STREAMS:
                    self._known.clear()
                self._known[chosen] = (time.monotonic(), text)
            return text

    def metrics(self) -> bytes:
        """Return the metrics of all runs."""
        with self._lock:
            return self.watched.metrics()

    async def events(self, chosen: str, gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
        """Yield the state whenever it has changed."""
        before, said = "", time.monotonic()
        self.streams += 1
        try:
            while not self.stopping and not await gone():
                text = await asyncio.to_thread(self.text, chosen)
                if text != before:
                    before, said = text, time.monotonic()
                    yield f"data: {text}\n\n"
                elif time.monotonic() - said > ALIVE:
                    said = time.monotonic()
                    yield ": still here\n\n"
                await asyncio.sleep(EVERY)
        finally:
            self.streams -= 1


def make_app(watched: Watched, door: Door) -> FastAPI:
    """Return the application."""
    app, looks = FastAPI(openapi_url=None, docs_url=None, redoc_url=None), Looks(watched)
    app.state.looks = looks

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        response = refusal(door, request) or await go_on(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    @app.get("/")
    async def page() -> Response:
        return Response((HERE / "page.html").read_bytes(), media_type="text/html")

    @app.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in STATIC:
            return Response("not here\n", 404)
        path, kind = STATIC[name]
        return Response(path.read_bytes(), media_type=kind)

    @app.get("/state")
    async def state(run: str = "") -> Response:
        return Response(await asyncio.to_thread(looks.text, run[:NAME]), media_type="application/json")

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await asyncio.to_thread(looks.metrics), headers={"Content-Type": CONTENT_TYPE})

    @app.get("/events")
    async def events(request: Request, run: str = "") -> Response:
        if looks.streams >= STREAMS:
            return Response("too many watch already\n", 503)
        return StreamingResponse(looks.events(run[:NAME], request.is_disconnected), media_type="text/event-stream")

    return app


def refusal(door: Door, request: Request) -> Response | None:
    """Return why a request is not answered; None if it is."""
    if not door.knows(request.headers.get("host", "")):
        return Response("expected the name or address that the dashboard printed\n", 421)
    if door.admits(request):
        return None
    if request.url.path == "/" and door.is_token(request.query_params.get("token", "")):
        response: Response = RedirectResponse("/", 303)  # so that the token is neither shown nor kept as an address
        response.set_cookie(COOKIE, door.token, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return response
    return Response("expected the token: open the address that the dashboard printed\n", 401)
