"""`efvfl doctor --listen`: the label holder waits on its own port for the doctors of the parties."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from efvfl.errors import EfvflError, printable
from efvfl.network.doctor.line_probe import PROTOCOL, SECONDS, WELCOME, Measured, Talk, answer
from efvfl.network.identity.certificates import Credentials, certain_name
from efvfl.network.links.line_errors import reason_of
from efvfl.network.links.tls import tls_context
from efvfl.util.nested import differences

AT_ONCE: Final = 8  # visits; more are turned away
TOLD: Final = 20  # visitors that are shown, who were refused; strangers can come as often as they like
HANDSHAKE: Final = 5.0  # seconds


@dataclass(frozen=True)
class Visit:
    """A party whose doctor was here."""

    name: str
    host: str
    measured: Measured
    differences: tuple[str, ...]  # in the shared settings


@dataclass
class Waiting:
    """Waits for the parties' doctors."""

    credentials: Credentials
    names: Sequence[str]  # who may come
    shared: dict[str, Any]  # the settings that all must have alike
    tell: Callable[[str], None] = lambda text: None  # hears of everyone who comes
    clock: Callable[[], float] = time.time
    visits: dict[str, Visit] = field(default_factory=dict)  # by name
    refused: int = 0
    _room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(AT_ONCE))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, listener: socket.socket, seconds: float) -> None:
        """Wait until everyone was here, or the time is over."""
        context = tls_context(self.credentials, [PROTOCOL], server=True)
        ends = time.monotonic() + seconds
        while len(self.visits) < len(self.names) and (left := ends - time.monotonic()) > 0:
            listener.settimeout(min(left, 0.2))
            try:
                link, (host, *_) = listener.accept()
            except TimeoutError:
                continue
            if not self._room.acquire(blocking=False):
                link.close()
                continue
            threading.Thread(target=self._receive, args=(context, link, host), daemon=True, name="efvfl-visit").start()
        for _ in range(AT_ONCE):  # those who are here may end what they began
            self._room.acquire(timeout=SECONDS)

    def _receive(self, context: ssl.SSLContext, link: socket.socket, host: str) -> None:
        try:
            link.settimeout(HANDSHAKE)
            with link, context.wrap_socket(link, server_side=True) as secure:
                if secure.selected_alpn_protocol() != PROTOCOL:
                    self._refuse(host, "it wants to train, and there is a doctor here: `efvfl serve` does that")
                    return
                self._welcome(secure, host)
        except ssl.SSLError as error:
            self._refuse(host, reason_of(error))
        except (OSError, ValueError, EfvflError) as error:
            self._refuse(host, printable(str(error)))
        finally:
            self._room.release()

    def _welcome(self, secure: ssl.SSLSocket, host: str) -> None:
        name = certain_name(secure.getpeercert()) or ""
        if name not in self.names:
            self._refuse(host, f"{name!r} is not a party of this federation; they are {', '.join(self.names)}")
            return
        talk = Talk(secure)
        talk.send(WELCOME)
        theirs = talk.take_table().get("shared")
        found = islice(differences(self.shared, theirs), 10)
        texts = [f"{where}: the server has {ours!r:.80}, {name} has {other!r:.80}" for where, ours, other in found]
        talk.send_table({"time": self.clock(), "differences": texts})
        visit = Visit(name, host, answer(talk), tuple(map(printable, texts)))
        with self._lock:
            self.visits[name] = visit
            self.tell(f"{name} was here, from {host}.")

    def _refuse(self, host: str, why: str) -> None:
        with self._lock:
            self.refused += 1
            if self.refused <= TOLD:
                self.tell(f"refused a connection from {host}: {why}.")
