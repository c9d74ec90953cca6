"""Bytes on the sockets, TLS and HTTP/2 included, as the kernel counts them; gRPC has no such counter.

Linux counts what every TCP connection has sent and received. On other systems nothing is counted.
"""

from __future__ import annotations

import contextlib
import socket
import struct

from efvfl.network.links.own_sockets import own_sockets

# Linux's struct tcp_info: tcpi_bytes_received and, since 4.19, tcpi_bytes_sent, which includes retransmissions.
_COUNTS = struct.Struct("<128xQ64xQ")


class SocketBytes:
    """Counts the bytes on this process's connections to or from one port."""

    def __init__(self, port: int) -> None:
        """Count all connections to or from `port`."""
        self.port = port
        self._open: dict[tuple[object, object], tuple[int, int]] = {}  # by both addresses
        self._closed = (0, 0)  # of connections that are gone

    def totals(self) -> tuple[int, int]:
        """Return the bytes sent and received so far; a closed connection counts as it was when last seen."""
        with contextlib.suppress(OSError):  # no file can be opened now: the next count has what this one lacks
            self._look()
        counts = [self._closed, *self._open.values()]
        return sum(sent for sent, _ in counts), sum(received for _, received in counts)

    def _look(self) -> None:
        found = _counts(self.port)
        gone = [counts for ends, counts in self._open.items() if ends not in found]
        # A new connection between the same two ends begins at zero again: the old one is gone.
        gone += [old for ends, old in self._open.items() if ends in found and found[ends] < old]
        self._closed = (self._closed[0] + sum(n for n, _ in gone), self._closed[1] + sum(n for _, n in gone))
        self._open = found


def _counts(port: int) -> dict[tuple[object, object], tuple[int, int]]:
    """Return the bytes sent and received on every connection of this process to or from a port."""
    found = {}
    if hasattr(socket, "TCP_INFO"):
        for own in own_sockets(port):
            try:
                data = own.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size)
            except OSError:  # closed meanwhile
                continue
            if len(data) == _COUNTS.size:
                received, sent = _COUNTS.unpack(data)
                found[own.here, own.there] = (sent, received)
    return found
