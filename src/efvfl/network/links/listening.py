"""The server's port: who comes is let in by its certificate, or told why not, and nobody keeps the others waiting.

One thread does all of it, and never waits for one of them alone.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from efvfl.errors import ConfigError, EfvflError
from efvfl.network.identity.certificates import Credentials, parse
from efvfl.network.identity.deny_list import DenyList
from efvfl.network.identity.renewal import Renewal
from efvfl.network.links.connecting import SHAKE, host_and_port, refuse_plaintext_beyond_loopback
from efvfl.network.links.failed_handshakes import FailedHandshakes, wrong_dates_here
from efvfl.network.links.frame import FrameKind, json_frame
from efvfl.network.links.framing import NAME, PREFACE, framed
from efvfl.network.links.guests import QUIET, ConnectionLimits, Crowd, Guest, condemned, plain_host
from efvfl.network.links.line_errors import EARLY, LATE, name_of, reason_of
from efvfl.network.links.postman import Postman
from efvfl.network.links.socket_bytes import SocketBytes
from efvfl.network.links.stream import StreamWire
from efvfl.network.links.tls import NoSeal, Shown, Tls, tls_context
from efvfl.network.links.wire import Wire

log = logging.getLogger("efvfl")

PERIOD: Final = 0.25  # seconds between two looks at who has had its time, or is denied now
AT_ONCE: Final = 64  # connections that are taken in one turn
FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # nothing can be opened now
PAUSE: Final = 0.5  # seconds until it is tried again
GONE: Final = 1.0  # seconds for somebody who was turned away to close the connection

Accept = Callable[[Wire, str | None], None]  # is given a wire, and the name in the certificate at its other end


class Listener:
    """An open port, until it is closed."""

    def __init__(
        self, listening: socket.socket, credentials: Credentials | None, limit: int, parties: int, accept: Accept
    ) -> None:
        """Let parties in that have certificates of the same authority; without credentials, all."""
        self.count = SocketBytes()
        self.denied: DenyList | None = None
        self.limits = ConnectionLimits.of(parties)
        self._listening, self._accept, self._limit = listening, accept, limit
        self._renewal = Renewal(credentials) if credentials else None
        self._used = (credentials, tls_context(credentials, [NAME], server=True)) if credentials else None
        self._guests: dict[Guest, None] = {}  # oldest first
        self._wires: dict[StreamWire, Shown] = {}
        self._failed, self._crowd = FailedHandshakes(), Crowd()
        self._again = 0.0  # when to take connections again
        self._warned = float("-inf")
        self._postman = Postman("efvfl-listener")

    @property
    def port(self) -> int:
        """The port, also if any was asked for."""
        return int(self._listening.getsockname()[1])

    def start(self) -> None:
        """Begin to let parties in."""
        self._listening.setblocking(False)
        self._postman.watch(self._listening, selectors.EVENT_READ, self._take)
        self._postman.start(self._look)

    def close(self, seconds: float = 0.0) -> None:
        """Close the port, and all connections once what was sent has had so many seconds to arrive."""
        self._postman.soon(self._end)
        self._postman.stop(seconds)

    # All below is done by the postman's thread.

    def _end(self) -> None:
        self._postman.unwatch(self._listening)
        self._listening.close()
        for guest in list(self._guests):
            self._turn_out(guest)

    def _take(self) -> None:
        """Take the connections that are waiting."""
        for _ in range(AT_ONCE):
            try:
                link, (host, *_) = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in FULL:
                    self._wait_for_room(error)
                    return
                continue  # it was gone before it was taken
            self._receive(link, plain_host(str(host)))

    def _wait_for_room(self, error: OSError) -> None:
        self._postman.unwatch(self._listening)
        self._again = time.monotonic() + PAUSE
        self._warn(f"no connection can be taken for a moment: {error.strerror}")

    def _receive(self, link: socket.socket, host: str) -> None:
        if len(self._guests) + self._open() >= self.limits.total:
            self._crowd.note(host)
            link.close()
            return
        link.setblocking(False)
        tls = Tls(self._context(), server=True) if self._renewal else None
        guest = Guest(link, host, tls, time.monotonic() + SHAKE)
        self._guests[guest] = None
        self._postman.watch(link, selectors.EVENT_READ, partial(self._hear, guest))
        for other in condemned(self._guests, self.limits):
            self._crowd.note(other.host)
            self._turn_out(other)

    def _open(self) -> int:
        self._wires = {wire: shown for wire, shown in self._wires.items() if wire.fileno() >= 0}
        return len(self._wires)

    def _context(self) -> ssl.SSLContext:
        assert self._renewal is not None
        assert self._used is not None
        credentials = self._renewal.current()
        if self._used[0] != credentials:
            try:
                self._used = credentials, tls_context(credentials, [NAME], server=True)
            except (ConfigError, OSError) as error:  # it is tried again
                self._warn(f"the certificate in use stays, because the renewed one cannot be used now: {error}")
        return self._used[1]

    def _warn(self, text: str) -> None:
        """Warn of what is tried again soon, once a minute."""
        if (now := time.monotonic()) - self._warned >= QUIET:
            self._warned = now
            log.warning("%s", text)

    def _hear(self, guest: Guest) -> None:
        """Go on with a guest that has said something."""
        if guest not in self._guests:
            return  # turned out a moment ago
        try:
            data = guest.link.recv(1 << 14)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if guest.spoke and not guest.over:
                self._failed.note(guest.host, "it closed the connection amid the handshake")
            self._turn_out(guest)
            return
        self.count.received(len(data))
        if guest.over:
            return
        guest.spoke = True
        if guest.tls:
            self._shake(guest, guest.tls, data)
        else:
            self._compare(guest, data)

    def _shake(self, guest: Guest, tls: Tls, data: bytes) -> None:
        try:
            out, done = tls.shake(data)
        except ssl.SSLError as error:
            self._turn_away(guest, tls.alert(), self._reason(error))
            return
        if not self._say(guest, out) or not done:
            return
        if tls.spoken != NAME:
            text = f"it does not speak {NAME}: install the same release of efvfl at both ends"
            self._turn_away(guest, self._refusal(guest, text), text)
        elif (shown := tls.shown()).name is None:
            text = "a certificate of this federation is needed."
            self._turn_away(guest, self._refusal(guest, text), "its certificate names nobody")
        elif self.denied and self.denied.has(shown.fingerprint):
            self._turn_away(guest, self._refusal(guest, self.denied.refusal(str(shown.name), shown.fingerprint)), "")
        elif self._by_name()[shown.name] >= self.limits.by_name:
            text = f"{shown.name} has {self.limits.by_name} connections already: a further one must wait."
            self._turn_away(guest, self._refusal(guest, text, "busy"), "")
        else:
            self._let_in(guest, tls, shown)

    def _compare(self, guest: Guest, data: bytes) -> None:
        """Compare what comes where there is no TLS with what a party says first."""
        guest.received += data
        if not PREFACE.startswith(guest.received[: len(PREFACE)]):
            tls = guest.received[:1] == b"\x16"
            what = "speaks TLS, and this server has --insecure" if tls else f"does not speak {NAME}"
            self._turn_away(guest, b"", f"it {what}")
        elif len(guest.received) >= len(PREFACE):
            if self._by_name()[None] >= self.limits.unused_by_address:
                self._turn_away(guest, b"", "")
                return
            seal = NoSeal()
            seal.add(guest.received[len(PREFACE) :])
            self._let_in(guest, seal, Shown(None, ""))

    def _by_name(self) -> Counter[str | None]:
        self._open()
        return Counter(shown.name for shown in self._wires.values())

    def _let_in(self, guest: Guest, seal: Tls | NoSeal, shown: Shown) -> None:
        self._forget(guest)
        wire = StreamWire(guest.link, seal, self._limit, self._postman, self.count)
        self._wires[wire] = shown
        wire.beat(float("inf"))  # so that the party knows it is let in
        try:
            self._accept(wire, shown.name)
        except EfvflError as error:
            log.warning("nobody takes a connection from %s: %s", guest.host, error)
            wire.close()

    def _refusal(self, guest: Guest, text: str, code: str = "denied") -> bytes:
        """Return a frame that refuses somebody, as it is sent."""
        assert guest.tls is not None
        frame = json_frame(FrameKind.REFUSE, {"code": code, "text": text}).to_bytes()
        return guest.tls.close_up(memoryview(framed(frame))) + guest.tls.end()

    def _say(self, guest: Guest, data: bytes) -> bool:
        """Send a guest what must fit into its socket, as little is; turn it out if it does not."""
        try:
            if data and guest.link.send(data) < len(data):
                raise BlockingIOError
        except OSError:
            self._turn_out(guest)
            return False
        self.count.sent(len(data))
        return True

    def _turn_away(self, guest: Guest, data: bytes, reason: str) -> None:
        """Tell a guest that it is not let in, and wait a moment for it to leave: what it is told might be lost else."""
        if reason:
            self._failed.note(guest.host, reason)
        if self._say(guest, data):
            with contextlib.suppress(OSError):
                guest.link.shutdown(socket.SHUT_WR)
            guest.over, guest.until = True, time.monotonic() + GONE

    def _turn_out(self, guest: Guest) -> None:
        self._forget(guest)
        guest.link.close()

    def _forget(self, guest: Guest) -> None:
        self._guests.pop(guest, None)
        self._postman.unwatch(guest.link)

    def _reason(self, error: ssl.SSLError) -> str:
        assert self._used is not None
        own = self._used[0]
        reason = reason_of(error, repr(name_of(parse("ca.crt", own.ca).subject)))
        dated = isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in (LATE, EARLY)
        dated = dated or "EXPIRED" in (error.reason or "")
        here = wrong_dates_here(own) if dated else ""
        return f"{reason}; {here}" if here else reason

    def _look(self) -> float:
        """See to all that is due; return after how many seconds to look again."""
        now = time.monotonic()
        for guest in [guest for guest in self._guests if now > guest.until]:
            if guest.spoke and not guest.over:
                self._failed.note(guest.host, f"it did not come to an end within {SHAKE:g} seconds")
            self._turn_out(guest)
        for wire, shown in self._wires.items():
            if self.denied and shown.name and self.denied.has(shown.fingerprint):
                wire.close()  # it dials again, and is told why it is refused
        if self._again and now > self._again:
            self._again = 0.0
            if self._listening.fileno() >= 0:
                self._postman.watch(self._listening, selectors.EVENT_READ, self._take)
        self._failed.look()
        self._crowd.look()
        return PERIOD


def listen(
    address: str,
    credentials: Credentials | None,
    limit: int,
    parties: int,
    accept: Accept,
    denied: DenyList | None = None,
) -> tuple[Listener, int]:
    """Open the server's port; return it and its number. Without credentials, only on a loopback address.

    A certificate that is renewed in its folder is used from the next connection on.
    """
    if credentials is None:
        refuse_plaintext_beyond_loopback(address)
    listening = open_listener(address)
    try:
        listener = Listener(listening, credentials, limit, parties, accept)
    except BaseException:
        listening.close()
        raise
    listener.denied = denied
    listener.start()
    return listener, listener.port


def open_listener(address: str) -> socket.socket:
    """Return a socket that listens at an address; on all of IPv4 too where it is all of IPv6."""
    host, port = host_and_port(address)
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        both = str(where[0]) == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((str(where[0]), port), family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address} ({error.strerror or error}): is another server running, or is the port not "
            "ours?"
        ) from error
