"""A test whether two participants hold the same list of ids, in which neither learns more than yes or no.

A digest of the list would not do: who lacks one id of the list could try all ids against it. So the list itself is the
password of an exchange of keys (SPEKE: Diffie-Hellman whose base point is the list's), and each side shows that it has
the same key as the other: first the party, then the label holder. Each exchange tests one guess.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from efvfl.network.align.messages import TAG
from efvfl.network.align.points import blinded, multiply, new_key


def order_digest(ids: Iterable[str], salt: bytes) -> bytes:
    """Return one salted digest of ids in order."""
    codes = b"".join([len(code).to_bytes(8, "little") + code for code in map(str.encode, ids)])
    return hashlib.blake2b(codes, key=salt, digest_size=32).digest()


class ListChallenge:
    """The label holder's side."""

    def __init__(self, ids: Iterable[str], salt: bytes) -> None:
        """Ask about this list."""
        self._key = new_key()
        self.point = blinded(self._key, [b"list" + order_digest(ids, salt)])
        self.confirmation = b""  # shows the party that we hold its list; known once `check` was true

    def check(self, point: bytes, tag: bytes) -> bool:
        """Return whether the party that responds like this holds the same list."""
        shared = multiply(self._key, point)
        same = hmac.compare_digest(tag, _tag(b"party", shared, self.point, point))
        self.confirmation = _tag(b"holder", shared, self.point, point) if same else b""
        return same


class ListResponse:
    """The party's side."""

    def __init__(self, ids: Iterable[str], salt: bytes, challenge: bytes) -> None:
        """Respond to the label holder's point."""
        key = new_key()
        shared = multiply(key, challenge)
        self.point = blinded(key, [b"list" + order_digest(ids, salt)])
        self.tag = _tag(b"party", shared, challenge, self.point)
        self._confirmation = _tag(b"holder", shared, challenge, self.point)

    def confirms(self, confirmation: bytes) -> bool:
        """Return whether the label holder has shown that it holds the same list."""
        return hmac.compare_digest(confirmation, self._confirmation)


def _tag(side: bytes, shared: bytes, challenge: bytes, response: bytes) -> bytes:
    return hashlib.blake2b(challenge + response, key=shared, digest_size=TAG, person=side).digest()
