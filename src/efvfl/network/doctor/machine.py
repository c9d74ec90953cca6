"""What `efvfl doctor` looks at on this machine: the disk, the clock, the port, the proxy."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

from efvfl.errors import ConfigError
from efvfl.network.doctor.diagnosis import Diagnosis
from efvfl.network.links.connecting import host_and_port
from efvfl.network.links.listening import open_listener
from efvfl.network.links.proxy import proxy_of
from efvfl.network.ops.lock import owner_of
from efvfl.runs.terminal import size

SLOW: Final = 0.1  # seconds of one flush to the disk: training flushes at every checkpoint, with 'stale' at every step
LEAST: Final = 100_000_000  # bytes that should be free in any case
AHEAD: Final = 60.0  # seconds between two clocks that are worth a warning
TOO_FAR: Final = 300.0  # seconds by which a certificate is valid earlier than it was made


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _flush(folder: Path) -> float:
    """Return the median of the seconds that it takes to write a little and flush it."""
    spent = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(5):
            began = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            spent.append(time.perf_counter() - began)
    return median(spent)


@dataclass(frozen=True)
class Machine:
    """How this machine is looked at; tests look at another one."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    free: Callable[[Path], int] = _free  # bytes on the disk of a folder
    flush: Callable[[Path], float] = _flush  # seconds
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def disk(folder: Path, needed: float, machine: Machine) -> Iterator[Diagnosis]:
    """Look at the disk on which a participant's folder is, or will be."""
    where = _existing(folder)
    try:
        free = machine.free(where)
        seconds = machine.flush(where)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free some space." if full else "choose a folder that this user can write to, with --dir."
        yield Diagnosis("disk", "problem", f"cannot write to {where}: {error.strerror or error}", advice)
        return
    text = f"{size(free)} free at {where}; this run writes about {size(needed)}"
    if free < needed:
        yield Diagnosis("disk", "problem", text, "free some space, or choose another disk with --dir.")
    elif free < max(2 * needed, LEAST):
        yield Diagnosis("disk", "warning", text, "free some space: a full disk stops the run.")
    else:
        yield Diagnosis("disk", "ok", text)
    if seconds > SLOW:
        text = f"a flush to the disk takes {1e3 * seconds:,.0f} ms"
        yield Diagnosis(
            "disk speed", "warning", text, "choose a local disk with --dir: a network disk slows every step."
        )
    else:
        yield Diagnosis("disk speed", "ok", f"a flush takes {1e3 * seconds:.1f} ms")


def clocks(ahead: float, whose: str) -> Diagnosis:
    """Compare two clocks: that of `whose` is so many seconds ahead of the one here."""
    text = f"the clock of {whose} is {abs(ahead):,.1f} s {'ahead of' if ahead >= 0 else 'behind'} this one"
    if abs(ahead) > TOO_FAR:
        return Diagnosis("clock", "problem", text, "set both by NTP: certificates would be refused.")
    if abs(ahead) > AHEAD:
        return Diagnosis("clock", "warning", text, "set both by NTP: new certificates may be refused, logs disagree.")
    return Diagnosis("clock", "ok", f"within {max(1.0, abs(ahead)):,.0f} s of that of {whose}")


def port(address: str, folder: Path) -> Diagnosis:
    """Try whether the server could listen at an address."""
    try:
        with open_listener(address):
            return Diagnosis("port", "ok", f"{address} is free")
    except ConfigError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE:
            if owner := owner_of(folder):
                return Diagnosis("port", "ok", f"{address} is in use; process {owner} works in {folder}")
            return Diagnosis(
                "port", "problem", f"{address} is in use by another process", "stop it, or use another port."
            )
        advice = "the server listens on an address of its own machine: such as --address 0.0.0.0:PORT."
        return Diagnosis("port", "problem", str(error), advice)


def proxy(address: str, machine: Machine) -> Diagnosis | None:
    """Say through which proxy a party dials, if it does."""
    host, _ = host_and_port(address)
    found = proxy_of(host, machine.environ)
    if found is None:
        return None
    text = f"the way to {host} leads through the proxy {found}"
    return Diagnosis("proxy", "warning", text, f"put {host} in no_proxy, unless the proxy is the only way out.")


def name(address: str) -> Diagnosis | None:
    """Resolve the name of the server, or of the address to listen on."""
    host, number = host_and_port(address)
    with suppress(OSError, UnicodeError):
        found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)})
        return None if found == [host] else Diagnosis("name", "ok", f"{host} is {', '.join(found[:3])}")
    return Diagnosis("name", "problem", f"{host} cannot be resolved", "check the address, and this machine's DNS.")
