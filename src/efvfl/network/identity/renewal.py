"""Renewed certificates: a process that runs for months takes a new one from its files, without being started again."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from efvfl.errors import ConfigError
from efvfl.network.identity.certificates import Credentials, load, valid_until

log = logging.getLogger("efvfl")


class Renewal:
    """A participant's credentials as its files have them when a connection begins."""

    def __init__(self, credentials: Credentials) -> None:
        """Begin with these, and look where they were loaded from."""
        self._credentials = credentials
        self._stamp = _stamp(credentials.folder, credentials.name)
        self._lock = threading.Lock()

    def current(self) -> Credentials:
        """Return what is valid now; files that do not fit together leave it as it was, and say so once."""
        with self._lock:
            folder, name = self._credentials.folder, self._credentials.name
            stamp = _stamp(folder, name)
            if folder is None or stamp == self._stamp:
                return self._credentials
            self._stamp = stamp
            try:
                found = load(folder, name)
            except ConfigError as error:
                log.warning("the certificate in use stays, because the one in the files cannot be used: %s", error)
                return self._credentials
            if found != self._credentials:
                log.info("new connections use the renewed certificate of %s, %s", name, valid_until(found))
                self._credentials = found
            return self._credentials


def _stamp(folder: Path | None, name: str) -> list[tuple[int, int]]:
    """Return by what a change of the files is seen; every file is replaced as a whole, so it gets another number."""
    found = []
    for path in (folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key") if folder else ():
        try:
            state = path.stat()
            found.append((state.st_ino, state.st_mtime_ns))
        except OSError:
            found.append((0, 0))
    return found
