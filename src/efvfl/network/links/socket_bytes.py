"""Bytes on the sockets, TLS and HTTP/2 included, as the kernel counts them; gRPC has no such counter.

Linux counts what every TCP connection has sent and received. On other systems nothing is counted.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

# Linux's struct tcp_info: tcpi_bytes_received and, since 4.19, tcpi_bytes_sent, which includes retransmissions.
_COUNTS = struct.Struct("<128xQ64xQ")
_FOLDER = "/proc/self/fd"


class SocketBytes:
    """Counts the bytes on this process's connections to or from one port."""

    def __init__(self, port: int) -> None:
        """Count all connections to or from `port`."""
        self.port = port
        self._counts: dict[tuple[object, object], tuple[int, int]] = {}  # by both addresses; closed connections stay

    def totals(self) -> tuple[int, int]:
        """Return the bytes sent and received so far; a closed connection counts as it was when last seen."""
        for ends, counts in _connections(self.port):
            self._counts[ends] = counts
        sent, received = zip(*self._counts.values(), strict=True) if self._counts else ((0,), (0,))
        return sum(sent), sum(received)


def _connections(port: int) -> Iterator[tuple[tuple[object, object], tuple[int, int]]]:
    """Yield the addresses and counts of every connection of this process to or from a port."""
    if not hasattr(socket, "TCP_INFO") or not os.path.isdir(_FOLDER):
        return
    for name in os.listdir(_FOLDER):
        try:
            if not os.readlink(f"{_FOLDER}/{name}").startswith("socket:"):
                continue
            found = socket.socket(fileno=int(name))  # not a copy: one that outlives gRPC's would stay in its epoll set
        except OSError:  # closed meanwhile
            continue
        try:
            if found.type != socket.SOCK_STREAM or found.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            here, there = found.getsockname(), found.getpeername()
            if port not in (here[1], there[1]):
                continue
            data = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size)
        except OSError:  # closed meanwhile, or listening only
            continue
        finally:
            found.detach()  # gRPC owns it
        if len(data) == _COUNTS.size:
            received, sent = _COUNTS.unpack(data)
            yield (here, there), (sent, received)
