"""The deny list: certificates that the server refuses although its authority has signed them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efvfl.config.network import check_fingerprint
from efvfl.config.parsing import parse
from efvfl.errors import ConfigError, printable
from efvfl.network.identity import fingerprints

log = logging.getLogger("efvfl")


class DenyList:
    """The fingerprints in `network.denied` of a file, read again whenever the file changes."""

    def __init__(self, path: Path) -> None:
        """Read the list of this file; one that cannot be read is an error now, and a warning later."""
        self._path = path
        self._lock = threading.Lock()
        self._state = self._stamp()
        self._denied = self._read()
        self._told: set[str] = set()

    def has(self, fingerprint: str) -> bool:
        """Whether a certificate is denied, as the file says now."""
        with self._lock:
            stamp = self._stamp()
            if stamp != self._state:
                self._state = stamp
                try:
                    self._denied = self._read()
                except ConfigError as error:  # somebody is editing it
                    log.warning("the deny list stays as it was: %s", error)
            return fingerprint in self._denied

    def refusal(self, name: str, fingerprint: str) -> str:
        """Say that a certificate is denied, also in the log, but once: whoever shows it may dial again and again."""
        if fingerprint not in self._told:
            self._told.add(fingerprint)
            log.warning("refused %s: its certificate %s is on the deny list", printable(name), fingerprint)
        return (
            f"the certificate {fingerprints.shown(fingerprint)} is on the deny list of this federation: ask the label "
            "holder, and send it a new request (`efvfl request`) if the key was replaced."
        )

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def _read(self) -> frozenset[str]:
        try:
            table: Mapping[str, Any] = parse(self._path.read_text(encoding="utf-8"), str(self._path))
            network = table.get("network", {})
            return frozenset(check_fingerprint(str(text)) for text in network.get("denied", ()))
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise ConfigError(f"cannot read the deny list in {self._path}: {error}.") from error
