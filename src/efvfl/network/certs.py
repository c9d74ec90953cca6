"""Who is who on the network: a private CA, one certificate for each name, and their checks before any connection.

`make` runs where the CA's key is kept. A participant needs three of the files: `ca.crt`, `NAME.crt` and `NAME.key`.
A key is written before its certificate and no file is ever replaced, so after a crash the same command goes on.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from efvfl.errors import ConfigError

SERVER = "server"  # the one name that others connect to
CA_DAYS = 3650  # a CA outlives its certificates, so that they can be renewed one by one
NEW_CA = "make new certificates for everyone in a new folder with `efvfl certs`"
SKEW = timedelta(minutes=5)  # how far a participant's clock may be behind

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*")


@dataclass(frozen=True)
class Identity:
    """What a participant shows and what it trusts, all PEM."""

    name: str
    ca: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)  # a log must never show it


def make(
    folder: Path, names: Sequence[str], days: int = 365, hosts: Sequence[str] = (), *, now: datetime | None = None
) -> list[Path]:
    """Make the CA, unless it is there, and a key pair for every name without a certificate; return the new files.

    `hosts` are further DNS names or IP addresses under which others reach the server.
    """
    now = now or datetime.now(UTC)
    if not 1 <= days <= 36500:
        raise ConfigError(f"a certificate cannot be valid for {days} days. Choose from 1 to 36500.")
    _check_names(folder, names)
    wanted = [name for name in dict.fromkeys(names) if not os.path.exists(folder / f"{name}.crt")]
    alternatives = _check_hosts(folder, wanted, hosts)
    if not wanted:
        return []

    _prepare(folder)
    made: list[Path] = []
    ca_key = _key(folder / "ca.key", made)
    ca = _authority(folder / "ca.crt", ca_key, now, days, made)
    until = min(now + timedelta(days=days), ca.not_valid_after_utc)
    for name in wanted:
        key = _key(folder / f"{name}.key", made)
        # A party's certificate cannot pose as the server, nor the server's as a party.
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if name == SERVER else ExtendedKeyUsageOID.CLIENT_AUTH
        also = alternatives if name == SERVER else []
        certificate = _sign(
            _subject(name),
            key,
            ca.subject,
            ca_key,
            now,
            until,
            x509.BasicConstraints(ca=False, path_length=None),
            x509.ExtendedKeyUsage([purpose]),
            x509.SubjectAlternativeName(dict.fromkeys([x509.DNSName(name), *also])),
        )
        _write(folder / f"{name}.crt", certificate.public_bytes(Encoding.PEM), 0o644, made)
    return made


def load(folder: Path, name: str, *, now: datetime | None = None) -> Identity:
    """Read the three files of a name and refuse what a handshake would refuse, but say why."""
    now = now or datetime.now(UTC)
    _check_name(name)
    ca_path, certificate_path, key_path = folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key"
    again = f"delete {name}.crt and {name}.key where ca.key is kept and run `{_command(folder, name)}` there"
    try:
        identity = Identity(name, _read(ca_path), _read(certificate_path), _read(key_path, secret=True))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{error.filename} is missing. Run `{_command(folder, name)}` where ca.key is kept and bring ca.crt, "
            f"{name}.crt and {name}.key here; if the key is lost, {again}."
        ) from error
    ca, certificate = _parse(ca_path, identity.ca), _parse(certificate_path, identity.certificate)

    if _spki(_parse_key(key_path, identity.key).public_key()) != _spki(certificate.public_key()):
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
    alternatives = _alternatives(certificate)
    if common != [name] or x509.DNSName(name) not in alternatives:
        raise ConfigError(
            f"{certificate_path} is for {', '.join(common) or 'nobody'} (alternative names: "
            f"{', '.join(str(each.value) for each in alternatives) or 'none'}), not for {name}. Both must say {name}: "
            f"{again}."
        )
    _check_dates(ca_path, ca, now, NEW_CA)
    _check_dates(certificate_path, certificate, now, again)
    return identity


def days_left(certificate: bytes, now: datetime | None = None) -> float:
    """Days until a certificate (PEM) expires, negative afterwards."""
    return (_parse("the certificate", certificate).not_valid_after_utc - (now or datetime.now(UTC))) / timedelta(days=1)


def expiry_warning(identity: Identity, now: datetime | None = None, within: float = 30) -> str:
    """What to tell the user about a certificate that expires `within` so many days; empty if there is nothing."""
    now, name = now or datetime.now(UTC), identity.name
    renew = f"where ca.key is kept, delete {name}.crt and {name}.key and run `efvfl certs` again"
    # The CA comes first: once it is about to expire, renewing a single certificate does not help.
    for what, pem, remedy in (("CA", identity.ca, NEW_CA), ("certificate", identity.certificate, renew)):
        left, date = days_left(pem, now), _date(_parse(f"the {what}", pem).not_valid_after_utc)
        if left <= within:
            return f"The {what} of {name!r} {'expires' if left > 0 else 'expired'} on {date}. To go on, {remedy}."
    return ""


def peer_name(auth_context: Mapping[str, Sequence[bytes]]) -> str | None:
    """Who the other end of a gRPC call is, from `ServicerContext.auth_context()`; None if that is not certain."""
    common = list(auth_context.get("x509_common_name", ()))
    if len(common) != 1 or common[0] not in auth_context.get("x509_subject_alternative_name", ()):
        return None
    name = common[0].decode("ascii", "replace")
    return name if NAME.fullmatch(name) else None


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a participant. Use at most 63 letters, digits, '-', '_' and '.', and "
            "start with a letter or digit."
        )
    if name.lower() == "ca" or (name.lower() == SERVER and name != SERVER):
        raise ConfigError(f"{name!r} cannot be a name: 'ca' is the authority, and 'server' has no capitals. Rename it.")


def _check_names(folder: Path, names: Sequence[str]) -> None:
    if not names:
        raise ConfigError(f"no name was given. Name the participants: `{_command(folder, SERVER, 'PARTY', '...')}`.")
    taken = {path.name.removesuffix(".crt").lower(): path.name.removesuffix(".crt") for path in folder.glob("*.crt")}
    for name in names:
        _check_name(name)
        other = taken.setdefault(name.lower(), name)
        if other != name:
            raise ConfigError(
                f"{other!r} and {name!r} differ only in case, which DNS names ignore. Rename one of them."
            )


def _check_hosts(folder: Path, wanted: Sequence[str], hosts: Sequence[str]) -> list[x509.GeneralName]:
    """The server's further names, which must not be lost because its certificate is not being made."""
    alternatives = [_host(host) for host in hosts]
    if SERVER not in wanted:
        path = folder / f"{SERVER}.crt"
        there = os.path.exists(path)
        known = _alternatives(_parse(path, _read(path))) if there else []
        if lost := [host for host, each in zip(hosts, alternatives, strict=True) if each not in known]:
            mend = f"Delete {path} and {SERVER}.key and run this again" if there else f"Add the name {SERVER!r}"
            raise ConfigError(f"the server's certificate does not have the hosts {', '.join(lost)}. {mend}.")
    return alternatives


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.partition("%")[0]))  # an IPv6 zone means nothing elsewhere
    except ValueError:
        pass
    # A last label of digits is a mistyped address: no host name ends so.
    if not HOST.fullmatch(host) or host.rpartition(".")[2].isdigit():
        raise ConfigError(
            f"{host!r} is neither a host name nor an IP address. Give what participants connect to, without a port, "
            "such as 'vfl.example.org' or '192.0.2.7'."
        )
    return x509.DNSName(host.lower())


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"cannot use {folder} for certificates: {error}. Name another folder.") from error
    if mode & 0o022:
        # Only what is new is ours to set. Others may look into an old folder, but not exchange the CA in it.
        raise ConfigError(f"others can write to {folder} (mode {mode:03o}). {_chmod(700, folder)}")


