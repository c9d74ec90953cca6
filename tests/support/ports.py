"""Ports for servers that must know theirs before they listen."""

import os
import random
import socket
import time

_chance = random.Random(f"{os.getpid()}/{time.time_ns()}")  # other test processes look for ports at the same time
_given: set[int] = set()


def free_port() -> int:
    """Return a port that is free, below those the system hands out by itself, and that this process asks for once."""
    while True:
        port = _chance.randrange(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            return port
