"""A private certificate authority (CA), and one certificate for each participant: `efvfl certs`.

This runs where the CA's key is stored. A key is written before its certificate and no file is ever replaced, so after a
crash the same command continues where it stopped.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from efvfl.errors import ConfigError
from efvfl.network.identity.certificates import (
    NEW_CA,
    SERVER,
    certs_command,
    check_dates,
    check_name,
    chmod,
    other_names,
    parse,
    parse_key,
    read,
    spki,
)

CA_DAYS = 3650  # a CA outlives its certificates, so that they can be renewed one by one
SKEW = timedelta(minutes=5)  # how far a participant's clock may be behind
HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*")


def make(
    folder: Path, names: Sequence[str], days: int = 365, hosts: Sequence[str] = (), *, now: datetime | None = None
) -> list[Path]:
    """Make the CA if there is none, and a key pair for every name without a certificate; return the new files.

    `hosts` are further DNS names or IP addresses of the server.
    """
    now = now or datetime.now(UTC)
    check_days(days)
    _check_names(folder, names)
    wanted = [name for name in dict.fromkeys(names) if not os.path.exists(folder / f"{name}.crt")]
    alternatives = _check_hosts(folder, wanted, hosts)
    if not wanted:
        return []

    prepare(folder)
    made: list[Path] = []
    signer = open_signer(folder, days, now, made)
    for name in wanted:
        key = own_key(folder / f"{name}.key", made)
        certificate = signer.certify(name, key.public_key(), days, alternatives)
        write_new(folder / f"{name}.crt", certificate, 0o644, made)
    return made


@dataclass(frozen=True)
class Signer:
    """A certificate authority with its key: it certifies public keys, whoever holds their private half."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    now: datetime

    @property
    def pem(self) -> bytes:
        """The authority's own certificate."""
        return self.certificate.public_bytes(Encoding.PEM)

    def certify(
        self, name: str, public: ec.EllipticCurvePublicKey, days: int, alternatives: Sequence[x509.GeneralName] = ()
    ) -> bytes:
        """Return the certificate (PEM) of a participant; `alternatives` are further names of the server."""
        # A party's certificate is not valid for the server, nor the server's for a party.
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if name == SERVER else ExtendedKeyUsageOID.CLIENT_AUTH
        also = alternatives if name == SERVER else ()
        until = min(self.now + timedelta(days=days), self.certificate.not_valid_after_utc)
        return _sign(
            (_subject(name), public),
            (self.certificate.subject, self.key),
            (self.now, until),
            x509.BasicConstraints(ca=False, path_length=None),
            x509.ExtendedKeyUsage([purpose]),
            x509.SubjectAlternativeName(dict.fromkeys([x509.DNSName(name), *also])),
        ).public_bytes(Encoding.PEM)


def open_signer(folder: Path, days: int, now: datetime, made: list[Path]) -> Signer:
    """Return the authority in a folder; make one if there is none, and note the new files in `made`."""
    key = own_key(folder / "ca.key", made)
    return Signer(_authority(folder / "ca.crt", key, now, days, made), key, now)


def check_days(days: int) -> None:
    """Refuse a validity that nobody means."""
    if not 1 <= days <= 36500:
        raise ConfigError(f"expected 1 to 36500 days of validity, got {days}.")


def _check_names(folder: Path, names: Sequence[str]) -> None:
    if not names:
        raise ConfigError(f"no name was given. Name the participants: `{certs_command(folder)}`.")
    taken = {path.name.removesuffix(".crt").lower(): path.name.removesuffix(".crt") for path in folder.glob("*.crt")}
    for name in names:
        check_name(name)
        other = taken.setdefault(name.lower(), name)
        if other != name:
            raise ConfigError(
                f"{other!r} and {name!r} differ only in case, which DNS names ignore. Rename one of them."
            )


