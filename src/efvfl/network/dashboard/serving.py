"""Serves the dashboard from a process of its own, until a signal or until the process that it stands beside is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from efvfl.config.network import check_address
from efvfl.errors import ConfigError
from efvfl.network.dashboard.app import Door, make_app
from efvfl.network.dashboard.watched import Watched
from efvfl.util.extras import optional

with optional("dashboard", "efvfl dashboard"):
    import uvicorn

LISTEN: Final = "127.0.0.1:7180"
BESIDE: Final = "127.0.0.1:0"  # a free port: several runs may be at work
LATER: Final = 600.0  # seconds for which it shows what became of a process that was killed


def serve(
    folder: Path, listen: str, say: Callable[[str], None], beside: int = 0, hosts: frozenset[str] = frozenset()
) -> None:
    """Serve until a signal; `beside`: or until so long after this process is gone. `hosts` may be in addresses."""
    if not beside and not folder.is_dir():
        raise ConfigError(f"expected a folder of a run, got {folder}: name the one that a command writes to.")
    host, _, port = check_address(listen).rpartition(":")
    host = host.strip("[]")
    token = "" if _is_loopback(host) else secrets.token_urlsafe(32)
    listening = _open(host, int(port))
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listening.getsockname()[1]}/"
    app = make_app(Watched(folder), Door(token, hosts | {host.lower()}))
    server = _Server(app, beside)
    say(f"Dashboard: {address}{f'?token={token}' if token else ''}")
    if token:
        say("Whoever has this address sees the page. It is not encrypted: use a tunnel, or a network that you trust.")
    server.run(sockets=[listening])


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _open(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error}. Choose another with --listen HOST:PORT."
        ) from error
    return listening


class _Server(uvicorn.Server):
    """uvicorn, which ends its streams first, and with the process beside it."""

    def __init__(self, app: Any, beside: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=3,
                limit_concurrency=128,
            )
        )
        self._app, self._beside = app, beside
        self._gone: float | None = None

    def handle_exit(self, sig: int, frame: Any) -> None:
        """End the streams, or they would keep it from ending."""
        self._app.state.looks.stopping = True
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """End some time after the process beside it, which is its parent."""
        if self._beside and os.getppid() != self._beside:
            self._gone = self._gone or time.monotonic()
            if time.monotonic() - self._gone > LATER:
                self._app.state.looks.stopping = True
                await asyncio.sleep(0)
                return True
        return await super().on_tick(counter)


@contextlib.contextmanager
def started_beside(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Have a dashboard of a folder in a process of its own while something is done."""
    command = [
        sys.executable,
        "-m",
        "efvfl",
        "dashboard",
        str(folder),
        "--listen",
        BESIDE,
        "--beside",
        str(os.getpid()),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def hand_on() -> None:
        for line in process.stdout or ():
            say(line.rstrip("\n"))

    threading.Thread(target=hand_on, name="dashboard", daemon=True).start()
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
