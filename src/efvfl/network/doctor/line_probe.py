"""Measures a line: `efvfl doctor` of a party visits the one that the label holder has listening in place of its server.

Over mutual TLS, as training is. The visitor asks for single bytes and for blocks, up and down, and tells what it has
measured at the end, so that both see it. All is bounded: how much, how often and for how long. Nothing is kept.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from statistics import median
from typing import Any, Final

from efvfl.errors import ProtocolError, printable
from efvfl.network.identity.certificates import Credentials
from efvfl.network.links.connecting import OLD, await_acceptance, connect, fingerprint, shake, wrong_protocol
from efvfl.network.links.framing import NAME
from efvfl.network.links.line_errors import LineError, refused

PROTOCOL: Final = "efvfl-doctor/1"  # as TLS negotiates it, so that no server is mistaken for a listening doctor
SECONDS: Final = 30.0  # of a whole visit
ASKED: Final = 64  # questions of one visit
BLOCK: Final = 4 << 20  # bytes of a block, at most
TOTAL: Final = 6 * BLOCK  # bytes of all blocks of a visit, at most
TABLE: Final = 256 << 10  # bytes of a JSON line
PINGS: Final = 7
WELCOME: Final = b"\0"  # what a listening doctor says first, to a party
ENOUGH: Final = 0.25  # seconds: a block that takes so long tells the rate

_QUESTION = struct.Struct("<cI")  # what, and how many bytes


@dataclass(frozen=True)
class Measured:
    """What a visit has found. Rates in bits a second."""

    round_trip: float  # seconds
    up: float
    down: float
    skew: float  # seconds by which the clock of the label holder is ahead

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Measured:
        """Return what a visitor says, or refuse it."""
        values = [table.get(name) for name in ("round_trip", "up", "down", "skew")]
        numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and isfinite(v)]
        if len(numbers) != len(values):
            raise ProtocolError("expected four numbers of a visitor, got something else.")
        return cls(*numbers)


@dataclass(frozen=True)
class LineReport:
    """Who is at the other end, and what the line is like."""

    connecting: float  # seconds for a TCP connection, which is one round trip
    certificate: str  # the beginning of its fingerprint
    listening: bool  # a doctor; else a server that is running, which measures nothing
    measured: Measured | None = None
    differences: tuple[str, ...] = ()  # in the shared settings


class Talk:
    """One end of a visit, with a deadline for all of it."""

    def __init__(self, link: socket.socket) -> None:
        """Talk on a connection from now on."""
        self.link = link
        self.ends = time.monotonic() + SECONDS

    def _wait(self) -> None:
        if (left := self.ends - time.monotonic()) <= 0:
            raise TimeoutError("a visit took too long.")
        self.link.settimeout(left)

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._wait()
        self.link.sendall(data)

    def take(self, count: int) -> bytes:
        """Return so many bytes."""
        parts, left = [], count
        while left:
            self._wait()
            if not (piece := self.link.recv(min(left, 1 << 16))):
                raise ProtocolError("the other end has closed the connection.")
            parts.append(piece)
            left -= len(piece)
        return b"".join(parts)

    def send_table(self, table: Mapping[str, Any]) -> None:
        """Send a table."""
        data = json.dumps(table, allow_nan=False).encode()
        self.send(len(data).to_bytes(4, "little") + data)

    def take_table(self) -> dict[str, Any]:
        """Return a table."""
        if (size := int.from_bytes(self.take(4), "little")) > TABLE:
            raise ProtocolError(f"expected a table of at most {TABLE:,} bytes, got {size:,}.")
        try:
            table = json.loads(self.take(size))
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"expected JSON, got something else: {error}") from error
        if not isinstance(table, dict):
            raise ProtocolError("expected a JSON object.")
        return table


def answer(talk: Talk) -> Measured:
    """Answer a visitor's questions until it tells what it has measured."""
    left = TOTAL
    for _ in range(ASKED):
        what, count = _QUESTION.unpack(talk.take(_QUESTION.size))
        if what == b"e":
            return Measured.of(talk.take_table())
        left -= count
        if count > BLOCK or left < 0:
            raise ProtocolError(f"a visitor asks for blocks of more than {TOTAL:,} bytes in all.")
        if what == b"u":
            talk.take(count)
            talk.send(b"\0")
        elif what == b"d":
            talk.send(bytes(count))
        else:
            raise ProtocolError("a visitor asks something unknown.")
    raise ProtocolError(f"a visitor asks more than {ASKED} questions.")


def visit(
    address: str,
    credentials: Credentials,
    about: Mapping[str, Any],
    timeout: float = 5.0,
    environ: Mapping[str, str] = os.environ,
) -> LineReport:
    """Dial the label holder and measure the line; LineError says what is wrong with it.

    If its server runs, and no doctor, only the connection is looked at.
    """
    link, connecting = connect(address, timeout, environ)
    with link, shake(link, address, credentials, [PROTOCOL, NAME, OLD], timeout) as secure:
        spoken = secure.selected_alpn_protocol()
        if spoken != PROTOCOL:
            if spoken != NAME:
                raise wrong_protocol(address, spoken)
            await_acceptance(secure, credentials)
            return LineReport(connecting, fingerprint(secure), listening=False)
        talk = Talk(secure)
        try:
            talk.take(len(WELCOME))  # nothing is sent before: it could make the reason for a refusal get lost
        except ssl.SSLError as error:
            raise refused(credentials, error.reason or "") from error
        except (OSError, ProtocolError) as error:
            text = f"the label holder's doctor does not receive {credentials.name!r}"
            raise LineError("refused", text, "it shows why: no party of that name, or too many at once.") from error
        began = time.time()
        talk.send_table(about)
        told = talk.take_table()
        skew = _number(told.get("time")) - (began + time.time()) / 2
        measured = _measure(talk, skew)
        talk.send(_QUESTION.pack(b"e", 0))
        talk.send_table(asdict(measured))
        found = told.get("differences")
        differences = [printable(str(text)[:300]) for text in found[:10]] if isinstance(found, list) else []
        return LineReport(connecting, fingerprint(secure), True, measured, tuple(differences))


def _number(value: object) -> float:
    if not isinstance(value, int | float) or not isfinite(value):
        raise ProtocolError("expected the time of the label holder's clock, got something else.")
    return float(value)


def _measure(talk: Talk, skew: float) -> Measured:
    round_trip = median(_ask(talk, b"u", 1) for _ in range(PINGS))
    return Measured(round_trip, _rate(talk, b"u", round_trip), _rate(talk, b"d", round_trip), skew)


def _ask(talk: Talk, what: bytes, count: int) -> float:
    """Send or fetch a block, and return the seconds until it is through."""
    began = time.perf_counter()
    talk.send(_QUESTION.pack(what, count) + (bytes(count) if what == b"u" else b""))
    talk.take(1 if what == b"u" else count)
    return time.perf_counter() - began


def _rate(talk: Talk, what: bytes, round_trip: float) -> float:
    """Return bits a second: of the first block that takes long enough, or of the largest."""
    count = 1 << 14
    while True:
        seconds = _ask(talk, what, count)
        if seconds >= ENOUGH or count >= BLOCK >> 1:
            return 8 * count / max(seconds - round_trip, 1e-6)
        count *= 2
