"""TLS 1.3 with certificates at both ends, apart from the socket that carries it.

OpenSSL must not work on one connection in two threads at once. Here it works in memory, which takes a moment: so a
lock around it is enough, and whoever waits for a socket holds none.
"""

from __future__ import annotations

import os
import ssl
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, Protocol

from efvfl.errors import ConfigError, LinkError
from efvfl.network.identity import fingerprints
from efvfl.network.identity.certificates import SERVER, Credentials, certain_name

_MOST_UNSENT: Final = 1 << 18  # bytes that a peer may have TLS itself answer and not read, such as updates of keys


def tls_context(credentials: Credentials, protocols: Sequence[str], server: bool = False) -> ssl.SSLContext:
    """Return what one end needs for mutual TLS 1.3 within a federation; ConfigError if TLS refuses its files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(list(protocols))
    if server:
        context.num_tickets = 0  # every connection shows its certificate: nothing is resumed
    try:
        context.load_verify_locations(cadata=credentials.ca.decode("ascii", "ignore"))  # what is not, is a comment
        if credentials.certificate:
            with _as_file(credentials.certificate + b"\n" + credentials.key) as path:
                context.load_cert_chain(path)
    except ssl.SSLError as error:
        raise ConfigError(
            f"TLS does not take the certificate of {credentials.name!r}, its key or ca.crt ({error.reason}): get one "
            "that `efvfl sign` makes."
        ) from error
    return context


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Show bytes under a path, which is all that `ssl` reads; in memory where the system can, as there is a key."""
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("efvfl"), "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile() as file:  # which has mode 0600
        file.write(data)
        file.flush()
        yield file.name


class Shown(NamedTuple):
    """Who is at the other end, by a certificate that was verified."""

    name: str | None  # None: it is not certain
    fingerprint: str


class Seal(Protocol):
    """What is between the bytes of a stream and those on a socket."""

    def close_up(self, data: bytes | memoryview) -> bytes | memoryview:
        """Return what is to be sent for these bytes; of none, what is to be sent anyway."""

    def add(self, data: bytes) -> None:
        """Take bytes that were received; LinkError if what is to be sent in return is not taken."""

    def open(self) -> bytes:
        """Return some bytes of the stream, or none if more must be received first; LinkError at its end."""

    @property
    def owes(self) -> bool:
        """Whether there is something to be sent that nobody has asked for."""

    def end(self) -> bytes:
        """Return what is to be sent at the end."""


class NoSeal:
    """Plaintext, which stays on one machine."""

    def __init__(self) -> None:
        """Begin a stream."""
        self._received: list[bytes] = []

    def close_up(self, data: bytes | memoryview) -> bytes | memoryview:
        """Return them as they are."""
        return data

    def add(self, data: bytes) -> None:
        """Take bytes that were received."""
        self._received.append(data)

    def open(self) -> bytes:
        """Return all that was received."""
        return self._received.pop(0) if self._received else b""

    @property
    def owes(self) -> bool:
        """Never."""
        return False

    def end(self) -> bytes:
        """Return nothing: the end of the socket is the end."""
        return b""


class Tls:
    """One end of a TLS connection in memory."""

    def __init__(self, context: ssl.SSLContext, server: bool = False) -> None:
        """Begin a handshake."""
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = None if server else SERVER
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=server, server_hostname=name)
        self._lock = threading.Lock()

    def shake(self, received: bytes) -> tuple[bytes, bool]:
        """Go on with the handshake; return what is to be sent, and whether it is done. SSLError if it fails."""
        self._received.write(received)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return self._to_send.read(), False
        return self._to_send.read(), True

    def alert(self) -> bytes:
        """Return what is to be sent after a handshake that failed."""
        return self._to_send.read()

    @property
    def spoken(self) -> str | None:
        """What both ends have agreed to speak."""
        return self._tls.selected_alpn_protocol()

    def shown(self) -> Shown:
        """Return who the other end is."""
        der = self._tls.getpeercert(binary_form=True) or b""
        return Shown(certain_name(self._tls.getpeercert()), fingerprints.of_bytes(der))

    def close_up(self, data: bytes | memoryview) -> bytes:
        """Return what is to be sent for these bytes, and what TLS itself has to send."""
        with self._lock:
            try:
                while data:
                    data = data[self._tls.write(data) :]
            except ssl.SSLError as error:
                raise LinkError("the connection broke.") from error
            return self._to_send.read()

    def add(self, data: bytes) -> None:
        """Take bytes that were received."""
        with self._lock:
            if self._to_send.pending > _MOST_UNSENT:
                raise LinkError("the other side asks TLS for more than it reads.")
            self._received.write(data)

    def open(self) -> bytes:
        """Return some bytes of the stream: those of one record."""
        with self._lock:
            if not self._received.pending and not self._tls.pending():
                return b""
            try:
                found = self._tls.read(1 << 16)
            except ssl.SSLWantReadError:
                return b""
            except ssl.SSLZeroReturnError as error:
                raise LinkError("the other side closed the stream.") from error
            if not found:
                raise LinkError("the other side closed the stream.")
            return found

    @property
    def owes(self) -> bool:
        """Whether TLS itself has something to send."""
        return self._to_send.pending > 0

    def end(self) -> bytes:
        """Say that nothing follows, which also guards against an end that somebody else has made."""
        with self._lock:
            with suppress(ssl.SSLError):  # the other end says so later
                self._tls.unwrap()
            return self._to_send.read()
