"""Bytes on the sockets, TLS included, as they are handed to the system and taken from it."""

from __future__ import annotations

import threading


class SocketBytes:
    """Counts what goes over the sockets of one participant, on whatever thread."""

    def __init__(self) -> None:
        """Begin at zero."""
        self._lock = threading.Lock()
        self._sent = self._received = 0

    def sent(self, count: int) -> None:
        """Count bytes that were sent."""
        with self._lock:
            self._sent += count

    def received(self, count: int) -> None:
        """Count bytes that were received."""
        with self._lock:
            self._received += count

    def totals(self) -> tuple[int, int]:
        """Return the bytes sent and received so far."""
        with self._lock:
            return self._sent, self._received
