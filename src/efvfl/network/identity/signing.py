"""Keys that stay at home: a participant makes its key and a request (PKCS #10), and the label holder signs that.

The key never leaves its owner. A request is bytes from another organisation: it is bounded, its signature proves that
its sender has the key, and of what it says only the name and the public key are used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from efvfl.errors import ConfigError
from efvfl.network.identity import authority, fingerprints
from efvfl.network.identity.certificates import SERVER, check_name, other_names, parse, read, spki
from efvfl.util.files import write_atomically

LARGEST = 16 << 10  # bytes of a request


@dataclass(frozen=True)
class SigningRequest:
    """What a request asks for."""

    name: str
    key: ec.EllipticCurvePublicKey

    @property
    def fingerprint(self) -> str:
        """Of the public key."""
        return fingerprints.of_key(self.key)


def make_request(folder: Path, name: str) -> bytes:
    """Return a request (PEM) for the participant's key in a folder; the key is made if there is none."""
    check_name(name)
    authority.prepare(folder)
    key = authority.own_key(folder / f"{name}.key", [])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return x509.CertificateSigningRequestBuilder(subject).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def parse_request(data: bytes, where: str) -> SigningRequest:
    """Return what a request asks for, or refuse it; `where` names it in errors."""
    if len(data) > LARGEST:
        raise ConfigError(f"{where}: expected a request of at most {LARGEST:,} bytes, got {len(data):,}.")
    try:
        found = x509.load_pem_x509_csr(data)
        names = [str(part.value) for part in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        key, proven = found.public_key(), found.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{where} is not a request: expected a file as `efvfl request` makes it.") from error
    if not proven:
        raise ConfigError(f"{where} is not signed by its own key: it was changed on its way. Ask for another one.")
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise ConfigError(f"{where}: expected a key on the curve P-256, as `efvfl request` makes it.")
    if len(names) != 1:
        raise ConfigError(f"{where}: expected one name, got {names!r:.200}.")
    check_name(names[0])
    return SigningRequest(names[0], key)


def sign(
    folder: Path,
    request: SigningRequest,
    days: int = 365,
    hosts: Sequence[str] = (),
    *,
    replace: bool = False,
    now: datetime | None = None,
) -> tuple[bytes, bytes]:
    """Return the certificates (PEM) of the authority in `folder` and of who asks; the latter is kept there as well.

    Another key than that of the last certificate of this name is signed with `replace` alone. `hosts` are further names
    of the server, in addition to those of its last certificate.
    """
    authority.check_days(days)
    if not os.path.exists(folder / "ca.key"):
        raise ConfigError(
            f"{folder / 'ca.key'} is missing: sign where the authority's key is kept (--ca FOLDER), or make one with "
            "`efvfl init`."
        )
    path, alternatives = folder / f"{request.name}.crt", [authority.host_name(host) for host in hosts]
    if os.path.exists(path):
        last = parse(path, read(path))
        if spki(last.public_key()) != spki(request.key) and not replace:
            raise ConfigError(
                f"{request.name!r} has a certificate of another key, {path}. If it lost that key, and told you so by a "
                f"way you trust, sign with --replace, and add {fingerprints.shown(fingerprint_of(path))} to "
                "network.denied."
            )
        alternatives = [*other_names(last), *alternatives] if request.name == SERVER else alternatives
    taken = [each.stem for each in folder.glob("*.crt") if each.stem.lower() == request.name.lower()]
    if taken and taken != [request.name]:
        raise ConfigError(f"{taken[0]!r} and {request.name!r} differ only in case, which DNS names ignore: rename one.")
    signer = authority.open_signer(folder, days, now or datetime.now(UTC), [])
    certificate = signer.certify(request.name, request.key, days, alternatives)
    write_atomically(path, certificate)
    return signer.pem, certificate


def fingerprint_of(path: Path) -> str:
    """Return the fingerprint of a certificate in a file."""
    return fingerprints.of_certificate(read(path))
