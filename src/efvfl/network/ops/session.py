"""What all commands of a federation need: a folder, an identity, and a way to be stopped."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from efvfl.network.identity import certificates
from efvfl.network.ops.audit_log import AuditLog
from efvfl.network.workers.worker_group import WorkerGroup

log = logging.getLogger("efvfl")


def folder_of(options: argparse.Namespace, name: str) -> Path:
    """Return the folder of a participant."""
    chosen: Path | None = options.dir
    return chosen or Path("runs") / options.file.stem / name


def identity_of(options: argparse.Namespace, name: str) -> certificates.Credentials | None:
    """Load the certificate of a participant, or none without TLS."""
    if options.insecure:
        return None
    identity = certificates.load(options.certs, name)
    if warning := certificates.expiry_warning(identity):
        log.warning("%s", warning)
    return identity


@contextlib.contextmanager
def stops(stopping: threading.Event) -> Iterator[None]:
    """Ctrl-C or SIGTERM finishes the step and saves; a second one quits."""

    def ask(number: int, frame: Any) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        log.warning("finishing this step and saving; once more quits at once")
        stopping.set()

    with signals(ask):
        yield


@contextlib.contextmanager
def signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Hand Ctrl-C and SIGTERM to a handler within this context."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def tick(show: Callable[[], None], written: AuditLog, crew: WorkerGroup | None = None) -> None:
    """Show what is going on, count what went over the sockets, calm the workers; each knows when it is time."""
    show()
    written.tick()
    if crew:
        crew.idle()
