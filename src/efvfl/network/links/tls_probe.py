"""What is wrong with the way to a server: name, port, TLS, who is at the other end. Found with a plain TLS handshake.

gRPC says only that a connection failed. This asks once more without it, with the same certificates, and says why.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final, Literal

from efvfl.errors import EfvflError, printable
from efvfl.network.identity.certificates import RENEW, SERVER, Credentials, date_text, parse
from efvfl.network.identity.fingerprints import ENOUGH, of_bytes, shown
from efvfl.network.links.proxy import ask, proxy_of
from efvfl.util.extras import optional

with optional("network", "a federation over a network"):
    from cryptography import x509
    from cryptography.x509.oid import NameOID

GRPC: Final = "h2"  # what gRPC's server speaks, as TLS negotiates it
AUTHORITY: Final = "efvfl CA "  # how the names of authorities begin that `efvfl certs` makes

Fault = Literal["name", "unreachable", "proxy", "port", "authority", "dates", "identity", "refused"]
_LATE, _EARLY, _NAME = 10, 9, 62  # OpenSSL's codes: expired, not yet valid, another name


class LineError(EfvflError):
    """What is wrong with the way to the server, and what to do; `final` if dialling again cannot help."""

    def __init__(self, fault: Fault, text: str, advice: str) -> None:
        super().__init__(f"{text}: {advice}")
        self.fault, self.text, self.advice = fault, text, advice

    @property
    def final(self) -> bool:
        """Whether certificates must change first."""
        return self.fault in ("authority", "dates", "identity", "refused")


def tls_context(credentials: Credentials, protocols: Sequence[str], server: bool = False) -> ssl.SSLContext:
    """Return what one end needs for mutual TLS 1.3 within a federation."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=credentials.ca.decode("ascii"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(list(protocols))
    with _as_file(credentials.certificate + b"\n" + credentials.key) as path:
        context.load_cert_chain(path)
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


