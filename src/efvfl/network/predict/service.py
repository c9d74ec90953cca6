"""`efvfl serve-predictions`: predictions by id over HTTPS, at the label holder."""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import stat
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.errors import ConfigError
from efvfl.network.identity import certificates
from efvfl.network.identity.deny_list import DenyList
from efvfl.network.links.connecting import refuse_plaintext_beyond_loopback
from efvfl.network.ops.status import StatusLine
from efvfl.network.predict.batcher import PredictionBatcher, ServiceSettings
from efvfl.network.predict.places import PlaceLimits
from efvfl.network.predict.renewed_tls import RenewedTls
from efvfl.network.predict.request_log import RequestLog
from efvfl.network.training.server_process import ServerProcess

if TYPE_CHECKING:
    from efvfl.network.ops.metrics import MetricsEndpoint, RequestObserver
    from efvfl.network.predict.http_app import AccessControl

log = logging.getLogger("efvfl")

TOKEN = 32  # least number of characters of a token


@dataclass(frozen=True)
class ServiceOptions:
    """Where a service listens, how clients prove who they are, and how it works."""

    listen: str  # HOST:PORT
    certs: Path  # the federation's certificates
    insecure: bool = False  # no TLS
    token_file: Path | None = None  # None: `token` in the participant's folder
    client_names: frozenset[str] = frozenset()  # in clients' certificates, in place of a token
    tls_cert: Path | None = None  # in place of the federation's server certificate
    tls_key: Path | None = None
    denied: DenyList | None = None  # certificates that may not ask
    settings: ServiceSettings = field(default_factory=ServiceSettings)


@dataclass(frozen=True)
class Endpoint:
    """An open port of a service, and who may use it."""

    access: AccessControl
    tls: RenewedTls | None
    listening: socket.socket
    settings: ServiceSettings


def prepare(options: ServiceOptions, folder: Path, stack: ExitStack) -> Endpoint:
    """Check the options and open the service's port; it is closed with the stack."""
    from efvfl.network.predict.http_app import AccessControl  # late: nothing else needs the packages of the service

    _check_settings(options.settings)
    certificate, key = _key_pair(options)
    if options.client_names:
        if options.insecure or options.token_file:
            raise ConfigError("--client-certs goes with neither --insecure nor --token-file: choose one.")
        access = AccessControl("", options.client_names, certificate, key, options.certs / "ca.crt", options.denied)
    else:
        path = options.token_file or folder / "token"
        access = AccessControl(read_token(path), frozenset(), certificate, key)
        log.info("clients send the token in %s", path)
    tls = RenewedTls(certificate, key, access.ca) if certificate and key else None
    listening = _listen(options.listen)
    stack.callback(listening.close)
    return Endpoint(access, tls, listening, options.settings)


def _check_settings(settings: ServiceSettings) -> None:
    if not 0 < settings.timeout < math.inf or settings.cache_rows < 1:
        raise ConfigError(
            f"expected --timeout and --cache-rows above 0, got {settings.timeout:g} and {settings.cache_rows}."
        )
    if settings.quota < 0 or settings.unknown < 0:
        raise ConfigError(
            f"expected --quota and --unknown-quota of at least 0, got {settings.quota} and {settings.unknown}: 0 means "
            "no limit."
        )
    if settings.warm and settings.source == "live":
        raise ConfigError("--warm fetches rows to cache them, and --source live caches none: leave one out.")


def _key_pair(options: ServiceOptions) -> tuple[Path | None, Path | None]:
    """Return the paths of certificate and key: the service's own, the federation's, or None without TLS."""
    if (options.tls_cert is None) != (options.tls_key is None):
        raise ConfigError("--tls-cert and --tls-key belong together: give both or none.")
    if options.insecure:
        if options.tls_cert:
            raise ConfigError("--insecure means no TLS, so --tls-cert has no effect: leave one out.")
        refuse_plaintext_beyond_loopback(options.listen)
        return None, None
    if options.tls_cert is None:
        return options.certs / f"{certificates.SERVER}.crt", options.certs / f"{certificates.SERVER}.key"
    return options.tls_cert, options.tls_key


def read_token(path: Path) -> str:
    """Return the token in a file that only its owner can read; make one if there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"cannot write the token {path}: {error}. Name another file with --token-file.") from error
    else:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(TOKEN) + "\n")
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token {path}: {error}. Delete the file to have a new one made.") from error
    if mode & 0o077:
        raise ConfigError(f"others than its owner can read the token {path} (mode {mode:03o}). Run `chmod 600` on it.")
    if len(token) < TOKEN or not token.isprintable() or " " in token:
        raise ConfigError(
            f"expected a token of at least {TOKEN} characters without spaces in {path}, got {len(token)} characters: "
            "delete the file to have one made."
        )
    return token


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {address!r} ({error}): expected HOST:PORT with a port that is free."
        ) from error


def _observer(metrics: MetricsEndpoint | None) -> RequestObserver | None:
    """Return what counts requests where somebody asks for the counts."""
    if metrics is None:
        return None
    from efvfl.network.ops.metrics import RequestMetrics

    return RequestMetrics(metrics.registry)


def run(endpoint: Endpoint, process: ServerProcess, status: StatusLine, metrics: MetricsEndpoint | None = None) -> None:
    """Answer clients until SIGTERM or Ctrl-C; parties stay, and dial again when the service is back."""
    from efvfl.network.predict import http_app, http_server

    settings, access = endpoint.settings, endpoint.access
    batcher = PredictionBatcher(process, settings)
    rows = sum(len(ids) for ids in process.data.trained_ids.values())
    if settings.warm and rows > settings.cache_rows:
        log.warning("--warm fetches %d rows of each party, but --cache-rows keeps only %d", rows, settings.cache_rows)
    request_log = RequestLog(process.folder)
    app = http_app.make_app(batcher, access, request_log, _observer(metrics))
    server = http_server.HttpServer(app, endpoint.tls, settings.timeout, PlaceLimits())

    def answer() -> None:
        batcher.run()
        server.should_exit = True

    thread = threading.Thread(target=answer, name="efvfl-predictions", daemon=True)
    host, port = endpoint.listening.getsockname()[:2]
    scheme = "https" if access.certificate else "http"
    shown = f"[{host}]" if ":" in host else host
    status.say(f"Predictions at {scheme}://{shown}:{port}/predict", service=port)
    thread.start()
    try:
        http_server.serve(server, endpoint.listening)
    finally:
        batcher.stop()
        thread.join()
        request_log.close()
    if batcher.error:
        raise batcher.error
