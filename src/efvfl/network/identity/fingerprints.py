"""Fingerprints: short enough to be read out over the phone, by which people compare certificates and keys.

That of a certificate is what `openssl x509 -fingerprint -sha256` prints.
"""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding

from efvfl.errors import ConfigError
from efvfl.network.identity.certificates import parse, spki

ENOUGH = 16  # bytes that must be compared at least: nobody finds another certificate that shares so many


def of_certificate(pem: bytes) -> str:
    """Return the fingerprint of a certificate in PEM form."""
    return of_bytes(parse("the certificate", pem).public_bytes(Encoding.DER))


def of_key(key: PublicKeyTypes) -> str:
    """Return the fingerprint of a public key, by which a request is known before there is a certificate."""
    return of_bytes(spki(key))


def of_bytes(der: bytes) -> str:
    """Return the fingerprint of what is in DER form."""
    return hashlib.sha256(der).hexdigest()


def shown(fingerprint: str) -> str:
    """Return a fingerprint as people read it.

    >>> shown("ab12cd")
    'AB:12:CD'
    """
    pairs = fingerprint.upper()
    return ":".join(pairs[i : i + 2] for i in range(0, len(pairs), 2))


def check(fingerprint: str, told: str, what: str) -> None:
    """Refuse another fingerprint than the one that somebody was told, or as much of it as they typed."""
    begin = told.replace(":", "").replace(" ", "").lower()
    if len(begin) < 2 * ENOUGH:
        raise ConfigError(f"expected the first {ENOUGH} pairs of a fingerprint at least, got {told!r:.120}.")
    if not fingerprint.startswith(begin):
        raise ConfigError(
            f"the fingerprint of {what} is {shown(fingerprint)}, not {told!r:.120}: somebody may have changed the file "
            "on its way. Nothing was written. Ask its sender for another one by a way that you trust."
        )