def _key(path: Path, made: list[Path]) -> ec.EllipticCurvePrivateKey:
    """The key at `path`, made if there is none."""
    if os.path.exists(path):
        found = _parse_key(path, _read(path, secret=True))
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{path} is not an elliptic curve key. Move it away to have one made.")
        return found
    if path.name == "ca.key" and os.path.exists(path.with_name("ca.crt")):
        raise ConfigError(
            f"{path} is missing, but ca.crt is there. Run this where the key is kept, or name a new folder to start "
            "with a new CA."
        )
    key = ec.generate_private_key(ec.SECP256R1())
    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600, made)
    return key


def _authority(
    path: Path, key: ec.EllipticCurvePrivateKey, now: datetime, days: int, made: list[Path]
) -> x509.Certificate:
    """The CA's certificate at `path`, made if there is none."""
    if os.path.exists(path):
        ca = _parse(path, _read(path))
        if _spki(key.public_key()) != _spki(ca.public_key()):
            raise ConfigError(f"{path} does not belong to ca.key. Bring both from the same place.")
        _check_dates(path, ca, now, NEW_CA)
        return ca
    # Named after its key: two CAs are never mistaken for each other, and a lost ca.crt can be made again.
    digest = x509.SubjectKeyIdentifier.from_public_key(key.public_key()).digest
    subject = _subject(f"efvfl CA {digest.hex()[:16]}")
    until = now + timedelta(days=max(days, CA_DAYS))
    ca = _sign(subject, key, subject, key, now, until, x509.BasicConstraints(ca=True, path_length=0))
    _write(path, ca.public_bytes(Encoding.PEM), 0o644, made)
    return ca


