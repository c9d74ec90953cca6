"""The proxy through which a party dials, if the environment names one, as most programs understand these variables."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

_VARIABLES: Final = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY")
_EXCEPTIONS: Final = ("no_proxy", "NO_PROXY")
_MOST: Final = 16 << 10  # bytes of a proxy's answer


@dataclass(frozen=True)
class Proxy:
    """A proxy, and the variable that names it."""

    host: str
    port: int
    variable: str
    secret: str = field(default="", repr=False)  # user and password, as the proxy is told
    scheme: str = field(default="http", repr=False)  # how it is spoken to

    def __str__(self) -> str:
        """Where it is, without a password that may be in the variable."""
        return f"{self.host}:{self.port} ({self.variable})"


def proxy_of(host: str, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy through which a host is dialled; None: it is dialled directly.

    >>> proxy_of("vfl.example.org", {"https_proxy": "http://10.0.0.1:3128", "no_proxy": "localhost"})
    Proxy(host='10.0.0.1', port=3128, variable='https_proxy')
    >>> proxy_of("vfl.example.org", {"HTTPS_PROXY": "http://10.0.0.1:3128", "NO_PROXY": "localhost,.example.org"})
    """
    variable = next((name for name in _VARIABLES if environ.get(name)), None)
    excepted = next((environ[name] for name in _EXCEPTIONS if environ.get(name)), "")
    if variable is None or any(_is_of(host, end.strip()) for end in excepted.split(",")):
        return None
    value = environ[variable]
    try:
        found = urlsplit(value if "://" in value else f"http://{value}")
        if not found.hostname:
            return None
        known = f"{unquote(found.username)}:{unquote(found.password or '')}" if found.username else ""
        secret = base64.b64encode(known.encode()).decode()
        return Proxy(found.hostname, found.port or 80, variable, secret, found.scheme)
    except ValueError:
        return None


def _is_of(host: str, end: str) -> bool:
    """Whether a host is one of those that an exception names: itself, or what ends so."""
    return end == "*" or (end != "" and (host == end or host.endswith(f".{end.lstrip('.')}")))


def ask(link: socket.socket, host: str, port: int, proxy: Proxy, seconds: float) -> str:
    """Ask a proxy for a connection to a host; return why it gives none, or nothing if it does."""
    target, ends = f"[{host}]:{port}" if ":" in host else f"{host}:{port}", time.monotonic() + seconds
    request = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"
    request += f"Proxy-Authorization: Basic {proxy.secret}\r\n" if proxy.secret else ""
    answer = b""
    try:
        link.sendall(f"{request}\r\n".encode("ascii", "replace"))
        while b"\r\n\r\n" not in answer and len(answer) < _MOST:
            if (left := ends - time.monotonic()) <= 0:
                return "it does not answer"
            link.settimeout(left)
            if not (piece := link.recv(1)):  # what follows belongs to TLS
                break
            answer += piece
    except OSError as error:
        return str(error)
    line = answer.partition(b"\r\n")[0].decode("ascii", "replace")
    code = line.split(" ")[1:2]
    return "" if line.startswith("HTTP/") and code == ["200"] else line[:80] or "it closed the connection"
