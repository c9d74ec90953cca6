"""What the log says of decisions that depended on time: after a restart they are made again as they were.

The first request that was posted after some replies were taken shows whose replies these were, who was back, and
whether parties were asked to hold.
"""

from __future__ import annotations

from efvfl.network.links.frame import unpack
from efvfl.network.links.message_log import MessageLog
from efvfl.wire.message import Kind, Message


class Replay:
    """The requests in a log that are about to be posted again, by number; None: this one was never posted."""

    def __init__(self, message_log: MessageLog) -> None:
        """Read this log."""
        self.message_log = message_log

    def taken(self, number: int) -> set[str] | None:
        """Return the parties that took part when a request was posted."""
        found = self._posted(number)
        return None if found is None else {name for name, message in found.items() if message.kind != Kind.SYNC}

    def back(self, number: int) -> list[str] | None:
        """Return the parties that were back with a request."""
        found = self._posted(number)
        return None if found is None else [name for name, message in found.items() if message.kind == Kind.SYNC]

    def held(self, number: int) -> bool | None:
        """Return whether a request asked to hold."""
        found = self._posted(number)
        return None if found is None else any(message.hold for message in found.values())

    def _posted(self, number: int) -> dict[str, Message] | None:
        return unpack(self.message_log.read(number)) if number in self.message_log else None
