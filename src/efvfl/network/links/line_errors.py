"""What is wrong with the way to a server: name, port, TLS, who is at the other end; in words that say what to do."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Literal

from efvfl.errors import LinkError, printable
from efvfl.network.identity.certificates import RENEW, Credentials, date_text, parse
from efvfl.util.extras import optional

with optional("network", "a federation over a network"):
    from cryptography import x509
    from cryptography.x509.oid import NameOID

AUTHORITY: Final = "efvfl CA "  # how the names of authorities begin that `efvfl certs` makes

Fault = Literal["name", "unreachable", "proxy", "port", "authority", "dates", "identity", "refused"]
LATE, EARLY, NAME = 10, 9, 62  # OpenSSL's codes: expired, not yet valid, another name
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_TOO_SMALL")
_AUTHORITIES = (18, 19, 20, 21)  # signed by itself, or by somebody unknown


class LineError(LinkError):
    """What is wrong with the way to the server, and what to do; `final` if dialling again cannot help."""

    def __init__(self, fault: Fault, text: str, advice: str) -> None:
        super().__init__(f"{text}: {advice}")
        self.fault, self.text, self.advice = fault, text, advice

    @property
    def final(self) -> bool:
        """Whether certificates must change first."""
        return self.fault in ("authority", "dates", "identity", "refused")


def wrong_port(address: str, what: str) -> LineError:
    """Say that somebody answers who is not the server."""
    advice = "is this the port of `efvfl serve`? Another program has it, or something in between lets nothing through."
    return LineError("port", f"{address} {what}", advice)


@contextmanager
def explained(address: str, credentials: Credentials, look: Callable[[], x509.Certificate | None]) -> Iterator[None]:
    """Turn what fails within a handshake into a LineError; `look` returns the certificate that the server shows."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise _unverified(address, credentials, error.verify_code, look()) from error
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
        raise wrong_port(address, "accepts connections, but closes them at once") from error
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            raise refused(credentials, error.reason or "") from error
        raise wrong_port(address, "answers, but not with TLS") from error
    except OSError as error:
        what = "says nothing" if isinstance(error, TimeoutError) else "closes them at once"
        raise wrong_port(address, f"accepts connections, but {what}") from error


def refused(credentials: Credentials, reason: str, now: datetime | None = None) -> LineError:
    """Say why the server does not accept our certificate: by the alert that it sent, or else by its dates."""
    name = f"the certificate of {credentials.name!r}"
    if "EXPIRED" in reason:
        date = date_text(parse("the certificate", credentials.certificate).not_valid_after_utc)
        advice = f"it is valid until {date}. Renew it, or compare the clocks of both machines."
        return LineError("refused", f"the server refuses {name} as expired", advice)
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


def _unverified(address: str, credentials: Credentials, code: int, theirs: x509.Certificate | None) -> LineError:
    """Say what is wrong with the certificate at the other end."""
    who = f"the certificate at {address}" + (f" (of {name_of(theirs.subject)!r})" if theirs else "")
    if code == LATE and theirs:
        text = f"{who} expired on {date_text(theirs.not_valid_after_utc)}"
        return LineError("dates", text, "the label holder must renew it; or this machine's clock is wrong.")
    if code == EARLY and theirs:
        text = f"{who} is not valid before {date_text(theirs.not_valid_before_utc)}"
        return LineError("dates", text, "set the clocks of both machines, or wait until then.")
    if code == NAME:
        return LineError("identity", f"{who} is not the server's", "is this the address of the label holder?")
    ours = name_of(x509.load_pem_x509_certificate(credentials.ca).subject)
    issuer = name_of(theirs.issuer) if theirs else ""
    if issuer and not issuer.startswith(AUTHORITY):
        text = f"{who} is of {issuer!r}, which is no authority of a federation"
        advice = "a proxy in between opens TLS, or it is another program's port. Have it let this address through."
        return LineError("authority", text, advice)
    text = f"{who} was signed by {issuer or 'another authority'!r}, and ca.crt here is {ours!r}"
    return LineError("authority", text, "all participants need certificates of one authority: hand out one ca.crt.")


def reason_of(error: ssl.SSLError, authority: str = "that of this federation") -> str:
    """Say in words why a handshake has failed at the server, whose authority has this name."""
    reason = (error.reason or "").upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (LATE, EARLY):
            return "its certificate has expired" if error.verify_code == LATE else "its certificate is not valid yet"
        if error.verify_code in _AUTHORITIES:
            return f"its certificate is of another authority than {authority}"
        return f"its certificate is not accepted ({error.verify_message})"
    if "ALERT_UNKNOWN_CA" in reason:
        return f"its ca.crt is of another authority than {authority}, which has signed the server's certificate"
    if "ALERT" in reason and "CERTIFICATE" in reason:
        return f"it does not accept the server's certificate ({reason.replace('_', ' ').lower()})"
    if "PEER_DID_NOT_RETURN_A_CERTIFICATE" in reason:
        return "it has no certificate"
    if "UNSUPPORTED_PROTOCOL" in reason:
        return "it speaks an older TLS than 1.3"
    if reason in _NO_TLS:
        return "it does not speak TLS"
    return f"no TLS handshake ({reason.replace('_', ' ').lower() or 'the connection was closed'})"


def name_of(name: x509.Name) -> str:
    """Return the common name, or the whole one, in printable characters and not too long: others have written it."""
    common = [str(part.value) for part in name.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return printable((common[0] if len(common) == 1 else name.rfc4514_string())[:80])
