"""Connections that nobody has spoken on: how many there may be, in all and from one address.

Anyone can open a TCP connection; only who has a certificate gets as far as a stream. gRPC itself refuses connections
above a total, so that strangers cannot use up the files that a process may open. The guard keeps room below that total:
several times a second it closes connections without a stream, where there are too many of them: first those that the
other end has closed and gRPC has not yet, which takes it a moment for each while the process computes; then the oldest.
That of a party has a stream after a fraction of a second, and is not touched then.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from efvfl.network.links.origin import origin_of
from efvfl.network.links.own_sockets import own_sockets

log = logging.getLogger("efvfl")

PERIOD: Final = 0.1  # seconds between two looks
QUIET: Final = 60.0  # seconds between two warnings

Peer = tuple[str, int]  # host and port


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections a server keeps."""

    total: int  # of all kinds; gRPC accepts no more
    unused: int  # without a stream, in all
    unused_by_address: int

    @classmethod
    def of(cls, parties: int) -> ConnectionLimits:
        """Return limits that leave room for so many parties, also if all of them dial at once from one address."""
        by_address = 2 * parties + 16
        return cls(total=8 * by_address, unused=4 * by_address, unused_by_address=by_address)


class ConnectionGuard:
    """Closes connections to a port that nobody has spoken on, where there are too many."""

    def __init__(self, port: int, limits: ConnectionLimits) -> None:
        """Watch the connections to a port of this process."""
        self.port = port
        self.limits = limits
        self._streams: Counter[Peer] = Counter()
        self._lock = threading.Lock()
        self._order: dict[Peer, None] = {}  # connections in the order in which they were first seen
        self._left: set[Peer] = set()  # those that the other end has closed
        self._warned = float("-inf")

    def opened(self, peer: str) -> None:
        """Note that a connection has a stream; `peer` is what gRPC calls it."""
        with self._lock:
            self._streams[parsed_peer(peer)] += 1

    def closed(self, peer: str) -> None:
        """Note that a stream of a connection has ended."""
        with self._lock:
            self._streams[parsed_peer(peer)] -= 1
            self._streams += Counter()  # without those that have none left

    def look(self) -> int:
        """Close the oldest unused connections that are too many; return how many."""
        with contextlib.suppress(OSError):  # no file can be opened now: gRPC's total bounds for how long
            here = {peer_of(own.there): own.left for own in own_sockets(self.port) if own.here[1] == self.port}
            self._order = dict.fromkeys((*(p for p in self._order if p in here), *here))
            self._left = {peer for peer, left in here.items() if left}
            if condemned := self._condemned():
                return self._close(condemned)
        return 0

    def _condemned(self) -> set[Peer]:
        """Return the unused connections that are too many: of an address, and of those addresses that have most.

        Of each, those whose other end is gone, and then the oldest.
        """
        with self._lock:
            unused = [peer for peer in self._order if peer not in self._streams]
        unused.sort(key=lambda peer: peer not in self._left)
        by_address: dict[str, list[Peer]] = {}  # newest first, and those who are gone last
        for peer in reversed(unused):
            by_address.setdefault(origin_of(peer[0]), []).append(peer)
        kept = [peers[: self.limits.unused_by_address] for peers in by_address.values()]
        for _ in range(sum(map(len, kept)) - self.limits.unused):
            max(reversed(kept), key=len).pop()  # of whoever has most: who has but one is the last to lose it
        return set(unused).difference(*kept)

    def _close(self, condemned: set[Peer]) -> int:
        count = 0
        for own in own_sockets(self.port):
            if own.here[1] == self.port and peer_of(own.there) in condemned:
                with contextlib.suppress(OSError):  # closed meanwhile
                    own.socket.shutdown(socket.SHUT_RDWR)  # gRPC closes it then
                    count += 1
        if time.monotonic() - self._warned > QUIET:
            self._warned = time.monotonic()
            hosts = Counter(host for host, _ in condemned).most_common(3)
            log.warning(
                "closed %d connections on which nobody said anything, most of them from %s: more are closed as they "
                "are made, and parties can still connect",
                count,
                ", ".join(host for host, _ in hosts),
            )
        return count


def parsed_peer(peer: str) -> Peer:
    """Return host and port of what gRPC calls 'ipv4:192.0.2.1:40000' or 'ipv6:%5B2001:db8::1%5D:40000'."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _plain(host.strip("[]")), int(port) if port.isdecimal() else 0


def peer_of(address: Any) -> Peer:
    """Return host and port of a socket's address."""
    return _plain(str(address[0])), int(address[1])


def _plain(host: str) -> str:
    """Return an IPv4 address as such where the kernel shows it as an IPv6 one."""
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(host)
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        return str(mapped or found)
    return host
