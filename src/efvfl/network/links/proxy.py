"""The proxy that gRPC dials through, if the environment names one: it must be found before a server that cannot be."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy")  # in gRPC's order; it knows them in lower case only
_EXCEPTIONS: Final = ("no_grpc_proxy", "no_proxy")
_MOST: Final = 16 << 10  # bytes of a proxy's answer


class Proxy(NamedTuple):
    """A proxy, and the variable that names it."""

    host: str
    port: int
    variable: str

    def __str__(self) -> str:
        """Where it is, without a password that may be in the variable."""
        return f"{self.host}:{self.port} ({self.variable})"


def proxy_of(host: str, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy through which gRPC would dial a host; None: it dials the host itself.

    >>> proxy_of("vfl.example.org", {"https_proxy": "http://10.0.0.1:3128", "no_proxy": "localhost"})
    Proxy(host='10.0.0.1', port=3128, variable='https_proxy')
    >>> proxy_of("vfl.example.org", {"https_proxy": "http://10.0.0.1:3128", "no_proxy": "localhost,.example.org"})
    """
    variable = next((name for name in _VARIABLES if environ.get(name)), None)
    excepted = next((environ[name] for name in _EXCEPTIONS if environ.get(name)), "")
    if variable is None or any(host.endswith(end.strip()) for end in excepted.split(",") if end.strip()):
        return None
    value = environ[variable]
    try:
        found = urlsplit(value if "://" in value else f"http://{value}")
        return Proxy(found.hostname or "", found.port or 80, variable) if found.hostname else None
    except ValueError:
        return None


def ask(link: socket.socket, host: str, port: int) -> str:
    """Ask a proxy for a connection to a host; return why it gives none, or nothing if it does."""
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    answer = b""
    try:
        link.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("ascii", "replace"))
        while b"\r\n\r\n" not in answer and len(answer) < _MOST:
            if not (piece := link.recv(1)):  # what follows belongs to TLS
                break
            answer += piece
    except OSError as error:
        return str(error)
    line = answer.partition(b"\r\n")[0].decode("ascii", "replace")
    code = line.split(" ")[1:2]
    return "" if line.startswith("HTTP/") and code == ["200"] else line[:80] or "it closed the connection"
