"""From an address to a connection with the server: by way of a proxy if need be, and with TLS."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from efvfl.errors import ConfigError, LinkError, WireError, printable
from efvfl.network.identity.certificates import SERVER, Credentials
from efvfl.network.identity.fingerprints import ENOUGH, of_bytes, shown
from efvfl.network.links.frame import Frame
from efvfl.network.links.framing import FIRST, NAME, PREFACE, Deframer
from efvfl.network.links.line_errors import LineError, explained, refused, wrong_port
from efvfl.network.links.postman import Postman
from efvfl.network.links.proxy import ask, proxy_of
from efvfl.network.links.socket_bytes import SocketBytes
from efvfl.network.links.stream import DialledWire
from efvfl.network.links.tls import NoSeal, Tls, tls_context
from efvfl.network.links.wire import Wire
from efvfl.util.extras import optional

with optional("network", "a federation over a network"):
    from cryptography import x509

OLD: Final = "h2"  # what servers up to version 2 of the protocol speak
CONNECT: Final = 5.0  # seconds for a connection
SHAKE: Final = 10.0  # seconds for all of a handshake, however slowly it comes
PORT: Final = 443  # where an address names none


def dial(address: str, credentials: Credentials | None, limit: int, count: SocketBytes | None = None) -> Wire:
    """Connect to the server; LineError says what is wrong with the way to it."""
    if credentials is None:
        refuse_plaintext_beyond_loopback(address)
    link, _ = connect(address, CONNECT, os.environ if credentials else {})
    count = count or SocketBytes()
    ends = time.monotonic() + SHAKE
    try:
        if credentials is None:
            seal: Tls | NoSeal = NoSeal()
            link.sendall(PREFACE)
            count.sent(len(PREFACE))
        else:
            seal = _shake(link, address, credentials, ends, count)
        wire = DialledWire(link, seal, limit, Postman("efvfl-line"), count)
    except OSError as error:  # such as too many open files
        link.close()
        raise LinkError(f"the connection to {address} broke, or cannot be used ({error}).") from error
    except BaseException:
        link.close()
        raise
    wire.start()
    try:
        _await_word(wire, address, credentials, ends)
    except BaseException:
        wire.close()
        raise
    wire.trust()  # of the server, which has the certificate of one
    return wire


def _shake(link: socket.socket, address: str, credentials: Credentials, ends: float, count: SocketBytes) -> Tls:
    tls, data = Tls(tls_context(credentials, [NAME, OLD])), b""
    with explained(address, credentials, partial(seen_certificate, address, CONNECT)):
        while True:
            try:
                out, done = tls.shake(data)
            except ssl.SSLError:
                with suppress(OSError):
                    link.sendall(tls.alert())  # the server says what is wrong, too
                raise
            link.settimeout(max(0.001, ends - time.monotonic()))
            link.sendall(out)
            count.sent(len(out))
            if done:
                break
            link.settimeout(max(0.001, ends - time.monotonic()))
            if not (data := link.recv(1 << 14)):
                raise ssl.SSLEOFError
            if time.monotonic() > ends:  # there may be a byte in time, again and again
                raise TimeoutError
            count.received(len(data))
    if tls.spoken != NAME:
        raise wrong_protocol(address, tls.spoken)
    return tls


def wrong_protocol(address: str, spoken: str | None) -> LineError:
    """Say that a server of this authority speaks something else."""
    if spoken == OLD:
        advice = "install the same release of efvfl at both ends."
        return LineError("port", f"{address} is served by an older release of efvfl, which speaks gRPC", advice)
    return wrong_port(address, "has a certificate of this federation, but is no server for parties")


def _await_word(wire: DialledWire, address: str, credentials: Credentials | None, ends: float) -> None:
    """Wait until the server shows that it takes us: in TLS 1.3 it looks at our certificate after the handshake."""
    try:
        while not wire.listen(0.2):
            if time.monotonic() > ends:
                raise wrong_port(address, "accepts connections, but says nothing")
    except LineError:
        raise
    except (LinkError, WireError) as error:
        if credentials is None:
            raise wrong_port(address, "answers, but not as a server with --insecure does") from error
        cause = error.__cause__
        raise refused(credentials, (cause.reason or "") if isinstance(cause, ssl.SSLError) else "") from error


def host_and_port(address: str) -> tuple[str, int]:
    """Return the two parts of an address.

    >>> host_and_port("[::1]:7143"), host_and_port("vfl.example.org")
    (('::1', 7143), ('vfl.example.org', 443))
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return address.strip("[]"), PORT
    return host.strip("[]"), int(port)


