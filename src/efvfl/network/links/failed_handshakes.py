"""Warnings of connections that do not get as far as a wire: with their addresses and the reason, but few."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from efvfl.errors import ConfigError
from efvfl.network.identity.certificates import Credentials, date_text, parse

log = logging.getLogger("efvfl")

QUIET: Final = 60.0  # seconds between two warnings: strangers can cause them
MOST: Final = 256  # addresses that are remembered in between


class FailedHandshakes:
    """Says who failed to connect and why; more of them in the meantime are told together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with none."""
        self._clock = clock
        self._failed: Counter[tuple[str, str]] = Counter()  # address and reason, since the last warning
        self._warned = float("-inf")

    def note(self, host: str, reason: str) -> None:
        """Note that somebody has failed."""
        if (host, reason) in self._failed or len(self._failed) < MOST:
            self._failed[host, reason] += 1
        self.look()

    def look(self) -> None:
        """Warn of those who have failed, unless a warning was a moment ago."""
        now = self._clock()
        if not self._failed or now - self._warned < QUIET:
            return
        self._warned = now
        told = [
            f"{host}{f' ({count})' if count > 1 else ''}: {why}" for (host, why), count in self._failed.most_common(3)
        ]
        more = f"; and {len(self._failed) - 3} others" if len(self._failed) > 3 else ""
        self._failed.clear()
        log.warning("no TLS handshake with %s%s", "; ".join(told), more)


def wrong_dates_here(own: Credentials, now: datetime | None = None) -> str:
    """Say which of the certificates in a server's folder have wrong dates; empty if none has.

    The label holder keeps every certificate that it has signed beside its own. Who has shown one is not known: nothing
    is read from a certificate that is not accepted.
    """
    now = now or datetime.now(UTC)
    if wrong := _wrong_dates(own.certificate, now):
        return f"the server's own certificate {wrong}. Renew it: `efvfl request` and `efvfl sign --server`"
    paths = sorted(own.folder.glob("*.crt")) if own.folder else []
    signed = [path for path in paths if path.stem not in ("ca", own.name)]
    late = [f"the certificate of {path.stem!r} {wrong}" for path in signed if (wrong := _wrong_dates(_read(path), now))]
    return f"{', '.join(late)}. Renew it: the party runs `efvfl request`" if late else ""


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
