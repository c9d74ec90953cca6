"""Connections that are no wire yet: how many there may be, in all and from one address.

Anyone can open a TCP connection; only who has a certificate gets further. So that strangers use up neither files nor
room, there is a bound on those who are not through: where there are too many, the oldest are closed.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from efvfl.network.links.origin import origin_of
from efvfl.network.links.tls import Tls

log = logging.getLogger("efvfl")

QUIET: Final = 60.0  # seconds between two warnings
MOST: Final = 256  # addresses that are remembered in between


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections a server keeps."""

    total: int  # of all kinds; more are closed as they are made
    unused: int  # that are no wire yet, in all
    unused_by_address: int
    by_name: int = 4  # wires of one certificate

    @classmethod
    def of(cls, parties: int) -> ConnectionLimits:
        """Return limits that leave room for so many parties, also if all of them dial at once from one address."""
        by_address = 2 * parties + 16
        return cls(total=8 * by_address, unused=4 * by_address, unused_by_address=by_address)


@dataclass(eq=False)
class Guest:
    """Somebody who is connected, and is not let in yet."""

    link: socket.socket
    host: str
    tls: Tls | None  # None: plaintext
    until: float  # when its time is over
    came: float = field(default_factory=time.monotonic)
    received: bytes = b""  # of plaintext
    spoke: bool = False
    over: bool = False  # all is said, and the other end is to close

    @property
    def origin(self) -> str:
        """What counts as its address."""
        return origin_of(self.host)


def condemned(guests: Iterable[Guest], limits: ConnectionLimits) -> list[Guest]:
    """Return those who are too many, given oldest first: of an address, and of those addresses that have most.

    Of each, the oldest: that of a party is through after a fraction of a second.
    """
    by_address: dict[str, list[Guest]] = {}  # newest first
    everyone = list(guests)
    for guest in reversed(everyone):
        by_address.setdefault(guest.origin, []).append(guest)
    kept = [some[: limits.unused_by_address] for some in by_address.values()]
    for _ in range(sum(map(len, kept)) - limits.unused):
        max(reversed(kept), key=len).pop()  # of whoever has most: who has but one is the last to lose it
    stay = {guest for some in kept for guest in some}
    return [guest for guest in everyone if guest not in stay]


class Crowd:
    """Warns of connections that were closed because there were too many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with none."""
        self._clock = clock
        self._count = 0  # since the last warning
        self._closed: Counter[str] = Counter()
        self._warned = float("-inf")

    def note(self, host: str) -> None:
        """Note that a connection from there was closed."""
        self._count += 1
        if host in self._closed or len(self._closed) < MOST:
            self._closed[host] += 1

    def look(self) -> None:
        """Warn of them, unless a warning was a moment ago."""
        now = self._clock()
        if not self._closed or now - self._warned < QUIET:
            return
        self._warned = now
        count, hosts = self._count, ", ".join(host for host, _ in self._closed.most_common(3))
        self._closed.clear()
        self._count = 0
        log.warning(
            "closed %d connections on which nobody said anything, most of them from %s: more are closed as they "
            "are made, and parties can still connect",
            count,
            hosts,
        )


def plain_host(host: str) -> str:
    """Return an IPv4 address as such where the system shows it as an IPv6 one."""
    with suppress(ValueError):
        found = ipaddress.ip_address(host.partition("%")[0])
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        return str(mapped or host)
    return host
