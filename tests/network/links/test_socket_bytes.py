"""Bytes on the socket as the kernel counts them."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from efvfl.network.links.socket_bytes import SocketBytes

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone counts bytes by connection")


def test_both_ends_of_a_connection_are_counted_also_when_it_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        sockets, others = SocketBytes(port), SocketBytes(1)
        assert sockets.totals() == (0, 0)
        with socket.create_connection(("127.0.0.1", port)) as here, listening.accept()[0] as there:
            here.sendall(bytes(1000))
            assert there.recv(1000, socket.MSG_WAITALL) == bytes(1000)
            there.sendall(bytes(234))
            assert here.recv(234, socket.MSG_WAITALL) == bytes(234)
            files = sorted(os.listdir("/proc/self/fd"))
            assert sockets.totals() == (1234, 1234)  # this process holds both ends
            assert sorted(os.listdir("/proc/self/fd")) == files  # nothing was closed, nothing stays open
            here.sendall(b"!")
            assert there.recv(1) == b"!"
        assert sockets.totals() == (1234, 1234)  # as last seen
        with socket.create_connection(("127.0.0.1", port)) as here, listening.accept()[0] as there:
            here.sendall(bytes(66))
            assert there.recv(66, socket.MSG_WAITALL) == bytes(66)
            assert sockets.totals() == (1300, 1300)
        assert others.totals() == (0, 0)
