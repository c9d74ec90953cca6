"""A wire over a socket: frames on a stream, sealed by TLS.

Whoever sends never waits: what the socket does not take is left to the postman. Whoever receives waits for the socket
itself, so that what arrives changes hands nowhere.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from typing import Final

from efvfl.errors import LinkError, WireError
from efvfl.network.links.framing import FIRST, FRAME, HEAD, SIGN_OF_LIFE, Deframer
from efvfl.network.links.postman import BEAT, Postman
from efvfl.network.links.socket_bytes import SocketBytes
from efvfl.network.links.tls import Seal

SILENCE: Final = 4 * BEAT  # seconds of waiting without any sign of life, until the other end counts as gone
BEATS: Final = 64  # signs of life in advance of the clock: a flood of them keeps nobody busy
_TICK: Final = 0.2  # seconds until a wire that was closed on another thread is noticed
_CHUNK: Final = 1 << 18  # bytes that are sealed at a time
_TURN: Final = 1 << 23  # bytes that one wire sends before others have their turn
_BROKE: Final = "the connection broke."


class StreamWire:
    """One end of a stream of frames."""

    def __init__(self, link: socket.socket, seal: Seal, limit: int, postman: Postman, count: SocketBytes) -> None:
        """Use a connection that is open, and sealed; frames may have up to `limit` bytes, but FIRST until `trust`."""
        link.setblocking(True)  # but for what asks not to wait: to receive is then one call of the system, not two
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(1e6 * _TICK)))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link, self._seal, self._postman, self._count = link, seal, postman, count
        self._limit = limit
        self._frames = Deframer(min(FIRST, limit))
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._reading, self._sending = threading.Lock(), threading.Lock()
        self._queue: deque[memoryview] = deque()  # what is to be sent, unsealed
        self._waiting = 0  # bytes of it
        self._rest = memoryview(b"")  # what is sealed, and the socket did not take
        self._said = self._began = time.monotonic()  # when something was sent last
        self._silent = 0.0  # seconds of waiting for any word
        self._closing = self._ended = False
        self._reason = ""  # why the connection is of no use any more
        postman.take(self)

    # Sending, on any thread.

    def send(self, data: bytes) -> None:
        """Send a frame, or leave to the postman what the socket does not take."""
        head = HEAD.pack(FRAME, len(data))
        with self._sending:
            if self._closing or self._reason:
                raise LinkError(self._reason or "the wire is closed.")
            if self._waiting > 4 * self._limit:
                self._reason = "the other side does not read what it is sent."
                raise LinkError(self._reason)
            for part in (head + data,) if len(data) < _CHUNK else (head, data):
                self._queue.append(memoryview(part))
                self._waiting += len(part)
            self._said = time.monotonic()
            done = self._pump()
            if self._reason:
                raise LinkError(self._reason)
        if not done:
            self._postman.send_rest(self)

    @property
    def settled(self) -> bool:
        """Whether the system has taken all that was sent."""
        return not self._waiting and not self._rest

    def beat(self, since: float) -> None:
        """Send a sign of life if nothing was sent since then."""
        with self._sending:
            if self._said > since or self._waiting or self._closing or self._reason:
                return
            self._queue.append(memoryview(SIGN_OF_LIFE))
            self._waiting += len(SIGN_OF_LIFE)
            done = self._pump()
        if not done:
            self._postman.send_rest(self)

    def flush(self) -> bool:
        """Send what the socket takes; return whether nothing is left."""
        with self._sending:
            return self._pump()

    def _pump(self) -> bool:
        if self._reason:
            return True
        try:
            return self._push()
        except (OSError, LinkError) as error:
            self._fail(str(error) if isinstance(error, LinkError) else _BROKE)
            return True

    def _push(self) -> bool:
        turn = _TURN
        while True:
            while self._rest:
                try:
                    count = self._link.send(self._rest, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return False
                self._count.sent(count)
                self._rest = self._rest[count:]
                turn -= count
            if turn <= 0:
                return False
            if self._queue:
                self._rest = memoryview(self._seal.close_up(self._chunk()))
            elif self._seal.owes:
                self._rest = memoryview(self._seal.close_up(b""))
            elif self._closing and not self._ended:
                self._ended = True
                self._rest = memoryview(self._seal.end())
            else:
                if self._ended:
                    self._link.shutdown(socket.SHUT_WR)
                return True

    def _chunk(self) -> memoryview:
        part = self._queue.popleft()
        if len(part) > _CHUNK:
            self._queue.appendleft(part[_CHUNK:])
            part = part[:_CHUNK]
        self._waiting -= len(part)
        return part

    def _fail(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._queue.clear()
        self._waiting, self._rest = 0, memoryview(b"")

    # Receiving, on one thread at a time.

    def receive(self, timeout: float | None) -> bytes:
        """Return the next frame's bytes; LinkError also if the other end shows no sign of life."""
        ends, waited = None if timeout is None else time.monotonic() + timeout, False
        with self._reading:
            while True:
                try:
                    if (frame := self._next()) is not None:
                        return frame
                    if self._closing or self._reason:
                        raise LinkError(self._reason or "the wire is closed.")
                    if waited and ends is not None and time.monotonic() >= ends:
                        raise TimeoutError("received nothing in time.")
                    self._wait(ends)
                except LinkError as error:
                    self._lose(str(error))
                    raise
                waited = True

    def listen(self, timeout: float) -> bool:
        """Wait for a while; return whether anything of this protocol has arrived so far."""
        with self._reading:
            self._wait(time.monotonic() + timeout)
            self._open()
            return self._frames.heard

    def _next(self) -> bytes | None:
        """Return the next frame, if it has arrived."""
        self._open()
        return self._frames.next()

    def _open(self) -> None:
        """Open what has arrived, up to the end of a frame."""
        try:
            while not self._frames.ready() and (opened := self._seal.open()):
                self._frames.add(opened)
        except ssl.SSLError as error:
            raise LinkError(_BROKE) from error
        if self._frames.beats > BEATS and self._frames.beats > BEATS + 2 * (time.monotonic() - self._began) / BEAT:
            raise WireError("expected a sign of life every few seconds, got far more.")
        if self._seal.owes and not self.flush():
            self._postman.send_rest(self)

    def _wait(self, ends: float | None) -> None:
        """Wait for a while until something is here, and take it."""
        pause = _TICK if ends is None else min(ends - time.monotonic(), _TICK)
        if pause > 0.9 * _TICK:
            heard = self._read(0)
        else:
            heard = bool(self._poll.poll(1e3 * max(0.0, pause))) and self._read(socket.MSG_DONTWAIT)
        if not heard:
            self._silent += max(0.0, pause)  # and no more, should this process have been stopped meanwhile
            if self._silent > SILENCE:
                raise LinkError(f"the other end has shown no sign of life for {SILENCE:g} seconds.")

    def _read(self, flags: int) -> bool:
        """Take what is here, or comes in a moment; return whether there was anything."""
        try:
            data = self._link.recv(1 << 16, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise LinkError(_BROKE) from error
        if not data:
            raise LinkError(_BROKE)  # TLS says when the other side has closed it
        self._silent = 0.0
        self._count.received(len(data))
        self._seal.add(data)
        return True

    def _lose(self, reason: str) -> None:
        with self._sending:
            self._fail(reason)

    def trust(self) -> None:
        """Receive frames as long as agreed from now on."""
        self._frames.limit = self._limit

    # The end.

    def close(self) -> None:
        """Close the wire. What was sent before still arrives, if the other end takes it soon."""
        if self._begin_to_close():
            self._postman.see_off(self)

    def _begin_to_close(self) -> bool:
        with self._sending:
            if self._closing:
                return False
            self._closing = True
            self._pump()
            return True

    def fileno(self) -> int:
        """The number of the socket, -1 once it is closed."""
        return self._link.fileno()

    def is_over(self) -> bool:
        """Drop what still arrives; return whether the other end has closed the connection, or it broke."""
        if self._reason:
            return True
        if not self._reading.acquire(blocking=False):
            return False
        try:
            return self._drop()
        finally:
            self._reading.release()

    def _drop(self) -> bool:
        for _ in range(4):  # it may go on for as long as the other end likes
            try:
                if not (data := self._link.recv(1 << 16, socket.MSG_DONTWAIT)):
                    return True
            except BlockingIOError:
                return False
            except OSError:
                return True
            self._count.received(len(data))
        return False

    def let_go(self) -> bool:
        """Close the socket; False if somebody still reads from it, who leaves in a moment."""
        if not self._reading.acquire(blocking=False):
            self._closing = True
            return False
        with self._sending:
            self._closing = True
            self._fail("the wire is closed.")
            self._link.close()
        self._reading.release()
        return True


class DialledWire(StreamWire):
    """A wire with a postman of its own, who leaves with it."""

    def start(self) -> None:
        """Have the postman begin."""
        self._postman.start()

    def close(self) -> None:
        """Close the wire once the other end has what was sent, or has had its time."""
        if not self._begin_to_close():
            return
        self._postman.see_off(self)
        self._postman.stop(1.0)
