"""What every participant's process needs: a folder, credentials, an address, and a way to be stopped."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efvfl.config import run_file
from efvfl.config.run_file import RunConfig
from efvfl.network.identity import certificates
from efvfl.network.ops.audit_log import AuditLog
from efvfl.network.ops.status import Mode
from efvfl.network.workers.worker_group import WorkerGroup

log = logging.getLogger("efvfl")


@dataclass(frozen=True)
class SessionOptions:
    """How one participant takes part: its files, its address, and how it shows its status."""

    file: Path  # the federation file
    folder: Path | None = None  # None: runs/FILE/NAME
    address: str | None = None  # None: the file's
    certs: Path = Path("certs")
    insecure: bool = False  # no TLS
    status: Mode = "live"
    start_from: Path | None = None  # this participant's folder of a trained run, to start from

    def folder_of(self, name: str) -> Path:
        """Return the folder of a participant."""
        return self.folder or Path("runs") / self.file.stem / name

    def address_of(self, config: RunConfig) -> str:
        """Return the server's address, checked."""
        return run_file.check_address(self.address or config.network.address)

    def credentials_of(self, name: str) -> certificates.Credentials | None:
        """Load the certificate and key of a participant, and warn if they expire soon; None without TLS."""
        if self.insecure:
            return None
        credentials = certificates.load(self.certs, name)
        if warning := certificates.expiry_warning(credentials):
            log.warning("%s", warning)
        return credentials


@contextlib.contextmanager
def stop_on_signal(stopping: threading.Event) -> Iterator[None]:
    """Set the event at the first Ctrl-C or SIGTERM, so that the step is finished and saved; quit at the second."""

    def stop(number: int, frame: Any) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        log.warning("finishing this step and saving; once more quits at once")
        stopping.set()

    with handle_signals(stop):
        yield


@contextlib.contextmanager
def handle_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Call a handler at Ctrl-C and SIGTERM within this context."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def tick(shows: Iterable[Callable[[], None]], audit: AuditLog, workers: WorkerGroup | None = None) -> None:
    """Show the status, count socket bytes and send workers a sign of life; each does so only when it is due."""
    for show in shows:
        show()
    audit.tick()
    if workers:
        workers.idle()
