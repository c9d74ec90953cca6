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
from efvfl.config.own_file import Participant
from efvfl.config.run_file import RunConfig
from efvfl.errors import ConfigError
from efvfl.network.identity import certificates
from efvfl.network.identity.deny_list import DenyList
from efvfl.network.ops.audit_log import AuditLog
from efvfl.network.ops.status import Mode
from efvfl.network.ops.terminal_log import LogForm
from efvfl.network.workers.worker_group import WorkerGroup

log = logging.getLogger("efvfl")


@dataclass(frozen=True)
class SessionOptions:
    """How one participant takes part: its files, its address, and how it shows its status."""

    file: Path  # the participant's own, or one for all
    folder: Path | None = None  # None: the own file's, or runs/FILE/NAME
    address: str | None = None  # None: the file's
    certs: Path = Path("certs")
    insecure: bool = False  # no TLS
    status: Mode = "live"
    log: LogForm = "auto"
    metrics: str = ""  # where Prometheus asks, HOST:PORT; empty: nowhere
    start_from: Path | None = None  # this participant's folder of a trained run, to start from
    participant: Participant | None = None  # whose own file it is; None: one file for all

    def folder_of(self, name: str) -> Path:
        """Return the folder of a participant."""
        if self.folder is None and self.participant:
            return self.participant.folder
        return self.folder or Path("runs") / self.file.stem / name

    def party(self, name: str | None) -> str:
        """Return which party this is: what its own file says, or this name; empty for the label holder."""
        if self.participant is None:
            return name or ""
        if name not in (None, self.participant.name):
            raise ConfigError(f"{self.file} is the own file of {self.participant.name!r}: leave out --party {name}.")
        return "" if self.participant.serves else self.participant.name

    def deny_list(self) -> DenyList:
        """Return the certificates that the server refuses."""
        return DenyList(self.participant.federation if self.participant else self.file)

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
