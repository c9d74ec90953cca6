"""Connections that end before TLS is agreed on: gRPC tells nobody, so that a server would wait in silence.

gRPC asks for the server's certificate at the beginning of every handshake. Whoever is connected then and has no stream
a moment later has not got through. Why, gRPC does not say either; what the certificates here show is said in its place.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from efvfl.errors import ConfigError
from efvfl.network.identity.certificates import Credentials, date_text, parse
from efvfl.network.links.connection_guard import Peer, parsed_peer, peer_of
from efvfl.network.links.own_sockets import own_sockets
from efvfl.network.links.tls_probe import name_of

log = logging.getLogger("efvfl")

PATIENCE: Final = 2.0  # seconds from the beginning of a handshake to a stream
QUIET: Final = 60.0  # seconds between two warnings: strangers can cause them
MOST: Final = 256  # handshakes that are watched at a time
PAUSE: Final = 0.02  # seconds between two looks at the sockets, however many connections are made


class FailedHandshakes:
    """Warns of connections that do not get through the handshake, with their addresses."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Watch a port as soon as it is known; `reason` says why a handshake may fail here."""
        self.port = 0
        self.reason: Callable[[], str] = str
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
        log.warning("no TLS handshake with %s: %s", hosts, self.reason())


def likely_reason(own: Credentials, now: datetime | None = None) -> str:
    """Say why somebody does not get through to a server with these credentials, as far as its files show it.

    The label holder keeps every certificate that it has signed beside its own, so dates can be told; where no date is
    wrong, the other end has certificates of another authority.
    """
    now = now or datetime.now(UTC)
    if wrong := _wrong_dates(own.certificate, now):
        return f"the server's own certificate {wrong}. Renew it: `efvfl request` and `efvfl sign --server`"
    paths = sorted(own.folder.glob("*.crt")) if own.folder else []
    signed = [path for path in paths if path.stem not in ("ca", own.name)]
    late = [f"the certificate of {path.stem!r} {wrong}" for path in signed if (wrong := _wrong_dates(_read(path), now))]
    if late:
        return f"{', '.join(late)}. Renew it: the party runs `efvfl request`"
    ours = name_of(parse("ca.crt", own.ca).subject)
    dates = "" if signed else ", has expired, is not valid yet"
    return (
        f"its certificate, or its ca.crt, is of another authority than {ours!r}, which is ours{dates}; its clock is "
        "wrong; or it is no party at all. `efvfl join` and `efvfl doctor` at that end say which"
    )


def _wrong_dates(certificate: bytes, now: datetime) -> str:
    """Return what is wrong with the dates of a certificate (PEM); empty if nothing is, or it is none."""
    try:
        found = parse("it", certificate)
    except ConfigError:
        return ""
    if now > found.not_valid_after_utc:
        return f"expired on {date_text(found.not_valid_after_utc)}"
    return f"is not valid before {date_text(found.not_valid_before_utc)}" if now < found.not_valid_before_utc else ""


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""
