"""Bytes on the socket, TLS and HTTP/2 included, as the kernel counted them; gRPC itself does not say.

On Linux every TCP connection knows what it has sent and received. Elsewhere nothing is counted.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

# Linux's struct tcp_info: tcpi_bytes_received and, since 4.19, tcpi_bytes_sent, which counts what was sent again.
_COUNTS = struct.Struct("<128xQ64xQ")
_FOLDER = "/proc/self/fd"


class Sockets:
    """Counts what went over this process's connections to or from one port."""

    def __init__(self, port: int) -> None:
        """Count from the first connection on."""
        self.port = port
        self._counts: dict[tuple[object, object], tuple[int, int]] = {}  # by both ends, also of those that are closed

    def totals(self) -> tuple[int, int]:
        """Return the bytes sent and received so far; a connection that was closed counts as it was when last seen."""
        for ends, counts in _connections(self.port):
            self._counts[ends] = counts
        sent, received = zip(*self._counts.values(), strict=True) if self._counts else ((0,), (0,))
        return sum(sent), sum(received)


def _connections(port: int) -> Iterator[tuple[tuple[object, object], tuple[int, int]]]:
    """Yield both ends and both counts of every connection of this process over a port."""
    if not hasattr(socket, "TCP_INFO") or not os.path.isdir(_FOLDER):
        return
    for name in os.listdir(_FOLDER):
        try:
            if not os.readlink(f"{_FOLDER}/{name}").startswith("socket:"):
                continue
            looked_at = socket.socket(fileno=int(name))  # no copy: one that outlives gRPC's own would stay in its epoll
        except OSError:  # closed meanwhile
            continue
        try:
            if looked_at.type != socket.SOCK_STREAM or looked_at.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            here, there = looked_at.getsockname(), looked_at.getpeername()
            if port not in (here[1], there[1]):
                continue
            data = looked_at.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size)
        except OSError:  # closed meanwhile, or listening only
            continue
        finally:
            looked_at.detach()  # it is not ours to close
        if len(data) == _COUNTS.size:
            received, sent = _COUNTS.unpack(data)
            yield (here, there), (sent, received)
