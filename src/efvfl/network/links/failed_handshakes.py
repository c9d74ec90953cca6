"""Connections that end before TLS is agreed on: gRPC tells nobody, so that a server would wait in silence.

gRPC asks for the server's certificate at the beginning of every handshake. Whoever is connected then and has no stream
a moment later has not got through. Why, only the other end can know for certain.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from efvfl.network.links.connection_guard import Peer, parsed_peer, peer_of
from efvfl.network.links.own_sockets import own_sockets

log = logging.getLogger("efvfl")

PATIENCE: Final = 2.0  # seconds from the beginning of a handshake to a stream
QUIET: Final = 60.0  # seconds between two warnings: strangers can cause them
MOST: Final = 256  # handshakes that are watched at a time
PAUSE: Final = 0.02  # seconds between two looks at the sockets, however many connections are made


class FailedHandshakes:
    """Warns of connections that do not get through the handshake, with their addresses."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Watch a port as soon as it is known."""
        self.port = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._begun: dict[Peer, float] = {}
        self._seen: set[Peer] = set()  # those that have, or had, a stream, as long as they are connected
        self._failed: Counter[str] = Counter()  # by address, since the last warning
        self._looked = self._warned = float("-inf")

    def began(self) -> None:
        """Note who is connected: a handshake begins. Called on a thread of gRPC's."""
        now = self._clock()
        with self._lock, contextlib.suppress(OSError):  # no file can be opened now
            if now - self._looked < PAUSE:
                return
            self._looked = now
            here = {peer_of(own.there) for own in own_sockets(self.port) if own.here[1] == self.port}
            self._seen &= here
            for peer in here - self._seen:
                if len(self._begun) < MOST:
                    self._begun.setdefault(peer, now)

    def opened(self, peer: str) -> None:
        """Note that a connection has got as far as a stream; `peer` is what gRPC calls it.

        Others from its address are no reason to warn: a party that could not connect looks why, and then connects.
        """
        found = parsed_peer(peer)
        with self._lock:
            self._seen.add(found)
            self._begun = {other: begun for other, begun in self._begun.items() if other[0] != found[0]}

    def look(self) -> None:
        """Warn of those who had time enough."""
        now = self._clock()
        with self._lock:
            for peer in [peer for peer, begun in self._begun.items() if now - begun > PATIENCE]:
                del self._begun[peer]
                self._failed[peer[0]] += 1
            if not self._failed or now - self._warned < QUIET:
                return
            failed, self._failed, self._warned = self._failed, Counter(), now
        hosts = ", ".join(f"{host} ({count})" if count > 1 else host for host, count in failed.most_common(3))
        log.warning(
            "no TLS handshake with %s: its certificate is of another authority, has expired or is not valid yet, or it "
            "does not accept the one here. `efvfl doctor` at that end says which; `efvfl doctor --listen` here, too",
            hosts,
        )