def refuse_plaintext_beyond_loopback(address: str) -> None:
    """Refuse an address on another machine: plaintext is for tests on one."""
    host = address.rsplit(":", 1)[0].strip("[]")
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host != "localhost":
        raise ConfigError(
            f"expected a loopback address with --insecure, got {address!r}: ask for a certificate with `efvfl request`."
        )


def connect(address: str, timeout: float, environ: Mapping[str, str] = os.environ) -> tuple[socket.socket, float]:
    """Return a TCP connection, through a proxy where the environment names one, and how long it took.

    LineError says why there is none.
    """
    host, port = host_and_port(address)
    proxy = proxy_of(host, environ)
    if proxy is None:
        return _connect(host, port, timeout)
    advice = f"put {host} in no_proxy to dial it directly, or have the proxy let it through."
    if proxy.scheme != "http":  # it would be told a password that others can read
        raise LineError("proxy", f"the proxy {proxy} is one of {printable(proxy.scheme)}, and http is needed", advice)
    try:
        link, seconds = _connect(proxy.host, proxy.port, timeout)
    except LineError as error:
        raise LineError("proxy", f"the proxy {proxy} cannot be reached ({error.text})", advice) from error
    if why := ask(link, host, port, proxy, timeout):
        link.close()
        raise LineError("proxy", f"the proxy {proxy} gives no connection to {address} ({printable(why)})", advice)
    return link, seconds


def _connect(host: str, port: int, timeout: float) -> tuple[socket.socket, float]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise LineError(
            "name", f"the name {host} cannot be resolved ({error})", "check the address, and this machine's DNS."
        ) from error
    errors: list[OSError] = []
    for family, kind, protocol, _, where in found:
        began = time.perf_counter()
        try:
            link = socket.socket(family, kind, protocol)
        except OSError as error:  # this machine may have no IPv6
            errors.append(error)
            continue
        link.settimeout(timeout)
        try:
            link.connect(where)
        except OSError as error:
            link.close()
            errors.append(error)
        else:
            return link, time.perf_counter() - began
    if isinstance(errors[-1], ConnectionRefusedError):
        text, advice = f"nobody listens on {host}:{port}", "is the server running, and is the port right?"
    else:
        text, advice = f"{host}:{port} cannot be reached ({errors[-1]})", "check the address, firewalls and the route."
    raise LineError("unreachable", text, advice) from errors[-1]


def shake(
    link: socket.socket, address: str, credentials: Credentials, protocols: Sequence[str], timeout: float
) -> ssl.SSLSocket:
    """Do the handshake on a connection that a doctor uses; LineError says why it fails."""
    with explained(address, credentials, partial(seen_certificate, address, timeout)):
        return tls_context(credentials, protocols).wrap_socket(link, server_hostname=SERVER)


def await_acceptance(secure: ssl.SSLSocket, credentials: Credentials) -> None:
    """Wait for the first word of the server: it has accepted us then, or says why it does not."""
    ends, heard, frame = time.monotonic() + SHAKE, Deframer(FIRST), None
    try:
        while (word := heard.next()) is None and not heard.beats:
            secure.settimeout(max(0.001, ends - time.monotonic()))
            if not (data := secure.recv(1 << 14)) or time.monotonic() > ends:
                raise refused(credentials, "")
            heard.add(data)
        frame = Frame.from_bytes(word).json() if word is not None else None
    except ssl.SSLError as error:
        raise refused(credentials, error.reason or "") from error
    except (OSError, WireError) as error:
        raise refused(credentials, "") from error
    if frame is not None:
        text = f"the server refuses {credentials.name!r} ({printable(str(frame.get('text'))[:500])})"
        raise LineError("refused", text, "ask the label holder.")


def seen_certificate(address: str, timeout: float) -> x509.Certificate | None:
    """Return the certificate that a server shows, whoever it is; nothing is sent to it, ours included."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([NAME, OLD])
    with suppress(OSError, ValueError, LineError):
        link, _ = connect(address, timeout)
        with link, context.wrap_socket(link, server_hostname=SERVER) as secure:
            return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")
    return None


def fingerprint(secure: ssl.SSLSocket) -> str:
    """Return the beginning of the SHA-256 of the certificate at the other end, as people compare it."""
    return shown(of_bytes(secure.getpeercert(binary_form=True) or b"")[: 2 * ENOUGH])
