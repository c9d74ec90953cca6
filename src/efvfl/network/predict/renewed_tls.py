"""The certificate of the prediction service, as its files have it when a client connects."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from efvfl.errors import ConfigError
from efvfl.network.identity import certificates

log = logging.getLogger("efvfl")


class RenewedTls:
    """TLS 1.3 with a certificate that is read again whenever its files change."""

    def __init__(self, certificate: Path, key: Path, clients_ca: Path | None = None) -> None:
        """Read the files; with an authority, clients may show certificates of it."""
        self._paths = (certificate, key, clients_ca)
        self._stamp = self._seen()
        self._context = self._read()

    def current(self) -> ssl.SSLContext:
        """Return what a new connection uses; files that do not fit together leave it as it was, and say so once."""
        stamp = self._seen()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._context = self._read()
            except ConfigError as error:
                log.warning("the certificate in use stays, because the one in the files cannot be used: %s", error)
            else:
                log.info("new connections of clients use the certificate that is in %s now", self._paths[0])
        return self._context

    def _read(self) -> ssl.SSLContext:
        certificate, key, clients_ca = self._paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            certificates.read(key, secret=True)
            # An empty password: a key that needs one is an error, and must not prompt at a terminal nobody watches.
            context.load_cert_chain(certificate, key, password="")
            if clients_ca:
                context.load_verify_locations(clients_ca)
                context.verify_mode = ssl.CERT_OPTIONAL  # /health needs none
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot use {certificate} with {key}: {error}. Expected PEM files without a password."
            ) from error
        return context

    def _seen(self) -> list[tuple[int, int]]:
        """Return by what a change of the files is seen."""
        found = []
        for path in filter(None, self._paths):
            try:
                state = path.stat()
                found.append((state.st_ino, state.st_mtime_ns))
            except OSError:
                found.append((0, 0))
        return found