def _check_hosts(folder: Path, wanted: Sequence[str], hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Return the server's further names; refuse them if its certificate exists already and does not have them."""
    alternatives = [host_name(host) for host in hosts]
    if SERVER not in wanted:
        path = folder / f"{SERVER}.crt"
        exists = os.path.exists(path)
        known = other_names(parse(path, read(path))) if exists else []
        if absent := [host for host, each in zip(hosts, alternatives, strict=True) if each not in known]:
            remedy = f"Delete {path} and {SERVER}.key and run this again" if exists else f"Add the name {SERVER!r}"
            raise ConfigError(f"the server's certificate does not have the hosts {', '.join(absent)}. {remedy}.")
    return alternatives


def host_name(host: str) -> x509.GeneralName:
    """Return a name or an address of the server as a certificate has it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host.partition("%")[0]))  # an IPv6 zone means nothing elsewhere
    except ValueError:
        pass
    # A last label of digits is a mistyped address: no host name has one.
    if not HOST.fullmatch(host) or host.rpartition(".")[2].isdigit():
        raise ConfigError(
            f"{host!r} is neither a host name nor an IP address. Give what participants connect to, without a port, "
            "such as 'vfl.example.org' or '192.0.2.7'."
        )
    return x509.DNSName(host.lower())


def prepare(folder: Path) -> None:
    """Make a folder for keys; refuse one that others can write to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"cannot use {folder} for certificates: {error}. Name another folder.") from error
    if mode & 0o022:
        # The mode of an existing folder is its owner's choice. Others may read it, but must not replace the CA in it.
        raise ConfigError(f"others can write to {folder} (mode {mode:03o}). {chmod(700, folder)}")


def own_key(path: Path, made: list[Path]) -> ec.EllipticCurvePrivateKey:
    """Return the key at `path`; make one if there is none."""
    if os.path.exists(path):
        found = parse_key(path, read(path, secret=True))
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{path} is not an elliptic curve key. Move it away to have one made.")
        return found
    if path.name == "ca.key" and os.path.exists(path.with_name("ca.crt")):
        raise ConfigError(
            f"{path} is missing, but ca.crt is there. Run this where the key is kept, or name a new folder to start "
            "with a new CA."
        )
    key = ec.generate_private_key(ec.SECP256R1())
    write_new(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600, made)
    return key


def _authority(
    path: Path, key: ec.EllipticCurvePrivateKey, now: datetime, days: int, made: list[Path]
) -> x509.Certificate:
    """Return the CA's certificate at `path`; make one if there is none."""
    if os.path.exists(path):
        ca = parse(path, read(path))
        if spki(key.public_key()) != spki(ca.public_key()):
            raise ConfigError(f"{path} does not belong to ca.key. Bring both from the same place.")
        check_dates(path, ca, now, NEW_CA)
        return ca
    # Named after its key: two CAs cannot be confused, and a lost ca.crt can be made again.
    digest = x509.SubjectKeyIdentifier.from_public_key(key.public_key()).digest
    name, until = _subject(f"efvfl CA {digest.hex()[:16]}"), now + timedelta(days=max(days, CA_DAYS))
    ca = _sign((name, key.public_key()), (name, key), (now, until), x509.BasicConstraints(ca=True, path_length=0))
    write_new(path, ca.public_bytes(Encoding.PEM), 0o644, made)
    return ca


def _sign(
    subject: tuple[x509.Name, ec.EllipticCurvePublicKey],
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey],
    validity: tuple[datetime, datetime],
    constraints: x509.BasicConstraints,
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    """Return a certificate of the subject's key, signed by the issuer."""
    ca, no = constraints.ca, False
    public, issuer_public = subject[1], issuer[1].public_key()
    builder = (
        x509.CertificateBuilder(issuer[0], subject[0], public, x509.random_serial_number())
        .not_valid_before(validity[0] - SKEW)
        .not_valid_after(validity[1])
        .add_extension(constraints, critical=True)
        # A CA signs certificates and revocations; everyone else signs handshakes.
        .add_extension(x509.KeyUsage(not ca, no, no, no, no, ca, ca, no, no), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_public), critical=False)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuer[1], hashes.SHA256())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def write_new(path: Path, data: bytes, mode: int, made: list[Path]) -> None:
    """Write a new file so that no crash leaves half of it; refuse to replace one.

    The mode is set when the file is created, so nobody else can open a key even for a moment. The last step is a link
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
            f"cannot write {path}: {error}. Nothing was overwritten: fix this and run the command again; it continues "
            "where it stopped."
        ) from error
    made.append(path)
