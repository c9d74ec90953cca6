"""An invitation: one small file from the label holder to a participant, with all that is needed to take part.

It has the authority's certificate, the participant's own, and the federation file; nothing in it is secret. It is JSON
from another organisation: bounded, checked as a whole before anything is written, and nothing in it is run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509 import DNSName
from cryptography.x509.oid import NameOID

from efvfl.errors import ConfigError, describe
from efvfl.network.identity.certificates import (
    check_dates,
    check_name,
    other_names,
    parse,
    parse_key,
    read,
    spki,
)

LARGEST = 2 << 20  # bytes of an invitation
KIND = "efvfl invitation 1"


@dataclass(frozen=True)
class Invitation:
    """What one participant gets from the label holder, all of it text."""

    name: str
    ca: str  # PEM
    certificate: str  # PEM
    federation: str  # the text of federation.toml

    def to_bytes(self) -> bytes:
        """Return the file."""
        return json.dumps({"kind": KIND, **asdict(self)}, indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Invitation:
        """Return the invitation in a file; `where` names it in errors."""
        if len(data) > LARGEST:
            raise ConfigError(f"{where}: expected an invitation of at most {LARGEST:,} bytes, got {len(data):,}.")
        try:
            table = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where} is not an invitation: expected a file as `efvfl sign` makes it.") from error
        if not isinstance(table, dict) or table.pop("kind", None) != KIND:
            raise ConfigError(f"{where} is not an invitation: expected {KIND!r} as its kind. Install the same release.")
        wanted = set(cls.__dataclass_fields__)
        if set(table) != wanted or not all(isinstance(value, str) for value in table.values()):
            raise ConfigError(f"{where}: expected the texts {', '.join(sorted(wanted))}, got {describe(list(table))}.")
        check_name(table["name"])
        return cls(**table)

    def check(self, key_path: Path, now: datetime | None = None) -> None:
        """Refuse a certificate that is not for this key, not of this authority, or not valid now."""
        now = now or datetime.now(UTC)
        try:
            key = parse_key(key_path, read(key_path, secret=True))
        except FileNotFoundError as error:
            raise ConfigError(f"{key_path} is missing: an invitation answers a request of `efvfl request`.") from error
        ca, certificate = parse("the authority", self.ca.encode()), parse("the certificate", self.certificate.encode())
        if spki(key.public_key()) != spki(certificate.public_key()):
            raise ConfigError(
                f"the certificate in this invitation is not for {key_path}: it answers another request. Send the "
                "newest one (`efvfl request`)."
            )
        names = [part.value for part in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        if names != [self.name] or DNSName(self.name) not in other_names(certificate):
            raise ConfigError(f"the certificate in this invitation is for {names!r:.200}, not for {self.name!r}.")
        try:
            certificate.verify_directly_issued_by(ca)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
            raise ConfigError("the certificate was not signed by the authority in this invitation.") from error
        for what, each in (("the authority", ca), ("the certificate", certificate)):
            check_dates(what, each, now, "ask the label holder for another invitation")
