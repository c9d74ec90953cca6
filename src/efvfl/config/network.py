"""How the participants of a run meet: the table [network] of a run file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from efvfl.core import ranges
from efvfl.errors import ConfigError


@dataclass(frozen=True)
class NetworkConfig:
    """How the participants meet: `efvfl serve` and `efvfl join`."""

    address: str = "127.0.0.1:7143"  # where parties dial, and the server listens
    on_missing: Literal["wait", "stop", "stale"] = "wait"  # stale: go on with its last surrogate until it is back
    absent_seconds: float = 3600.0  # 'stop': how long to wait for a missing party; a party: for the server
    stale_seconds: float = 5.0  # 'stale': how long to wait before going on without a party
    silent_seconds: float = 300.0  # 'stop', 'stale': a connected party that does not answer for so long is missing
    save_steps: int = 1000  # a participant saves itself after so many steps, or
    save_seconds: float = 60.0  # seconds
    denied: tuple[str, ...] = ()  # fingerprints of certificates that the server refuses, whoever shows them

    def __post_init__(self) -> None:
        """Refuse an address that nobody can dial, and numbers out of range."""
        ranges.check_fields(self, "network")
        check_address(self.address)
        for text in self.denied:
            check_fingerprint(text)


def check_fingerprint(text: str) -> str:
    """Return a SHA-256 fingerprint in one form: 64 small digits, without the colons that people read."""
    plain = text.replace(":", "").lower()
    if len(plain) != 64 or set(plain) - set("0123456789abcdef"):
        raise ConfigError(
            f"network.denied: expected a fingerprint as `efvfl fingerprint` shows it, such as 'AB:12:...', 32 pairs, "
            f"got {text!r:.120}."
        )
    return plain


def check_address(address: str) -> str:
    """Return an address that has a host and a port."""
    host, _, port = address.rpartition(":")
    valid = port.isdecimal() and len(port) <= 5 and int(port) <= 65535
    if not host or not valid or not address.isprintable() or len(address) > 300:
        raise ConfigError(f"address: expected host:port, such as 'vfl.example.org:7143', got {address!r:.80}.")
    return address
