"""The TCP connections of this process, found in /proc: gRPC owns its sockets and shows none of them.

Only Linux has this folder. On other systems no connection is found.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

_FOLDER = "/proc/self/fd"
_CLOSE_WAIT = 8  # in the first byte of Linux's struct tcp_info


class OwnSocket(NamedTuple):
    """A connection of this process. The socket is borrowed: it is for this turn of the loop, and must not be closed."""

    socket: socket.socket
    here: Any  # the address of this end, as `getsockname` gives it
    there: Any

    @property
    def left(self) -> bool:
        """Whether the other end has closed the connection, and this one has not noticed yet."""
        with contextlib.suppress(OSError):  # closed meanwhile
            return self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSE_WAIT
        return True


def own_sockets(port: int) -> Iterator[OwnSocket]:
    """Yield every connection of this process to or from a port.

    OSError if the folder cannot be read now, such as when no file can be opened any more.
    """
    if not os.path.isdir(_FOLDER):
        return
    for name in os.listdir(_FOLDER):
        try:
            if not os.readlink(f"{_FOLDER}/{name}").startswith("socket:"):
                continue
            found = socket.socket(fileno=int(name))  # not a copy: one that outlives gRPC's would stay in its epoll set
        except OSError:  # closed meanwhile
            continue
        try:
            if found.type != socket.SOCK_STREAM or found.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            try:
                here, there = found.getsockname(), found.getpeername()
            except OSError:  # closed meanwhile, or listening only
                continue
            if port in (here[1], there[1]):
                yield OwnSocket(found, here, there)
        finally:
            found.detach()  # gRPC owns it