def host_and_port(address: str) -> tuple[str, int]:
    """Return the two parts of an address.

    >>> host_and_port("[::1]:7143"), host_and_port("vfl.example.org")
    (('::1', 7143), ('vfl.example.org', 443))
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():  # gRPC's default
        return address.strip("[]"), 443
    return host.strip("[]"), int(port)


def connect(address: str, timeout: float, environ: Mapping[str, str] = os.environ) -> tuple[socket.socket, float]:
    """Return a TCP connection, and how long it took; LineError says why there is none.

    It goes the way that gRPC goes: through a proxy where the environment names one.
    """
    host, port = host_and_port(address)
    proxy = proxy_of(host, environ)
    if proxy is None:
        return _connect(host, port, timeout)
    advice = f"put {host} in no_proxy to dial it directly, or have the proxy let it through."
    try:
        link, seconds = _connect(proxy.host, proxy.port, timeout)
    except LineError as error:
        raise LineError("proxy", f"the proxy {proxy} cannot be reached ({error.text})", advice) from error
    if why := ask(link, host, port):
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
        link = socket.socket(family, kind, protocol)
        link.settimeout(timeout)
        began = time.perf_counter()
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


def probe(address: str, credentials: Credentials, timeout: float = 5.0) -> None:
    """Do a handshake with a server of this federation; LineError says what is wrong."""
    link, _ = connect(address, timeout)
    with link, shake(link, address, credentials, [GRPC], timeout) as secure:
        await_acceptance(secure, credentials)
        if secure.selected_alpn_protocol() != GRPC:
            raise wrong_port(address, "has a certificate of this federation, but is no server for parties")


def shake(
    link: socket.socket, address: str, credentials: Credentials, protocols: Sequence[str], timeout: float
) -> ssl.SSLSocket:
    """Do the handshake on a connection to the server; LineError says why it fails."""
    try:
        return tls_context(credentials, protocols).wrap_socket(link, server_hostname=SERVER)
    except ssl.SSLCertVerificationError as error:
        raise _unverified(address, credentials, error, timeout) from error
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
        raise wrong_port(address, "accepts connections, but closes them at once") from error
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            raise refused(credentials, error.reason or "") from error
        raise wrong_port(address, "answers, but not with TLS") from error
    except OSError as error:
        what = "says nothing" if isinstance(error, TimeoutError) else "closes them at once"
        raise wrong_port(address, f"accepts connections, but {what}") from error


def wrong_port(address: str, what: str) -> LineError:
    """Say that somebody answers who is not the server."""
    advice = "is this the port of `efvfl serve`? Another program has it, or something in between lets nothing through."
    return LineError("port", f"{address} {what}", advice)


def await_acceptance(secure: ssl.SSLSocket, credentials: Credentials) -> None:
    """Wait for the first bytes of the server: in TLS 1.3 it looks at our certificate after our part of the handshake.

    gRPC's server sends its settings at once, a service over HTTP waits for us. Both have accepted us then.
    """
    secure.settimeout(1.0)
    try:
        if not secure.recv(1):
            raise refused(credentials, "")
    except TimeoutError:
        return
    except ssl.SSLError as error:
        raise refused(credentials, error.reason or "") from error
    except OSError as error:
        raise refused(credentials, "") from error


def refused(credentials: Credentials, reason: str, now: datetime | None = None) -> LineError:
    """Say why the server does not accept our certificate: by its dates, and by the alert that it sent, if any.

    gRPC's server sends none. But it has shown a certificate of our own authority, which is then the one that it trusts:
    what is left is its clock.
    """
    name = f"the certificate of {credentials.name!r}"
    if "EXPIRED" in reason:
        text, advice = f"the server refuses {name} as expired", "renew it, or compare the clocks of both machines."
        return LineError("refused", text, advice)
    if "UNKNOWN_CA" in reason:
        text = f"the server refuses {name}, which is of another authority"
        return LineError("refused", text, "get one of the authority it trusts.")
    now, own = now or datetime.now(UTC), parse("the certificate", credentials.certificate)
    begin, end = own.not_valid_before_utc, own.not_valid_after_utc
    if now > end:
        return LineError("refused", f"{name} expired on {date_text(end)}", f"renew it: {RENEW}.")
    if now < begin:
        return LineError(
            "refused", f"{name} is not valid before {date_text(begin)}", "set this machine's clock, or wait."
        )
    shown = f" ({reason.replace('_', ' ').lower()})" if "ALERT" in reason else ""
    span = f"it is valid from {date_text(begin)} to {date_text(end)}, and by the clock here it is {date_text(now)}"
    return LineError("refused", f"the server refuses {name}{shown}", f"{span}. Compare the clocks of both machines.")


def _unverified(
    address: str, credentials: Credentials, error: ssl.SSLCertVerificationError, timeout: float
) -> LineError:
    """Say what is wrong with the certificate at the other end."""
    theirs = seen_certificate(address, timeout)
    who = f"the certificate at {address}" + (f" (of {name_of(theirs.subject)!r})" if theirs else "")
    if error.verify_code == _LATE and theirs:
        text = f"{who} expired on {date_text(theirs.not_valid_after_utc)}"
        return LineError("dates", text, "the label holder must renew it; or this machine's clock is wrong.")
    if error.verify_code == _EARLY and theirs:
        text = f"{who} is not valid before {date_text(theirs.not_valid_before_utc)}"
        return LineError("dates", text, "set the clocks of both machines, or wait until then.")
    if error.verify_code == _NAME:
        return LineError("identity", f"{who} is not the server's", "is this the address of the label holder?")
    ours = name_of(x509.load_pem_x509_certificate(credentials.ca).subject)
    issuer = name_of(theirs.issuer) if theirs else ""
    if issuer and not issuer.startswith(AUTHORITY):
        text = f"{who} is of {issuer!r}, which is no authority of a federation"
        advice = "a proxy in between opens TLS, or it is another program's port. Have it let this address through."
        return LineError("authority", text, advice)
    text = f"{who} was signed by {issuer or 'another authority'!r}, and ca.crt here is {ours!r}"
    return LineError("authority", text, "all participants need certificates of one authority: hand out one ca.crt.")


def seen_certificate(address: str, timeout: float) -> x509.Certificate | None:
    """Return the certificate that a server shows, whoever it is; nothing is sent to it, ours included."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([GRPC])
    with suppress(OSError, ValueError, LineError):
        link, _ = connect(address, timeout)
        with link, context.wrap_socket(link, server_hostname=SERVER) as secure:
            return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")
    return None


def name_of(name: x509.Name) -> str:
    """Return the common name, or the whole one, in printable characters and not too long: others have written it."""
    common = [str(part.value) for part in name.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return printable((common[0] if len(common) == 1 else name.rfc4514_string())[:80])


def fingerprint(secure: ssl.SSLSocket) -> str:
    """Return the beginning of the SHA-256 of the certificate at the other end, as people compare it."""
    return shown(of_bytes(secure.getpeercert(binary_form=True) or b"")[: 2 * ENOUGH])
