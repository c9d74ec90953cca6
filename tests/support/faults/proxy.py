"""A line between a party and the server that can be slow, silent or cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

WHOLE = 1 << 16  # bytes of one read where nothing slows it down
PATIENT = 120.0  # seconds for which a line stays silent at most


class Proxy:
    """Forwards every connection to a port of this machine."""

    def __init__(self, to: int) -> None:
        """Listen; connections are accepted at once."""
        self.to = to
        self.delay = 0.0  # seconds before each piece
        self.piece = WHOLE
        self.forwarding = threading.Event()
        self.forwarding.set()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                here, _ = self._listener.accept()
                try:
                    there = socket.create_connection(("127.0.0.1", self.to), timeout=5)
                except OSError:
                    here.close()  # as if nobody listened
                    continue
                there.settimeout(None)
                self._open |= {here, there}
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(self.piece):
                if self.delay:
                    time.sleep(self.delay)
                self.forwarding.wait(PATIENT)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            self._close(source)
            self._close(sink)

    def _close(self, which: socket.socket) -> None:
        """End a connection: shutdown wakes the thread that reads from it, which a mere close does not."""
        self._open.discard(which)
        with contextlib.suppress(OSError):
            which.shutdown(socket.SHUT_RDWR)
        which.close()

    def cut(self) -> None:
        """End all connections, with what is held back on them; new ones are accepted."""
        for which in list(self._open):
            self._close(which)

    def heal(self) -> None:
        """Forward everything at once again."""
        self.delay, self.piece = 0.0, WHOLE
        self.forwarding.set()

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.heal()
        self.cut()
