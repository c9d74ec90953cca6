"""A participant's certificate and key, and the checks they must pass before any connection.

A participant needs three files: `ca.crt`, `NAME.crt` and `NAME.key`, which it makes itself.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from efvfl.errors import ConfigError

SERVER = "server"  # the one name that others connect to
RENEW = "`efvfl request` here, `efvfl sign` at the label holder, `efvfl accept` here"
NEW_CA = "start with a new authority: `efvfl init` in a new folder, and new requests of all"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Credentials:
    """A participant's certificate and key, and the CA it trusts, all in PEM form."""

    name: str
    ca: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)  # must never be logged
    folder: Path | None = field(default=None, repr=False, compare=False, kw_only=True)  # where renewed ones appear


def load(folder: Path, name: str, *, now: datetime | None = None) -> Credentials:
    """Read the credentials of a participant; refuse what a TLS handshake would refuse, and say why."""
    now = now or datetime.now(UTC)
    check_name(name)
    ca_path, certificate_path, key_path = folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key"
    again = f"renew it ({RENEW}; or, with keys of `efvfl certs`, delete both and run `{certs_command(folder)}` again)"
    try:
        credentials = Credentials(
            name, read(ca_path), read(certificate_path), read(key_path, secret=True), folder=folder
        )
    except FileNotFoundError as error:
        raise ConfigError(
            f"{error.filename} is missing. Get a certificate: {RENEW}. For a demonstration on one machine, "
            f"`{certs_command(folder)}` makes all of them."
        ) from error
    ca, certificate = parse(ca_path, credentials.ca), parse(certificate_path, credentials.certificate)

    if spki(parse_key(key_path, credentials.key).public_key()) != spki(certificate.public_key()):
        raise ConfigError(
            f"{key_path} is not the key of {certificate_path}. Bring both from the same place, or {again}."
        )
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{certificate_path} was not signed by {ca_path}. All participants need certificates of one CA: bring its "
            f"ca.crt, or {again}."
        ) from error
    common = [str(part.value) for part in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    alternatives = other_names(certificate)
    if common != [name] or x509.DNSName(name) not in alternatives:
        raise ConfigError(
            f"{certificate_path} is for {', '.join(common) or 'nobody'} (alternative names: "
            f"{', '.join(str(each.value) for each in alternatives) or 'none'}), not for {name}. Both must say {name}: "
            f"{again}."
        )
    check_dates(ca_path, ca, now, NEW_CA)
    check_dates(certificate_path, certificate, now, again)
    return credentials


def days_left(certificate: bytes, now: datetime | None = None) -> float:
    """Return the days until a certificate (PEM) expires, negative afterwards."""
    return (parse("the certificate", certificate).not_valid_after_utc - (now or datetime.now(UTC))) / timedelta(days=1)


def valid_until(credentials: Credentials) -> str:
    """Return until when a participant's certificate is valid, as people read it."""
    return f"valid until {date_text(parse('the certificate', credentials.certificate).not_valid_after_utc)}"


def expiry_warning(credentials: Credentials, now: datetime | None = None, within: float = 30) -> str:
    """Return a warning about a certificate that expires `within` so many days; empty if none does."""
    now, name = now or datetime.now(UTC), credentials.name
    renew = f"renew it: {RENEW}"
    # The CA comes first: once it is about to expire, renewing a single certificate does not help.
    for what, pem, remedy in (("CA", credentials.ca, NEW_CA), ("certificate", credentials.certificate, renew)):
        left, date = days_left(pem, now), date_text(parse(f"the {what}", pem).not_valid_after_utc)
        if left <= within:
            return f"The {what} of {name!r} {'expires' if left > 0 else 'expired'} on {date}. To go on, {remedy}."
    return ""


def certain_name(shown: Mapping[str, Any] | None) -> str | None:
    """Return the name of a participant in a certificate that TLS has verified, as `getpeercert()` returns it.

    None if it is not certain: both places of a name must have the same one.
    """
    subject = [pair for part in (shown or {}).get("subject", ()) for pair in part]
    common = [value for key, value in subject if key == "commonName"]
    if len(common) != 1 or ("DNS", common[0]) not in (shown or {}).get("subjectAltName", ()):
        return None
    return common[0] if NAME.fullmatch(common[0]) else None


def check_name(name: str) -> None:
    """Refuse a name that cannot be in a certificate or cannot be a participant's."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a participant. Use at most 63 letters, digits, '-', '_' and '.', and "
            "start with a letter or digit."
        )
    if name.lower() == "ca" or (name.lower() == SERVER and name != SERVER):
        raise ConfigError(f"{name!r} cannot be a name: 'ca' is the authority, and 'server' has no capitals. Rename it.")


def read(path: Path, secret: bool = False) -> bytes:
    """Return a file's bytes; a secret that others can read is refused."""
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if secret and mode & 0o077:
                raise ConfigError(f"others than its owner can use the key {path} (mode {mode:03o}). {chmod(600, path)}")
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}. Check the path and who may read it.") from error


def parse(path: Path | str, pem: bytes) -> x509.Certificate:
    """Return the certificate in PEM bytes; `path` is named in errors."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        # These are parsed when first used; errors must be found here.
        _ = certificate.subject, certificate.extensions, certificate.public_key()
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ConfigError(f"{path} is not a certificate in PEM form: {error}. Bring or make it again.") from error
    return certificate


def parse_key(path: Path, pem: bytes) -> PrivateKeyTypes:
    """Return the private key in PEM bytes; `path` is named in errors."""
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not an unencrypted key in PEM form: {error}. Bring or make it again.") from error


def spki(key: PublicKeyTypes) -> bytes:
    """Return a public key as bytes (SubjectPublicKeyInfo), by which two keys can be compared."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def other_names(certificate: x509.Certificate) -> list[x509.GeneralName]:
    """Return a certificate's alternative names."""
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def check_dates(path: Path | str, certificate: x509.Certificate, now: datetime, remedy: str) -> None:
    """Refuse a certificate that is not valid now."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        raise ConfigError(
            f"{path} is not valid before {date_text(begin)} and it is {date_text(now)}. Set this machine's clock, or "
            f"{remedy}."
        )
    if now > end:
        raise ConfigError(f"{path} expired on {date_text(end)} and it is {date_text(now)}. To go on, {remedy}.")


def date_text(moment: datetime) -> str:
    """Return a moment as people read it."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def certs_command(folder: Path) -> str:
    """Return the command that makes missing certificates."""
    return f"efvfl certs FILE.toml --out {shlex.quote(str(folder))}"


def chmod(mode: int, path: Path) -> str:
    """Return the advice for a file that others can use."""
    return f"Run `chmod {mode} {shlex.quote(str(path))}`."