def _sign(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    now: datetime,
    until: datetime,
    constraints: x509.BasicConstraints,
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    ca, no = constraints.ca, False
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(until)
        .add_extension(constraints, critical=True)
        # A CA signs certificates and revocations, everyone else signs handshakes.
        .add_extension(x509.KeyUsage(not ca, no, no, no, no, ca, ca, no, no), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _write(path: Path, data: bytes, mode: int, made: list[Path]) -> None:
    """Put `data` at `path`, where nothing may be yet, so that no crash leaves half of it.

    The mode is set as the file is created, so nobody else can open a key even for a moment. The last step is a link
    because, unlike a rename, it fails if another process was faster.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(part, path)
        finally:
            part.unlink()
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error}. Nothing was overwritten; mend this and run the command again, it goes on "
            "where it stopped."
        ) from error
    made.append(path)


def _read(path: Path, secret: bool = False) -> bytes:
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if secret and mode & 0o077:
                raise ConfigError(
                    f"others than its owner can use the key {path} (mode {mode:03o}). {_chmod(600, path)}"
                )
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}. Check the path and who may read it.") from error


def _parse(path: Path | str, pem: bytes) -> x509.Certificate:
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        # These are parsed when first used; what is broken shall be found here.
        _ = certificate.subject, certificate.extensions, certificate.public_key()
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ConfigError(f"{path} is not a certificate in PEM form: {error}. Bring or make it again.") from error
    return certificate


def _parse_key(path: Path, pem: bytes) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not an unencrypted key in PEM form: {error}. Bring or make it again.") from error


def _spki(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _alternatives(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _check_dates(path: Path, certificate: x509.Certificate, now: datetime, remedy: str) -> None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        raise ConfigError(
            f"{path} is not valid before {_date(begin)} and it is {_date(now)}. Set this machine's clock, or {remedy}."
        )
    if now > end:
        raise ConfigError(f"{path} expired on {_date(end)} and it is {_date(now)}. To go on, {remedy}.")


def _date(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _command(folder: Path, *names: str) -> str:
    return f"efvfl certs FILE.toml --out {shlex.quote(str(folder))}"


def _chmod(mode: int, path: Path) -> str:
    return f"Run `chmod {mode} {shlex.quote(str(path))}`."
