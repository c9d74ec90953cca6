"""Frames on a stream of bytes: before each its length, and between them signs of life. Layout: docs/protocol.md."""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

from efvfl.errors import WireError
from efvfl.network.links.frame import MAX_JSON

NAME: Final = "efvfl/3"  # what both ends speak, as TLS negotiates it
PREFACE: Final = NAME.encode() + b"\n"  # what a party says first where there is no TLS to negotiate it
HEAD: Final = struct.Struct("<BQ")  # what follows, and how many bytes of it
FRAME: Final = ord("f")
BEAT: Final = ord("b")  # a sign of life, of no bytes
SIGN_OF_LIFE: Final = HEAD.pack(BEAT, 0)
SMALL: Final = 512  # bytes of a part that is joined with the one before: each part takes some room of its own
FIRST: Final = MAX_JSON + 64  # bytes of a frame of somebody who is not welcome yet: a HELLO is all that it may send


def framed(data: bytes) -> bytes:
    """Return a frame's bytes as they are in a stream."""
    return HEAD.pack(FRAME, len(data)) + data


class Deframer:
    """Takes frames out of a stream, up to a limit; nothing is set aside for bytes that are only announced."""

    def __init__(self, limit: int) -> None:
        """Begin with an empty stream."""
        self.limit = limit
        self.beats = 0  # signs of life so far
        self._parts: deque[bytes] = deque()
        self._place = 0  # where the first part goes on
        self._size = 0  # bytes that were not taken yet
        self._length = -1  # of the frame that has begun

    def add(self, data: bytes) -> None:
        """Add what has arrived."""
        if not data:
            return
        if len(data) < SMALL and self._parts and len(self._parts[-1]) < SMALL:
            self._parts[-1] += data
        else:
            self._parts.append(data)
        self._size += len(data)

    @property
    def heard(self) -> bool:
        """Whether anything has arrived that is of this protocol."""
        return self.beats > 0 or self._length >= 0

    @property
    def begun(self) -> bool:
        """Whether a part of something has arrived that is still to come."""
        return self._size > 0 or self._length >= 0

    def ready(self) -> bool:
        """Whether a frame is complete."""
        while self._length < 0:
            if self._size < HEAD.size:
                return False
            what, length = HEAD.unpack(self._take(HEAD.size))
            if what == FRAME:
                if length > self.limit:
                    raise WireError(f"expected a frame of at most {self.limit:,} bytes, got more.")
                self._length = length
            elif what == BEAT and not length:
                self.beats += 1
            else:
                raise WireError("expected a frame, got bytes that are none.")
        return self._size >= self._length

    def next(self) -> bytes | None:
        """Return the next frame; None if it is not complete."""
        if not self.ready():
            return None
        length, self._length = self._length, -1
        return self._take(length)

    def _take(self, count: int) -> bytes:
        """Return the next bytes, which are there; without a copy if they are a part of their own."""
        taken: list[bytes] = []
        self._size -= count
        while count:
            part, start = self._parts[0], self._place
            stop = start + count
            if stop < len(part):
                taken.append(part[start:stop])
                self._place = stop
                break
            taken.append(part[start:] if start else part)
            count -= len(part) - start
            self._parts.popleft()
            self._place = 0
        return taken[0] if len(taken) == 1 else b"".join(taken)
