"""`efvfl serve-predictions`: predictions by id over HTTPS, at the label holder."""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import socket
import ssl
import stat
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from efvfl.errors import ConfigError
from efvfl.network.identity import certificates
from efvfl.network.links.grpc import refuse_plaintext_beyond_loopback
from efvfl.network.ops.status import StatusLine
from efvfl.network.predict.batcher import PredictionBatcher, ServiceSettings
from efvfl.network.training.server_process import ServerProcess

if TYPE_CHECKING:
    import uvicorn

    from efvfl.network.predict.web import Door

log = logging.getLogger("efvfl")

TOKEN = 32  # characters that a token has at least


@dataclass(frozen=True)
class Front:
    """Everything about a service that can be wrong before it starts."""

    door: Door
    listening: socket.socket
    settings: ServiceSettings


def prepare(options: argparse.Namespace, folder: Path, stack: ExitStack) -> Front:
    """Open the service's port, with all that guards it, or say what is wrong."""
    from efvfl.network.predict.web import Door  # late: nothing else needs the packages of the service

    settings = _settings(options)
    certificate, key = _key_pair(options)
    if options.client_certs:
        if options.insecure or options.token_file:
            raise ConfigError("--client-certs goes with neither --insecure nor --token-file: choose one.")
        door = Door("", frozenset(options.client_certs), certificate, key, options.certs / "ca.crt")
    else:
        path = options.token_file or folder / "token"
        door = Door(read_token(path), frozenset(), certificate, key)
        log.info("clients show the token in %s", path)
    listening = _listen(options.listen)
    stack.callback(listening.close)
    return Front(door, listening, settings)


def _settings(options: argparse.Namespace) -> ServiceSettings:
    if options.timeout <= 0 or options.cache_rows < 1:
        raise ConfigError(
            f"--timeout {options.timeout:g} and --cache-rows {options.cache_rows} came, more than 0 is expected."
        )
    if options.warm and options.source == "live":
        raise ConfigError("--warm fetches rows to keep them, and --source live keeps none: leave one out.")
    return ServiceSettings(options.timeout, options.source, options.cache_rows, options.warm, options.fallback)


def _key_pair(options: argparse.Namespace) -> tuple[Path | None, Path | None]:
    """Return where certificate and key are: the service's own, the federation's, or none."""
    if (options.tls_cert is None) != (options.tls_key is None):
        raise ConfigError("--tls-cert and --tls-key belong together: give both or none.")
    if options.insecure:
        if options.tls_cert:
            raise ConfigError("--insecure means no TLS, so --tls-cert has no effect: leave one out.")
        refuse_plaintext_beyond_loopback(options.listen)
        return None, None
    if options.tls_cert is None:
        return options.certs / f"{certificates.SERVER}.crt", options.certs / f"{certificates.SERVER}.key"
    try:
        # An empty password: a key that needs one is an error, and not a question at a terminal nobody looks at.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(options.tls_cert, options.tls_key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot use {options.tls_cert} with {options.tls_key}: {error}. PEM files without a password are expected."
        ) from error
    return options.tls_cert, options.tls_key


def read_token(path: Path) -> str:
    """Return the token in a file that its owner alone can read; make one if there is none."""
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
            f"{path} holds {len(token)} characters, a token of at least {TOKEN} without spaces is expected. Delete the "
            "file to have one made."
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
            f"cannot listen on {address!r} ({error}): HOST:PORT is expected, with a port that nobody else uses."
        ) from error


def run(front: Front, serving: ServerProcess, status: StatusLine) -> None:
    """Answer clients until SIGTERM or Ctrl-C; parties stay, and dial again when the service is back."""
    from efvfl.network.predict import web

    desk = PredictionBatcher(serving, front.settings)
    rows = sum(len(ids) for ids in serving.holding.trained_ids.values())
    if front.settings.warm and rows > front.settings.cache_rows:
        log.warning(
            "--warm fetches %d rows of each party, but --cache-rows keeps only %d", rows, desk.settings.cache_rows
        )
    thread = threading.Thread(target=desk.run, name="efvfl-desk", daemon=True)

    def ready(server: uvicorn.Server) -> None:
        desk.on_end = lambda: setattr(server, "should_exit", True)
        thread.start()

    host, port = front.listening.getsockname()[:2]
    scheme = "https" if front.door.certificate else "http"
    shown = f"[{host}]" if ":" in host else host
    status.say(f"Predictions at {scheme}://{shown}:{port}/predict", service=port)
    try:
        web.serve(web.make_app(desk, front.door), front.door, front.listening, front.settings.timeout, ready)
    finally:
        desk.stop()
        if thread.ident is not None:
            thread.join()
    if desk.error:
        raise desk.error
