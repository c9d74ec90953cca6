"""The contract of a wire, which carries frames both ways between a party and the server; and one within a process."""

from __future__ import annotations

import queue
from typing import Protocol

from efvfl.errors import LinkError


class Wire(Protocol):
    """One end of a wire."""

    def send(self, data: bytes) -> None:
        """Send a frame's bytes; LinkError if the wire is closed."""

    def receive(self, timeout: float | None) -> bytes:
        """Return the next frame's bytes; TimeoutError if there is none in time, LinkError if the wire is closed."""

    def close(self) -> None:
        """Close the wire. What was sent before still arrives."""

    def trust(self) -> None:
        """Receive frames as long as agreed from now on: until it is known who sends them, they must be short."""

    @property
    def settled(self) -> bool:
        """Whether all that was sent has left this process."""


class MemoryWire:
    """One end of a wire within a process."""

    def __init__(self, incoming: queue.Queue[bytes | None], outgoing: queue.Queue[bytes | None]) -> None:
        """Read from one queue and write to another; None closes the wire."""
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False

    def send(self, data: bytes) -> None:
        """Put a frame in the queue."""
        if self._closed:
            raise LinkError("the wire is closed.")
        self._outgoing.put(data)

    def receive(self, timeout: float | None) -> bytes:
        """Take a frame from the queue."""
        try:
            data = self._incoming.get(timeout=timeout)
        except queue.Empty as error:
            raise TimeoutError from error
        if data is None:
            self._closed = True
            raise LinkError("the other end closed the wire.")
        return data

    def close(self) -> None:
        """Close both directions."""
        self._closed = True
        self._incoming.put(None)
        self._outgoing.put(None)

    def trust(self) -> None:
        """Do nothing: frames within a process may have any length."""

    @property
    def settled(self) -> bool:
        """Always."""
        return True


def memory_pair() -> tuple[MemoryWire, MemoryWire]:
    """Return the two ends of a wire."""
    there: queue.Queue[bytes | None] = queue.Queue()
    back: queue.Queue[bytes | None] = queue.Queue()
    return MemoryWire(there, back), MemoryWire(back, there)
